"""Which slot of a cluster a command belongs to."""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Sequence
from typing import Any

SLOTS = 16384

# fmt: off
_WITHOUT_KEY = frozenset((
    "ACL", "BGREWRITEAOF", "BGSAVE", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "DBSIZE", "DEBUG",
    "ECHO", "FLUSHALL", "FLUSHDB", "FUNCTION", "HELLO", "INFO", "LASTSAVE", "LATENCY", "MODULE", "PING",
    "ROLE", "SAVE", "SCAN", "SCRIPT", "SHUTDOWN", "SLOWLOG", "TIME", "WAIT", "WAITAOF",
))
# fmt: on
_AFTER_SUBCOMMAND = frozenset(("MEMORY", "OBJECT", "XGROUP", "XINFO"))
_AFTER_COUNT = frozenset(("EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", "FCALL", "FCALL_RO"))
_AFTER_STREAMS = frozenset(("XREAD", "XREADGROUP"))


def slot_of(key: str | bytes) -> int:
    """The slot of a key; of `{…}` in it, if there is any, so that the keys of one queue live together."""
    raw = key.encode() if isinstance(key, str) else key
    start = raw.find(b"{")
    end = raw.find(b"}", start + 1) if start >= 0 else -1
    if end > start + 1:
        raw = raw[start + 1 : end]
    return crc_hqx(raw, 0) % SLOTS


def slot_of_command(command: Sequence[Any]) -> int | None:
    """The slot of a command's first key; None when any server will do."""
    name = _word(command[0])
    if name in _WITHOUT_KEY:
        return None
    if name in _AFTER_COUNT:
        return slot_of(command[3]) if int(command[2]) else None
    position = 1
    if name in _AFTER_SUBCOMMAND:
        position = 2
    elif name in _AFTER_STREAMS:
        options = 4 if name == "XREADGROUP" else 1  # its group or consumer may be called "streams"
        position = next(at for at in range(options, len(command)) if _word(command[at]) == "STREAMS") + 1
    return slot_of(command[position]) if len(command) > position else None


def _word(argument: Any) -> str:
    if isinstance(argument, bytes):
        return argument.decode("utf-8", "replace").upper()
    return argument.upper() if isinstance(argument, str) else ""
