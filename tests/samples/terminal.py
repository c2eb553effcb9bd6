"""Commands as a person gives them: at a terminal, in a shell, with an answer to what is asked."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import re
import select
import shlex
import signal
import struct
import sys
import termios
import time
import traceback
from typing import NamedTuple, NoReturn

from remuda.cli import main

ROWS, COLUMNS = 50, 160
AT_MOST_S = 60.0
# A command that goes on until it is stopped has shown what it shows when it has said nothing for so long.
QUIET_S = 0.5

# What goes on until it is stopped; what others need to be there goes on until the document ends.
_GOES_ON = re.compile(r"remuda (?:worker |watch (?!.*--count)|events (?!.*--no-follow|.*--count))")
_IN_BACKGROUND = re.compile(
    r"remuda devices (?:run\b(?!.*--check)|simulate\b(?!.*--virtual))|celery .* worker"
)
# What needs no shell; and what starts processes of its own, or stays, and gets one in any case.
_PLAIN = re.compile(r"remuda [^|<>;&$`\\]*")
_STAYS = re.compile(r"remuda (?:worker|devices run|devices simulate|lake)\b")
_QUESTION = re.compile(r"\[y/N\]: $")


class Exchange(NamedTuple):
    """A command, and what the sample shows of its answer."""

    command: str
    shown: str


def exchanges_of(source: str, *, is_script: bool) -> list[Exchange]:
    """The commands of a sample: what has a prompt, with lines that a `\\` goes on in; or all of a script."""
    if is_script:
        return [Exchange(source, "")]
    parts = re.split(r"^\$ ((?:.*\\\n)*.*)\n", source, flags=re.MULTILINE)
    assert parts[0] == "", f"a session that does not begin with a prompt: {source}"
    return [Exchange(command, shown) for command, shown in zip(parts[1::2], parts[2::2], strict=True)]


class Terminal:
    """A shell's terminal: what is exported stays, what runs in the background ends with it.

    With `quick`, `remuda` runs in a copy of this process, which should have no threads.
    """

    def __init__(self, *, quick: bool = False, **exports: str) -> None:
        self._quick = quick
        self._exports = {"NO_COLOR": "1", "TERM": "xterm", "COLUMNS": str(COLUMNS), **exports}
        self._background: list[_Started] = []

    def give(self, command: str, shown: str = "") -> str:
        """Run it, and say what it printed. It must succeed, unless an error is what is shown."""
        words = shlex.split(command, comments=True)
        if words[0] == "export":
            self._exports.update(word.split("=", 1) for word in words[1:])
            return ""
        started = _Started(command, {**os.environ, **self._exports}, quick=self._quick)
        if _IN_BACKGROUND.search(command):
            self._background.append(started)
            return started.until_quiet()
        said = ""
        if _GOES_ON.search(command):
            said = started.until_quiet()
            started.interrupt()
        said += started.to_the_end()
        assert (started.code == 0) == ("remuda: " not in shown), f"$ {command}\n{said}\nended: {started.code}"
        return said

    def close(self) -> None:
        for started in self._background:
            started.interrupt()
        for started in self._background:
            said = started.to_the_end()
            # What the programs of others make of Ctrl-C is theirs.
            assert started.code == 0 or not started.command.startswith("remuda "), said


class _Started:
    """A command at a terminal of its own."""

    code: int | None = None

    def __init__(self, command: str, environment: dict[str, str], *, quick: bool) -> None:
        self.command = command
        self._pid, self._master = pty.fork()
        if self._pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
            if quick and _PLAIN.fullmatch(command) and not _STAYS.search(command):
                _run_remuda(command, environment)
            os.execvpe("bash", ["bash", "-c", command], environment)

    def interrupt(self) -> None:
        os.killpg(self._pid, signal.SIGINT)

    def until_quiet(self) -> str:
        said = b""
        until = time.monotonic() + AT_MOST_S
        while time.monotonic() < until:
            if not select.select([self._master], [], [], QUIET_S if said else AT_MOST_S)[0]:
                return said.decode()
            said += (part := self._read())
            if not part:
                break
        raise AssertionError(f"it ended by itself, or was never quiet:\n{said.decode()}")

    def to_the_end(self) -> str:
        said = b""
        until = time.monotonic() + AT_MOST_S
        while (left := until - time.monotonic()) > 0:
            if select.select([self._master], [], [], left)[0]:
                said += (part := self._read())
                if not part:
                    os.close(self._master)
                    self.code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
                    return said.decode()
                if _QUESTION.search(said.decode(errors="replace")):
                    os.write(self._master, b"y\n")
        os.killpg(self._pid, signal.SIGKILL)
        raise AssertionError(f"it did not end:\n{said.decode()}")

    def _read(self) -> bytes:
        try:
            return os.read(self._master, 65_536)
        except OSError as error:  # Linux says so when the last process has closed the other end
            if error.errno == errno.EIO:
                return b""
            raise


def _run_remuda(command: str, environment: dict[str, str]) -> NoReturn:
    """What the script `remuda` does, where its packages are there already: they are most of its time."""
    code = 1
    try:
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = shlex.split(command, comments=True)
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(at, mode) for at, mode in enumerate(("r", "w", "w")))
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter would
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # nothing that the tests hold is to be closed here


# -- what is shown, and what was said

_VARIES = [
    (r"\r?\n?[^\n]*(?:━|-:--:--|⠋)[^\n]*", ""),  # progress, which is gone from the screen in the end
    (r"\x1b\[[0-9;?]*[A-Za-z]", ""),
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:\+00:00|Z)?", "<moment>"),
    (r"\b\d\d:\d\d:\d\d\b", "<moment>"),
    (r"\b(?:less than )?\d+(?:\.\d+)? (?:ms|s|min|h|d)\b(?: \d+ (?:ms|s|min|h)\b)?", "<time>"),
    (r"(?<==)\d+\.\d+s\b", "<time>"),
    (r"\bjust now\b", "<time> ago"),
    (r"\b(?:worker|client|engine)-[\w.-]+-\d+-[0-9a-f]{6}\b", "<who>"),
    (r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "<uuid>"),
    (r"(?<=127\.0\.0\.1:)\d+", "<port>"),
    (r"\[\d+\]", "[<process>]"),
    (r"\b[\d,]+(?= jobs/s)", "<rate>"),
    (r"\b(sqlite|redis|valkey|postgresql|Python) \d+(?:\.\d+)+", r"\1 <version>"),
    (r'(?<=File ")[^"]*/(?=app\.py)', "<folder>/"),
    (r"[ \t]+", " "),
]
_ID = re.compile(r"\b[0-9A-HJKMNP-TV-Z]{26}\b")
_CUT_ID = re.compile(r"\b0[0-9A-HJKMNP-TV-Z]+…")


def compare(shown: str, said: str, ids: dict[str, str]) -> None:
    """Whether an answer is the one that is shown, but for what cannot be the same.

    A line of `…` stands for any lines, and at the end of a line for its rest. An id that is shown for the
    first time is noted in `ids`, with the one in its place.
    """
    known = _matched(_lines(shown), _lines(said), ids)
    assert known is not None, f"shown is\n{shown}\nand it says\n{said}"
    ids.update(known)


def _matched(wanted: list[str], found: list[str], ids: dict[str, str]) -> dict[str, str] | None:
    """The ids after a match of all lines, or None if there is none."""
    if not wanted:
        return None if found else ids
    if wanted[0] == "…":
        tails = (_matched(wanted[1:], found[start:], ids) for start in range(len(found) + 1))
        return next((tail for tail in tails if tail is not None), None)
    known = _fits(wanted[0], found[0], ids) if found else None
    return None if known is None else _matched(wanted[1:], found[1:], known)


def _lines(text: str) -> list[str]:
    for pattern, name in _VARIES:
        text = re.sub(pattern, name, text)
    return [line.strip() for line in text.replace("\r", "").splitlines() if line.strip()]


def _fits(wanted: str, found: str, ids: dict[str, str]) -> dict[str, str] | None:
    """The ids after a match of one line."""
    new: list[str] = []

    def as_pattern(part: str) -> str:
        if not _ID.fullmatch(part):
            return re.escape(part).replace("…", ".*")
        if part in ids:
            return ids[part]
        new.append(part)
        return f"({_ID.pattern})"

    parts = re.split(f"({_ID.pattern})", wanted)
    match = re.fullmatch("".join(map(as_pattern, parts)), found)
    return None if match is None else {**ids, **dict(zip(new, match.groups(), strict=True))}


def with_known_ids(command: str, ids: dict[str, str], printed: str) -> str:
    """The command with ids that exist: of what was shown before; a cut one is the last that was printed."""
    command = _ID.sub(lambda found: ids[found[0]], command)
    return _CUT_ID.sub(lambda _: _ID.findall(printed)[-1], command)
