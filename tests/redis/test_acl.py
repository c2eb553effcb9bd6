"""A user with few rights: what the documentation says is needed is enough."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta

import pytest

from remuda import LogLine, NewJob, Queue, Worker
from remuda.rate import RateLimit
from remuda.stores.contract import Delivery, Note
from remuda.stores.redis.link import Link
from remuda.stores.redis.refusals import RefusedError
from remuda.worker.scheduler import Scheduler
from tests.commands.test_command_model import walk
from tests.contract.workbench import (
    HOUR,
    acked,
    bury,
    eventually,
    fetch,
    make_worker,
    nacked,
    recover,
    running,
    settle,
)
from tests.redis.conftest import QUEUE
from tests.redis.monitoring import monitored
from tests.redis_servers import ValkeyServer

CONNECTING = "hello time select scan"
IN_A_CLUSTER = "cluster|slots asking"
SCRIPTS = "eval evalsha"
STREAMS = (
    "xack xadd xclaim xdel xgroup|create xgroup|delconsumer xinfo|consumers xinfo|groups xinfo|stream xlen "
    "xpending xrange xread xreadgroup xrevrange xtrim"
)
NEWER = "xackdel"  # Redis 8.2
OTHERS = (
    "del exists get mget set hdel hexists hget hincrby hkeys hlen hmget hscan hset "
    "lrange pexpire rpush "
    "sadd scard smismember srem zadd zcard zcount zrange zrangebyscore zrem zremrangebyscore zscan zscore"
)
KEYS = "~{chasqui:*"
FOR_COMMANDS = "hgetall zpopmin zrevrangebylex"
FLEETS = "~{remuda:*"


def rights(link: Link) -> list[str]:
    """As the documentation has them."""
    words = f"{CONNECTING} {SCRIPTS} {STREAMS} {OTHERS}"
    if link.address.mode == "cluster":
        words += f" {IN_A_CLUSTER}"
    if link.server.has_ackdel:
        words += f" {NEWER}"
    return [f"+{word}" for word in words.split()]


def as_user(url: str) -> str:
    return url.replace("://", "://clerk:secret@")


@pytest.fixture
async def clerk(raw: Link) -> AsyncIterator[list[str]]:
    """A user who may do what is needed on the keys of queues, and nothing else."""
    granted = rights(raw)
    await raw.everywhere("ACL", "SETUSER", "clerk", "reset", "on", ">secret", KEYS, "-@all", *granted)
    yield granted
    await raw.everywhere("ACL", "DELUSER", "clerk")


async def do_everything(url: str) -> None:
    """Whatever a program, a worker or a person at the command line does with a queue."""
    soon = timedelta(milliseconds=10)
    async with Queue(QUEUE, f"{url}?events=true&dlq_max=3") as queue:
        await queue.limit_rate(queue=RateLimit(10_000, HOUR), key=RateLimit(1000, HOUR))
        await queue.add_many([NewJob("job", delay=HOUR, job_id=f"{n}", rate_key="k") for n in range(3)])
        await queue.add("job", delay=HOUR, headers={"a": 1}, priority=2)
        assert await queue.cancel("0") == ["0"]
        await bury(queue, *["job"] * 4)
        await queue.dead.replay(limit=1)
        await queue.dead.drop(limit=1)
        assert await queue.reschedule("1", delay=soon)
        lost, retried, *rest = await fetch_all(queue)
        await queue.store.extend(QUEUE, [lost], lease=timedelta(0))
        assert await recover(queue)
        assert await settle(queue, nacked(retried, queue.store.now())) == []
        await queue.store.release(QUEUE, rest, who="w", counted=False)
        await queue.pause()
        await queue.resume()
        worker = make_worker(queue, store_results=True, max_deliveries=3, archive_completed=True)
        worker.handler()(lambda _job: 1)
        async with running(worker):
            await eventually(lambda: only_delayed_left(queue))
        (job_id,) = (await queue.add_many([NewJob("job")]))[:1]
        await settle(queue, *map(acked, await fetch(queue)))
        assert await queue.get(job_id) is not None
        assert await queue.result(job_id) is None
        assert await queue.jobs()
        assert await queue.rate_limits()
        await queue.repeats.put("job", every=timedelta(milliseconds=10), limit=1, missed="fire-once")
        (spec,) = await queue.repeats.list()
        await asyncio.sleep(0.02)
        await Scheduler(queue.store, QUEUE, "w").tick()
        assert await queue.repeats.remove(spec.key) is False
        (made,) = await fetch(queue)
        assert await queue.cancel(made.id) == [made.id]
        assert list(await queue.store.asked_to_cancel(QUEUE)) == [made.id]
        await queue.store.forget_to_cancel(QUEUE, [made.id])
        waiting = asyncio.create_task(queue.result(made.id, timeout=30))
        await asyncio.sleep(0.05)
        assert await settle(queue, acked(made, result=b"\x01")) == []
        assert (await waiting).value == 1
        await queue.store.note(QUEUE, [Note("1", b"\x01", [LogLine(queue.store.now(), 1, "line")])], ttl=HOUR)
        assert await queue.progress("1") is not None
        assert await queue.log("1")
        assert await queue.expire((await queue.jobs(state="PENDING"))[0].id, after=HOUR)
        assert await queue.store.queues() == [QUEUE]
        assert await queue.purge() == 2
        now = queue.store.now()
        await queue.prune(completed_before=now, failed_before=now)
        await queue.store.trim_transitions(QUEUE, up_to=3)
        assert await queue.history(job_id)
        await queue.add("job")
        await fetch(queue)
        assert await queue.obliterate(force=True)


async def fetch_all(queue: Queue) -> list[Delivery]:
    found: list[Delivery] = []
    await queue.add_many([NewJob("job"), NewJob("job", headers={"a": 1})])
    while len(found) < 4:
        found += await fetch(queue)
    return found


async def only_delayed_left(queue: Queue) -> bool:
    stats = await queue.stats()
    return stats.live == stats.delayed == 2


async def test_the_documented_rights_are_enough(redis_store_url: str, clerk: list[str]) -> None:
    await do_everything(as_user(redis_store_url))


async def test_the_documented_rights_are_enough_for_commands(
    redis_store_url: str, raw: Link, clerk: list[str]
) -> None:
    extra = [f"+{word}" for word in FOR_COMMANDS.split()]
    await raw.everywhere("ACL", "SETUSER", "clerk", "resetkeys", FLEETS, *extra)
    await asyncio.to_thread(walk, as_user(redis_store_url), seed=1, steps=200)


async def test_other_keys_are_out_of_reach(redis_store_url: str, raw: Link, clerk: list[str]) -> None:
    async with Queue(QUEUE, as_user(redis_store_url)) as queue:
        link = queue.store._link  # type: ignore[attr-defined]
        with pytest.raises(RefusedError):
            await link.call("GET", "another key")
        with pytest.raises(RefusedError):
            await link.call("KEYS", "*")


async def test_a_missing_right_is_an_error_and_not_waited_for(
    redis_store_url: str, raw: Link, clerk: list[str]
) -> None:
    await raw.everywhere("ACL", "SETUSER", "clerk", "-xadd")
    async with Queue(QUEUE, as_user(redis_store_url)) as queue:
        # Redis 7.0 does not say which command it was.
        with pytest.raises(RefusedError, match=r"(?i)xadd|can't run this command"):
            await queue.add("job")


async def test_a_worker_that_may_not_wait_does_not_spin(valkey_server: ValkeyServer, valkey: Link) -> None:
    """It says what it lacks, or polls; but it does not ask without a pause."""
    granted = [right for right in rights(valkey) if right != "+xread"]
    await valkey.everywhere("ACL", "SETUSER", "clerk", "reset", "on", ">secret", KEYS, "-@all", *granted)
    async with Queue(QUEUE, as_user(valkey_server.url())) as queue:
        worker = Worker(queue, max_fetch_interval=timedelta(milliseconds=100))
        worker.handler()(lambda _job: None)
        async with monitored(valkey_server) as asked:
            working = asyncio.create_task(worker.run(signals=False))
            await asyncio.wait({working}, timeout=0.5)
            worker.stop()
            with suppress(RefusedError):
                await working
        assert len(asked.commands) < 50
    await valkey.everywhere("ACL", "DELUSER", "clerk")
