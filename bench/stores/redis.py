"""Redis: the newest server at hand, private, with the persistence that people run, emptied for each run.

The programs are those that REMUDA_TEST_REDIS_SERVERS names (paths between colons, commas or spaces) and
the machine's own `redis-server`; the newest is taken.  Its version is among the facts, for there are
peers that need a new one.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAMED_SERVERS = "REMUDA_TEST_REDIS_SERVERS"
VERSION = re.compile(r"(?P<maker>Redis|Valkey) server v=(?P<version>[\d.]+)")
PATIENCE_SECONDS = 30

SETTINGS = {
    # Every change goes to the append-only file, which reaches the disk once a second.
    "appendonly": "yes",
    "appendfsync": "everysec",
    # Neither snapshots nor rewrites in the middle of a run: they would hit one peer and not the next.
    "save": "",
    "auto-aof-rewrite-percentage": "0",
}
REPORTED = ("appendonly", "appendfsync", "save", "auto-aof-rewrite-percentage", "io-threads", "maxmemory")


class Server:
    """A running server; ``facts`` are its version and the settings that weigh on the figures."""

    latency_rate = 1_000

    def __init__(self, client: Any, port: int) -> None:
        self._client = client
        self._url = f"redis://127.0.0.1:{port}/0"
        about = client.info("server")
        settings = client.config_get(*REPORTED)
        self.facts = {
            "server": about.get("server_name", "redis"),
            "version": about.get("valkey_version") or about["redis_version"],
            **{name: settings[name] or "none" for name in REPORTED},
            "connected by": "TCP on the loopback",
        }

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """The URL of the emptied server; scripts, functions and the append-only file start anew as well."""
        self._client.flushall()
        self._client.script_flush()
        if int(self.facts["version"].split(".")[0]) >= 7:  # functions came with it
            self._client.function_flush()
        self._client.bgrewriteaof()
        _await(self._is_quiet, "the append-only file is rewritten")
        yield self._url

    def _is_quiet(self) -> bool:
        said = self._client.info("persistence")
        return not (said["aof_rewrite_in_progress"] or said["aof_rewrite_scheduled"])


@contextmanager
def serve(directory: Path) -> Iterator[Server]:
    """A server whose data live in ``directory``, stopped afterwards."""
    with run(newest_program(), directory) as server:
        yield server


def newest_program() -> Path:
    """The Redis server with the highest version, of those that are named and the machine's own."""
    named = [Path(path) for path in re.split(r"[:,\s]+", os.environ.get(NAMED_SERVERS, "")) if path]
    own = shutil.which("redis-server")
    versions = {program: version_of(program) for program in [*named, *([Path(own)] if own else [])]}
    found = {program: version for program, (maker, version) in versions.items() if maker == "Redis"}
    if not found:
        raise RuntimeError(f"Redis needs a redis-server on the path, or {NAMED_SERVERS} that names one")
    return max(found, key=lambda program: found[program])


def version_of(program: Path) -> tuple[str, tuple[int, ...]]:
    """Who made it, and which version it is."""
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise RuntimeError(f"{program} does not run: {error}") from error
    if not (known := VERSION.match(said)):
        raise RuntimeError(f"{program} is no Redis or Valkey server: {said!r}")
    return known["maker"], tuple(map(int, known["version"].split(".")))


@contextmanager
def run(program: Path, directory: Path) -> Iterator[Server]:
    """That program as a private server with the settings above.  Valkey's file uses it too."""
    try:
        import redis
    except ImportError as missing:
        raise RuntimeError("Redis needs: pip install redis (in the extra `dev`)") from missing
    port = _free_port()
    lines = {"bind": "127.0.0.1", "port": str(port), "dir": str(directory), "daemonize": "no", **SETTINGS}
    configuration = directory / "server.conf"
    configuration.write_text("".join(f'{name} "{value}"\n' for name, value in lines.items()))
    with subprocess.Popen([program, configuration], stdout=subprocess.DEVNULL) as process:
        try:
            with redis.Redis("127.0.0.1", port, decode_responses=True) as client:
                _await(lambda: _answers(process, client), f"{program.name} answers")
                yield Server(client, port)
        finally:
            process.terminate()


def _answers(process: subprocess.Popen[bytes], client: Any) -> bool:
    if process.poll() is not None:
        raise RuntimeError(f"the server ended at once, with exit code {process.returncode}")
    import redis

    with suppress(redis.ConnectionError):
        return bool(client.ping())
    return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def _await(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{PATIENCE_SECONDS} s have passed without this: {what}")
        time.sleep(0.02)
