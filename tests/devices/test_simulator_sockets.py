"""The simulated ChirpStack over real sockets: its gRPC as ChirpStack's own client sees it, its webhooks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import grpc.aio
import msgspec
import pytest
from chirpstack_api import api, integration

from remuda.clock import SystemClock
from remuda.devices.codecs.contract import Downlink
from remuda.devices.command import CommandType
from remuda.devices.networks.chirpstack import ChirpStack
from remuda.devices.networks.contract import Order
from remuda.devices.simulator.chirpstack_grpc import ChirpStackServer
from remuda.devices.simulator.radio import Weather
from remuda.devices.simulator.webhooks import WebhookSender
from tests.devices.simulated_world import NO_DELAY, World, device_of, frame

TOKEN = "an-api-key"
AUTH = (("authorization", f"Bearer {TOKEN}"),)
QUICK: dict[str, Any] = {
    "delay": NO_DELAY,
    "answer_delay": NO_DELAY,
    "accept_delay": NO_DELAY,
    "webhook_delay": NO_DELAY,
}


@contextlib.asynccontextmanager
async def served(weather: Weather, **options: Any) -> AsyncIterator[tuple[World, Any, ChirpStackServer]]:
    """A world in real time behind gRPC, and a channel to it."""
    world = World(SystemClock(), weather=weather, schedule_every=timedelta(milliseconds=20), **options)
    async with (
        ChirpStackServer(world.core, token=TOKEN) as server,
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        yield world, channel, server
        world.core.stop()


def item(world: World, **fields: Any) -> Any:
    """An Enqueue of TURN_OFF, with ChirpStack's own message."""
    wanted = {
        "dev_eui": world.meter.dev_eui,
        "confirmed": True,
        "f_port": 1,
        "data": frame(world.meter, CommandType.TURN_OFF),
        **fields,
    }
    return api.EnqueueDeviceQueueItemRequest(queue_item=api.DeviceQueueItem(**wanted))


async def status_of(call: Any) -> tuple[Any, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), caught.value.details() or ""


async def test_queues_are_filled_shown_and_flushed_over_grpc() -> None:
    async with served(Weather(1, **QUICK), meter={"device_class": "A"}, report_every=None) as (
        world,
        channel,
        _,
    ):
        devices = api.DeviceServiceStub(channel)
        expires = datetime(2040, 1, 1, tzinfo=UTC)
        mine = "3e7b8c1a-0000-4000-8000-000000000000"
        answer = await devices.Enqueue(item(world, id=mine, expires_at=expires), metadata=AUTH)
        assert answer.id
        assert answer.id != mine
        eui = world.meter.dev_eui
        queue = await devices.GetQueue(api.GetDeviceQueueItemsRequest(dev_eui=eui), metadata=AUTH)
        assert queue.total_count == 1
        (shown,) = queue.result
        assert (shown.id, shown.is_pending, shown.f_port) == (answer.id, False, 1)
        assert shown.data == frame(world.meter, CommandType.TURN_OFF)
        assert shown.expires_at.ToDatetime(UTC) == expires
        count = api.GetDeviceQueueItemsRequest(dev_eui=eui, count_only=True)
        counted = await devices.GetQueue(count, metadata=AUTH)
        assert (counted.total_count, len(counted.result)) == (1, 0)
        await devices.FlushQueue(api.FlushDeviceQueueRequest(dev_eui=eui), metadata=AUTH)
        assert world.core.queue(eui) == []
        counter = await devices.GetNextFCntDown(api.GetDeviceNextFCntDownRequest(dev_eui=eui), metadata=AUTH)
        assert counter.f_cnt_down == world.core.next_f_cnt_down(eui)


