"""Reading what a command is given in a file or through a pipe."""

from __future__ import annotations

import sys
from pathlib import Path

import typer


def read_bytes(file: str) -> bytes:
    """A file, or standard input for `-`."""
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"cannot read {file}: {error.strerror}") from None
