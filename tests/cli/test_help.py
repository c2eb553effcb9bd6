"""The help: enough to use a command with nothing else to read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from remuda.cli.app import app

# What removes, or cannot be called back, asks before; all others do nothing that has no way back.
ASKS = {
    ("purge",),
    ("obliterate",),
    ("jobs", "cancel"),
    ("dlq", "replay"),
    ("dlq", "drop"),
    ("dlq", "export"),  # over a file that is there
    ("repeatable", "remove"),
    ("devices", "cancel"),
    ("devices", "simulate"),  # as `dlq export`
    ("lake", "replay"),
    ("lake", "upkeep"),
    ("lake", "campaign", "run"),
    ("lake", "campaign", "abort"),
}


def commands(group: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        yield (*path, name), command
        if hasattr(command, "commands"):
            yield from commands(command, *path, name)


ROOT = typer.main.get_command(app)
ALL = dict(commands(ROOT))
GROUPS = {(), *(path for path, command in ALL.items() if hasattr(command, "commands"))}
LEAVES = {path: command for path, command in ALL.items() if path not in GROUPS}


def options(command: Any) -> set[str]:
    return {name for each in command.params for name in each.opts}


def test_every_command_can_print_json() -> None:
    assert len(LEAVES) > 55
    assert [path for path, command in LEAVES.items() if "--json" not in options(command)] == []


def test_what_removes_asks() -> None:
    assert {path for path, command in LEAVES.items() if "--yes" in options(command)} == ASKS


@pytest.mark.parametrize("path", sorted(GROUPS), ids=" ".join)
def test_what_a_command_does_fits_into_a_line(path: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "80"}).stdout
    listed = shown.partition("Commands:")[2]
    assert listed
    assert [line for line in listed.splitlines() if line.endswith("...")] == []


def test_every_option_and_argument_is_explained() -> None:
    unexplained = [
        (*path, each.name)
        for path, command in LEAVES.items()
        for each in command.params
        if not getattr(each, "hidden", False) and not getattr(each, "help", None)
    ]
    assert unexplained == []