async def test_what_the_server_does_not_take_has_chirpstacks_status() -> None:
    async with served(Weather(1, **QUICK)) as (world, channel, _):
        devices = api.DeviceServiceStub(channel)
        code, _ = await status_of(devices.Enqueue(item(world)))
        assert code is grpc.StatusCode.UNAUTHENTICATED
        wrong = (("authorization", "Bearer another"),)
        code, _ = await status_of(devices.Enqueue(item(world), metadata=wrong))
        assert code is grpc.StatusCode.UNAUTHENTICATED
        for f_port in (0, 256):
            code, _ = await status_of(devices.Enqueue(item(world, f_port=f_port), metadata=AUTH))
            assert code is grpc.StatusCode.INVALID_ARGUMENT
        unknown = item(world, dev_eui="00000000deadbeef")
        code, details = await status_of(devices.Enqueue(unknown, metadata=AUTH))
        assert code is grpc.StatusCode.INTERNAL
        assert "device_queue_item_dev_eui_fkey" in details
        assert world.core.queue(world.meter.dev_eui) == []


async def test_gateways_are_listed_page_by_page() -> None:
    async with served(Weather(1, **QUICK)) as (world, channel, _):
        gateways = api.GatewayServiceStub(channel)
        page = await gateways.List(api.ListGatewaysRequest(limit=10), metadata=AUTH)
        assert page.total_count == 1
        (gateway,) = page.result
        assert (gateway.gateway_id, gateway.state) == (world.gateway.id, api.GatewayState.ONLINE)
        assert gateway.properties["grid_id"] == "grid-7"
        beyond = await gateways.List(api.ListGatewaysRequest(limit=10, offset=1), metadata=AUTH)
        assert (beyond.total_count, len(beyond.result)) == (1, 0)


async def test_a_call_that_its_client_gave_up_has_its_effect_later() -> None:
    slow = Weather(1, **QUICK, slow_calls=1.0, slow_call=timedelta(milliseconds=200))
    async with served(slow, meter={"device_class": "A"}, report_every=None) as (world, channel, _):
        call = api.DeviceServiceStub(channel).Enqueue(item(world), metadata=AUTH, timeout=0.01)
        code, _ = await status_of(call)
        assert code is grpc.StatusCode.DEADLINE_EXCEEDED
        async with asyncio.timeout(5):
            while not world.core.queue(world.meter.dev_eui):  # noqa: ASYNC110  # the effect tells nobody
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(("when", "queued"), [("failures_before", 0), ("failures_after", 1)])
async def test_a_call_fails_before_or_after_its_effect(when: str, queued: int) -> None:
    weather = Weather(1, **QUICK, **{when: 1.0})
    async with served(weather, meter={"device_class": "A"}, report_every=None) as (world, channel, _):
        code, _ = await status_of(api.DeviceServiceStub(channel).Enqueue(item(world), metadata=AUTH))
        assert code is grpc.StatusCode.UNAVAILABLE
        assert len(world.core.queue(world.meter.dev_eui)) == queued


