"""What a server says of itself, and which of the newer abilities it therefore has."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from remuda.errors import StoreError
from remuda.stores.redis.refusals import GarbledError

OLDEST = {"redis": (6, 2), "valkey": (7, 2)}

# Redis only: no Valkey has them so far.
_ACKDEL_SINCE = (8, 2)
_READ_CLAIM_SINCE = (8, 4)
_FLAGS_SINCE = (7, 0)


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """The server behind a store, as it was when the store was opened."""

    kind: Literal["redis", "valkey"]
    version: tuple[int, ...]
    mode: Literal["single", "sentinel", "cluster"]
    has_ackdel: bool = False  # XACKDEL
    has_read_claim: bool = False  # XREADGROUP … CLAIM
    has_flags: bool = False  # scripts that begin with #!lua flags=…

    @property
    def release(self) -> str:
        return ".".join(map(str, self.version))

    def features(self) -> tuple[str, ...]:
        """The newer abilities that are there, as people know them."""
        there = {
            "XACKDEL": self.has_ackdel,
            "XREADGROUP CLAIM": self.has_read_claim,
            "script flags": self.has_flags,
        }
        return tuple(name for name, has in there.items() if has)


class Greeting(msgspec.Struct, frozen=True):
    """A server's answer to HELLO."""

    kind: str
    version: tuple[int, ...]
    mode: str  # standalone, sentinel or cluster
    role: str  # master or replica


def read_greeting(reply: Any) -> Greeting:
    """HELLO answers every user, whatever their rights; INFO does not. A Sentinel tells no role."""
    if not isinstance(reply, list):
        raise GarbledError(f"{str(reply)[:100]} to a HELLO")
    pairs = zip(reply[::2], reply[1::2], strict=False)
    told = {name: value.decode() for name, value in pairs if isinstance(value, bytes)}
    version = tuple(int(part) for part in told.get(b"version", "").split(".") if part.isdecimal())
    return Greeting(
        kind=told.get(b"server", "redis"),
        version=version,
        mode=told.get(b"mode", "standalone"),
        role=told.get(b"role", "master"),
    )


def judge(greeting: Greeting, mode: Literal["single", "sentinel", "cluster"], where: str) -> Server:
    """What we make of a server; `StoreError` if it is too old or of another kind than the URL says."""
    kind: Literal["redis", "valkey"] = "valkey" if greeting.kind == "valkey" else "redis"
    version = greeting.version
    _check_mode(greeting, mode, where)
    if version < OLDEST[kind]:
        wanted = " or ".join(f"{name.title()} {major}.{minor}" for name, (major, minor) in OLDEST.items())
        raise StoreError(
            f"{where} is {kind.title()} {'.'.join(map(str, version))}, which is too old; {wanted} is needed"
        )
    newer = kind == "redis"
    return Server(
        kind=kind,
        version=version,
        mode=mode,
        has_ackdel=newer and version >= _ACKDEL_SINCE,
        has_read_claim=newer and version >= _READ_CLAIM_SINCE,
        has_flags=version >= _FLAGS_SINCE,
    )


def _check_mode(greeting: Greeting, mode: str, where: str) -> None:
    if greeting.mode == "sentinel":
        raise StoreError(f"{where} is a Sentinel; write redis+sentinel://host:port/service")
    if greeting.mode == "cluster" and mode != "cluster":
        raise StoreError(f"{where} is a node of a cluster; write redis+cluster://host:port")
    if greeting.mode != "cluster" and mode == "cluster":
        raise StoreError(f"{where} is no node of a cluster; write redis://host:port")
