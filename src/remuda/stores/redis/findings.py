"""What the servers of a store say of themselves and of a queue, for `remuda doctor`. Nothing here writes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from remuda.message import PRIORITIES
from remuda.stores.redis.keys import GROUP, OURS, RETURNED, keys_of
from remuda.stores.redis.link import Link, Script
from remuda.stores.redis.records import fields_of
from remuda.stores.redis.refusals import RefusedError
from remuda.stores.redis.wire import from_us

# What a queue and a worker ask of a server, with arguments that the server takes for the real thing; KEY is
# one of the queue's keys. docs/stores.md lists the same commands, tests/redis/test_acl.py proves the list.
_COMMANDS = """
    time; scan 0; eval 0 1 KEY; evalsha 0 1 KEY
    xack KEY default 1-1; xadd KEY * d 1; xclaim KEY default me 0 1-1; xdel KEY 1-1
    xgroup create KEY default 0; xgroup delconsumer KEY default me
    xinfo consumers KEY default; xinfo groups KEY; xinfo stream KEY
    xlen KEY; xpending KEY default; xrange KEY - +; xread streams KEY 0; xrevrange KEY + -
    xreadgroup group default me streams KEY >; xtrim KEY maxlen 1
    del KEY; exists KEY; get KEY; mget KEY; set KEY 1
    hdel KEY 1; hexists KEY 1; hget KEY 1; hincrby KEY 1 1; hkeys KEY; hlen KEY; hmget KEY 1
    hscan KEY 0; hset KEY 1 1
    lrange KEY 0 1; pexpire KEY 1; rpush KEY 1
    sadd KEY 1; scard KEY; smismember KEY 1; srem KEY 1
    zadd KEY 1 1; zcard KEY; zcount KEY 0 1; zrange KEY 0 1; zrangebyscore KEY 0 1; zrem KEY 1
    zremrangebyscore KEY 0 1; zscan KEY 0; zscore KEY 1
"""
_NEWER_COMMANDS = "xackdel KEY default ids 1 1-1"

# A script may ask what its user may do, from 7.0 on; before that nobody but an administrator can.
_RIGHTS = Script(
    "rights",
    """
local refused = {}
if not redis.acl_check_cmd then return refused end
for place, line in ipairs(ARGV) do
  local words = {}
  for word in string.gmatch(line, '[^\\n]+') do words[#words + 1] = word end
  local known, allowed = pcall(redis.acl_check_cmd, unpack(words))
  if known and not allowed then refused[#refused + 1] = place end
end
return refused
""",
)


class Trail(msgspec.Struct, frozen=True):
    """How many transitions a queue's trail holds, and how far back it goes."""

    length: int
    begins: datetime


class Consumer(msgspec.Struct, frozen=True):
    """Somebody who reads from a queue, and how long they have been silent."""

    name: str
    silent: timedelta


class QueueState(msgspec.Struct, frozen=True, kw_only=True):
    """What the keys of one queue hold."""

    queue: str
    waiting: int  # in the stream that other programs write to as well
    strangers: list[Consumer]
    dead: int
    trail: Trail | None


async def information(link: Link) -> list[dict[str, str]]:
    """INFO of every primary."""
    return [_fields(reply) for reply in await link.everywhere("INFO")]


def _fields(reply: bytes) -> dict[str, str]:
    pairs = (line.partition(":") for line in reply.decode(errors="replace").splitlines())
    return {name: value for name, colon, value in pairs if colon}


async def setting(link: Link, name: str) -> list[str]:
    """One setting on every primary; empty where a server does not know it."""
    replies = await link.everywhere("CONFIG", "GET", name)
    return [reply[1].decode() if len(reply) > 1 else "" for reply in replies]


async def round_trips(link: Link, count: int) -> list[float]:
    """How many seconds a server takes to answer the simplest question, several times."""
    trips = []
    for _ in range(count):
        began = time.perf_counter()
        await link.call("TIME")
        trips.append(time.perf_counter() - began)
    return trips


async def queue_state(link: Link, queue: str) -> QueueState:
    """What there is to say of one queue."""
    keys = keys_of(queue)
    stream = _shared_stream(queue)
    waiting, dead, first, last = await link.call_many(
        [
            ("XLEN", stream),
            ("XLEN", keys.dlq),
            ("XRANGE", keys.log, "-", "+", "COUNT", 1),
            ("XREVRANGE", keys.log, "+", "-", "COUNT", 1),
        ]
    )
    return QueueState(
        queue=queue,
        waiting=waiting,
        strangers=await _strangers(link, stream),
        dead=dead,
        trail=_trail(first[0], last[0]) if first and last else None,
    )


def _shared_stream(queue: str) -> str:
    """The one that other programs read and write as well: that of ordinary jobs."""
    return keys_of(queue).streams[PRIORITIES.index(0)]


def _trail(first: Sequence[Any], last: Sequence[Any]) -> Trail:
    begins, _, count = first[0].partition(b"-")
    ends, _, _ = last[0].partition(b"-")
    written_ms = int(fields_of(first[1])[b"t"])
    return Trail(int(ends) - int(begins) + int(count), from_us(written_ms * 1000))


async def _strangers(link: Link, stream: str) -> list[Consumer]:
    """Consumers of a stream that are no workers of ours."""
    try:
        consumers = await link.call("XINFO", "CONSUMERS", stream, GROUP)
    except RefusedError as error:
        if error.code in ("ERR", "NOGROUP"):  # nobody has read from it yet
            return []
        raise
    found = []
    for flat in consumers:
        facts = dict(zip(flat[::2], flat[1::2], strict=True))
        name = facts[b"name"].decode(errors="replace")
        if name != RETURNED and not name.startswith(OURS):
            found.append(Consumer(name, timedelta(milliseconds=facts[b"idle"])))
    return found


def needed_commands(*, newer: bool) -> list[list[str]]:
    """The commands that a queue and a worker need, each with arguments."""
    lines = ";".join([*_COMMANDS.strip().splitlines(), *([_NEWER_COMMANDS] if newer else [])])
    return [line.split() for line in lines.split(";")]


def right_of(command: Sequence[str]) -> str:
    """A command as an ACL names it: `xadd`, `xgroup|create`."""
    return "|".join(command[:2]) if command[0] in ("xgroup", "xinfo") else command[0]


async def missing_rights(link: Link, queue: str) -> list[str]:
    """The commands that this user may not run on a queue, as an ACL names them; before 7.0 none is known."""
    key = _shared_stream(queue)
    commands = needed_commands(newer=link.server.has_ackdel)
    lines = ["\n".join(key if word == "KEY" else word for word in command) for command in commands]
    refused = await link.run(_RIGHTS, [key], lines)
    return [right_of(commands[place - 1]) for place in refused]
