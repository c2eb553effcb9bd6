"""What a person sees on a terminal, what goes into a pipe, and what the command loads to say it."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import termios
import time

import pytest

from remuda import NewJob
from remuda.cli import output
from remuda.cli.output import Cell, Column
from tests.cli.conftest import PACKAGE_HOME, PATIENCE_S, Remuda

BOXES = re.compile("[\u2500-\u259f]")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def _on_terminal(remuda: Remuda, *arguments: str, answer: str = "", columns: int = 100) -> tuple[int, str]:
    """Run the command on a terminal of its own; its exit code and all that was on the screen."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, columns))
    environment = {
        **os.environ,
        "PYTHONPATH": PACKAGE_HOME,
        "REMUDA_URL": remuda.url,
        "TERM": "xterm-256color",
    }
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        environment.pop(name, None)
    process = subprocess.Popen(
        [sys.executable, "-m", "remuda.cli", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
        start_new_session=True,
    )
    os.close(theirs)
    seen = b""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if select.select([ours], [], [], 0.1)[0]:
            try:
                part = os.read(ours, 65536)
            except OSError:
                break
            seen += part
            if answer and b"[y/N]" in seen:
                os.write(ours, answer.encode())
                answer = ""
    code = process.wait(PATIENCE_S)
    os.close(ours)
    return code, seen.decode().replace("\r\n", "\n")


@pytest.fixture
def with_dead_letters(on_sqlite: Remuda) -> Remuda:
    on_sqlite.work([*(NewJob("fail", {"text": "x" * 200}) for _ in range(12)), NewJob("bad")])
    return on_sqlite


def test_a_terminal_gets_colours_and_bars(with_dead_letters: Remuda) -> None:
    code, seen = _on_terminal(with_dead_letters, "dlq", "peek", "emails", "--limit", "2")
    assert code == 0
    assert "\x1b[31m█" in seen
    plain = ESCAPES.sub("", seen)
    assert "retries_exhausted  12  " + "█" * 30 in plain
    assert all(len(line) <= 100 for line in plain.splitlines())


def test_a_pipe_gets_plain_whole_lines(with_dead_letters: Remuda) -> None:
    for command in (
        ("dlq", "peek", "emails"),
        ("inspect",),
        ("inspect", "emails"),
        ("jobs", "list", "emails"),
        ("doctor",),
    ):
        ended = with_dead_letters(*command)
        assert ended.code == 0
        assert not ESCAPES.search(ended.out + ended.err)
        assert not BOXES.search(ended.out + ended.err)
    assert "x" * 200 in with_dead_letters.run("dlq", "peek", "emails").out


def test_help_in_a_pipe_has_no_frames(on_sqlite: Remuda) -> None:
    told = on_sqlite.run("dlq", "replay", "--help").out
    assert "Put dead letters back" in told
    assert not BOXES.search(told)


def test_a_person_is_asked(with_dead_letters: Remuda) -> None:
    code, seen = _on_terminal(with_dead_letters, "dlq", "drop", "emails", answer="n\n")
    assert code == 6
    assert "Drop 13 dead letters of emails: 12 retries_exhausted, 1 unrecoverable for good? [y/N]" in seen
    assert "not confirmed: nothing was changed" in seen
    assert with_dead_letters.count("failed") == 13
    code, seen = _on_terminal(with_dead_letters, "dlq", "replay", "emails", answer="y\n")
    assert (code, with_dead_letters.count("failed")) == (0, 0)


def test_watch_draws_in_place(with_dead_letters: Remuda) -> None:
    code, seen = _on_terminal(with_dead_letters, "watch", "emails", "-i", "50ms", "-n", "3")
    assert code == 0
    assert "\x1b[2K" in seen  # a line drawn anew
    assert "dead letters by reason" in seen


def test_a_payload_cannot_steer_the_terminal(on_sqlite: Remuda) -> None:
    (job_id,) = on_sqlite.add(NewJob("bad", "\x1b[2J\x07 gone"))
    on_sqlite.work()
    for command in (("dlq", "peek", "emails"), ("jobs", "show", "emails", job_id)):
        _, seen = _on_terminal(on_sqlite, *command)
        assert "\x1b[2J" not in seen
        assert "\x07" not in seen


def test_a_reader_that_has_seen_enough_is_no_error_worth_a_trace(with_dead_letters: Remuda) -> None:
    started = with_dead_letters.start("dlq", "export", "emails")
    assert started.process.stdout is not None
    started.process.stdout.close()
    started.process.wait(PATIENCE_S)
    assert "Traceback" not in started.log()


def test_a_table_keeps_narrow_terminals_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    columns = (Column("id"), Column("number", right=True), Column("told", flexible=True))
    lines = output.rich_table(columns, [("a" * 20, "1", Cell("long " * 20, "red"))])
    assert [line.plain for line in lines] == [
        "id                    number",
        "aaaaaaaaaaaaaaaaaaaa       1",
        "    long long long long long long long …",
    ]
    monkeypatch.setenv("COLUMNS", "80")
    lines = output.rich_table(columns, [("a" * 20, "1", Cell("long " * 20, "red"))])
    assert len(lines) == 2
    assert all(len(line.plain) <= 80 for line in lines)


def test_wide_characters_keep_their_columns() -> None:
    assert list(output.plain_table((Column("a"), Column("b")), [("日本", "x"), ("abcd", "y")])) == [
        "A     B",
        "日本  x",
        "abcd  y",
    ]


def test_control_characters_are_spelt_out() -> None:
    assert output.printable("a\nb\x1b[31mc\u202e") == "a b\\x1b[31mc\\u202e"
    assert output.printable_lines("a\n\tb\x07") == "a\n    b\\x07"


def test_the_help_loads_nothing_heavy() -> None:
    heavy = {"sqlalchemy", "rich", "asyncio", "uvloop", "remuda.queue", "remuda.worker"}
    program = f"import sys, remuda.cli.app; found = {heavy} & set(sys.modules); sys.exit(found or 0)"
    found = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": PACKAGE_HOME},
        stderr=subprocess.PIPE,
    )
    assert found.returncode == 0, found.stderr
