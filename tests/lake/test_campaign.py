"""Campaigns: checked rows, waves and rates, one command for each device whatever happens, and their ends."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from remuda.clock import VirtualClock
from remuda.devices.command import Answer, CommandType, Device, Family, Protocol
from remuda.devices.fleet import Fleet
from remuda.devices.happenings import Accepted, Acknowledged, Answered, CallFailed, Dispatched, Transmitted
from remuda.devices.sending import NewCommand
from remuda.devices.timings import Timings
from remuda.errors import ConfigurationError
from remuda.lake.campaign import (
    Campaign,
    CampaignError,
    CampaignState,
    Counts,
    Status,
    StepKind,
    abort,
    advance,
    list_campaigns,
    load_campaign,
    next_step,
    parse_rate,
    pause,
    resume,
    rows_from_file,
    rows_from_sql,
    start,
    status,
)
from remuda.lake.campaign.spec import wave_ends
from remuda.lake.campaign.steps import Standing
from remuda.lake.place import Lake
from remuda.lifecycle import EndReason
from remuda.rate import RateLimit
from tests.contract.workbench import HOUR, MINUTE, SECOND
from tests.devices.engine_world import EngineWorld, in_engine_world, token
from tests.lake.dead_workbench import killed_at

NOW = datetime(2030, 1, 1, tzinfo=UTC)
READ = Campaign(name="credit", type=CommandType.READ_CREDIT, shuffle=False)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(NOW)


def meters(count: int, **more: Any) -> list[dict[str, Any]]:
    return [
        {"device": f"4700000{n:04}", "protocol": "LORAWAN", "grid": "lagos-7", **more} for n in range(count)
    ]


async def commands_by_device(fleet: Fleet) -> Counter[str]:
    return Counter(each.device.reference for each in await fleet.commands(limit=1_000))


async def end_all(fleet: Fleet, *, fails: bool = False) -> None:
    """Every command that waits is sent and ends: answered, or refused by the network server."""
    reason = EndReason.UNKNOWN_DEVICE
    for each in await fleet.commands(limit=1_000):
        if not each.has_ended:
            refusal = CallFailed(attempt=1, code="NOT_FOUND", certain=True, final=reason)
            await fleet.ledger.happen({each.id: [Dispatched(), refusal] if fails else [*_answered()]})


def _answered() -> list[Any]:
    answer = Answer(family=Family.READ, ok=True, type=CommandType.READ_CREDIT, data={"value": 7.0})
    return [
        Dispatched(),
        Accepted(attempt=1, external_id="x"),
        Transmitted(attempt=1),
        Acknowledged(attempt=1, acknowledged=True, dedup="d"),
        Answered(attempt=1, dedup="d", answer=answer),
    ]


# -- deciding


@pytest.mark.parametrize(
    ("waves", "total", "ends"),
    [
        (("rest",), 7, [7]),
        (("10", "100", "rest"), 500, [10, 110, 500]),
        (("10", "100", "rest"), 50, [10, 50]),
        (("1%", "10%", "100%"), 500, [5, 50, 500]),
        (("1%", "10%", "100%"), 3, [1, 2, 3]),  # a share of a few is one at least
        (("5", "50%"), 20, [5, 10, 20]),  # what the waves leave over is one more
        (("0.5%", "rest"), 1000, [5, 1000]),
        (("10",), 10, [10]),
    ],
)
def test_waves_are_sizes_or_shares(waves: tuple[str, ...], total: int, ends: list[int]) -> None:
    assert wave_ends(waves, total) == ends


def test_what_makes_no_sense_is_refused_by_name() -> None:
    assert parse_rate("100/m") == RateLimit(100, MINUTE)
    with pytest.raises(ConfigurationError, match="not a rate: 'often'"):
        parse_rate("often")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"waves": ("half",)}, "not a wave: 'half'"),
        ({"waves": ("0",)}, "not a wave"),
        ({"waves": ("2.5",)}, "not a wave"),
        ({"name": "a/b"}, "'a/b'"),
        ({"abort_share": 0.0}, "abort_share"),
        ({"proceed_share": 1.5}, "proceed_share"),
        ({"abort_after": 0}, "abort_after"),
        ({"fleet": "a b"}, "'a b'"),
    ]
    for values, words in wrong:
        with pytest.raises(ConfigurationError, match=words):
            replace(READ, **values).check()


STANDING = Standing(state=CampaignState.RUNNING, waves=[10, 110, 500])


def decided(counts: dict[str, Any], standing: Standing = STANDING, **campaign: Any) -> tuple[StepKind, int]:
    step = next_step(replace(READ, **campaign), standing, Counts(total=500, **counts), NOW)
    return step.kind, step.send


def test_a_wave_is_sent_and_the_next_one_waits_until_enough_of_it_has_ended() -> None:
    assert decided({}) == (StepKind.SEND, 10)
    assert decided({"sent": 4, "under_way": 4}) == (StepKind.SEND, 6)
    assert decided({"sent": 10, "under_way": 2, "executed": 8}) == (StepKind.WAIT, 0)
    assert decided({"sent": 10, "under_way": 1, "executed": 9}) == (StepKind.SEND, 100)
    assert decided({"sent": 10, "under_way": 5, "executed": 5}, proceed_share=0.5) == (StepKind.SEND, 100)
    assert decided({"sent": 110, "under_way": 0, "executed": 110}) == (StepKind.SEND, 390)
    assert decided({"sent": 500, "under_way": 9, "executed": 491}) == (StepKind.FINISH, 0)


def test_too_many_failures_abort_it_and_too_few_ends_do_not() -> None:
    failed = {
        "sent": 100,
        "under_way": 80,
        "executed": 15,
        "failed": {"max_age": 2},
        "refused": 2,
        "unknown": 1,
    }
    assert decided(failed) == (StepKind.ABORT, 0)
    assert decided(failed, abort_share=0.26)[0] is not StepKind.ABORT
    assert decided(failed, abort_after=21)[0] is not StepKind.ABORT
    assert decided(failed, abort_share=None)[0] is not StepKind.ABORT
    called_off = {"sent": 100, "under_way": 80, "executed": 0, "called_off": 20}
    assert decided(called_off)[0] is not StepKind.ABORT
    # Also when all are sent: what waits in its lane can still be called off.
    assert decided(failed | {"sent": 500, "under_way": 480}) == (StepKind.ABORT, 0)


def test_what_an_operator_wants_comes_first() -> None:
    assert decided({}, replace(STANDING, state=CampaignState.PAUSED)) == (StepKind.WAIT, 0)
    assert decided({}, replace(STANDING, state=CampaignState.ABORTED)) == (StepKind.ABORT, 0)


def test_a_rate_spreads_what_is_sent() -> None:
    campaign, counts = replace(READ, rate=parse_rate("600/m")), Counts(total=500)
    first = next_step(campaign, replace(STANDING, waves=[500]), counts, NOW)
    assert (first.kind, first.send) == (StepKind.SEND, 50)  # five seconds of it at once
    standing = Standing(state=CampaignState.RUNNING, waves=[500], full_at=first.full_at)
    full = next_step(campaign, standing, counts, NOW)
    assert (full.kind, full.why, full.until) == (StepKind.WAIT, "its rate", NOW + SECOND / 10)
    later = next_step(campaign, standing, counts, NOW + SECOND)
    assert (later.kind, later.send) == (StepKind.SEND, 10)
    slow = next_step(replace(READ, rate=parse_rate("60/h")), standing, counts, NOW)
    assert next_step(replace(READ, rate=parse_rate("60/h")), STANDING, counts, NOW).send == 1
    assert slow.kind is StepKind.WAIT


# -- rows


def test_every_bad_row_is_named_before_anything_is_sent(lake: Lake) -> None:
    rows = meters(9)
    rows[1]["device"] = None
    rows[2]["device"] = rows[0]["device"]
    rows[3]["type"] = "DANCE"
    rows[4]["protocol"] = "PIGEON"
    rows[5]["phase"] = "D"
    rows[6] |= {"type": "TOP_UP"}
    rows[7] |= {"type": "TOP_UP", "token": "12345"}
    rows[8] |= {"gateway": "gw1", "snr": "loud"}
    with pytest.raises(CampaignError) as caught:
        start(lake, READ, rows, now=NOW)
    said = dict(caught.value.problems)
    assert list(said) == [2, 3, 4, 5, 6, 7, 8, 9]
    for row, words in {
        2: "no device",
        3: "in row 1",
        4: "'DANCE'",
        5: "'PIGEON'",
        6: "'D'",
        7: "needs a token",
        8: "not 20 digits",
        9: "'loud'",
    }.items():
        assert words in said[row]
    assert "12345" not in str(caught.value)
    assert list_campaigns(lake) == []
    with pytest.raises(ConfigurationError, match="columns that mean nothing: gatway"):
        start(lake, READ, meters(1, gatway="gw1"), now=NOW)
    with pytest.raises(ConfigurationError, match="no row"):
        start(lake, READ, [], now=NOW)


def test_rows_come_from_csv_parquet_and_sql(lake: Lake, tmp_path: Path, spark: SparkSession) -> None:
    csv = tmp_path / "devices.csv"
    csv.write_text(
        "device,protocol,gateway,dev_eui\n00047,api_v1,gw1,\n47000000001,LORAWAN,,00000047000000ab\n"
    )
    parquet = tmp_path / "devices.parquet"
    table = {"reference": [47.0, 48.0], "protocol": ["API_V1", "API_V2"], "data": ['{"a": 1}', "plain"]}
    pq.write_table(pa.table(table), parquet)
    keys = rows_from_sql(
        lake, spark, "SELECT * FROM VALUES ('LORAWAN:0000047000000001'), ('API_V1:00049') AS t(device)"
    )
    found = []
    for number, rows in enumerate([rows_from_file(csv), rows_from_file(str(parquet)), keys]):
        begun = start(lake, replace(READ, name=f"c{number}"), rows, now=NOW)
        assert begun.devices == 2
        kept = pq.read_table(tmp_path / "lake" / "campaigns" / begun.name / "devices.parquet").to_pylist()
        found += [
            (row["device"], row["protocol"], row["dev_eui"], row["gateway"], row["data"]) for row in kept
        ]
    assert found == [
        ("00047", "API_V1", None, "gw1", "null"),
        ("47000000001", "LORAWAN", "00000047000000ab", None, "null"),
        ("47", "API_V1", None, None, '{"a":1}'),
        ("48", "API_V2", None, None, '"plain"'),
        ("47000000001", "LORAWAN", "0000047000000001", None, "null"),
        ("00049", "API_V1", None, None, "null"),
    ]
    assert [each.name for each in list_campaigns(lake)] == ["c0", "c1", "c2"]
    for wrong, words in (("nowhere.csv", "no file"), (tmp_path / "remuda.txt", "neither")):
        (tmp_path / "remuda.txt").touch()
        with pytest.raises(ConfigurationError, match=words):
            rows_from_file(wrong)


# -- running


@pytest.mark.parametrize("kind", ["sqlite", "valkey", "postgres"])
async def test_killed_between_any_two_steps_it_sends_each_device_one_command(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, clock: VirtualClock
) -> None:
    url = request.getfixturevalue(f"{kind}_url")
    campaign = replace(READ, waves=("3", "rest"), proceed_share=0.5)
    for step in range(1, 8):
        lake = Lake(str(tmp_path / f"lake-{step}"))
        async with Fleet(url, name=f"fleet-{step}", clock=clock) as fleet:
            start(lake, replace(campaign, fleet=f"fleet-{step}"), meters(7), now=clock.now())
            with killed_at(step) as on_step:
                for _ in range(3):
                    await advance(lake, "credit", fleet, now=clock.now(), on_step=on_step)
                    await end_all(fleet)
            clock.advance(MINUTE)
            for _ in range(6):
                stood = await advance(lake, "credit", fleet, now=clock.now())
                await end_all(fleet)
            assert stood.is_over, step
            assert await commands_by_device(fleet) == Counter(row["device"] for row in meters(7)), step
            assert (stood.counts.executed, stood.counts.sent, stood.state) == (7, 7, CampaignState.FINISHED)
            ids = [each.id for each in await fleet.commands(limit=10)]
            assert all(len(each) == 26 for each in ids)


async def test_a_command_that_another_answers_for_is_not_sent_again_after_a_crash(
    sqlite_url: str, lake: Lake, clock: VirtualClock
) -> None:
    """Its twin may have ended before the campaign is taken up again."""
    async with Fleet(sqlite_url, clock=clock) as fleet:
        device = Device(reference="47000000001", protocol=Protocol.LORAWAN)
        other = await fleet.send(NewCommand(type=CommandType.READ_CREDIT, device=device, grid="lagos-7"))
        start(lake, READ, meters(3), now=NOW)
        with killed_at(3) as on_step:  # sent, and not noted
            await advance(lake, "credit", fleet, now=NOW, on_step=on_step)
        await end_all(fleet)
        await advance(lake, "credit", fleet, now=NOW)
        stood = await advance(lake, "credit", fleet, now=NOW)
        assert (stood.counts.executed, stood.is_over) == (3, True)
        assert await commands_by_device(fleet) == Counter(row["device"] for row in meters(3))
        found = await fleet.get(other.id)
        assert found is not None
        assert found.joined[0].startswith("credit:")


async def test_two_programs_at_once_send_each_device_one_command(
    sqlite_url: str, lake: Lake, clock: VirtualClock
) -> None:
    async with Fleet(sqlite_url, clock=clock) as one, Fleet(sqlite_url, clock=clock) as two:
        start(lake, replace(READ, rate=parse_rate("1/s")), meters(12), now=NOW)
        for _ in range(20):
            await advance(lake, "credit", one, now=clock.now())
            await end_all(one)
            progress = Path(lake.root.uri) / "campaigns" / "credit" / "progress.json"
            before = progress.read_bytes()
            await advance(lake, "credit", two, now=clock.now() + SECOND)
            progress.write_bytes(before)  # the slower one writes last
            clock.advance(SECOND)
        assert status(lake, "credit").state is CampaignState.FINISHED
        assert await commands_by_device(one) == Counter(row["device"] for row in meters(12))


async def test_an_operator_pauses_resumes_and_aborts(
    sqlite_url: str, lake: Lake, clock: VirtualClock
) -> None:
    async with Fleet(sqlite_url, clock=clock) as fleet:
        campaign = replace(READ, waves=("2", "rest"), proceed_share=0.5, rate=parse_rate("1/s"))
        start(lake, campaign, meters(5), now=NOW)

        async def go_on(after: timedelta = 10 * SECOND) -> Status:
            clock.advance(after)
            return await advance(lake, "credit", fleet, now=clock.now())

        with pytest.raises(ConfigurationError, match="already"):
            start(lake, campaign, meters(5), now=NOW)
        first = await go_on()
        assert (first.sent_now, first.wave, first.waves, first.state) == (2, 1, [2, 5], CampaignState.RUNNING)
        pause(lake, "credit", now=clock.now(), why="lunch")
        await end_all(fleet)
        paused = await go_on()
        assert (paused.sent_now, paused.state, paused.why) == (0, CampaignState.PAUSED, "lunch")
        assert paused.counts.executed == 2
        resume(lake, "credit", now=clock.now())
        again = await go_on()
        assert (again.sent_now, again.counts.left, again.state) == (3, 0, CampaignState.FINISHED)
        assert not again.is_over
        abort(lake, "credit", now=clock.now(), why="wrong firmware")
        gone = await go_on()
        assert (gone.state, gone.why, gone.is_over) == (CampaignState.ABORTED, "wrong firmware", True)
        assert (gone.counts.called_off, gone.counts.executed, gone.counts.failures) == (3, 2, 0)
        assert status(lake, "credit").counts == gone.counts
        with pytest.raises(ConfigurationError, match="was aborted"):
            resume(lake, "credit", now=NOW)
        with pytest.raises(ConfigurationError, match=r"no campaign 'x' .*there are: credit"):
            load_campaign(lake, "x")
        async with Fleet(sqlite_url, name="others", clock=clock) as others:
            with pytest.raises(ConfigurationError, match="for the fleet 'devices'"):
                await advance(lake, "credit", others, now=NOW)


async def test_an_abort_counts_and_cancels_what_an_interrupted_step_had_sent(
    sqlite_url: str, lake: Lake, clock: VirtualClock
) -> None:
    async with Fleet(sqlite_url, clock=clock) as fleet:
        start(lake, READ, meters(4), now=NOW)
        with killed_at(3) as on_step:
            await advance(lake, "credit", fleet, now=NOW, on_step=on_step)
        abort(lake, "credit", now=NOW)
        stood = await advance(lake, "credit", fleet, now=NOW)
        assert (stood.is_over, stood.counts.called_off) == (True, 4)
        assert {each.reason for each in await fleet.commands()} == {EndReason.CANCELLED}


async def test_a_campaign_that_fails_is_aborted_and_the_rest_is_spared(
    sqlite_url: str, lake: Lake, clock: VirtualClock
) -> None:
    async with Fleet(sqlite_url, clock=clock) as fleet:
        start(lake, replace(READ, waves=("4", "rest"), abort_after=3), meters(50), now=NOW)
        await advance(lake, "credit", fleet, now=NOW)
        await end_all(fleet, fails=True)
        stood = await advance(lake, "credit", fleet, now=NOW)
        assert (stood.state, stood.is_over, stood.counts.sent) == (CampaignState.ABORTED, True, 4)
        assert stood.counts.failed == {"unknown_device": 4}
        assert "4 of 4 that ended have failed (100%)" in stood.why
        assert (await advance(lake, "credit", fleet, now=NOW)).sent_now == 0


# -- with engines, in virtual time


async def run_campaign(
    world: EngineWorld, lake: Lake, campaign: Campaign, rows: list[dict[str, Any]]
) -> list[Status]:
    """Advanced every ten seconds until it is over; how it stood each time."""
    start(lake, campaign, rows, now=world.clock.now())
    stood: list[Status] = []
    while not stood or not stood[-1].is_over:
        stood.append(await advance(lake, campaign.name, world.fleet, now=world.clock.now()))
        await world.wait(10)
        assert len(stood) < 2_000
    return stood


def rows_of(world: EngineWorld, **more: Any) -> list[dict[str, Any]]:
    return [
        {
            "device": meter.serial,
            "protocol": "LORAWAN",
            "gateway": meter.gateway,
            "snr": 8.0,
            "grid": f"grid{number % len(world.gateways)}",
            "spreading_factor": meter.spreading_factor,
            **{name: value(number) for name, value in more.items()},
        }
        for number, meter in enumerate(world.meters)
    ]


def test_every_meter_of_a_campaign_gets_its_own_token_once(lake: Lake) -> None:
    campaign = Campaign(
        name="gift", type=CommandType.TOP_UP, waves=("3", "50%", "rest"), rate=parse_rate("30/m")
    )

    async def story(world: EngineWorld) -> None:
        stood = await run_campaign(
            world, lake, campaign, rows_of(world, token=lambda number: token(number + 1))
        )
        last = stood[-1]
        assert (last.state, last.counts.executed, last.counts.sent) == (CampaignState.FINISHED, 12, 12)
        assert next(each.counts.sent for each in stood if each.sent_now) == 2  # five seconds of its rate
        assert last.waves == [3, 6, 12]
        applied = [sum(deed.applied for deed in meter.deeds) for meter in world.meters]
        assert applied == [1] * 12

    in_engine_world(story, meters=12, gateways=3, timings=Timings(lock=timedelta(seconds=0.2)))


def test_a_campaign_is_aborted_when_a_gateway_fails(lake: Lake) -> None:
    campaign = Campaign(
        name="clocks",
        type=CommandType.READ_CREDIT,
        waves=("8", "rest"),
        proceed_share=1.0,
        abort_share=0.3,
        abort_after=6,
        expires_in=5 * MINUTE,
    )

    async def story(world: EngineWorld) -> None:
        world.gateways[1].cut(world.clock.now())
        stood = await run_campaign(world, lake, campaign, rows_of(world))
        last = stood[-1]
        assert (last.state, last.counts.sent, last.counts.left) == (CampaignState.ABORTED, 8, 12)
        assert last.counts.executed == 8 - last.counts.failures - last.counts.called_off
        assert last.counts.failures >= 2
        assert "have failed" in last.why
        assert world.clock.now() - NOW < HOUR
        sent = await world.fleet.commands(limit=100)
        assert len(sent) == 8
        assert all(each.has_ended for each in sent)

    in_engine_world(story, meters=20, gateways=2, timings=Timings(lock=timedelta(seconds=0.2)))
