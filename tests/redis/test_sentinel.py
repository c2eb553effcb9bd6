"""A primary under Sentinel: found by the service's name, and found again when another takes over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

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