class Listener:
    """A small HTTP server that keeps what is posted to it."""

    def __init__(self, *, status: int = 200) -> None:
        self.posts: list[tuple[str, dict[str, str], bytes]] = []
        self.status = status
        self.under_way = self.most_under_way = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self._serving: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            yield f"http://127.0.0.1:{port}/hook?site=7"
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving.add(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                pairs = (line.partition(":") for line in head[1:] if line)
                headers = {name.lower(): value.strip() for name, _, value in pairs}
                body = await reader.readexactly(int(headers["content-length"]))
                self.under_way += 1
                self.most_under_way = max(self.most_under_way, self.under_way)
                await self.gate.wait()
                self.under_way -= 1
                self.posts.append((head[0].split()[1], headers, body))
                writer.write(f"HTTP/1.1 {self.status} X\r\ncontent-length: 0\r\n\r\n".encode())
                await writer.drain()


def kind_of(path: str) -> str:
    return parse_qs(urlsplit(path).query)["event"][0]


async def test_a_command_goes_the_whole_way_over_sockets() -> None:
    listener, weather = Listener(), Weather(1, **QUICK)
    async with (
        listener.listening() as url,
        WebhookSender(url, weather, headers={"x-secret": "s3cret"}) as sender,
        served(weather, deliver=sender, meter={"spreading_factor": 7}) as (world, _, server),
    ):
        network = ChirpStack(address=server.address, token=TOKEN)
        await network.open()
        downlink = Downlink(data=frame(world.meter, CommandType.TURN_OFF))
        order = Order(
            command_id="c-1",
            attempt=1,
            device=device_of(world.meter),
            type=CommandType.TURN_OFF,
            downlink=downlink,
        )
        queue_item = await network.send(order)
        async with asyncio.timeout(5):
            while len(world.told) < 3:  # noqa: ASYNC110  # the radio takes its time, and tells nobody else
                await asyncio.sleep(0.01)
            await sender.drain()
        await network.close()
        assert not world.meter.relay_on
        posted = {kind_of(path): (path, headers, body) for path, headers, body in listener.posts}
        assert set(posted) == {"txack", "ack", "up"}
        path, headers, body = posted["ack"]
        assert "site=7" in path
        assert headers["x-secret"] == "s3cret"
        assert headers["content-type"] == "application/json"
        assert msgspec.json.decode(body)["queueItemId"] == queue_item
        assert (sender.sent, sender.failed, sender.lost) == (3, 0, 0)


async def test_events_can_be_sent_as_protobuf() -> None:
    listener, weather = Listener(), Weather(1, **QUICK)
    world = World(SystemClock(), weather=weather)
    world.core.join(world.meter)
    ((_, _, joined),) = world.told
    async with listener.listening() as url, WebhookSender(url, weather, encoding="protobuf") as sender:
        sender("join", joined)
        await sender.drain()
    world.core.stop()
    ((path, headers, body),) = listener.posts
    assert (kind_of(path), headers["content-type"]) == ("join", "application/octet-stream")
    event = integration.JoinEvent.FromString(body)
    assert event.device_info.dev_eui == world.meter.dev_eui
    assert event.time.ToDatetime(UTC) == datetime.fromisoformat(joined["time"])


async def test_an_event_is_sent_once_even_if_it_fails() -> None:
    listener, weather = Listener(status=500), Weather(1, **QUICK)
    event = {"deviceInfo": {"devEui": "00"}}
    async with listener.listening() as url, WebhookSender(url, weather) as sender:
        sender("up", event)
        await sender.drain()
        assert len(listener.posts) == 1
        assert (sender.sent, sender.failed) == (0, 1)
    async with WebhookSender(url, weather) as sender:  # nobody listens any more
        sender("up", event)
        await sender.drain()
        assert (sender.sent, sender.failed) == (0, 1)


async def test_a_listener_that_does_not_answer_in_time_is_given_up() -> None:
    listener, weather = Listener(), Weather(1, **QUICK)
    listener.gate.clear()
    timeout = timedelta(milliseconds=50)
    async with listener.listening() as url, WebhookSender(url, weather, timeout=timeout) as sender:
        sender("up", {"deviceInfo": {"devEui": "00"}})
        await sender.drain()
        assert sender.failed == 1
        listener.gate.set()


async def test_few_events_are_under_way_at_once() -> None:
    listener, weather = Listener(), Weather(1, **QUICK)
    async with listener.listening() as url, WebhookSender(url, weather, concurrency=3) as sender:
        for _ in range(30):
            sender("up", {"deviceInfo": {"devEui": "00"}})
        await sender.drain()
    assert len(listener.posts) == 30
    assert listener.most_under_way <= 3


async def test_events_are_lost_and_doubled_by_the_weather() -> None:
    listener, weather = Listener(), Weather(1, **QUICK, webhook_loss=0.3, webhook_duplicates=0.3)
    async with listener.listening() as url, WebhookSender(url, weather) as sender:
        for number in range(200):
            sender("up", {"deviceInfo": {"devEui": "00"}, "number": number})
        await sender.drain()
    numbers = [msgspec.json.decode(body)["number"] for _, _, body in listener.posts]
    assert 40 < sender.lost < 80
    assert len(set(numbers)) == 200 - sender.lost
    assert len(numbers) > 1.2 * len(set(numbers))
