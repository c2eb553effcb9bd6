"""The simulated vendor: what becomes of tasks, over sockets and inside the process, the same every time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.clock import Clock, SystemClock, VirtualClock
from remuda.devices.command import FAMILIES, CommandType, Device, Execution, Family, Phase, Protocol
from remuda.devices.networks.calin_v1 import CalinV1
from remuda.devices.networks.calin_v2 import CalinV2
from remuda.devices.networks.calin_words import V2_FAILED, V2_PROCESSING, V2_SUCCEEDED, v1_words, v2_words
from remuda.devices.networks.contract import Network, NetworkError, Order, SendError, TaskResult
from remuda.devices.simulator.calin import Asked, SimulatedCalin, read_v1, read_v2, usual_weather
from remuda.devices.simulator.calin_http import CalinServer
from remuda.devices.simulator.calin_network import InProcessCalin
from remuda.devices.simulator.meter import Meter
from remuda.devices.simulator.radio import Weather
from remuda.devices.simulator.virtual_time import run_virtually
from remuda.errors import ConfigurationError
from remuda.lifecycle import EndReason

T = CommandType
Value = TypeVar("Value")
START = datetime(2026, 3, 15, 10, 0, tzinfo=UTC)
SERIAL = "47003333771"
TOKEN = "61234567890123450500"  # 50 kWh
AT_ONCE = (timedelta(0), timedelta(0))
V1, V2 = Protocol.API_V1, Protocol.API_V2
both = pytest.mark.parametrize("protocol", [V1, V2])
WORLDS = ["sockets", "in process"]


def meters(count: int = 1, *, refuse: float = 0.0) -> dict[str, Meter]:
    serials = [str(int(SERIAL) + number) for number in range(count)]
    return {each: Meter(each, rng=random.Random(each), refuse=refuse) for each in serials}


def order(kind: CommandType, data: Any = None, *, serial: str = SERIAL, phase: Phase | None = None) -> Order:
    device = Device(reference=serial, protocol=V1)
    return Order(command_id="c1", attempt=1, device=device, type=kind, data=data, phase=phase)


def in_virtual_time(main: Callable[[Clock], Awaitable[Value]]) -> Value:
    return run_virtually(main, start=START)


@asynccontextmanager
async def world(kind: str, protocol: Protocol, calin: SimulatedCalin) -> AsyncIterator[Network]:
    """The vendor, as its adapter over sockets sees it, or from inside the process."""
    if kind == "in process":
        try:
            yield InProcessCalin(calin, protocol)
        finally:
            await calin.close()
        return
    server = CalinServer(calin)
    await server.start()
    made = {V1: CalinV1, V2: CalinV2}[protocol](
        server.url, company="Acme", user="admin", password="secret", clock=calin.clock
    )
    await made.open()
    try:
        yield made
    finally:
        await made.close()
        await server.stop()


async def end_of(network: Network, asked: Order, external_id: str) -> TaskResult:
    for _ in range(1000):
        result = await network.poll(asked, external_id)
        if result is not None:
            return result
        await asyncio.sleep(0.002)
    raise AssertionError(f"task {external_id} has no end")


def quick(some: dict[str, Meter], clock: Clock, **options: Any) -> SimulatedCalin:
    """A vendor for real time: as always, in milliseconds."""
    weather = Weather(1, accept_delay=AT_ONCE, **options)
    return SimulatedCalin(some, clock, weather=weather, latency=timedelta(microseconds=100))


EVERYTHING = [
    *((kind, None, None) for kind in T if FAMILIES[kind] is Family.READ and kind is not T.READ_TIME),
    (T.READ_VOLTAGE, None, Phase.A),
    (T.TURN_OFF, None, None),
    (T.READ_CREDIT, None, None),
    (T.SET_DATE, "2026-07-01", None),
    (T.READ_DATE, None, None),
    (T.TOP_UP, TOKEN, None),
    (T.READ_CREDIT, None, None),
]


@both
async def test_sockets_and_process_tell_the_same(protocol: Protocol) -> None:
    results: dict[str, list[TaskResult]] = {}
    for kind in WORLDS:
        results[kind] = []
        async with world(kind, protocol, quick(meters(), VirtualClock(START))) as network:
            for what, data, phase in EVERYTHING:
                asked = order(what, data, phase=phase)
                results[kind].append(await end_of(network, asked, await network.send(asked)))
    assert results["sockets"] == results["in process"]
    told = [each.data for each in results["sockets"]]
    credit = {"value": 75.0, "relay": "off"} if protocol is V1 else {"value": 75.0}
    assert told[-3:] == [{"value": "2026-07-01"}, None, credit]
    assert all(each.execution is Execution.EXECUTION_SUCCESS for each in results["sockets"])


@both
@pytest.mark.parametrize("kind", WORLDS)
async def test_a_token_that_was_used_is_refused_at_the_create(kind: str, protocol: Protocol) -> None:
    asked = order(T.TOP_UP, TOKEN)
    async with world(kind, protocol, quick(meters(), SystemClock())) as network:
        await end_of(network, asked, await network.send(asked))
        with pytest.raises(SendError) as caught:
            await network.send(asked)
    assert (caught.value.final, caught.value.certain) == (EndReason.BAD_TOKEN, True)


@both
@pytest.mark.parametrize("kind", WORLDS)
async def test_an_unknown_meter_is_said_to_be_one(kind: str, protocol: Protocol) -> None:
    async with world(kind, protocol, quick(meters(), SystemClock())) as network:
        with pytest.raises(SendError) as caught:
            await network.send(order(T.READ_CREDIT, serial="99"))
        assert (caught.value.final, caught.value.certain) == (EndReason.UNKNOWN_DEVICE, True)
        with pytest.raises(NetworkError):
            await network.poll(order(T.READ_CREDIT), "1")


@both
@pytest.mark.parametrize("kind", WORLDS)
async def test_an_applied_token_whose_answer_was_lost_is_told_as_failed_not_as_refused(
    kind: str, protocol: Protocol
) -> None:
    some = meters()
    asked = order(T.TOP_UP, TOKEN)
    async with world(kind, protocol, quick(some, SystemClock(), uplink_loss=1.0)) as network:
        result = await end_of(network, asked, await network.send(asked))
    assert (result.execution, result.refused) == (Execution.EXECUTION_FAILURE, False)
    assert some[SERIAL].credit_kwh == 75.0


@both
@pytest.mark.parametrize("kind", WORLDS)
async def test_a_token_that_the_meter_refuses_is_told_by_v2_alone(kind: str, protocol: Protocol) -> None:
    asked = order(T.TOP_UP, TOKEN)
    async with world(kind, protocol, quick(meters(refuse=1.0), SystemClock())) as network:
        result = await end_of(network, asked, await network.send(asked))
    assert (result.execution, result.refused) == (Execution.EXECUTION_FAILURE, protocol is V2)


@both
@pytest.mark.parametrize("kind", WORLDS)
@pytest.mark.parametrize(
    ("share", "made"), [({"failures_before": 1.0}, 0), ({"failures_after": 1.0}, 1)], ids=["before", "after"]
)
@pytest.mark.parametrize(("html", "code"), [(0.0, "connection_lost"), (1.0, "http_502")])
async def test_a_failing_call_may_have_had_its_effect(
    kind: str, protocol: Protocol, share: dict[str, float], made: int, html: float, code: str
) -> None:
    class FailingLater(Weather):
        """Calls that are made for a meter fail; a login does not."""

        def call(self, name: str) -> Any:
            return super().call(name) if name != "login" else clear.call(name)

    clear = Weather(accept_delay=AT_ONCE)
    weather = FailingLater(1, accept_delay=AT_ONCE, **share)
    calin = SimulatedCalin(meters(), SystemClock(), weather=weather, html_errors=html)
    async with world(kind, protocol, calin) as network:
        with pytest.raises(SendError) as caught:
            await network.send(order(T.TOP_UP, TOKEN))
        assert (caught.value.code, caught.value.certain) == (code, False)
        assert len(calin.tasks) == made
        with pytest.raises(NetworkError) as poll:
            await network.poll(order(T.TOP_UP, TOKEN), "3800")
        assert poll.value.code == code


@both
async def test_the_server_checks_credentials(protocol: Protocol) -> None:
    server = CalinServer(quick(meters(), SystemClock()))
    await server.start()
    network = {V1: CalinV1, V2: CalinV2}[protocol](server.url, company="Acme", user="admin", password="wrong")
    await network.open()
    with pytest.raises(SendError) as caught:
        await network.send(order(T.READ_CREDIT))
    assert (caught.value.code, caught.value.certain, caught.value.final) == ("unauthorized", True, None)
    with pytest.raises(NetworkError):
        await network.poll(order(T.READ_CREDIT), "3800")
    await network.close()
    await server.stop()
    assert not server.calin.tasks


async def test_a_login_lasts_as_long_as_it_should() -> None:
    clock = VirtualClock(START)
    server = CalinServer(quick(meters(), clock), jwt_lifetime=timedelta(hours=1))
    await server.start()
    network = CalinV2(server.url, company="Acme", user="admin", password="secret", concurrency=50)
    await network.open()
    await network.send(order(T.READ_CREDIT))
    clock.advance(timedelta(minutes=59))
    await network.send(order(T.READ_CREDIT))
    assert server.logins == 1
    clock.advance(timedelta(minutes=2))
    await asyncio.gather(*(network.send(order(T.READ_CREDIT)) for _ in range(50)))
    assert server.logins == 2
    server.forget_logins()
    await network.send(order(T.READ_CREDIT))
    assert server.logins == 3
    assert len(server.calin.tasks) == 53
    await network.close()
    await server.stop()


async def test_a_server_that_forgets_logins_at_times_makes_no_task_twice() -> None:
    server = CalinServer(quick(meters(), SystemClock()), revocations=0.3)
    await server.start()
    network = CalinV2(server.url, company="Acme", user="admin", password="secret")
    await network.open()
    sent = [
        await asyncio.gather(network.send(order(T.READ_CREDIT)), return_exceptions=True) for _ in range(40)
    ]
    failed = [each for [each] in sent if isinstance(each, SendError)]  # forgotten twice in a row
    assert {(each.code, each.certain) for each in failed} <= {("unauthorized", True)}
    assert 1 < server.logins < 40
    assert len(server.calin.tasks) == 40 - len(failed) > 20
    await network.close()
    await server.stop()


async def test_a_server_stops_while_calls_are_under_way() -> None:
    under_way = asyncio.Event()

    class Noticing(Weather):
        def call(self, name: str) -> Any:
            under_way.set()
            return super().call(name)

    weather = Noticing(1, accept_delay=(timedelta(hours=1), timedelta(hours=1)))
    server = CalinServer(SimulatedCalin(meters(), SystemClock(), weather=weather))
    await server.start()
    network = CalinV1(server.url, company="Acme", user="admin", password="secret")
    await network.open()
    sending = asyncio.create_task(network.send(order(T.READ_CREDIT)))
    await under_way.wait()
    await server.stop()
    with pytest.raises(SendError) as caught:
        await sending
    assert not caught.value.certain
    await network.close()


def history(seed: int) -> list[tuple[Any, ...]]:
    """Everything that happens to 60 commands for 12 meters, on a usual day."""

    async def main(clock: Clock) -> list[tuple[Any, ...]]:
        some = meters(12, refuse=0.1)
        calin = SimulatedCalin(some, clock, weather=usual_weather(seed))
        network = InProcessCalin(calin, V2)
        told: list[tuple[Any, ...]] = []

        async def one(serial: str, kind: CommandType, data: Any) -> None:
            asked = order(kind, data, serial=serial)
            try:
                external_id = await network.send(asked)
            except SendError as error:
                told.append((serial, kind, error.code, clock.now()))
                return
            while True:
                await asyncio.sleep(10)
                try:
                    result = await network.poll(asked, external_id)
                except NetworkError as error:
                    told.append((serial, external_id, error.code, clock.now()))
                    continue
                if result is not None:
                    told.append((serial, external_id, result, clock.now()))
                    return

        kinds = [
            (T.READ_CREDIT, None),
            (T.READ_VOLTAGE, None),
            (T.TURN_OFF, None),
            (T.SET_DATE, "2026-04-01"),
        ]
        work = [(each, kind, data) for each in some for kind, data in kinds]
        work += [(each, T.TOP_UP, f"{number:016}0100") for number, each in enumerate(some)]
        await asyncio.gather(*(one(*each) for each in work))
        deeds = [(each, deed.at, deed.type, deed.applied) for each in some for deed in some[each].deeds]
        await calin.close()
        return told + deeds

    return in_virtual_time(main)


def test_one_seed_gives_one_history() -> None:
    first, again, other = history(7), history(7), history(8)
    assert first == again
    assert first != other


def test_a_task_rarely_answers_within_ten_seconds_and_some_take_minutes() -> None:
    async def main(clock: Clock) -> list[float]:
        calin = SimulatedCalin(meters(1), clock, weather=Weather(3))
        for _ in range(2000):
            calin.create_task(SERIAL, Asked(type=T.READ_CREDIT))
        await asyncio.sleep(24 * 3600)
        assert not [each for each in calin.tasks.values() if each.status == V2_PROCESSING]
        return [(each.updated_at - each.created_at).total_seconds() for each in calin.tasks.values()]

    lasted = in_virtual_time(main)
    assert 0 < sum(each < 10 for each in lasted) < 250
    assert sum(each > 120 for each in lasted) > 10
    assert 15 < sorted(lasted)[1000] < 25


def test_a_meter_that_is_offline_keeps_its_tasks_in_processing() -> None:
    async def main(clock: Clock) -> None:
        some = meters()
        calin = SimulatedCalin(some, clock)
        network = InProcessCalin(calin, V2)
        calin.set_offline(SERIAL)
        external_id = await network.send(order(T.TURN_OFF))
        await asyncio.sleep(47 * 3600)
        assert await network.poll(order(T.TURN_OFF), external_id) is None
        assert some[SERIAL].relay_on
        calin.set_online(SERIAL)
        await asyncio.sleep(1)
        result = await network.poll(order(T.TURN_OFF), external_id)
        assert result == TaskResult(execution=Execution.EXECUTION_SUCCESS)
        assert not some[SERIAL].relay_on
        await calin.close()

    in_virtual_time(main)


@pytest.mark.parametrize(("loss", "applied"), [("downlink_loss", 0), ("uplink_loss", 3)])
def test_the_vendor_tries_three_times_and_then_says_failed(loss: str, applied: int) -> None:
    async def main(clock: Clock) -> None:
        some = meters()
        calin = SimulatedCalin(some, clock, weather=Weather(1, **{loss: 1.0}))
        task = calin.result(calin.create_task(SERIAL, Asked(type=T.TURN_OFF)))
        assert task is not None
        await asyncio.sleep(3600)
        assert task.status == V2_FAILED
        assert len(some[SERIAL].deeds) == applied

    in_virtual_time(main)


def test_no_token_is_told_as_refused_by_the_vendors_own_second_try() -> None:
    async def main(clock: Clock) -> None:
        some = meters(200)
        calin = SimulatedCalin(some, clock, weather=Weather(5, uplink_loss=0.5, downlink_loss=0.5))
        network = InProcessCalin(calin, V2)
        sent = {each: await network.send(order(T.TOP_UP, TOKEN, serial=each)) for each in some}
        await asyncio.sleep(7200)
        results = {each: await network.poll(order(T.TOP_UP), sent[each]) for each in some}
        assert not [each for each in results.values() if each is None or each.refused]
        failed = [each for each, result in results.items() if result and result.code]
        applied = [each for each in failed if some[each].credit_kwh == 75.0]
        assert 0 < len(applied) < len(failed) < 200

    in_virtual_time(main)


def test_a_second_task_with_an_applied_token_is_refused_by_the_meter() -> None:
    async def main(clock: Clock) -> None:
        some = meters()
        weather = Weather(1, uplink_loss=1.0)
        calin = SimulatedCalin(some, clock, weather=weather)
        network = InProcessCalin(calin, V2)
        await network.send(order(T.TOP_UP, TOKEN))
        await asyncio.sleep(3600)
        weather.uplink_loss = 0.0
        again = await network.send(order(T.TOP_UP, TOKEN))
        await asyncio.sleep(3600)
        result = await network.poll(order(T.TOP_UP), again)
        assert result == TaskResult(execution=Execution.EXECUTION_FAILURE, refused=True, code="3")
        assert some[SERIAL].credit_kwh == 75.0

    in_virtual_time(main)


def test_a_slow_call_takes_its_time_and_ends_at_the_deadline() -> None:
    async def main(clock: Clock) -> None:
        calin = SimulatedCalin(meters(), clock, weather=Weather(1, slow_calls=1.0))
        started = clock.now()
        await InProcessCalin(calin, V1).send(order(T.TURN_OFF))
        assert clock.now() - started == timedelta(seconds=37)
        hasty = InProcessCalin(calin, V1, call_deadline=timedelta(seconds=20))
        with pytest.raises(SendError) as caught:
            await hasty.send(order(T.TURN_ON))
        assert (caught.value.code, caught.value.certain) == ("timeout", False)
        assert clock.now() - started == timedelta(seconds=57)
        with pytest.raises(NetworkError):
            await hasty.poll(order(T.TURN_ON), "3800")
        await calin.close()

    in_virtual_time(main)


def test_tasks_that_succeed_after_losses_were_done() -> None:
    async def main(clock: Clock) -> None:
        some = meters(100)
        calin = SimulatedCalin(some, clock, weather=Weather(2, uplink_loss=0.4, downlink_loss=0.4), tries=8)
        tasks = {each: calin.create_task(each, Asked(type=T.TURN_OFF)) for each in some}
        await asyncio.sleep(24 * 3600)
        done = [each for each in some if calin.tasks[tasks[each]].status == V2_SUCCEEDED]
        assert 90 < len(done) < 100
        assert not [each for each in done if some[each].relay_on]

    in_virtual_time(main)


def test_calin_is_not_reached_by_lorawan() -> None:
    with pytest.raises(ConfigurationError, match="LORAWAN"):
        InProcessCalin(SimulatedCalin({}, SystemClock()), Protocol.LORAWAN)


@given(st.datetimes(min_value=datetime(2000, 1, 1), max_value=datetime(2099, 12, 31, 23, 59, 59)))  # noqa: DTZ001  # a meter's wall clock
def test_every_date_is_read_as_it_was_written(moment: datetime) -> None:
    asked = order(T.SET_DATE, moment)
    assert read_v1(Family.WRITE, v1_words(asked, START)).data == moment.date().isoformat()
    assert read_v2(Family.WRITE, v2_words(asked, START)).data == moment.replace(microsecond=0).isoformat()
