"""ChasquiMQ's bytes as we write and read them: examples taken from its release, and round trips."""

from __future__ import annotations

import random
import struct
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from remuda import Constant, Exponential, NoRetry
from remuda.codec import encode_payload
from remuda.errors import DecodeError
from remuda.lifecycle import Reason
from remuda.retry import Linear, RetryPolicy, pack_policy, unpack_policy
from remuda.stores.contract import EncodedJob
from remuda.stores.redis import wire
from remuda.stores.redis.adding import add_arguments
from remuda.stores.redis.keys import keys_of
from remuda.stores.redis.working import ADDED_AT_ONCE

MS = timedelta(milliseconds=1)
ULID = "01M7A3F9QZ0123456789ABCDEF"
CREATED_MS = 0x1A1DE6534D1
MULTIBULK_MAX = 1024 * 1024  # the arguments that a server takes in one command
TEN_YEARS_MS = 315_360_000_000

moments = st.integers(0, 4_102_444_800_000_000).map(wire.from_us)
text = st.characters(exclude_categories=["Cs"])
ids = st.text(text, min_size=1, max_size=300)
names = st.text(text, max_size=80)
delays = st.integers(0, TEN_YEARS_MS).map(lambda ms: timedelta(milliseconds=ms))
budgets = st.none() | st.integers(1, 2**31)
whole_ms = {"cap": st.none() | delays, "jitter": delays, "max_attempts": budgets}
constants = st.builds(Constant, every=delays, **whole_ms)
exponentials = st.builds(Exponential, initial=delays, multiplier=st.floats(1, 100), **whole_ms)
# What msgpack can say, whoever says it.
anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(text, max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=12,
)


# -- byte for byte


def test_the_envelope_of_the_reference() -> None:
    payload = encode_payload({"to": "a"}, name="send", max_bytes=100)
    envelope = wire.pack_envelope(ULID, payload, CREATED_MS, 0)
    expected = b"\x94\xba" + ULID.encode() + bytes.fromhex("c4 06 81 a2 74 6f a1 61 cf 000001a1de6534d1 00")
    assert envelope == expected
    assert wire.open_envelope(expected) == wire.Envelope(ULID, payload, CREATED_MS, 0)


def test_a_member_of_the_delayed_set_in_the_reference() -> None:
    envelope = wire.pack_envelope(ULID, b"\xc0", CREATED_MS, 0)
    assert wire.pack_member("send", envelope) == bytes.fromhex("04000000 73656e64") + envelope
    assert wire.pack_member("", envelope) == bytes(4) + envelope


def test_the_policy_of_the_reference() -> None:
    policy = Exponential(initial=1000 * MS, multiplier=2.0, cap=5000 * MS, jitter=10 * MS, max_attempts=4)
    retry = wire.retry_to_wire(pack_policy(policy))
    envelope = wire.pack_envelope(ULID, b"", CREATED_MS, 0, retry)
    words = bytes.fromhex("00 92 04 95 ab") + b"exponential"
    assert envelope.endswith(words + bytes.fromhex("cd03e8 cd1388 cb4000000000000000 0a"))
    assert envelope[0] == 0x95


@pytest.mark.parametrize(
    ("policy", "element"),
    [
        # Limits are always said: where they are not, its programs have their own (30 s, ±100 ms).
        (Constant(every=250 * MS), [None, ["fixed", 250, TEN_YEARS_MS, None, 0]]),
        (Constant(every=250 * MS, jitter=5 * MS), [None, ["fixed", 250, TEN_YEARS_MS, None, 5]]),
        (Constant(every=1000 * MS, jitter=0.5), [None, ["fixed", 1000, TEN_YEARS_MS, None, 500]]),
        (Exponential(initial=7 * MS), [None, ["exponential", 7, TEN_YEARS_MS, 2.0, 0]]),
        (NoRetry(), [1, None]),
    ],
)
def test_a_policy_is_said_in_full(policy: RetryPolicy, element: list[Any]) -> None:
    assert wire.retry_to_wire(pack_policy(policy)) == element


def test_a_policy_that_chasquimq_has_no_word_for_is_the_nearest_it_has() -> None:
    policy = Linear(initial=3000 * MS, step=2000 * MS, cap=60_000 * MS, max_attempts=7)
    attempts, (kind, delay_ms, cap_ms, multiplier, jitter_ms) = wire.retry_to_wire(pack_policy(policy))
    assert (attempts, delay_ms, cap_ms, jitter_ms) == (7, 3000, 60_000, 0)
    assert (kind, multiplier) == ("fixed", None)


def test_no_policy_is_no_fifth_element() -> None:
    assert wire.retry_to_wire(None) is None
    assert wire.pack_envelope(ULID, b"", CREATED_MS, 0, None)[0] == 0x94


