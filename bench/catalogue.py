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
    native: bool = False
    """Its engine is not written in Python."""
    without_acks: tuple[str, ...] = ()
    """The variants ("" is the plain peer) that lose a job whose worker dies."""
    needs: dict[str, str] = field(default_factory=dict)
    """The least version of a store's server, where any will not do."""
    variants: dict[str, list[str]] = field(default_factory=dict)
    """Further settings worth a row of their own, and the measures they are worth it in."""
    dependencies: tuple[str, ...] = ()
    editable: str = ""
    """What of this repository to install, such as ``.[postgres]``."""

    def unmet_on(self, store: str, facts: dict[str, str]) -> str:
        """Why it cannot run on a store's server; nothing when it can."""
        least = self.needs.get(store)
        if least is None or _numbers(facts["version"]) >= _numbers(least):
            return ""
        return f"needs {store} {least} or newer, and this is {facts['version']}"

    def variants_in(self, measure: str) -> list[str]:
        """The plain peer first, then the variants that ``measure`` is run with."""
        return ["", *(variant for variant, measures in self.variants.items() if measure in measures)]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


class Server(Protocol):
    """What a store's ``serve`` yields."""

    facts: dict[str, str]
    latency_rate: int
    """Jobs added a second for ``latency``, unless the command line says another number."""

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
        without_acks=tuple(bench.pop("without_acks", ())),
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
