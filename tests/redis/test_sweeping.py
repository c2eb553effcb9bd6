"""What other programs leave behind when they end jobs of ours is swept up, and nothing else is."""

from __future__ import annotations

import pytest

from remuda import Queue
from remuda.stores.redis import sweeping
from remuda.stores.redis.keys import GROUP, keys_of
from remuda.stores.redis.link import Link
from tests.contract.workbench import HOUR, QUEUE, fetch, recover

KEYS = keys_of(QUEUE)


@pytest.fixture(autouse=True)
def at_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "EVERY_S", 0.0)


async def end_as_another_program(valkey: Link, count: int) -> None:
    """Read and finish jobs of the plain stream, as one that knows nothing of ours."""
    stream = KEYS.streams[2]
    ((_, entries),) = await valkey.call(
        "XREADGROUP", "GROUP", GROUP, "c-another", "COUNT", count, "STREAMS", stream, ">"
    )
    for entry, _ in entries:
        await valkey.call("XACK", stream, GROUP, entry)
        await valkey.call("XDEL", stream, entry)


async def look_twice(queue: Queue) -> None:
    await recover(queue, timeout=HOUR)  # notices that there are consumers other than ours
    for _ in range(2):
        await queue.store.prune(
            queue.name, completed_before=queue.store.now(), failed_before=None, who="test", limit=100
        )


async def test_extras_and_marks_of_a_job_that_another_program_ended_go(
    valkey_queue: Queue, valkey: Link
) -> None:
    await fetch(valkey_queue)
    ended = await valkey_queue.add_unique("ended", job_id="ended", headers={"h": 1})
    await valkey.call("XGROUP", "CREATE", KEYS.streams[2], GROUP, "0", "MKSTREAM")
    await end_as_another_program(valkey, 1)
    waiting = await valkey_queue.add("waiting", headers={"h": 2})
    delayed = await valkey_queue.add_unique("delayed", job_id="delayed", delay=HOUR)
    urgent = await valkey_queue.add("urgent", priority=2)

    await look_twice(valkey_queue)

    assert set(await valkey.call("HKEYS", KEYS.extra)) == {
        each.encode() for each in (waiting, delayed.id, urgent)
    }
    assert await valkey.call("EXISTS", KEYS.held_id(ended.id)) == 0
    assert await valkey.call("EXISTS", KEYS.held_id(delayed.id)) == 1


async def test_one_look_that_misses_a_job_is_not_enough(valkey_queue: Queue, valkey: Link) -> None:
    """It may have moved from one place to another while we looked."""
    await valkey_queue.add_unique("ended", job_id="ended")
    await valkey.call("XGROUP", "CREATE", KEYS.streams[2], GROUP, "0")
    await end_as_another_program(valkey, 1)
    await recover(valkey_queue, timeout=HOUR)
    await valkey_queue.store.prune(
        QUEUE, completed_before=valkey_queue.store.now(), failed_before=None, who="test", limit=100
    )
    assert await valkey.call("HLEN", KEYS.extra) == 1


async def test_a_queue_of_our_own_is_never_searched(valkey_queue: Queue, valkey: Link) -> None:
    await valkey_queue.add("job", headers={"h": 1})
    await fetch(valkey_queue)
    await valkey.call("HSET", KEYS.extra, "nobody", b"\x80")
    await look_twice(valkey_queue)
    assert await valkey.call("HEXISTS", KEYS.extra, "nobody") == 1


async def test_an_entry_that_was_put_back_and_that_somebody_deleted_is_in_nobodys_way(
    queue: Queue, raw: Link
) -> None:
    """As programs do that keep the stream short."""
    gone = await queue.add("gone")
    (delivery,) = await fetch(queue)
    await queue.store.release(QUEUE, [delivery], who="test", counted=False)
    ((entry, _),) = await raw.call("XRANGE", KEYS.streams[2], "-", "+")
    await raw.call("XDEL", KEYS.streams[2], entry)
    good = await queue.add("good")

    assert [each.id for each in await fetch(queue)] == [good]

    assert await fetch(queue) == []
    assert await queue.get(gone) is None
    stats = await queue.stats()
    assert (stats.pending, stats.processing) == (0, 1)
