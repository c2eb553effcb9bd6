"""A primary under Sentinel: found by the service's name, and found again when another takes over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from remuda.errors import StoreError, StoreUnavailableError
from remuda.stores.redis.link import Link, Script
from tests.redis.links import linked, until_blocked
from tests.redis_servers import MASTER_NAME, Sentinel, ValkeyServer

COUNT_UP = Script("count_up", "return redis.call('INCR', KEYS[1])")


@pytest.fixture(scope="module")
def sentinel() -> Iterator[Sentinel]:
    with Sentinel() as sentinel:
        yield sentinel


async def test_the_primary_is_found_by_its_service(sentinel: Sentinel) -> None:
    async with linked(sentinel.url()) as link:
        assert link.server.mode == "sentinel"
        await link.call("SET", "a", 1)
        with sentinel.primary.client() as client:
            assert client.get("a") == b"1"
        assert await link.everywhere("ECHO", "x") == [b"x"]


async def test_a_service_that_nobody_watches_is_named(sentinel: Sentinel) -> None:
    with pytest.raises(StoreError, match="watches no service 'other'") as caught:
        async with linked(f"redis+sentinel://127.0.0.1:{sentinel.sentinel.port}/other"):
            pass
    assert not isinstance(caught.value, StoreUnavailableError)


async def test_a_sentinel_that_is_down_is_passed_over(sentinel: Sentinel) -> None:
    port = sentinel.sentinel.port
    async with linked(f"redis+sentinel://127.0.0.1:1,127.0.0.1:{port}/{MASTER_NAME}") as link:
        assert await link.call("ECHO", "x") == b"x"
    with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1:2"):
        async with linked(f"redis+sentinel://127.0.0.1:1,127.0.0.1:2/{MASTER_NAME}"):
            pass


async def test_a_server_that_is_no_sentinel_is_named(sentinel: Sentinel, valkey_server: ValkeyServer) -> None:
    valkey_server.fresh()
    with pytest.raises(StoreError, match="is no Sentinel"):
        async with linked(f"redis+sentinel://127.0.0.1:{valkey_server.port}/{MASTER_NAME}"):
            pass
    with pytest.raises(StoreError, match=r"redis\+sentinel://"):
        async with linked(sentinel.sentinel.url()):
            pass


async def _until_it_counts(link: Link, key: str) -> int:
    async with asyncio.timeout(30):
        while True:
            try:
                return int(await link.run(COUNT_UP, [key], []))
            except StoreUnavailableError:
                await asyncio.sleep(0.05)


@pytest.mark.faults
async def test_the_one_that_takes_over_is_found(sentinel: Sentinel) -> None:
    before = sentinel.primary
    async with linked(sentinel.url(), client_name="follower") as link:
        await link.call("SET", "n", 0)
        waiting = asyncio.create_task(link.block("XREAD", "BLOCK", 60_000, "STREAMS", "s", "$", within=60))
        await until_blocked(before, "follower")
        await link.call("WAIT", 1, 1000)
        await asyncio.to_thread(before.kill)
        with pytest.raises(StoreUnavailableError):
            await waiting
        assert await _until_it_counts(link, "n") == 1
        assert sentinel.primary is not before


async def test_a_server_that_is_no_primary_yet_is_not_taken_for_one(valkey_server: ValkeyServer) -> None:
    valkey_server.fresh()
    with ValkeyServer() as replica:
        replica.replica_of(valkey_server)
        async with _sentinel_that_names(replica.port) as url:
            with pytest.raises(StoreUnavailableError, match="is a replica just now"):
                async with linked(url):
                    pass
            replica.replica_of(None)
            async with linked(url) as link:
                assert await link.run(COUNT_UP, ["n"], []) == 1


@asynccontextmanager
async def _sentinel_that_names(port: int) -> AsyncIterator[str]:
    """One that is ahead of the others: real ones do so for a moment that cannot be chosen."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"HELLO")
        writer.write(b"*4\r\n$7\r\nversion\r\n$5\r\n9.0.0\r\n$4\r\nmode\r\n$8\r\nsentinel\r\n")
        await reader.readuntil(b"BY-NAME")
        writer.write(b"*2\r\n$9\r\n127.0.0.1\r\n$%d\r\n%d\r\n" % (len(str(port)), port))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"redis+sentinel://127.0.0.1:{server.sockets[0].getsockname()[1]}/{MASTER_NAME}"
