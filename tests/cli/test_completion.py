"""Completion in a shell: commands, options, and the names of the queues that there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from remuda import NewJob
from tests.cli.conftest import Remuda


def complete(remuda: Remuda, words: str, **env: str) -> list[str]:
    """What bash would offer for the last of the words."""
    ended = remuda.run(
        _REMUDA_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=str(len(words.split(" ")) - 1), **env
    )
    assert ended.err == ""
    return ended.out.split()


def test_the_names_of_queues_are_completed(remuda: Remuda) -> None:
    for name in ("emails", "errands", "other"):
        remuda.add(NewJob("good"), queue=name)
    assert complete(remuda, "remuda inspect ") == ["emails", "errands", "other"]
    assert complete(remuda, "remuda dlq replay em") == ["emails"]


def test_commands_are_completed(on_sqlite: Remuda) -> None:
    assert complete(on_sqlite, "remuda dl") == ["dlq"]
    assert complete(on_sqlite, "remuda dlq p") == ["peek"]


@pytest.mark.parametrize(
    "url", ["", "sqlite:////nowhere/at/all.db", "postgresql://127.0.0.1:1/nothing", "??"]
)
def test_without_a_store_nothing_is_completed_and_nothing_made(
    on_sqlite: Remuda, url: str, tmp_path: Path
) -> None:
    before = sorted(tmp_path.iterdir())
    assert complete(on_sqlite, "remuda inspect ", REMUDA_URL=url) == []
    assert [each for each in sorted(tmp_path.iterdir()) if each.suffix != ".err"] == before
