"""What `doctor` finds: good or bad, and what to do about it."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Level(StrEnum):
    """How bad it is. A `problem` makes `doctor` fail."""

    OK = "ok"
    UNKNOWN = "unknown"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(NamedTuple):
    """One thing that was looked at."""

    level: Level
    check: str
    message: str
    suggestion: str | None = None


def ok(check: str, message: str) -> Finding:
    """As it should be."""
    return Finding(Level.OK, check, message)


def unknown(
    check: str, message: str, suggestion: str = "let this user read the server's statistics and settings"
) -> Finding:
    """It could not be looked at."""
    return Finding(Level.UNKNOWN, check, message, suggestion)


def warning(check: str, message: str, suggestion: str) -> Finding:
    """It works, but slowly or with a risk."""
    return Finding(Level.WARNING, check, message, suggestion)


def problem(check: str, message: str, suggestion: str) -> Finding:
    """It does not work."""
    return Finding(Level.PROBLEM, check, message, suggestion)
