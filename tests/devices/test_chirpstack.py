"""The ChirpStack adapter over real gRPC, against a server that misbehaves when it is told to."""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from chirpstack_api import api
from google.protobuf.empty_pb2 import Empty

from remuda.devices.codecs.contract import Downlink
from remuda.devices.command import CommandType, Device, Protocol
from remuda.devices.networks.chirpstack import ChirpStack, endpoint, judge
from remuda.devices.networks.contract import GatewayState, NetworkError, Order, QueueItem, SendError
from remuda.errors import ConfigurationError
from remuda.lifecycle import EndReason

TOKEN = "eyJhbGciOi.secret.key"
METER = Device(reference="47003333771", protocol=Protocol.LORAWAN)
EUI = "0000047003333771"
FRAME = Downlink(data=bytes.fromhex("6871373303700468010254179016"), f_port=1, confirmed=True)
Hook = Callable[[str, Any], Awaitable[None]]


async def nothing(_method: str, _context: Any) -> None:
    """What happens before each call of a server that behaves."""


class Server(api.DeviceServiceServicer, api.GatewayServiceServicer):  # type: ignore[misc]  # untyped bases
    """ChirpStack in a nutshell. `before` runs ahead of every call, and may delay, fail or change things."""

    def __init__(self) -> None:
        self.queue: list[Any] = []
        self.counter = 100
        self.gateways: list[Any] = []
        self.calls: list[str] = []
        self.requests: list[Any] = []
        self.metadata: list[dict[str, str]] = []
        self.deadlines: list[float] = []
        self.next_id = "item-1"
        self.before: Hook = nothing
        self.port = 0

    async def _called(self, method: str, request: Any, context: Any) -> None:
        self.calls.append(method)
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        self.deadlines.append(context.time_remaining())
        await self.before(method, context)

    async def Enqueue(self, request: Any, context: Any) -> Any:  # noqa: N802  # gRPC's name
        await self._called("Enqueue", request, context)
        return api.EnqueueDeviceQueueItemResponse(id=self.next_id)

    async def GetQueue(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._called("GetQueue", request, context)
        return api.GetDeviceQueueItemsResponse(total_count=len(self.queue), result=self.queue)

    async def FlushQueue(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._called("FlushQueue", request, context)
        self.queue.clear()
        return Empty()

    async def GetNextFCntDown(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._called("GetNextFCntDown", request, context)
        return api.GetDeviceNextFCntDownResponse(f_cnt_down=self.counter)

    async def List(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._called("List", request, context)
        page = self.gateways[request.offset : request.offset + min(request.limit, 100)]
        return api.ListGatewaysResponse(total_count=len(self.gateways), result=page)

    def fails(self, code: grpc.StatusCode, details: str = "", *, method: str = "") -> None:
        async def abort(called: str, context: Any) -> None:
            if not method or called == method:
                await context.abort(code, details)

        self.before = abort


@asynccontextmanager
async def running(server: Server, port: int = 0, credentials: Any = None) -> AsyncIterator[Any]:
    listener = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    api.add_DeviceServiceServicer_to_server(server, listener)
    api.add_GatewayServiceServicer_to_server(server, listener)
    where = f"127.0.0.1:{port}"
    if credentials is None:
        server.port = listener.add_insecure_port(where)
    else:
        server.port = listener.add_secure_port(where, credentials)
    await listener.start()
    try:
        yield listener
    finally:
        await listener.stop(None)


@asynccontextmanager
async def adapter(address: str | int, **options: Any) -> AsyncIterator[ChirpStack]:
    where = f"127.0.0.1:{address}" if isinstance(address, int) else address
    network = ChirpStack(address=where, token=TOKEN, **options)
    await network.open()
    try:
        yield network
    finally:
        await network.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    async with running(server):
        yield server


@pytest.fixture
async def network(server: Server) -> AsyncIterator[ChirpStack]:
    async with adapter(server.port, call_deadline=timedelta(seconds=10)) as network:
        yield network


def an_order(**changes: Any) -> Order:
    fields = {
        "command_id": "c1",
        "attempt": 1,
        "device": METER,
        "type": CommandType.READ_CREDIT,
        "downlink": FRAME,
    }
    return Order(**(fields | changes))


def an_item(name: str = "item-1", **fields: Any) -> Any:
    return api.DeviceQueueItem(id=name, dev_eui=EUI, f_port=1, data=b"x", **fields)


async def refusal(network: ChirpStack, order: Order | None = None) -> SendError:
    with pytest.raises(SendError) as raised:
        await network.send(order or an_order())
    return raised.value


async def test_an_order_becomes_a_queue_item(server: Server, network: ChirpStack) -> None:
    expires = datetime(2030, 1, 1, 12, tzinfo=UTC)
    assert await network.send(an_order(expires_at=expires)) == "item-1"
    item = server.requests[0].queue_item
    assert (item.dev_eui, item.confirmed, item.f_port, item.data) == (EUI, True, 1, FRAME.data)
    assert item.expires_at.ToDatetime(tzinfo=UTC) == expires
    assert not item.id
    assert not server.requests[0].flush_queue
    await network.send(an_order(downlink=Downlink(data=b"y", f_port=7, confirmed=False)))
    item = server.requests[1].queue_item
    assert (item.confirmed, item.f_port, item.data, item.HasField("expires_at")) == (False, 7, b"y", False)


async def test_each_call_carries_the_token_and_a_deadline(server: Server, network: ChirpStack) -> None:
    server.queue = [an_item()]
    await network.send(an_order())
    await network.look(METER)
    await network.withdraw(METER, "item-1")
    await network.gateways()
    assert len(server.calls) == 5
    assert {metadata["authorization"] for metadata in server.metadata} == {f"Bearer {TOKEN}"}
    assert all(5 < remaining < 11 for remaining in server.deadlines)


@pytest.mark.parametrize(
    ("code", "details", "certain", "final"),
    [
        ("NOT_FOUND", "Object does not exist (id: 0000047003333771)", True, EndReason.UNKNOWN_DEVICE),
        ("INTERNAL", 'violates foreign key "device_queue_item_dev_eui_fkey"', True, EndReason.UNKNOWN_DEVICE),
        ("INTERNAL", "Device does not exist", True, EndReason.UNKNOWN_DEVICE),
        ("INTERNAL", 'relation "device_queue_item" does not exist', False, None),
        ("INTERNAL", "connection pool timed out", False, None),
        ("INVALID_ARGUMENT", "FPort must be between 1 - 255", True, EndReason.UNSUPPORTED_COMMAND),
        ("UNIMPLEMENTED", "", True, EndReason.UNSUPPORTED_COMMAND),
        ("UNIMPLEMENTED", "Received http2 header with status: 404", True, None),
        ("UNAUTHENTICATED", "invalid token", True, None),
        ("PERMISSION_DENIED", "", True, None),
        ("RESOURCE_EXHAUSTED", "", True, None),
        ("FAILED_PRECONDITION", "", True, None),
        ("UNAVAILABLE", "Socket closed", False, None),
        ("UNAVAILABLE", "failed to connect to all addresses; last error: …", True, None),
        ("DEADLINE_EXCEEDED", "", False, None),
        ("CANCELLED", "", False, None),
        ("UNKNOWN", "failed to connect", False, None),
        ("ABORTED", "", False, None),
        ("DATA_LOSS", "", False, None),
        ("OUT_OF_RANGE", "", False, None),
        ("ALREADY_EXISTS", "", False, None),
    ],
)
async def test_a_refusal_says_whether_it_is_certain_and_final(
    server: Server, network: ChirpStack, code: str, details: str, certain: bool, final: EndReason | None
) -> None:
    server.fails(grpc.StatusCode[code], details)
    error = await refusal(network)
    assert (error.code, error.certain, error.final) == (code, certain, final)
    assert EUI in str(error)


def test_every_status_of_grpc_has_a_verdict_and_few_are_certain() -> None:
    certain = {each.name for each in grpc.StatusCode if judge(each.name, "").certain}
    assert certain == {
        "NOT_FOUND",
        "INVALID_ARGUMENT",
        "UNIMPLEMENTED",
        "UNAUTHENTICATED",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
    }


async def test_an_answer_without_an_id_leaves_a_doubt(server: Server, network: ChirpStack) -> None:
    server.next_id = ""
    error = await refusal(network)
    assert (error.certain, error.final) == (False, None)


async def test_a_call_that_takes_too_long_leaves_a_doubt(server: Server) -> None:
    async def hang(_method: str, _context: Any) -> None:
        await asyncio.Event().wait()

    server.before = hang
    async with adapter(server.port, call_deadline=timedelta(milliseconds=100)) as network:
        error = await refusal(network)
    assert (error.code, error.certain, error.final) == ("DEADLINE_EXCEEDED", False, None)


async def test_a_server_that_vanishes_during_a_call_leaves_a_doubt() -> None:
    server, reached = Server(), asyncio.Event()

    async def hang(_method: str, _context: Any) -> None:
        reached.set()
        await asyncio.Event().wait()

    server.before = hang
    async with running(server) as listener, adapter(server.port) as network:
        sending = asyncio.create_task(refusal(network))
        await reached.wait()
        await listener.stop(None)
        error = await sending
    assert error.certain is False
    assert error.code in ("UNAVAILABLE", "CANCELLED")


async def test_a_server_that_is_not_there_has_certainly_nothing() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, but not listening: nobody else can take the port
        async with adapter(nobody.getsockname()[1]) as network:
            error = await refusal(network)
    assert (error.code, error.certain, error.final) == ("UNAVAILABLE", True, None)


async def test_a_connection_that_breaks_off_leaves_a_doubt() -> None:
    """A peer that takes the call, and then hangs up: nobody can say how far it came."""
    settings = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"

    async def take_and_drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(settings)
        seen = b""
        while FRAME.data not in seen:
            seen += await reader.read(4096)
        writer.close()

    peer = await asyncio.start_server(take_and_drop, "127.0.0.1", 0)
    async with peer, adapter(peer.sockets[0].getsockname()[1]) as network:
        error = await refusal(network)
    assert (error.code, error.certain) == ("UNAVAILABLE", False)


async def test_it_connects_again_by_itself_when_the_server_is_back() -> None:
    first, second = Server(), Server()
    second.next_id = "item-2"
    async with running(first) as listener, adapter(first.port) as network:
        assert await network.send(an_order()) == "item-1"
        await listener.stop(None)
        assert (await refusal(network)).code == "UNAVAILABLE"
        async with running(second, first.port), asyncio.timeout(10):
            assert await sent_in_the_end(network) == "item-2"


async def sent_in_the_end(network: ChirpStack) -> str:
    while True:
        try:
            return await network.send(an_order())
        except SendError as error:
            if error.code != "UNAVAILABLE":
                raise
            await asyncio.sleep(0.05)  # gRPC's backoff is in real time


async def test_no_more_calls_are_under_way_than_allowed(server: Server) -> None:
    under_way, most, gate = 0, 0, asyncio.Event()

    async def count(_method: str, _context: Any) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        if under_way == 4:
            gate.set()
        await gate.wait()
        await asyncio.sleep(0)
        under_way -= 1

    server.before = count
    async with adapter(server.port, concurrency=4) as network:
        await asyncio.gather(*(network.send(an_order()) for _ in range(200)))
    assert len(server.calls) == 200
    assert most == 4


async def test_a_call_that_never_got_its_turn_was_certainly_not_made(server: Server) -> None:
    reached = asyncio.Event()

    async def hang(_method: str, _context: Any) -> None:
        reached.set()
        await asyncio.Event().wait()

    server.before = hang
    async with adapter(server.port, concurrency=1) as network:
        first = asyncio.create_task(network.send(an_order()))
        await reached.wait()
        network._deadline_s = 0.05  # or the first call's end would be the second one's turn
        second = await refusal(network)
        assert (second.code, second.certain) == ("DEADLINE_EXCEEDED", True)
        first.cancel()
        await asyncio.wait([first])
    assert server.calls == ["Enqueue"]


async def test_a_cancelled_send_gives_its_turn_back(server: Server) -> None:
    reached = asyncio.Event()

    async def hang(_method: str, _context: Any) -> None:
        reached.set()
        await asyncio.Event().wait()

    server.before = hang
    async with adapter(server.port, concurrency=1) as network:
        sending = asyncio.create_task(network.send(an_order()))
        await reached.wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        server.before = nothing
        assert await network.send(an_order()) == "item-1"


async def test_closing_ends_calls_with_a_doubt_and_later_ones_with_certainty(server: Server) -> None:
    reached = asyncio.Event()

    async def hang(_method: str, _context: Any) -> None:
        reached.set()
        await asyncio.Event().wait()

    server.before = hang
    async with adapter(server.port) as network:
        sending = asyncio.create_task(refusal(network))
        await reached.wait()
        await network.close()
        error = await sending
        assert (error.code, error.certain) == ("CANCELLED", False)
        late = await refusal(network)
        assert (late.code, late.certain) == ("CANCELLED", True)
        await network.open()
        server.before = nothing
        assert await network.send(an_order()) == "item-1"


@pytest.mark.parametrize(
    ("changes", "final"),
    [
        ({"downlink": None}, EndReason.UNSUPPORTED_COMMAND),
        ({"downlink": Downlink(data=b"x", f_port=0)}, EndReason.UNSUPPORTED_COMMAND),
        ({"downlink": Downlink(data=b"x", f_port=256)}, EndReason.UNSUPPORTED_COMMAND),
        ({"device": Device(reference="no-eui", protocol=Protocol.LORAWAN)}, EndReason.UNKNOWN_DEVICE),
        ({"device": Device(reference="1" * 17, protocol=Protocol.LORAWAN)}, EndReason.UNKNOWN_DEVICE),
    ],
)
async def test_what_can_never_be_sent_is_refused_without_a_call(
    server: Server, network: ChirpStack, changes: dict[str, Any], final: EndReason
) -> None:
    error = await refusal(network, an_order(**changes))
    assert (error.certain, error.final) == (True, final)
    assert server.calls == []


async def test_a_look_shows_what_is_queued(server: Server, network: ChirpStack) -> None:
    server.queue = [an_item("a", is_pending=True, f_cnt_down=4), an_item("b")]
    assert await network.look(METER) == [
        QueueItem(id="a", data=b"x", f_port=1, pending=True),
        QueueItem(id="b", data=b"x", f_port=1, pending=False),
    ]
    assert server.requests[0].dev_eui == EUI


async def test_a_look_that_is_not_answered_is_no_empty_queue(server: Server, network: ChirpStack) -> None:
    server.fails(grpc.StatusCode.INTERNAL, "pool timed out")
    with pytest.raises(NetworkError, match="pool timed out") as raised:
        await network.look(METER)
    assert raised.value.code == "INTERNAL"


async def test_an_item_that_no_gateway_was_given_is_taken_back_but_not_for_certain(
    server: Server, network: ChirpStack
) -> None:
    server.queue = [an_item()]
    withdrawal = await network.withdraw(METER, "item-1")
    assert withdrawal.certain is False
    assert "taken out" in withdrawal.details
    assert server.queue == []
    assert server.calls == ["GetQueue", "FlushQueue"]


@pytest.mark.parametrize(
    ("queue", "details"),
    [
        ([], "no longer"),
        ([an_item("another")], "no longer"),
        ([an_item(is_pending=True, f_cnt_down=99)], "waits for its ack"),
        ([an_item(f_cnt_down=100)], "given to a gateway"),
        ([an_item(), an_item("another")], "1 other"),
    ],
)
async def test_where_it_would_not_help_nothing_is_flushed(
    server: Server, network: ChirpStack, queue: list[Any], details: str
) -> None:
    server.queue = list(queue)
    withdrawal = await network.withdraw(METER, "item-1")
    assert withdrawal.certain is False
    assert details in withdrawal.details
    assert "FlushQueue" not in server.calls
    assert server.queue == queue


@pytest.mark.parametrize("method", ["GetQueue", "FlushQueue"])
async def test_a_withdrawal_that_is_not_answered_can_be_asked_again(
    server: Server, network: ChirpStack, method: str
) -> None:
    server.queue = [an_item()]
    server.fails(grpc.StatusCode.UNAVAILABLE, "overloaded", method=method)
    with pytest.raises(NetworkError, match=method):
        await network.withdraw(METER, "item-1")
    server.before = nothing
    await network.withdraw(METER, "item-1")
    assert server.queue == []


async def test_gateways_are_listed_page_by_page_with_their_grids(server: Server) -> None:
    states = [api.GatewayState.ONLINE, api.GatewayState.OFFLINE, api.GatewayState.NEVER_SEEN]
    server.gateways = [
        api.GatewayListItem(gateway_id=f"{n:016x}", state=states[n % 3], properties={"grid_id": f"grid-{n}"})
        for n in range(250)
    ]
    del server.gateways[4].properties["grid_id"]
    async with adapter(server.port, grids={f"{10:016X}": "mine"}, tenant="t-1") as network:
        found = await network.gateways()
    assert [each.id for each in found] == [f"{n:016x}" for n in range(250)]
    assert found[0] == GatewayState(id=f"{0:016x}", grid="grid-0", is_up=True)
    assert [each.is_up for each in found[:3]] == [True, False, None]
    assert found[4].grid is None
    assert found[10].grid == "mine"
    assert [(each.limit, each.offset, each.tenant_id) for each in server.requests] == [
        (100, 0, "t-1"),
        (100, 100, "t-1"),
        (100, 200, "t-1"),
    ]


async def test_a_list_that_shrinks_while_it_is_read_comes_to_an_end(server: Server) -> None:
    server.gateways = [api.GatewayListItem(gateway_id=f"{n:016x}") for n in range(150)]

    async def shrink(_method: str, _context: Any) -> None:
        if len(server.calls) == 2:
            del server.gateways[90:]

    server.before = shrink
    async with adapter(server.port) as network:
        assert len(await network.gateways()) == 100


async def test_a_gateway_list_that_is_not_answered_is_a_network_error(
    server: Server, network: ChirpStack
) -> None:
    server.fails(grpc.StatusCode.UNAUTHENTICATED)
    with pytest.raises(NetworkError, match="UNAUTHENTICATED"):
        await network.gateways()


async def test_the_token_is_in_no_text(
    server: Server, network: ChirpStack, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.fails(grpc.StatusCode.UNAUTHENTICATED, f"bad token {TOKEN} " + "x" * 10_000)
    error = await refusal(network)
    with pytest.raises(NetworkError) as raised:
        await network.look(METER)
    for text in (repr(network), str(error), repr(error), str(raised.value), caplog.text):
        assert TOKEN not in text
    assert error.__cause__ is None
    assert error.__suppress_context__
    assert len(str(error)) < 500


@pytest.mark.parametrize("token", ["", "  ", "a\nb", "schlüssel"])
def test_a_token_that_is_no_header_is_refused_and_not_repeated(token: str) -> None:
    with pytest.raises(ConfigurationError, match="printable ASCII") as raised:
        ChirpStack(address="127.0.0.1:8080", token=token)
    assert not token.strip() or token not in str(raised.value)


@pytest.mark.parametrize(
    ("address", "tls", "expected"),
    [
        ("127.0.0.1:8080", None, ("127.0.0.1:8080", False)),
        ("localhost:8080", None, ("localhost:8080", False)),
        ("[::1]:8080", None, ("[::1]:8080", False)),
        ("127.0.0.1:8080", True, ("127.0.0.1:8080", True)),
        ("http://localhost", None, ("localhost:80", False)),
        ("https://lns.example.org", None, ("lns.example.org:443", True)),
        ("https://lns.example.org:8443/", None, ("lns.example.org:8443", True)),
        ("https://lns.example.org", True, ("lns.example.org:443", True)),
        ("lns.example.org:443", True, ("lns.example.org:443", True)),
        ("lns.example.org:8080", False, ("lns.example.org:8080", False)),
        ("http://10.0.0.5:8080", False, ("10.0.0.5:8080", False)),
    ],
)
def test_an_address_says_where_and_whether_with_tls(
    address: str, tls: bool | None, expected: tuple[str, bool]
) -> None:
    assert endpoint(address, tls) == expected


@pytest.mark.parametrize(
    "address", ["lns.example.org:8080", "http://lns.example.org", "http://10.0.0.5:8080"]
)
def test_a_token_does_not_go_over_the_network_in_clear_by_default(address: str) -> None:
    with pytest.raises(ConfigurationError, match="in clear"):
        endpoint(address, None)


@pytest.mark.parametrize(
    ("address", "tls"),
    [
        ("", None),
        ("127.0.0.1", None),
        ("127.0.0.1:port", None),
        ("127.0.0.1:99999", None),
        ("ftp://127.0.0.1:21", None),
        ("http://127.0.0.1:8080/api", None),
        ("https://127.0.0.1", False),
        ("http://127.0.0.1", True),
        ("http://me:hunter2@127.0.0.1:8080", None),
    ],
)
def test_an_address_that_is_none_is_refused(address: str, tls: bool | None) -> None:
    with pytest.raises(ConfigurationError) as raised:
        endpoint(address, tls)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"call_deadline": timedelta(0)},
        {"ca_file": Path("ca.pem")},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        ChirpStack(address="127.0.0.1:8080", token=TOKEN, **options)


async def test_a_ca_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    network = ChirpStack(address="https://127.0.0.1", token=TOKEN, ca_file=tmp_path / "ca.pem")
    with pytest.raises(ConfigurationError, match=r"ca\.pem"):
        await network.open()


async def test_a_server_without_tls_is_not_spoken_to_where_tls_is_asked_for(server: Server) -> None:
    async with adapter(server.port, tls=True) as network:
        error = await refusal(network)
    assert error.code == "UNAVAILABLE"
    assert server.calls == []


def a_certificate(folder: Path) -> tuple[Path, Any]:
    """A certificate of 127.0.0.1 that is its own authority, and the server's credentials with it."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("makes a certificate with openssl, which is not installed")
    key, certificate = folder / "key.pem", folder / "ca.pem"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=chirpstack", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([openssl, "req", "-x509", *curve, *names, *files], check=True, capture_output=True)
    pair = (key.read_bytes(), certificate.read_bytes())
    return certificate, grpc.ssl_server_credentials([pair])


async def test_over_tls_the_servers_certificate_is_checked(tmp_path: Path) -> None:
    server = Server()
    ca_file, credentials = a_certificate(tmp_path)
    async with running(server, credentials=credentials):
        address = f"https://127.0.0.1:{server.port}"
        async with adapter(address, ca_file=ca_file) as network:
            assert await network.send(an_order()) == "item-1"
        async with adapter(address) as network:
            error = await refusal(network)
    assert (error.code, error.certain) == ("UNAVAILABLE", True)
    assert server.calls == ["Enqueue"]
