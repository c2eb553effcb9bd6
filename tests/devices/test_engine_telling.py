"""Who is told how commands ended: subscribers in virtual time, webhooks over real HTTP."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from remuda import Exponential, Queue
from remuda.clock import SystemClock
from remuda.devices.codecs.contract import Report
from remuda.devices.codecs.dlt645 import Dlt645
from remuda.devices.command import (
    Answer,
    Command,
    CommandType,
    Device,
    Protocol,
)
from remuda.devices.engine import Engine
from remuda.devices.fleet import Fleet
from remuda.devices.listening import DeviceReport
from remuda.devices.publishing import BatchSubscriber
from remuda.devices.sending import NewCommand
from remuda.devices.simulator.calin import SimulatedCalin
from remuda.devices.simulator.calin_http import HttpServer
from remuda.devices.simulator.calin_network import InProcessCalin
from remuda.devices.simulator.radio import Weather
from remuda.devices.webhooks import (
    SIGNATURE_HEADER,
    WebhookSubscriber,
    WebhookTarget,
    is_signed,
    signature_of,
    webhook_worker,
)
from remuda.errors import StoreUnavailableError
from tests.devices.engine_world import CREDIT, EngineWorld, in_engine_world, token
from tests.faults.waiting import until

# -- those who are told


class Audience(BatchSubscriber):
    """Hears commands and reports; refuses the first `refusals` times."""

    def __init__(self, refusals: int = 0) -> None:
        self.refusals = refusals
        self.commands: list[str] = []
        self.reports: list[DeviceReport] = []

    async def told(self, commands: list[Command]) -> None:
        if self.refusals > 0:
            self.refusals -= 1
            raise StoreUnavailableError("not now")
        self.commands += [each.id for each in commands]

    async def reported(self, report: DeviceReport) -> None:
        self.reports.append(report)


def test_a_subscriber_that_fails_keeps_nobody_else_from_being_told(caplog: pytest.LogCaptureFixture) -> None:
    async def story(world: EngineWorld) -> None:
        engine = world.new_engine()
        calls: list[str] = []

        def fails(command: Command) -> None:
            calls.append(command.id)
            raise RuntimeError("a subscriber's own bug")

        later = Audience()
        engine.subscribe(fails)
        engine.subscribe(later)
        await world.engines[0].stop()
        world.engines[0] = engine
        await engine.start()
        sent = [await world.send(CREDIT, meter) for meter in world.meters]
        await world.all_end(sent)
        assert set(calls) == set(later.commands) == set(sent)
        assert sorted(each.id for each in world.ended) == sorted(sent)

    in_engine_world(story, meters=3)
    assert "a subscriber failed 5 times" in caplog.text


class Careless(BatchSubscriber):
    """Fails whenever it is told something."""

    async def told(self, commands: list[Command]) -> None:
        raise RuntimeError("not a word about commands")

    async def reported(self, report: DeviceReport) -> None:
        raise RuntimeError("not a word about reports")


def test_a_subscriber_of_batches_that_fails_holds_up_neither_ends_nor_signals() -> None:
    async def story(world: EngineWorld) -> None:
        audience = Audience()
        world.engines[0].subscribe(Careless())
        world.engines[0].subscribe(audience)
        world.core.report(world.meters[0])
        sent = [await world.send(CREDIT, meter) for meter in world.meters]
        await world.all_end(sent)
        assert (set(audience.commands), len(audience.reports)) == (set(sent), 1)
        stats = await world.fleet.stats()
        assert (stats.signals, stats.unpublished) == (0, 0)

    in_engine_world(story, meters=3)


def test_a_codec_that_fails_on_an_uplink_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read = Dlt645.decode

    def decode(self: Dlt645, data: bytes, f_port: int) -> Answer | Report | None:
        heard = read(self, data, f_port)
        if isinstance(heard, Report):
            raise ZeroDivisionError("a plug-in's own bug")
        return heard

    monkeypatch.setattr(Dlt645, "decode", decode)

    async def story(world: EngineWorld) -> None:
        world.core.report(world.meters[0])
        sent = [await world.send(CREDIT, meter) for meter in world.meters]
        await world.all_end(sent)
        assert (await world.fleet.stats()).signals == 0

    in_engine_world(story, meters=2)
    assert "a plug-in's own bug" in caplog.text


def test_a_subscriber_whose_store_is_away_is_told_again() -> None:
    async def story(world: EngineWorld) -> None:
        audience = Audience(refusals=3)
        world.engines[0].subscribe(audience)
        sent = [await world.send(CREDIT, meter) for meter in world.meters]
        await world.all_end(sent)
        assert set(audience.commands) == set(sent)

    in_engine_world(story, meters=3)


def test_reports_and_joins_reach_subscribers_once() -> None:
    async def story(world: EngineWorld) -> None:
        audience = Audience()
        world.engines[0].subscribe(audience)
        meter = world.meters[0]
        world.core.report(meter)
        await world.wait(5)
        world.core.join(meter)
        await world.wait(5)
        report, joined = audience.reports
        assert (report.type, joined.type) == ("READ_REPORT", "JOIN_NETWORK")
        assert report.device == joined.device == world.device(meter).key
        assert "25" in repr(report.data)
        assert audience.commands == []

    in_engine_world(story, weather=Weather(1, webhook_duplicates=1.0))


# -- webhooks: real HTTP, a real queue, real time

SECRET = "a-secret-of-the-receiver"


class Receiver:
    """Takes webhooks; answers with the scripted statuses of a target in turn, then with 204."""

    def __init__(self, **statuses: list[int]) -> None:
        self.statuses = statuses
        self.got: list[tuple[str, Any, bool]] = []
        self.deliveries: list[str] = []
        self.server = HttpServer(Starlette(routes=[Route("/{target}", self._take, methods=["POST"])]))

    async def _take(self, request: Request) -> Response:
        target, body = request.path_params["target"], await request.body()
        signature = request.headers[SIGNATURE_HEADER]
        self.got.append(
            (target, json.loads(body), is_signed(body, signature, secret=SECRET, now=time.time()))
        )
        self.deliveries.append(request.headers["X-Remuda-Delivery"])
        script = self.statuses.get(target, [])
        return Response(status_code=script.pop(0) if script else 204)

    def bodies(self, target: str) -> list[Any]:
        return [body for name, body, _ in self.got if name == target]

    def target(self, name: str) -> WebhookTarget:
        return WebhookTarget(name=name, url=f"{self.server.url}/{name}", secret=SECRET)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries of webhooks that nobody has to wait for."""
    quick = Exponential(initial=timedelta(milliseconds=1), cap=timedelta(milliseconds=5), max_attempts=15)
    monkeypatch.setattr("remuda.devices.webhooks._RETRY", quick)


