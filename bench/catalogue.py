"""Which peers and stores there are: found by their files, described by the files' own metadata."""

from __future__ import annotations

import importlib
import re
import tomllib
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

BENCH = Path(__file__).parent
ROOT = BENCH.parent
METADATA = re.compile(r"^# /// script\n(?P<lines>(?:#.*\n)*?)# ///$", re.MULTILINE)


@dataclass(frozen=True)
class PeerFile:
    """A peer as its file's head describes it."""

    name: str
    """The file's, with dashes; how it is named on the command line and in reports."""
    module: str
    stores: tuple[str, ...]
    bare: bool = False
    """A driver used directly: the limit to measure queues against."""
    variants: dict[str, list[str]] = field(default_factory=dict)
    """Further settings worth a row of their own, and the measures they are worth it in."""
    dependencies: tuple[str, ...] = ()
    editable: str = ""
    """What of this repository to install, such as ``.[postgres]``."""

    def variants_in(self, measure: str) -> list[str]:
        """The plain peer first, then the variants that ``measure`` is run with."""
        return ["", *(variant for variant, measures in self.variants.items() if measure in measures)]


class Server(Protocol):
    """What a store's ``serve`` yields."""

    facts: dict[str, str]

    def fresh(self) -> AbstractContextManager[str]:
        """The URL of an empty database, removed afterwards."""


def parse_peer(name: str, source: str) -> PeerFile:
    """Read the inline script metadata at the head of a peer's file."""
    if not (block := METADATA.search(source)):
        raise ValueError(f"bench/peers/{name}.py has no metadata: '# /// script' to '# ///'")
    lines = block["lines"].splitlines()
    script: dict[str, Any] = tomllib.loads("\n".join(line.removeprefix("#").strip() for line in lines))
    bench = script["tool"]["bench"]
    return PeerFile(
        name=name.replace("_", "-"),
        module=f"bench.peers.{name}",
        stores=tuple(bench.pop("stores")),
        dependencies=tuple(script.get("dependencies", ())),
        **bench,
    )


def peers() -> list[PeerFile]:
    """Every peer, Remuda first and the bare drivers last."""
    files = (file for file in (BENCH / "peers").glob("*.py") if file.stem != "__init__")
    found = [parse_peer(file.stem, file.read_text()) for file in files]
    return sorted(found, key=lambda peer: (peer.bare, peer.name != "remuda", peer.name))


def stores() -> list[str]:
    """The name of every store."""
    return sorted(file.stem for file in (BENCH / "stores").glob("*.py") if file.stem != "__init__")


def serve(store: str, directory: Path) -> AbstractContextManager[Server]:
    """Start the store's server with its data in ``directory``; it stops with the context."""
    module = importlib.import_module(f"bench.stores.{store}")
    context: AbstractContextManager[Server] = module.serve(directory)
    return context
