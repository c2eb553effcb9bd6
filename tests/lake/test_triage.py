"""Triage: what became of dead letters of one fault, and what is said about them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from remuda import Queue
from remuda.clock import VirtualClock
from remuda.lake.building.histories import build_histories
from remuda.lake.ingest import BATCHES
from remuda.lake.place import Lake
from remuda.lake.replay import Selection, carry_out, make_plan
from remuda.lake.schemas import DEAD_LETTERS, HISTORIES
from remuda.lake.triage import SPARK_STEPS, Group, Verdict, triage
from remuda.lake.triage.fates import dead_now, with_fates
from remuda.lake.triage.verdicts import suggest
from tests.contract.workbench import DAY, HOUR, MINUTE
from tests.lake.dead_workbench import die, fail_again, gather, succeed

NOW = datetime(2030, 1, 10, 12, tzinfo=UTC)


def a_death(
    message: str, seq: int, fingerprint: str = "f1", ago: timedelta = HOUR, **more: Any
) -> tuple[Any, ...]:
    row = {
        "source": "shop",
        "queue": "orders",
        "message": message,
        "seq": seq,
        "died_at": NOW - ago,
        "name": "charge",
        "reason": "retries_exhausted",
        "fingerprint": fingerprint,
        "fault": "E: x",
        "described": True,
        **more,
    }
    return tuple(row.get(name) for name in DEAD_LETTERS.names)


def a_history(message: str, first: int, last: int, outcome: str | None, **more: Any) -> tuple[Any, ...]:
    row = {"source": "shop", "queue": "orders", "message": message, "first_seq": first, "last_seq": last}
    row |= {"outcome": outcome, **more}
    return tuple(row.get(name) for name in HISTORIES.names)


def test_every_death_has_one_fate(spark: SparkSession) -> None:
    deaths = [
        a_death("dead", 3),
        a_death("fixed", 3),
        a_death("twice", 3),
        a_death("twice", 6),
        a_death("under way", 3),
        a_death("dropped", 3),
        a_death("no history", 3),
        a_death("not built", 9),  # replayed and dead again since the histories were built
        a_death("not built", 3),
        a_death("used again", 3),
        a_death("used again", 30),
        a_death("elsewhere", 3, source="other"),
    ]
    histories = [
        a_history("dead", 1, 3, "dead"),
        a_history("fixed", 1, 6, "delivered"),
        a_history("twice", 1, 6, "dead"),
        a_history("under way", 1, 4, None),
        a_history("dropped", 1, 4, "removed"),
        a_history("not built", 1, 4, None),
        a_history("used again", 1, 3, "dead"),
        a_history("used again", 20, 31, "delivered"),
        a_history("elsewhere", 1, 5, "delivered"),
        a_history("never died", 1, 3, "delivered"),
    ]
    letters = spark.createDataFrame(deaths, DEAD_LETTERS.spark_schema())
    lives = spark.createDataFrame(histories, HISTORIES.spark_schema())

    fates = {(row["message"], row["seq"]): row["fate"] for row in with_fates(letters, lives).collect()}
    assert fates == {
        ("dead", 3): "dead",
        ("fixed", 3): "fixed",
        ("twice", 3): "died_again",
        ("twice", 6): "dead",
        ("under way", 3): "under_way",
        ("dropped", 3): "removed",
        ("no history", 3): "dead",
        ("not built", 3): "died_again",
        ("not built", 9): "dead",
        ("used again", 3): "dead",
        ("used again", 30): "fixed",
        ("elsewhere", 3): "dead",  # another store's message of the same id
    }
    still = {(row["message"], row["seq"]) for row in dead_now(letters, lives).collect()}
    assert still == {key for key, fate in fates.items() if fate == "dead"}


def test_dead_letters_are_grouped_by_fault_with_their_numbers(spark: SparkSession) -> None:
    """One query over several faults: counts, trend, history, what replays did, and what to do."""
    outage = [a_death(f"o{n}", n, "outage", ago=30 * HOUR + n * MINUTE) for n in range(1, 21)]
    replayed = [a_death(f"r{n}", 100 + n, "flaky", ago=(5 + n) * DAY) for n in range(5)]
    replayed += [a_death("r0", 200, "flaky", ago=3 * DAY, described=False)]
    live = [a_death(f"l{n}", 300 + n, "alive", ago=n * HOUR, name=None) for n in (0, 1, 2, 3, 25)]
    gone = [a_death("g", 400, "gone", source="other")]
    letters = spark.createDataFrame([*outage, *replayed, *live, *gone], DEAD_LETTERS.spark_schema())
    histories = [a_history(f"r{n}", 90, 190, "delivered") for n in range(1, 5)]
    histories += [a_history("r0", 90, 200, "dead"), a_history("g", 1, 500, "delivered", source="other")]
    tables = {
        "dead_letters": letters,
        "histories": spark.createDataFrame(histories, HISTORIES.spark_schema()),
    }

    groups = {each.fingerprint: each for each in triage(tables, NOW)}

    assert list(groups) == ["outage", "alive", "flaky"]  # most dead first; of the last nothing is dead
    outage_group, alive, flaky = groups.values()
    assert (outage_group.count, outage_group.messages, outage_group.dead_now) == (20, 20, 20)
    assert (outage_group.last_day, outage_group.day_before) == (0, 20)
    assert outage_group.history == [20 if step == 8 else 0 for step in range(SPARK_STEPS)]
    assert outage_group.spread < 20 * MINUTE
    assert outage_group.last_seen == NOW - 30 * HOUR - MINUTE
    assert outage_group.example == "o20"
    assert outage_group.suggestion is not None
    assert outage_group.suggestion.verdict is Verdict.TRY_FEW
    assert outage_group.suggestion.next == "remuda lake replay --fingerprint outage --limit 10"
    assert (alive.last_day, alive.day_before, alive.name, alive.reason) == (4, 1, None, "retries_exhausted")
    assert alive.history[-2:] == [2, 2]
    assert alive.suggestion is not None
    assert alive.suggestion.verdict is Verdict.CAUSE_FIRST
    assert (flaky.count, flaky.messages, flaky.undescribed, flaky.dead_now) == (6, 5, 1, 1)
    assert (flaky.replayed, flaky.fixed, flaky.died_again, flaky.fixed_share) == (5, 4, 1, 0.8)
    assert flaky.suggestion is not None
    assert flaky.suggestion.verdict is Verdict.REPLAY


def test_a_fault_is_seen_replayed_and_seen_to_be_fixed(
    sqlite_url: str, tmp_path: Path, spark: SparkSession
) -> None:
    """The whole way round: ingest, triage, plan, replay, and what the lake says afterwards."""
    lake, clock = Lake(str(tmp_path / "lake")), VirtualClock(NOW - 2 * HOUR)

    async def fail() -> None:
        async with Queue("orders", sqlite_url, clock=clock) as orders:
            await die(orders, [f"id-{n}" for n in range(6)], clock=clock)

    async def recover() -> None:
        async with Queue("orders", sqlite_url, clock=clock) as orders:
            await fail_again(orders, 1)
            assert len(await succeed(orders)) == 4

    def look() -> Group:
        gather(lake, spark, sqlite_url)
        build_histories(lake, spark, lake.transitions.progress(BATCHES), lambda _: None)
        (group,) = triage(lake.frames(spark), NOW)
        return group

    asyncio.run(fail())
    before = look()
    assert (before.count, before.dead_now, before.replayed, before.fixed_share) == (6, 6, 0, None)
    assert before.fault == "ConnectionError: order # refused by #"
    assert before.suggestion is not None
    assert before.suggestion.verdict is Verdict.TRY_FEW
    selection = Selection(fingerprint=before.fingerprint, limit=5)
    plan = make_plan(lake, spark, selection, now=NOW)
    clock.advance(HOUR)
    assert asyncio.run(carry_out(lake, plan, sqlite_url, clock=clock)).replayed == 5
    asyncio.run(recover())
    after = look()
    assert (after.count, after.messages, after.dead_now) == (7, 6, 2)
    assert (after.replayed, after.fixed, after.died_again) == (5, 4, 1)
    assert after.suggestion is not None
    assert after.suggestion.verdict is Verdict.REPLAY
    left = make_plan(lake, spark, Selection(fingerprint=before.fingerprint), now=NOW)
    assert left.examples == ["id-5", "id-0"]  # and not those that were delivered


# -- suggestions

USUAL = Group(
    fingerprint="f1",
    queue="orders",
    name="charge",
    reason="retries_exhausted",
    fault="E: x",
    sources=["shop"],
    example="id-1",
    count=4,
    messages=4,
    undescribed=0,
    first_seen=NOW - 9 * DAY,
    last_seen=NOW - 2 * DAY,
    last_day=0,
    day_before=0,
    history=[0] * SPARK_STEPS,
    spread=5 * DAY,
    dead_now=4,
    replayed=0,
    fixed=0,
    died_again=0,
)
BURST = {"count": 50, "dead_now": 50, "spread": 10 * MINUTE}
FLEET = {"queue": "devices:meters", "name": "TOP_UP"}


@pytest.mark.parametrize(
    ("facts", "verdict", "words"),
    [
        ({"dead_now": 0}, Verdict.NOTHING, "none of them is dead"),
        ({"reason": "decode_fail"}, Verdict.MEND_PRODUCER, "mend the producer, then drop"),
        ({"reason": "oversize", "last_seen": NOW}, Verdict.MEND_PRODUCER, "mend the producer"),
        ({"fixed": 9, "died_again": 1}, Verdict.REPLAY, "fixed 9 of 10"),
        ({"fixed": 9, "died_again": 1, "last_seen": NOW}, Verdict.REPLAY, "fixed 9 of 10"),
        ({"fixed": 0, "died_again": 4}, Verdict.DO_NOT_REPLAY, "of 4 that were replayed, 4 died again"),
        ({"fixed": 0, "died_again": 2}, Verdict.TRY_FEW, "if the cause is mended"),  # too few to tell
        ({"fixed": 5, "died_again": 5}, Verdict.TRY_FEW, "if the cause is mended"),
        ({"last_seen": NOW - 10 * MINUTE}, Verdict.CAUSE_FIRST, "seen 10 minutes ago"),
        ({"last_seen": NOW - 10 * MINUTE, **BURST}, Verdict.CAUSE_FIRST, "come straight back"),
        (
            {"last_seen": NOW - 3 * HOUR, "last_day": 9, "day_before": 2},
            Verdict.CAUSE_FIRST,
            "more of them every day",
        ),
        (
            {"last_seen": NOW - 3 * HOUR, "last_day": 50, **BURST},
            Verdict.TRY_FEW,
            "within 10 minutes, the last 3 hours",
        ),
        (
            {"last_seen": NOW - 3 * HOUR, "last_day": 2, "day_before": 2},
            Verdict.TRY_FEW,
            "if the cause is mended",
        ),
        ({"reason": "unrecoverable"}, Verdict.LOOK, "a retry cannot help"),
        ({"reason": "rejected"}, Verdict.LOOK, "did not want it"),
        ({"reason": "max_deliveries", **BURST}, Verdict.LOOK, "taken its workers down"),
        ({"reason": "expired"}, Verdict.LOOK, "still wanted"),
        ({**FLEET, "reason": "expired"}, Verdict.DO_NOT_REPLAY, "send a new one"),
        ({**FLEET, "reason": "superseded"}, Verdict.DO_NOT_REPLAY, "newer command"),
        ({**FLEET, "reason": "cancelled"}, Verdict.DO_NOT_REPLAY, "did not want it"),
        ({**FLEET, "reason": "bad_token"}, Verdict.DO_NOT_REPLAY, "new one"),
        ({**FLEET, "reason": "unsupported_command"}, Verdict.DO_NOT_REPLAY, "no such command"),
        ({**FLEET, "reason": "outcome_unknown"}, Verdict.LOOK, "may have been applied"),
        ({**FLEET, "reason": "unknown_device"}, Verdict.CAUSE_FIRST, "register it"),
        ({**FLEET, "reason": "max_age", **BURST}, Verdict.TRY_FEW, "as when something was down"),
    ],
)
def test_a_suggestion_follows_when_to_replay_and_when_not_to(
    facts: dict[str, Any], verdict: Verdict, words: str
) -> None:
    suggestion = suggest(replace(USUAL, **facts), NOW)
    assert (suggestion.verdict, words in suggestion.words) == (verdict, True), suggestion


def test_a_suggestion_names_what_to_run_next_and_what_to_mind() -> None:
    few = suggest(USUAL, NOW)
    assert few.next == "remuda lake replay --fingerprint f1 --limit 10"
    assert few.caution is not None
    assert "twice" in few.caution
    two_stores = suggest(replace(USUAL, sources=["a b", "shop"]), NOW)
    assert two_stores.next == "remuda lake replay --fingerprint f1 --source 'a b' --limit 10"
    all_of_them = suggest(replace(USUAL, fixed=9, died_again=1), NOW)
    assert all_of_them.next == "remuda lake replay --fingerprint f1"
    drop = suggest(replace(USUAL, reason="malformed"), NOW)
    assert (drop.next, drop.caution) == ("remuda dlq drop orders --reason malformed", None)
    look = suggest(replace(USUAL, last_seen=NOW), NOW)
    assert look.next == "remuda dlq peek orders --reason retries_exhausted --name charge"
    token = suggest(replace(USUAL, reason="outcome_unknown", queue="devices:meters"), NOW)
    assert token.next == "remuda devices show id-1 --fleet meters"
    tokens = suggest(replace(USUAL, reason="max_age", queue="devices:devices"), NOW)
    assert tokens.caution is not None
    assert "left out" in tokens.caution
    assert suggest(replace(USUAL, dead_now=0), NOW).next is None
