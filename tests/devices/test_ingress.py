"""The ingress stores what ChirpStack posts before it answers, and nothing from strangers."""

from __future__ import annotations

import asyncio
import json
import logging
import signal as process_signals
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from chirpstack_api import integration

from remuda.devices.ingress import IngressServer, MergingKeeper, check_listen, make_ingress, serve
from remuda.devices.networks.chirpstack_events import MAX_BYTES
from remuda.devices.networks.signals import Signal, TxAck
from remuda.errors import ConfigurationError, RemudaError, StoreError, StoreUnavailableError

SECRET = "correct-horse-battery"
TRUSTED = {"X-Remuda-Secret": SECRET}


class Shelf:
    """Keeps signals when it is let; refuses what it is told to."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.kept: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.called = asyncio.Event()
        self.error: BaseException | None = None
        self.bad = ""

    async def keep(self, signals: Sequence[Signal]) -> None:
        ids = [each.id for each in signals]
        self.calls.append(ids)
        self.called.set()
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        if self.bad in ids:
            raise StoreError(f"{self.bad} is not storable")
        self.kept += ids


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def a_txack(item: str = "item-1", **changes: Any) -> dict[str, Any]:
    return {
        "downlinkId": 12,
        "time": "2030-01-01T12:00:00Z",
        "deviceInfo": {"devEui": "0000047003333771"},
        "queueItemId": item,
    } | changes


def client_of(shelf: Shelf, *, secret: str | None = SECRET, **options: Any) -> httpx.AsyncClient:
    """A client of the app without a socket between."""
    app = make_ingress(shelf.keep, secret=secret, **options)
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://ingress", headers=TRUSTED if secret else {}
    )


async def test_an_event_is_kept_and_answered_without_content(shelf: Shelf) -> None:
    async with client_of(shelf) as client:
        answer = await client.post("/chirpstack?event=txack", json=a_txack())
    assert (answer.status_code, answer.content) == (204, b"")
    assert shelf.kept == ["txack:item-1:12"]


async def test_an_event_in_protobuf_is_kept_as_well(shelf: Shelf) -> None:
    event = integration.AckEvent(queue_item_id="item-1", acknowledged=True, deduplication_id="d")
    event.device_info.dev_eui = "0000047003333771"
    event.time.GetCurrentTime()
    async with client_of(shelf) as client:
        answer = await client.post(
            "/chirpstack?event=ack",
            content=event.SerializeToString(),
            headers={"content-type": "application/octet-stream"},
        )
    assert answer.status_code == 204
    assert shelf.kept == ["ack:item-1:true:d"]


async def test_it_is_answered_only_after_it_was_kept(shelf: Shelf) -> None:
    shelf.gate.clear()
    async with client_of(shelf) as client:
        posted = asyncio.create_task(client.post("/chirpstack?event=txack", json=a_txack()))
        await shelf.called.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not posted.done()
        shelf.gate.set()
        assert (await posted).status_code == 204
    assert shelf.kept == ["txack:item-1:12"]


async def test_an_event_that_comes_twice_is_kept_under_one_id(shelf: Shelf) -> None:
    async with client_of(shelf) as client:
        for _ in range(2):
            await client.post("/chirpstack?event=txack", json=a_txack())
    assert shelf.kept == ["txack:item-1:12"] * 2


async def test_an_event_that_tells_nothing_of_commands_is_answered_without_a_call(shelf: Shelf) -> None:
    async with client_of(shelf) as client:
        answer = await client.post("/chirpstack?event=location", json={})
    assert answer.status_code == 204
    assert shelf.calls == []


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {b"X-Remuda-Secret": b""},
        {b"X-Remuda-Secret": SECRET[:-1].encode()},
        {b"X-Remuda-Secret": SECRET.encode() + b"x"},
        {b"X-Remuda-Secret": SECRET.upper().encode()},
        {b"X-Remuda-Secret": b"\xff\xfe"},
        {b"Authorization": SECRET.encode()},
    ],
)
async def test_a_stranger_stores_nothing_and_learns_nothing(
    shelf: Shelf, headers: dict[bytes, bytes]
) -> None:
    async with client_of(shelf) as client:
        del client.headers["X-Remuda-Secret"]
        raw = list(headers.items())
        answer = await client.post("/chirpstack?event=txack", json=a_txack(), headers=raw)
        worse = await client.post("/chirpstack?event=nonsense", content=b"{", headers=raw)
    assert (answer.status_code, answer.content) == (401, b"")
    assert (worse.status_code, worse.content) == (401, b"")
    assert shelf.calls == []


async def test_the_secret_may_have_any_characters_and_any_header(shelf: Shelf) -> None:
    async with client_of(shelf, secret="schlüssel", header="X-Token") as client:
        told = {b"x-token": "schlüssel".encode()}
        answer = await client.post("/chirpstack?event=txack", json=a_txack(), headers=list(told.items()))
    assert answer.status_code == 204


async def test_without_a_secret_every_request_is_trusted(shelf: Shelf) -> None:
    async with client_of(shelf, secret=None) as client:
        answer = await client.post("/chirpstack?event=txack", json=a_txack())
    assert answer.status_code == 204


@pytest.mark.parametrize(
    ("query", "body", "field"),
    [
        ("event=txack", b"{", "body"),
        ("event=txack", b"", "body"),
        ("event=txack", json.dumps(a_txack(downlinkId=True)).encode(), "body"),
        ("event=txack", json.dumps(a_txack(deviceInfo={})).encode(), "deviceInfo.devEui"),
        ("event=up", json.dumps(a_txack()).encode(), "deduplicationId"),
        ("event=nonsense", b"{}", "event"),
        ("", b"{}", "event"),
    ],
)
async def test_a_bad_event_is_refused_and_told_why(
    shelf: Shelf, query: str, body: bytes, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with client_of(shelf) as client:
        answer = await client.post(f"/chirpstack?{query}", content=body)
    assert answer.status_code == 400
    assert answer.json()["field"] == field
    assert answer.json()["error"].startswith(field)
    assert SECRET not in answer.text + caplog.text
    assert "event_refused" in {getattr(record, "action", None) for record in caplog.records}
    assert shelf.calls == []


async def test_the_usual_answers_to_unusual_requests(shelf: Shelf) -> None:
    async with client_of(shelf) as client:
        assert (await client.get("/chirpstack?event=up")).status_code == 405
        assert (await client.post("/elsewhere")).status_code == 404
        del client.headers["X-Remuda-Secret"]
        assert (await client.get("/healthz")).status_code == 200
    assert shelf.calls == []


async def counted(chunks: int, size: int, taken: list[int]) -> AsyncIterator[bytes]:
    for _ in range(chunks):
        taken.append(size)
        yield b" " * size


@pytest.mark.parametrize("headers", [{}, {"content-length": str(10 * 1024**2)}, {"content-length": "7"}])
async def test_a_body_that_is_too_large_is_not_read_whole(shelf: Shelf, headers: dict[str, str]) -> None:
    taken: list[int] = []
    async with client_of(shelf) as client:
        content = counted(160, 64 * 1024, taken)
        answer = await client.post("/chirpstack?event=up", content=content, headers=headers)
        await content.aclose()
    assert answer.status_code == 413
    assert sum(taken) <= MAX_BYTES + 64 * 1024
    assert shelf.calls == []


async def test_a_body_of_the_largest_size_is_read(shelf: Shelf) -> None:
    body = json.dumps(a_txack()).encode().ljust(1_000)
    async with client_of(shelf, max_bytes=1_000) as client:
        assert (await client.post("/chirpstack?event=txack", content=body)).status_code == 204
        assert (await client.post("/chirpstack?event=txack", content=body + b" ")).status_code == 413


async def test_a_body_that_does_not_come_is_not_waited_for(shelf: Shelf) -> None:
    app = make_ingress(shelf.keep, secret=None, body_within=timedelta(milliseconds=1))
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/chirpstack", "query_string": b"", "headers": []}
    await app(scope, receive, send)
    assert sent[0]["status"] == 408


@pytest.mark.parametrize("error", [StoreError("disk full"), StoreUnavailableError("gone")])
async def test_what_could_not_be_kept_is_answered_with_503(
    shelf: Shelf, error: RemudaError, caplog: pytest.LogCaptureFixture
) -> None:
    shelf.error = error
    async with client_of(shelf) as client:
        answer = await client.post("/chirpstack?event=txack", json=a_txack())
        assert answer.status_code == 503
        assert str(error) not in answer.text
        assert "txack:item-1:12" in caplog.text
        shelf.error = None
        assert (await client.post("/chirpstack?event=txack", json=a_txack())).status_code == 204
    assert shelf.kept == ["txack:item-1:12"]


async def test_many_posts_at_once_cost_few_calls(shelf: Shelf) -> None:
    shelf.gate.clear()
    async with client_of(shelf) as client:
        posts = [
            asyncio.create_task(client.post("/chirpstack?event=txack", json=a_txack(f"item-{n}")))
            for n in range(100)
        ]
        await shelf.called.wait()
        for _ in range(200):
            await asyncio.sleep(0)
        shelf.gate.set()
        answers = await asyncio.gather(*posts)
    assert {answer.status_code for answer in answers} == {204}
    assert sorted(shelf.kept) == sorted(f"txack:item-{n}:12" for n in range(100))
    assert len(shelf.calls) <= 3


def a_signal(name: str) -> Signal:
    return TxAck(id=name, device="LORAWAN:0", at=datetime(2030, 1, 1, tzinfo=UTC), external_id="x")


async def test_one_signal_that_the_store_refuses_does_not_take_its_neighbours_along(shelf: Shelf) -> None:
    keeper = MergingKeeper(shelf.keep)
    shelf.bad = "s3"
    kept = await asyncio.gather(*(keeper.keep([a_signal(f"s{n}")]) for n in range(8)), return_exceptions=True)
    assert [isinstance(each, StoreError) for each in kept] == [n == 3 for n in range(8)]
    assert sorted(shelf.kept) == [f"s{n}" for n in range(8) if n != 3]


async def test_a_store_that_is_gone_is_asked_once_for_all(shelf: Shelf) -> None:
    keeper = MergingKeeper(shelf.keep)
    shelf.error = StoreUnavailableError("gone")
    kept = await asyncio.gather(*(keeper.keep([a_signal(f"s{n}")]) for n in range(8)), return_exceptions=True)
    assert all(each is shelf.error for each in kept)
    assert len(shelf.calls) == 1


async def test_a_client_that_hangs_up_takes_nobodys_signals_along(shelf: Shelf) -> None:
    keeper = MergingKeeper(shelf.keep)
    shelf.gate.clear()
    first = asyncio.create_task(keeper.keep([a_signal("first")]))
    await shelf.called.wait()
    others = [asyncio.create_task(keeper.keep([a_signal(name)])) for name in ("second", "third")]
    await asyncio.sleep(0)
    first.cancel()
    others[0].cancel()
    shelf.gate.set()
    await others[1]
    assert shelf.kept == ["first", "second", "third"]


async def test_signals_go_to_the_store_in_the_order_in_which_they_came(shelf: Shelf) -> None:
    keeper = MergingKeeper(shelf.keep)
    await asyncio.gather(*(keeper.keep([a_signal(f"s{n:04}")]) for n in range(2_500)))
    assert shelf.kept == [f"s{n:04}" for n in range(2_500)]
    assert [len(call) for call in shelf.calls] == [1_000, 1_000, 500]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost", "LOCALHOST"])
def test_the_loopback_needs_no_secret(host: str) -> None:
    check_listen(host, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.168.1.4", "example.org", "localhost.example.org"])
def test_every_other_host_needs_one(host: str) -> None:
    check_listen(host, SECRET)
    with pytest.raises(ConfigurationError, match="secret"):
        check_listen(host, None)


@pytest.mark.parametrize("blank", ["", "  ", "\n"])
def test_a_blank_secret_is_none_and_is_refused(shelf: Shelf, blank: str) -> None:
    with pytest.raises(ConfigurationError, match="blank"):
        check_listen("127.0.0.1", blank)
    with pytest.raises(ConfigurationError, match="blank"):
        make_ingress(shelf.keep, secret=blank)


def served(shelf: Shelf, **options: Any) -> AbstractAsyncContextManager[IngressServer]:
    return serve(shelf.keep, secret=SECRET, **options)


async def test_it_serves_over_a_real_socket_and_stops(shelf: Shelf, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    handler = process_signals.getsignal(process_signals.SIGINT)
    async with httpx.AsyncClient(headers=TRUSTED) as client:
        async with served(shelf) as server:
            assert process_signals.getsignal(process_signals.SIGINT) is handler
            posts = [
                client.post(f"{server.url}/chirpstack?event=txack", json=a_txack(f"item-{n}"))
                for n in range(20)
            ]
            assert {answer.status_code for answer in await asyncio.gather(*posts)} == {204}
            stranger = httpx.AsyncClient()
            async with stranger:
                refused = await stranger.post(f"{server.url}/chirpstack?event=txack", json=a_txack())
            assert refused.status_code == 401
        with pytest.raises(httpx.ConnectError):
            await client.get(f"{server.url}/healthz")
    assert len(shelf.kept) == 20
    assert SECRET not in caplog.text


async def test_a_request_under_way_is_answered_before_it_stops(shelf: Shelf) -> None:
    shelf.gate.clear()
    server = IngressServer(shelf.keep, secret=SECRET)
    await server.start()
    async with httpx.AsyncClient(headers=TRUSTED) as client:
        posted = asyncio.create_task(client.post(f"{server.url}/chirpstack?event=txack", json=a_txack()))
        await shelf.called.wait()
        stopping = asyncio.create_task(server.stop())
        shelf.gate.set()
        assert (await posted).status_code == 204
        await stopping


@asynccontextmanager
async def raw_connection(url: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()


@pytest.mark.parametrize("secret", [SECRET, "wrong"])
async def test_a_refused_body_ends_the_connection(shelf: Shelf, secret: str) -> None:
    head = (
        "POST /chirpstack?event=up HTTP/1.1\r\nHost: x\r\n"
        f"X-Remuda-Secret: {secret}\r\nContent-Length: {10 * 1024**2}\r\n\r\n"
    )
    async with served(shelf) as server, raw_connection(server.url) as (reader, writer):
        writer.write(head.encode() + b" " * 1_000)
        async with asyncio.timeout(5):
            said = await reader.read()  # to the end: it does not wait for the other megabytes
    assert said.startswith(b"HTTP/1.1 413" if secret == SECRET else b"HTTP/1.1 401")
    assert shelf.calls == []


async def test_an_address_that_is_taken_is_told_and_the_program_goes_on(shelf: Shelf) -> None:
    async with served(shelf) as server:
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(ConfigurationError, match=str(port)):
            await IngressServer(shelf.keep, secret=SECRET, port=port).start()


def test_it_does_not_listen_to_the_world_without_a_secret(shelf: Shelf) -> None:
    with pytest.raises(ConfigurationError, match="secret"):
        IngressServer(shelf.keep, secret=None, host="0.0.0.0")