async def ended_commands() -> list[Command]:
    """A command that was carried out, and one that failed."""

    async def story(world: EngineWorld) -> list[Command]:
        stranger = Device(reference="99", protocol=Protocol.LORAWAN)
        top_up = world.new(CommandType.TOP_UP, data=token(1), correlation_id="order-17")
        sent = await world.fleet.send_many([top_up, NewCommand(type=CREDIT, device=stranger, grid="grid0")])
        return await world.all_end([each.id for each in sent])

    return await asyncio.to_thread(in_engine_world, story)


async def test_webhooks_are_signed_retried_and_dead_where_they_are_hopeless(
    sqlite_url: str, at_once: None
) -> None:
    done, failed = await ended_commands()
    receiver = Receiver(flaky=[500, 503, 429], gone=[410, 410])
    await receiver.server.start()
    targets = [receiver.target(each) for each in ("good", "flaky", "gone")]
    async with Queue("webhooks", sqlite_url) as queue:
        subscriber = WebhookSubscriber(queue, targets)
        await subscriber.told([done, failed])
        await subscriber.told([failed, done])  # an end may be published twice
        await webhook_worker(queue, targets).run(until_empty=True)
        letters = await queue.dead.peek()
    await receiver.server.stop()
    assert all(signed for _, _, signed in receiver.got)
    good = {body["id"]: body for body in receiver.bodies("good")}
    assert len(receiver.bodies("good")) == len(good) == 2
    assert good[done.id]["outcome"] == "executed"
    assert good[done.id]["correlation_ids"] == ["order-17"]
    assert (good[failed.id]["status"], good[failed.id]["reason"]) == ("DELIVERY_FAILED", "unknown_device")
    assert token(1) not in json.dumps([body for _, body, _ in receiver.got])
    assert len(receiver.bodies("flaky")) == 2 + 3
    assert {body["id"] for body in receiver.bodies("flaky")} == {done.id, failed.id}
    assert len(receiver.bodies("gone")) == 2
    assert [each.reason for each in letters] == ["unrecoverable"] * 2
    assert SECRET not in "".join(
        f"{each.error_message}{each.error_trace}{each.payload!r}" for each in letters
    )