@pytest.mark.parametrize(
    ("element", "attempts", "delays_ms", "jitter_ms"),
    [
        ([4, None], 4, [100, 200, 400], 100),
        ([None, ["fixed", 250, None, None, None]], 25, [250, 250, 250], 100),
        ([None, ["fixed", 250, 100, None, 5]], 25, [100, 100, 100], 5),
        ([None, ["fixed", 3_600_000, None, None, 0]], 25, [30_000, 30_000, 30_000], 0),
        ([None, ["exponential", 1000, None, 2.0, None]], 25, [1000, 2000, 4000], 100),
        ([None, ["exponential", 20_000, None, None, 0]], 25, [20_000, 30_000, 30_000], 0),
        ([4, ["exponential", 20, 100, 3, 0]], 4, [20, 60, 100], 0),
        ([2, ["linear", 20, 100, None, 0]], 2, [20, 40, 80], 0),  # an unknown word is an exponential to it
    ],
)
def test_what_its_programs_write_means_what_it_means_to_them(
    element: Any, attempts: int, delays_ms: list[int], jitter_ms: int
) -> None:
    packed = wire.retry_from_wire(element)
    assert packed is not None
    policy = unpack_policy(packed)
    assert (policy.max_attempts, policy.jitter) == (attempts, jitter_ms * MS)
    exact = msgspec.structs.replace(policy, jitter=0.0)
    assert [exact.delay(run, random.Random()) // MS for run in (1, 2, 3)] == delays_ms


@pytest.mark.parametrize("element", [None, [None, None], [], [None]])
def test_a_fifth_element_that_says_nothing_is_no_policy(element: Any) -> None:
    assert wire.retry_from_wire(element) is None


def test_the_reasons_of_the_release_are_read_as_the_seed_s() -> None:
    assert wire.REASONS["decode_failed"] == "decode_fail"
    assert wire.REASONS["oversize_payload"] == "oversize"
    assert all(wire.REASONS[reason.value] == reason.value for reason in Reason)


def test_every_key_of_a_queue_has_its_hash_tag() -> None:
    keys = keys_of("orders")
    named = [*keys.for_scripts(), keys.rates, keys.results]
    named += [keys.held_id("a"), keys.delayed_member("a"), keys.result("a")]
    assert all(key.startswith("{chasqui:orders}:") for key in named)
    assert len(set(named)) == len(named)
    theirs = {"stream", "dlq", "delayed", "dlid:a", "didx:a", "result:a"}
    ours = {key.removeprefix("{chasqui:orders}:") for key in named} - theirs
    assert all(key.startswith(("remuda:", "stream:")) for key in ours)


# -- round trips


@given(
    ids, st.binary(max_size=300), st.integers(0, 2**45), st.integers(0, 2**31 - 1), constants | exponentials
)
def test_an_envelope_comes_back(
    job_id: str, payload: bytes, created_ms: int, attempt: int, policy: RetryPolicy
) -> None:
    for retry in (None, wire.retry_to_wire(pack_policy(policy))):
        packed = wire.pack_envelope(job_id, payload, created_ms, attempt, retry)
        assert wire.open_envelope(packed) == wire.Envelope(job_id, payload, created_ms, attempt, retry)
        assert wire.id_of(packed) == job_id


@given(names, st.binary(max_size=100))
def test_a_member_comes_back(name: str, envelope: bytes) -> None:
    assert wire.open_member(wire.pack_member(name, envelope)) == (name, envelope)


@given(st.binary(max_size=12))
@example(b"")
@example(b"\x01\x00\x00")
@example(struct.pack("<I", 2**32 - 1) + b"abc")
def test_bytes_that_are_no_member_are_all_envelope(member: bytes) -> None:
    name, envelope = wire.open_member(member)
    length = int.from_bytes(member[:4], "little") if len(member) >= 4 else 2**32
    if len(member) < 4 + length:
        assert (name, envelope) == ("", member)
    else:
        assert envelope == member[4 + length :]


@given(
    st.builds(
        wire.Extra,
        headers=st.none() | names,
        priority=st.integers(-2, 2),
        expires_us=st.none() | st.integers(0, 2**53),
        packed_retry=st.none() | st.binary(max_size=40).map(lambda packed: packed.decode("latin-1")),
        unique=st.booleans(),
        unique_for_ms=st.none() | st.integers(0, 2**40),
        rate_key=st.none() | names,
        deliveries=st.integers(0, 2**31),
        first_attempt_us=st.none() | st.integers(0, 2**53),
        last_error=st.none() | names,
        since_us=st.none() | st.integers(0, 2**53),
    )
)
def test_extras_come_back(extra: wire.Extra) -> None:
    assert wire.open_extra(wire.encode(extra)) == extra


@given(constants | exponentials)
def test_extras_carry_a_policy_whole(policy: RetryPolicy) -> None:
    extra = wire.Extra(packed_retry=pack_policy(policy).decode("latin-1"))
    packed = wire.open_extra(wire.encode(extra)).retry
    assert packed is not None
    assert unpack_policy(packed) == policy


def test_no_extras_take_no_room() -> None:
    assert wire.open_extra(b"") is wire.NO_EXTRA
    assert wire.open_extra(None) is wire.NO_EXTRA
    assert wire.encode(wire.NO_EXTRA) == b"\x80"


@given(constants | exponentials)
def test_a_policy_in_whole_milliseconds_comes_back_from_the_wire(policy: Constant | Exponential) -> None:
    packed = wire.retry_from_wire(wire.retry_to_wire(pack_policy(policy)))
    assert packed is not None
    found = unpack_policy(packed)
    assert isinstance(found, type(policy))
    assert found.max_attempts == (25 if policy.max_attempts is None else policy.max_attempts)
    assert found.jitter == policy.jitter
    assert found.cap == (timedelta(milliseconds=TEN_YEARS_MS) if policy.cap is None else policy.cap)
    assert found.base_delay(1) == policy.base_delay(1)
    assert found.base_delay(3) == policy.base_delay(3)


@given(moments)
def test_a_moment_comes_back_from_a_score(moment: datetime) -> None:
    assert wire.from_score(wire.to_score(moment)) == moment
    assert wire.from_score(wire.to_score(moment).encode()) == moment
    assert wire.from_us(wire.to_us(moment)) == moment


def test_a_whole_millisecond_is_a_whole_score_as_chasquimq_writes_it() -> None:
    assert wire.to_score(wire.from_us(CREATED_MS * 1000)) == str(CREATED_MS)
    assert wire.to_score(wire.from_us(CREATED_MS * 1000 + 7)) == f"{CREATED_MS}.007"


# -- what is not what it should be


@given(st.binary(max_size=60))
@example(b"")
@example(b"\x94")
@example(b"\x95\xa1a\xc4\x00\x00\x00" + b"\x81\x90\xc0")
@example(b"\x95\xa1a\xc4\x00\x00\x00" + b"\x81\x80\xc0")
@example(b"\x95\xa1a\xc4\x00\x00\x00" + b"\xd6\xff\xff\xff\xff\xff")
def test_any_bytes_are_an_envelope_or_a_decode_error(d: bytes) -> None:
    with suppress(DecodeError):
        wire.open_envelope(d)
    wire.id_of(d)


def test_an_envelope_nested_without_end_is_a_decode_error() -> None:
    with pytest.raises(DecodeError):
        wire.open_envelope(b"\x95\xa1a\xc4\x00\x00\x00" + b"\x91" * 50_000 + b"\xc0")


@given(anything)
@example([1, ["fixed", float("nan"), None, None, None]])
@example([1, ["fixed", float("inf"), None, None, None]])
@example([1, ["exponential", 1, None, float("nan"), None]])
@example([float("inf"), None])
@example("12")
@example({"a": 1})
def test_any_fifth_element_is_a_policy_or_a_decode_error(element: Any) -> None:
    try:
        packed = wire.retry_from_wire(element)
    except DecodeError:
        return
    if packed is not None:
        unpack_policy(packed)


@given(st.binary(max_size=60))
def test_any_bytes_are_extras_or_a_decode_error(packed: bytes) -> None:
    with suppress(DecodeError):
        wire.open_extra(packed)
    assert isinstance(wire.open_ended(packed), wire.Ended | None)


@given(st.binary(max_size=80) | st.builds(lambda d: b"\x94" + d, st.binary(max_size=80)))
@example(b"\x94\xa0\xc4\x00\xcf" + bytes(8) + b"\x00")  # an empty id
@example(b"\xdc\x00\x04\xa1a\xc4\x00\xcf" + bytes(8) + b"\x00")  # a longer header than is needed
@example(b"\x94\xdb\x00\x00\x00\x01a\xc4\x00\xcf" + bytes(8) + b"\x00")  # a longer length than is needed
def test_the_two_ways_to_an_id_never_give_two_ids(d: bytes) -> None:
    """Where the scripts see none, the job goes by the name of its entry (test_mangled.py)."""
    try:
        envelope = wire.open_envelope(d)
    except DecodeError:
        return
    assert wire.id_of(d) in (envelope.id, None)


@given(st.binary(min_size=1, max_size=40))
def test_an_id_that_is_cut_off_is_none(d: bytes) -> None:
    whole = wire.pack_envelope("abcdef", d, CREATED_MS, 0)
    assert wire.id_of(whole) == "abcdef"
    for length in range(8):
        assert wire.id_of(whole[:length]) is None
    assert wire.id_of(whole[:9]) == "abcdef"


@pytest.mark.parametrize("attempt", [-1, -(2**31)])
def test_a_negative_attempt_is_no_envelope(attempt: int) -> None:
    with pytest.raises(DecodeError):
        wire.open_envelope(wire.pack_envelope("a", b"", CREATED_MS, attempt))


def test_the_most_jobs_of_one_add_fit_into_one_command() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    job = EncodedJob(id="a", name="n", payload=b"", next_attempt_at=now, headers="{}", unique=True)
    per_job = len(add_arguments([job] * 3, now=now, who="w", max_live=None)[0])
    per_job -= len(add_arguments([job] * 2, now=now, who="w", max_live=None)[0])
    assert per_job * ADDED_AT_ONCE < MULTIBULK_MAX


def test_the_archive_s_bytes_are_refused_by_name() -> None:
    with pytest.raises(DecodeError, match="archive"):
        wire.open_archive(msgspec.msgpack.encode("no archive"))
