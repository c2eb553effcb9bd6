"""Turning what a failed process printed into the line that a report shows."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
ERROR = re.compile(r"[\w.]*(Error|Exception|Timeout|Exit)\w*(:|$)")


def last_line(complaint: str) -> str:
    """What went wrong, in a line: the error that ends a traceback, or else the last thing said."""
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    errors = [line for line in lines if ERROR.match(line)]
    return (errors or lines or ["it said nothing"])[-1].removeprefix("bench.peer.BenchError: ")[:300]


def without_paths(text: str) -> str:
    """The text without folders of this machine: reports are made to be shown around."""
    for folder, name in ((ROOT, "."), (Path.home(), "~"), (Path(tempfile.gettempdir()), "<tmp>")):
        text = text.replace(str(folder), name)
    return text
