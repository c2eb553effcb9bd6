"""Messages that are no jobs: each of them ends as a dead letter, and stands in nobody's way."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from remuda import Job, NewJob, Queue, Reason, State
from remuda.clock import VirtualClock
from remuda.stores.redis import scripts, wire
from remuda.stores.redis.keys import keys_of
from remuda.stores.redis.link import Link
from tests.contract.workbench import HOUR, LEASE, fetch, make_worker, recover, trail
from tests.redis.conftest import QUEUE
from tests.redis_servers import ValkeyServer

KEYS = keys_of(QUEUE)
STREAM = KEYS.streams[2]
NOW_MS = 1_790_000_000_000
WHOLE = wire.pack_envelope("abcdef", b"\xa7payload", NOW_MS, 0)

# Bytes that Python refuses as UTF-8, each for another reason.
NO_UTF8 = {
    "a lone continuation": b"\x80abc",
    "a sequence cut off": b"abc\xe2\x82",
    "overlong in two": b"a\xc0\x80b",
    "overlong in three": b"a\xe0\x80\x80b",
    "overlong in four": b"a\xf0\x80\x80\x80b",
    "a surrogate": b"a\xed\xa0\x80b",
    "beyond the last": b"a\xf4\x90\x80\x80b",
    "no first byte": b"a\xf5\x80\x80\x80b",
}


def with_id(raw_id: bytes, tail: bytes | None = None) -> bytes:
    """An envelope with these bytes as its id."""
    tail = b"\xc4\x01\xc0\xcf" + NOW_MS.to_bytes(8) + b"\x00" if tail is None else tail
    head = bytes([0xA0 + len(raw_id)]) if len(raw_id) < 32 else b"\xda" + len(raw_id).to_bytes(2)
    return b"\x94" + head + raw_id + tail


NASTY: dict[str, bytes] = {
    "nothing": b"",
    "a header alone": b"\x94",
    "a header and a kind": b"\x94\xa6",
    "an id cut off": WHOLE[:5],
    "an id alone": WHOLE[:8],
    "a payload cut off": WHOLE[:12],
    "no attempt": WHOLE[:-1],
    "something behind it": WHOLE + b"\x00",
    "three elements": b"\x93" + WHOLE[1:-1],
    "six elements": b"\x96" + WHOLE[1:] + b"\xc0\xc0",
    "a map": b"\x81\xa2id\xa1a",
    "text": b"hello, is this a queue?",
    "an id longer than all of it": b"\x94\xbf" + b"x" * 4 + b"\xcf\x00" + b"y" * 7 + b"\x00",
    "a payload of text": with_id(b"abc", b"\xa1x\xcf" + NOW_MS.to_bytes(8) + b"\x00"),
    "an attempt of text": with_id(b"abc", b"\xc4\x00\xcf" + NOW_MS.to_bytes(8) + b"\xa1x"),
    "a time of text": with_id(b"abc", b"\xc4\x00\xa1x\x00"),
    "a time out of range": with_id(b"abc", b"\xc4\x00\xcf" + b"\xff" * 8 + b"\x00"),
    "a time far away": with_id(b"abc", b"\xc4\x00\xcf" + (2**56).to_bytes(8) + b"\x00"),
    "a policy of text": b"\x95" + with_id(b"abc")[1:] + b"\xa3abc",
    "a policy nested without end": b"\x95" + with_id(b"abc")[1:] + b"\x91" * 20_000 + b"\xc0",
    **{f"an id that is no text: {why}": with_id(raw) for why, raw in NO_UTF8.items()},
    "a long id that is no text": with_id(b"x" * 100 + b"\xed\xa0\x80"),
}


async def put(link: Link, *fields: Any) -> str:
    """An entry as another program might write it; its name."""
    entry: bytes = await link.call("XADD", STREAM, "*", *fields)
    return entry.decode()


async def run_all(queue: Queue) -> list[str]:
    """Let a worker take everything there is; the ids that its handler saw."""
    worker = make_worker(queue)
    ran: list[str] = []

    @worker.handler()
    async def anything(job: Job) -> None:
        ran.append(job.id)

    for _ in range(3):
        await worker.step()
    return ran


async def check_that_all_can_be_seen(queue: Queue) -> None:
    """Everything that looks into a queue gives an answer, and a job has one id from beginning to end."""
    await queue.stats()
    await queue.store.next_due(queue.name)
    await queue.jobs(limit=1_000)
    await queue.dead.peek(limit=1_000)
    await queue.dead.count()
    last: dict[str, State] = {}
    for each in await trail(queue):
        assert each.left is last.get(each.message, each.left), each
        last[each.message] = each.entered
    stuck = {message for message, state in last.items() if state is State.PROCESSING}
    assert not stuck


async def becomes_a_dead_letter(queue: Queue, link: Link, *fields: Any, reason: Reason) -> None:
    """Between two good jobs; all three come to their ends."""
    before = await queue.add("good")
    await put(link, *fields)
    after = await queue.add("good")
    await queue.stats()
    await queue.store.next_due(queue.name)
    assert len(await queue.jobs()) == 3
    assert await run_all(queue) == [before, after]
    assert (await queue.stats()).live == 0
    assert await queue.dead.count() == {reason.value: 1}
    (letter,) = await queue.dead.peek()
    assert (letter.attempts, letter.deliveries) == (0, 1)
    assert letter.error_message
    assert await queue.get(letter.id) is not None
    await check_that_all_can_be_seen(queue)


# -- one at a time


@pytest.mark.parametrize("d", NASTY.values(), ids=NASTY)
async def test_an_envelope_that_is_none_is_a_dead_letter(valkey_queue: Queue, valkey: Link, d: bytes) -> None:
    await becomes_a_dead_letter(valkey_queue, valkey, "d", d, "n", "job", reason=Reason.DECODE_FAIL)


@pytest.mark.parametrize(
    "fields", [("x", "y"), ("n", "job"), ("n", "job", "x", b"\xff"), ("D", WHOLE, "n", "job")], ids=str
)
async def test_an_entry_without_an_envelope_is_malformed(
    queue: Queue, raw: Link, fields: tuple[Any, ...]
) -> None:
    await becomes_a_dead_letter(queue, raw, *fields, reason=Reason.MALFORMED)


async def test_an_envelope_that_is_none_is_a_dead_letter_on_every_server(queue: Queue, raw: Link) -> None:
    await becomes_a_dead_letter(queue, raw, "d", b"\x94\xa1", "n", "job", reason=Reason.DECODE_FAIL)


async def test_a_name_that_is_no_text_is_a_dead_letter(valkey_queue: Queue, valkey: Link) -> None:
    await becomes_a_dead_letter(valkey_queue, valkey, "d", WHOLE, "n", b"a\xff", reason=Reason.DECODE_FAIL)


@pytest.mark.parametrize("value", ["soon", "nan", "inf", "", "1e400", b"\xff"])
async def test_fields_of_other_programs_are_ignored(
    valkey_queue: Queue, valkey: Link, value: str | bytes
) -> None:
    """Even one that has the name of ours, which says when the job was due."""
    await put(valkey, "d", WHOLE, "n", "job", "r", value, "x", "y")
    good = await valkey_queue.add("good")
    await valkey_queue.stats()
    await valkey_queue.store.next_due(QUEUE)
    assert len(await valkey_queue.jobs()) == 2
    assert await run_all(valkey_queue) == ["abcdef", good]
    await check_that_all_can_be_seen(valkey_queue)


@pytest.mark.parametrize(
    "d",
    [
        with_id(b"", None),
        b"\xdc\x00\x04" + WHOLE[1:],
        b"\x94\xdb\x00\x00\x00\x06" + WHOLE[2:],
        with_id(b"x" * 70, None).replace(b"\xda\x00", b"\xd9"),
        b"\x94\xdb" + (70_000).to_bytes(4) + b"x" * 70_000 + WHOLE[8:],
    ],
    ids=["empty id", "long header", "long length", "str8", "over-long id"],
)
async def test_an_unusual_envelope_has_one_id_from_beginning_to_end(
    valkey_queue: Queue, valkey: Link, d: bytes
) -> None:
    """Whether it is run or becomes a dead letter."""
    entry = await put(valkey, "d", d, "n", "job")
    assert [each.id for each in await valkey_queue.jobs()] != [""]
    await run_all(valkey_queue)
    assert (await valkey_queue.stats()).live == 0
    await check_that_all_can_be_seen(valkey_queue)
    assert len({each.message for each in await trail(valkey_queue)}) == 1, entry


@pytest.mark.parametrize("attempt", [2**63, 2**64 - 1], ids=["2^63", "2^64-1"])
@pytest.mark.parametrize("fails", [False, True], ids=["done", "failed"])
async def test_an_attempt_as_high_as_can_be_does_not_end_a_worker(
    valkey_queue: Queue, valkey: Link, attempt: int, fails: bool
) -> None:
    worker = make_worker(valkey_queue)

    @worker.handler()
    async def handle(job: Job) -> None:
        if fails and job.id == "abcdef":
            raise ValueError

    await put(valkey, "d", wire.pack_envelope("abcdef", b"\xc0", NOW_MS, attempt), "n", "job")
    await valkey_queue.add("good")
    await worker.step()
    assert (await valkey_queue.stats()).live == 0
    await check_that_all_can_be_seen(valkey_queue)


@pytest.mark.parametrize(
    "member", [b"", b"\x01", b"abc", b"\xff\xff\xff\xffabc", b"\x01\x00\x00\x00\xff\x94"]
)
async def test_a_member_of_the_delayed_set_that_is_none_is_a_dead_letter(
    valkey_queue: Queue, valkey: Link, member: bytes
) -> None:
    later = await valkey_queue.add("good", delay=HOUR)
    await valkey.call("ZADD", KEYS.delayed, 1_000, member)
    assert (await valkey_queue.stats()).live == 2
    assert len(await valkey_queue.jobs()) == 2
    now = await valkey_queue.add("good")
    assert await run_all(valkey_queue) == [now]
    assert await valkey_queue.dead.count() == {"decode_fail": 1}
    assert [each.id for each in await valkey_queue.jobs(state="PENDING")] == [later]
    await check_that_all_can_be_seen(valkey_queue)


@pytest.mark.parametrize(
    "packed",
    [
        b"\xc1",
        b"garbage",
        b"\x90",
        b"\x81\xa1p\xa1x",
        b"\x81\xa1p\xcb\x3f\xe0\x00\x00\x00\x00\x00\x00",
        b"\x81\xa1n\xa1x",
        b"\x81\xa1n\x80",
        b"\x81\xa1s\xa1x",
        b"\x81\xa1h\x01",
        b"\x81\xa1e\xcf" + b"\xff" * 8,
        b"\x81\xa1r\xa3abc",
    ],
    ids=repr,
)
@pytest.mark.parametrize("delayed", [False, True], ids=["at once", "delayed"])
async def test_extras_that_cannot_be_read_stand_in_nobody_s_way(
    valkey_queue: Queue, valkey: Link, clock: VirtualClock, packed: bytes, delayed: bool
) -> None:
    (job_id,) = await valkey_queue.add_many(
        [NewJob("job", headers={"a": 1}, delay=HOUR if delayed else None)]
    )
    await valkey.call("HSET", KEYS.extra, job_id, packed)
    clock.advance(2 * HOUR)
    good = await valkey_queue.add("good")
    await valkey_queue.jobs()
    assert set(await run_all(valkey_queue)) >= {good}
    assert (await valkey_queue.stats()).live == 0
    await check_that_all_can_be_seen(valkey_queue)
    assert await valkey.call("HLEN", KEYS.extra) == 0


@pytest.mark.parametrize(
    "d", [b"\x94", WHOLE[:-1], with_id(b"a\xed\xa0\x80b")], ids=["header", "cut", "no text"]
)
async def test_a_mangled_entry_that_a_dead_worker_left_is_a_dead_letter(
    valkey_queue: Queue, valkey: Link, clock: VirtualClock, d: bytes
) -> None:
    await put(valkey, "d", d, "n", "job")
    good = await valkey_queue.add("good")
    assert len(await fetch(valkey_queue)) == 2
    clock.advance(2 * LEASE)
    assert len(await recover(valkey_queue)) == 2
    assert await run_all(valkey_queue) == [good]
    assert await valkey_queue.dead.count() == {"decode_fail": 1}
    await check_that_all_can_be_seen(valkey_queue)


@pytest.mark.parametrize(
    "d", [b"", b"\x94", with_id(b"a\xed\xa0\x80b")], ids=["nothing", "header", "no text"]
)
async def test_a_mangled_message_is_cancelled_and_purged_as_others_are(
    valkey_queue: Queue, valkey: Link, d: bytes
) -> None:
    entry = await put(valkey, "d", d, "n", "job")
    assert await valkey_queue.cancel(entry) == [entry]
    await put(valkey, "d", d, "n", "job")
    await valkey.call("ZADD", KEYS.delayed, 10**15, d)
    assert await valkey_queue.purge() == 2
    assert (await valkey_queue.stats()).live == 0
    await check_that_all_can_be_seen(valkey_queue)


async def test_a_mangled_message_that_is_replayed_ends_again_and_leaves_nothing(
    valkey_queue: Queue, valkey: Link
) -> None:
    """Or it is not replayed at all; but what came back under an id ends under the same."""
    await put(valkey, "x", "y")
    await put(valkey, "d", b"\x94\xa1", "n", "job")
    await run_all(valkey_queue)
    await valkey_queue.dead.replay()
    await run_all(valkey_queue)
    assert sum((await valkey_queue.dead.count()).values()) == 2
    assert {each.message: each.entered for each in await trail(valkey_queue)}.keys() == {
        each.id for each in await valkey_queue.dead.peek()
    }
    assert await valkey.call("HLEN", KEYS.extra) == 0
    await check_that_all_can_be_seen(valkey_queue)


@pytest.mark.parametrize(
    "fields",
    [
        ("x", "y"),
        ("d", with_id(b"abc", b"\xc4\x00\xcf" + b"\xff" * 8 + b"\x00"), "reason", "decode_failed"),
        ("d", WHOLE, "source_id", "elsewhere", "reason", "retries_exhausted"),
        ("d", b"\x94", "source_id", "elsewhere"),
        ("d", WHOLE, "reason", b"\xff", "detail", b"\xff", "n", b"\xff", "x", b"\xff"),
        ("d", WHOLE, "at", "yesterday", "a", "many"),
    ],
    ids=["nothing", "time", "source", "source and d", "no text", "our fields"],
)
async def test_any_entry_of_the_dead_letter_stream_can_be_seen_and_dropped(
    valkey_url: str, valkey: Link, clock: VirtualClock, fields: tuple[Any, ...]
) -> None:
    async with Queue(QUEUE, f"{valkey_url}?dlq_max=2", clock=clock) as queue:
        for _ in range(3):
            await valkey.call("XADD", KEYS.dlq, "*", *fields)
        assert len(await queue.dead.peek()) == 3
        assert sum((await queue.dead.count()).values()) == 3
        assert len(await queue.jobs(state="FAILED")) == 3
        worker = make_worker(queue)

        @worker.handler()
        async def reject(job: Job) -> None:
            job.reject("no")

        await queue.add("job")
        await worker.step()  # the cap removes what is over it
        assert sum((await queue.dead.count()).values()) == 2
        assert len(await queue.dead.drop(limit=1)) == 1
        assert [each.reason for each in await trail(queue)][-3:] == [
            "over_the_cap",
            "over_the_cap",
            "dropped",
        ]


# -- many at a time


def mangle(random: random.Random) -> bytes:
    """An envelope that something has happened to."""
    policy: Any = [random.choice([None, 3]), random.choice([None, ["fixed", 5, None, None, 0]])]
    whole = bytearray(
        wire.pack_envelope(
            "".join(random.choices("abcäß€𐍈0123456789", k=random.choice([9, 15, 26, 31, 32, 200]))),
            random.randbytes(random.choice([0, 1, 20, 300])),
            random.choice([0, NOW_MS, 2**40]),
            random.choice([0, 1, 127, 128, 70_000]),
            random.choice([None, policy]),
        )
    )
    for _ in range(random.choice([0, 1, 1, 2, 5])):
        match random.randrange(4):
            case 0:
                del whole[random.randrange(len(whole) + 1) :]
            case 1 if whole:
                whole[random.randrange(len(whole))] = random.randrange(256)
            case 2:
                at = random.randrange(len(whole) + 1)
                whole[at:at] = random.randbytes(random.randrange(1, 4))
            case _ if whole:
                del whole[random.randrange(len(whole))]
    return bytes(whole)


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_has_happened_to_an_envelope_its_neighbours_run(
    valkey_queue: Queue, valkey: Link, seed: int
) -> None:
    chance = random.Random(seed)
    good: list[str] = []
    for _ in range(50):
        await put(valkey, "d", mangle(chance), "n", "job")
        good.append(await valkey_queue.add("good"))
    assert (await valkey_queue.stats()).live == 100
    assert len(await valkey_queue.jobs(limit=1_000)) == 100
    ran = await run_all(valkey_queue)
    assert [job_id for job_id in ran if job_id in set(good)] == good
    assert (await valkey_queue.stats()).live == 0
    assert len(ran) + sum((await valkey_queue.dead.count()).values()) == 100
    await check_that_all_can_be_seen(valkey_queue)


# -- both readers agree

READ = (scripts.STATS.body.partition("-- A queue in numbers")[0]) + (
    "local found = {}\n"
    "while next_arg <= #ARGV do found[#found + 1] = open_envelope(arg()) or false end\n"
    "return found\n"
)


@given(
    st.lists(
        st.binary(max_size=50)
        | st.builds(mangle, st.integers(0, 10**6).map(random.Random))
        | st.builds(with_id, st.binary(max_size=40))
        | st.builds(lambda d, end: d[:end], st.builds(with_id, st.binary(max_size=300)), st.integers(0, 310)),
        max_size=30,
    )
)
@settings(max_examples=60, deadline=None)
@example(list(NASTY.values()))
@example([with_id(b"x" * length) for length in (0, 1, 31, 32, 255, 256, 65_535)])
@example(
    [
        b"\x94\xd9",
        b"\x94\xda",
        b"\x94\xda\x00",
        b"\x94\xdb\x00\x00\x00\x01a\xc0",
        b"\x94\xd9\x01a",
        b"\x94\xa1a",
    ]
)
@example(
    [with_id(chr(point).encode()) for point in (0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10FFFF)]
)
def test_lua_reads_the_same_id_as_python(valkey_server: ValkeyServer, envelopes: list[bytes]) -> None:
    keys = KEYS.for_scripts()
    with valkey_server.client() as client:
        found = client.eval(READ, len(keys), *keys, KEYS.prefix, 0, 0, 0, *envelopes)
    expected = [wire.id_of(d) for d in envelopes]
    assert found == [None if job_id is None else job_id.encode() for job_id in expected]
