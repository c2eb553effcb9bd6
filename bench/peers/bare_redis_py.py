# /// script
# dependencies = ["redis==8.1.0", "hiredis==3.5.0", "msgspec==0.22.0", "uvloop==0.23.0"]
#
# [tool.bench]
# stores = ["redis", "valkey"]
# bare = true
# variants = { read-ahead = ["settle"] }
# ///
"""The limit on Redis and Valkey: redis-py's connection with hiredis, the least a queue on a stream can do.

A job is an envelope in MessagePack: id, payload, time, attempt.  A batch is added by one script, and read
by one XREADGROUP whose raw reply is used as it comes; each job is decoded and given to an async handler;
one XACK and XDEL for the whole batch go out in the same write as the next read.

``read-ahead`` has a second read under way while a batch is handled, so that the server and this
process work at the same time.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import msgspec
from hiredis import pack_command
from redis.asyncio import Connection

from bench.measures import main
from bench.peer import Handled, Peer

STREAM, GROUP, CONSUMER = b"bench", b"workers", b"worker"
ADD = b"""
for each = 1, #ARGV do redis.call('XADD', KEYS[1], '*', 'd', ARGV[each]) end
"""


class Envelope(msgspec.Struct, array_like=True):
    id: str
    payload: bytes
    created_at_ms: int
    attempt: int


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Envelope).decode
decode_payload = msgspec.msgpack.Decoder(str).decode


class BareRedisPy(Peer):
    packages = ("redis", "hiredis", "msgspec")

    def settings(self, measure: str, variant: str) -> dict[str, Any]:
        return {"connections": 1, "batch": 500, "protocol": 2, "reads": 2 if variant == "read-ahead" else 1}

    async def create(self) -> None:
        connection = await self._connect()
        await self._call(connection, b"XGROUP", b"CREATE", STREAM, GROUP, b"0", b"MKSTREAM")
        await connection.disconnect()

    async def open(self) -> None:
        self._connection = await self._connect()
        self._add_script = await self._call(self._connection, b"SCRIPT", b"LOAD", ADD)
        self._numbers = itertools.count()

    async def close(self) -> None:
        await self._connection.disconnect()

    async def add(self, payload: bytes) -> None:
        await self._call(self._connection, b"XADD", STREAM, b"*", b"d", self._envelope(payload))

    async def add_many(self, payloads: list[bytes]) -> None:
        envelopes = map(self._envelope, payloads)
        await self._call(self._connection, b"EVALSHA", self._add_script, b"1", STREAM, *envelopes)

    async def left(self) -> int:
        return int(await self._call(self._connection, b"XLEN", STREAM))

    @asynccontextmanager
    async def worker(self, handled: Handled) -> AsyncIterator[None]:
        connection = await self._connect()
        task = asyncio.create_task(self._work(connection, handled))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])
            await connection.disconnect()

    async def _work(self, connection: Connection, handled: Handled) -> None:
        async def noop(payload: str) -> None:
            handled(payload.encode())

        batch = self.tune["batch"]
        read, patient_read = _read(batch), _read(batch, b"BLOCK", b"0")
        await connection.send_packed_command(patient_read)
        acks_before = deque([0])  # for each read under way: the replies to acks that come first
        acks_since = 0  # and those that will come after the last of them
        while True:
            for _ in range(acks_before.popleft()):
                await connection.read_response(disable_decoding=True)
            answer = await connection.read_response(disable_decoding=True)
            jobs = answer[0][1] if answer else []
            for _, fields in jobs:
                await noop(decode_payload(decode(fields[1]).payload))
            acks = _acks([job_id for job_id, _ in jobs]) if jobs else []
            acks_since += len(acks)
            if len(jobs) == batch:
                reads = [read] * (self.tune["reads"] - len(acks_before))
            else:
                # Little is left.  A read that waits comes last: it would hold up what is behind it.
                reads = [] if acks_before else [patient_read]
            await connection.send_packed_command(b"".join([*acks, *reads]))
            for _ in reads:
                acks_before.append(acks_since)
                acks_since = 0

    def _envelope(self, payload: bytes) -> bytes:
        number, now_ms = next(self._numbers), time.time_ns() // 1_000_000
        return encode(Envelope(f"{number:026d}", encode(payload.decode()), now_ms, 0))

    async def _connect(self) -> Connection:
        place = urlsplit(self.url)
        connection = Connection(host=place.hostname, port=place.port, protocol=self.tune["protocol"])
        await connection.connect()
        return connection

    async def _call(self, connection: Connection, *command: bytes) -> Any:
        await connection.send_packed_command(pack_command(command))
        return await connection.read_response(disable_decoding=True)


def _read(count: int, *options: bytes) -> bytes:
    limit = (b"COUNT", str(count).encode(), *options)
    return pack_command((b"XREADGROUP", b"GROUP", GROUP, CONSUMER, *limit, b"STREAMS", STREAM, b">"))


def _acks(job_ids: list[bytes]) -> list[bytes]:
    return [pack_command((b"XACK", STREAM, GROUP, *job_ids)), pack_command((b"XDEL", STREAM, *job_ids))]


if __name__ == "__main__":
    main(BareRedisPy)