async def test_a_replayed_command_is_told_again_and_a_report_is_told_to_webhooks(
    sqlite_url: str, at_once: None
) -> None:
    _, failed = await ended_commands()
    again = msgspec.structs.replace(failed, version=failed.version + 7)
    report = DeviceReport(id="r-1", device="LORAWAN:01", at=failed.created_at, type="JOIN_NETWORK")
    receiver = Receiver()
    await receiver.server.start()
    targets = [receiver.target("good")]
    async with Queue("webhooks", sqlite_url) as queue:
        subscriber = WebhookSubscriber(queue, targets)
        await subscriber.told([failed])
        await subscriber.told([again])
        await subscriber.reported(report)
        await subscriber.reported(report)
        await webhook_worker(queue, targets).run(until_empty=True)
    await receiver.server.stop()
    assert sorted(body["id"] for body in receiver.bodies("good")) == sorted([failed.id, failed.id, "r-1"])


async def test_an_engine_tells_webhooks_of_every_end(sqlite_url: str, at_once: None) -> None:
    """The whole way: an engine in real time whose ends become jobs, and a worker that sends them."""
    receiver = Receiver(good=[500])
    await receiver.server.start()
    targets = [receiver.target("good")]
    stranger = Device(reference="99", protocol=Protocol.API_V1)
    async with Queue("webhooks", sqlite_url) as queue, Fleet("memory://") as fleet:
        calin = SimulatedCalin(
            {}, SystemClock(), weather=Weather(1, accept_delay=(timedelta(0), timedelta(0)))
        )
        engine = Engine(fleet, [InProcessCalin(calin, Protocol.API_V1)])
        engine.subscribe(WebhookSubscriber(queue, targets))
        async with engine:
            sent = await fleet.send(NewCommand(type=CREDIT, device=stranger))
            await until(lambda: queue_has_jobs(queue), "the end has become a job")
        await webhook_worker(queue, targets).run(until_empty=True)
    await receiver.server.stop()
    assert [body["id"] for body in receiver.bodies("good")] == [sent.id, sent.id]
    assert len(set(receiver.deliveries)) == 1


async def queue_has_jobs(queue: Queue) -> bool:
    return (await queue.stats()).live > 0


def test_a_signature_is_not_taken_for_another_body_secret_or_time() -> None:
    body = b'{"id":"c-1"}'
    header = signature_of(body, secret=SECRET, at=1_000)
    assert is_signed(body, header, secret=SECRET, now=1_010)
    assert not is_signed(body + b" ", header, secret=SECRET, now=1_010)
    assert not is_signed(body, header, secret=SECRET + "x", now=1_010)
    assert not is_signed(body, header, secret=SECRET, now=1_400)
    assert not is_signed(body, "v1=", secret=SECRET, now=1_010)
