"""Reading what a command is given in a file or through a pipe."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer


def read_bytes(file: str) -> bytes:
    """A file, or standard input for `-`."""
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"cannot read {file}: {error.strerror}") from None


def read_payload(text: str | None, file: str | None) -> Any:
    """A payload in JSON, from the text itself or from a file; None where there is neither."""
    import msgspec

    if text is not None and file is not None:
        raise typer.BadParameter("give --payload or --payload-file, not both")
    if text is None and file is None:
        return None
    source = "--payload" if file is None else file
    raw = text.encode() if text not in (None, "-") and text is not None else read_bytes(file or "-")
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        raise typer.BadParameter(f"the payload is not JSON: {error}", param_hint=source) from None
