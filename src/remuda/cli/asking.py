"""Asking before something that cannot be undone."""

from __future__ import annotations

import sys

import typer

from remuda.cli.exits import ExitCode, fail


def confirm(question: str, *, yes: bool) -> None:
    """Go on if the answer is yes; otherwise end, with nothing changed."""
    if yes:
        return
    if not sys.stdin.isatty():
        fail(
            f"{question} Nobody is there to be asked: nothing was changed. Say --yes", ExitCode.NOT_CONFIRMED
        )
    if not typer.confirm(question, err=True):
        fail("not confirmed: nothing was changed", ExitCode.NOT_CONFIRMED)
