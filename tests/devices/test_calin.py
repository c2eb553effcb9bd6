"""The adapters to Calin's V1 and V2 over real sockets: what they send, and what they make of answers."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import Receive, Scope, Send

from remuda.clock import VirtualClock
from remuda.devices.command import CommandType, Device, Execution, Phase, Protocol
from remuda.devices.networks.calin_http import CalinNetwork
from remuda.devices.networks.calin_v1 import CalinV1
from remuda.devices.networks.calin_v2 import CalinV2
from remuda.devices.networks.contract import NetworkError, Order, SendError, TaskResult
from remuda.devices.simulator.calin_http import HttpServer
from remuda.errors import ConfigurationError
from remuda.lifecycle import EndReason

SERIAL = "47003333771"
TOKEN = "61234567890123450500"
PASSWORD = "pass-word-1"
JWT = "aaa.bbb.ccc"
NOW = datetime(2026, 3, 15, 10, 20, 30, tzinfo=UTC)  # a Sunday
T = CommandType
TOKENS = (T.TOP_UP, T.SET_POWER_LIMIT, T.CLEAR_CREDIT, T.CLEAR_TAMPER, T.DELIVER_PREEXISTING_TOKEN)
NETWORKS: dict[Protocol, type[CalinNetwork]] = {Protocol.API_V1: CalinV1, Protocol.API_V2: CalinV2}
both = pytest.mark.parametrize("protocol", list(NETWORKS))


class Scripted:
    """A server that answers what it is told to, and keeps what it is asked."""

    def __init__(self) -> None:
        self.server = HttpServer(self)
        self.answer: Any = None
        self.jwt = JWT
        self.logins = 0
        self.asked: list[tuple[str, Any, dict[str, str]]] = []
        self.most_at_once = 0
        self._at_once = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            response = await self._respond(scope, receive)
            await response(scope, receive, send)
        finally:
            self._at_once -= 1

    async def _respond(self, scope: Scope, receive: Receive) -> Response:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        if scope["path"] == "/API/User/Login":
            self.logins += 1
            if not callable(self.answer) or not getattr(self.answer, "logs_in", False):
                return JSONResponse({"code": 0, "reason": "success", "result": {"token": self.jwt}})
        self.asked.append((scope["path"], json.loads(body), headers))
        answer = self.answer
        if callable(answer) and not isinstance(answer, Response):
            answer = answer(headers)
        if asyncio.iscoroutine(answer):
            answer = await answer
        return answer if isinstance(answer, Response) else JSONResponse(answer)


@pytest.fixture
async def vendor() -> AsyncIterator[Scripted]:
    scripted = Scripted()
    await scripted.server.start()
    yield scripted
    await scripted.server.stop()


@asynccontextmanager
async def network(url: str, protocol: Protocol, **options: Any) -> AsyncIterator[CalinNetwork]:
    options = {
        "company": "Acme",
        "user": "admin",
        "password": PASSWORD,
        "clock": VirtualClock(NOW),
        **options,
    }
    made = NETWORKS[protocol](url, **options)
    await made.open()
    try:
        yield made
    finally:
        await made.close()


def order(
    kind: CommandType = T.READ_CREDIT,
    *,
    data: Any = None,
    phase: Phase | None = None,
    customer: str | None = None,
) -> Order:
    device = Device(reference=SERIAL, protocol=Protocol.API_V1, customer=customer)
    return Order(command_id="c1", attempt=1, device=device, type=kind, data=data, phase=phase)


def created(protocol: Protocol, number: Any = 17) -> dict[str, Any]:
    if protocol is Protocol.API_V1:
        return {"ResultCode": "00", "Reason": "OK", "Result": {"TaskNo": number}}
    return {"code": 0, "reason": "success", "result": [{"id": number}]}


def refused(protocol: Protocol, reason: str) -> dict[str, Any]:
    if protocol is Protocol.API_V1:
        return {"ResultCode": "99", "Reason": reason, "Result": None}
    return {"code": 5, "reason": reason, "result": None}


def told(protocol: Protocol, status: Any, data: Any = "", number: Any = 17) -> dict[str, Any]:
    if protocol is Protocol.API_V1:
        result = {"TaskNo": str(number), "Status": status, "DataItem": "?", "Data": data}
        return {"ResultCode": "00", "Reason": "OK", "Result": result}
    rows = [{"id": number, "meterId": SERIAL, "name": "?", "data": data, "status": status}]
    return {"code": 0, "reason": "success", "result": {"total": 1, "data": rows}}


async def send_fails(made: CalinNetwork, asked: Order) -> SendError:
    with pytest.raises(SendError) as caught:
        await made.send(asked)
    shows_no_secret(caught.value)
    return caught.value


async def poll_fails(made: CalinNetwork, asked: Order) -> NetworkError:
    with pytest.raises(NetworkError) as caught:
        await made.poll(asked, "17")
    shows_no_secret(caught.value)
    return caught.value


def shows_no_secret(error: BaseException) -> None:
    """Neither its text nor a logged traceback shows the password, the JWT or the token."""
    text = "".join(traceback.format_exception(error)) + repr(error)
    assert not [secret for secret in (PASSWORD, JWT, TOKEN, "6123 4567 8901 2345 0500") if secret in text]


V1_READS = [
    (T.READ_CREDIT, None, "Current Credit Register"),
    (T.READ_VOLTAGE, None, "Voltage"),
    (T.READ_VOLTAGE, Phase.B, "VoltageB"),
    (T.READ_CURRENT, Phase.A, "CurrentA"),
    (T.READ_CURRENT, Phase.C, "CurrentC"),
    (T.READ_POWER, Phase.A, "Power"),
    (T.READ_POWER_LIMIT, None, "Maximum power threshold"),
    (T.READ_VERSION, None, "Version"),
    (T.READ_DATE, None, "Date"),
]
V1_BODIES = [
    *((kind, None, phase, "/COMM_RemoteReading", {"DataItem": item}) for kind, phase, item in V1_READS),
    (T.TURN_ON, None, None, "/COMM_RemoteControl", {"DataItem": "Switch On"}),
    (T.TURN_OFF, None, None, "/COMM_RemoteControl", {"DataItem": "Switch Off"}),
    (T.SET_DATE, None, None, "/COMM_RemoteWrite", {"DataItem": "Date", "Data": "26031500"}),
    (T.SET_DATE, date(2026, 3, 16), None, "/COMM_RemoteWrite", {"DataItem": "Date", "Data": "26031601"}),
    *((kind, TOKEN, None, "/COMM_RemoteToken", {"Token": TOKEN}) for kind in TOKENS),
    (T.TOP_UP, "6123-4567 89012345 0500", None, "/COMM_RemoteToken", {"Token": TOKEN}),
    (T.TOP_UP, {"token": f" {TOKEN}\n", "kwh": 50}, None, "/COMM_RemoteToken", {"Token": TOKEN}),
]


@pytest.mark.parametrize(("kind", "data", "phase", "path", "words"), V1_BODIES)
async def test_v1_is_asked_in_its_own_words(
    vendor: Scripted, kind: CommandType, data: Any, phase: Phase | None, path: str, words: dict[str, str]
) -> None:
    vendor.answer = created(Protocol.API_V1, "T-17")
    async with network(vendor.server.url, Protocol.API_V1) as made:
        assert await made.send(order(kind, data=data, phase=phase)) == "T-17"
    who = {"CompanyName": "Acme", "UserName": "admin", "Password": PASSWORD}
    assert [(where, body) for where, body, _ in vendor.asked] == [(path, {**who, "MeterNo": SERIAL, **words})]


V2_IDS = [
    (T.READ_CREDIT, "Reading", 39),
    (T.READ_VOLTAGE, "Reading", 5),
    (T.READ_CURRENT, "Reading", 8),
    (T.READ_POWER, "Reading", 11),
    (T.READ_POWER_LIMIT, "Reading", 46),
    (T.READ_VERSION, "Reading", 45),
    (T.READ_DATE, "Reading", 29),
    (T.TURN_ON, "Control", 20000),
    (T.TURN_OFF, "Control", 20001),
]
V2_BODIES = [
    *((kind, None, path, {"protocolId": number}) for kind, path, number in V2_IDS),
    (T.SET_DATE, None, "Setting", {"protocolId": 10000, "data": "2026-03-15 10:20:30"}),
    (T.SET_DATE, date(2026, 3, 16), "Setting", {"protocolId": 10000, "data": "2026-03-16 00:00:00"}),
    (T.SET_DATE, "2026-03-16", "Setting", {"protocolId": 10000, "data": "2026-03-16 00:00:00"}),
    (
        T.SET_DATE,
        "2026-03-16T01:02:03+01:00",
        "Setting",
        {"protocolId": 10000, "data": "2026-03-16 01:02:03"},
    ),
    *((kind, TOKEN, "Token", {"protocolId": 30000, "data": TOKEN}) for kind in TOKENS),
]


@pytest.mark.parametrize(("kind", "data", "path", "words"), V2_BODIES)
async def test_v2_is_asked_in_its_own_words(
    vendor: Scripted, kind: CommandType, data: Any, path: str, words: dict[str, Any]
) -> None:
    vendor.answer = created(Protocol.API_V2, 3800)
    async with network(vendor.server.url, Protocol.API_V2, customer="1") as made:
        assert await made.send(order(kind, data=data)) == "3800"
        await made.send(order(kind, data=data, customer="77"))
    [(first, body, headers), (_, second, _)] = vendor.asked
    assert first == f"/API/RemoteMeterTask/Create{path}Task"
    assert body == [{"meterId": SERIAL, "customerId": "1", "company": "Acme", **words}]
    assert second[0]["customerId"] == "77"
    assert headers["authorization"] == f"Bearer {JWT}"
    assert PASSWORD not in json.dumps(body)


async def test_a_base_url_may_have_a_path(vendor: Scripted) -> None:
    vendor.answer = created(Protocol.API_V1)
    async with network(vendor.server.url + "/api/", Protocol.API_V1) as made:
        await made.send(order())
    assert vendor.asked[0][0] == "/api/COMM_RemoteReading"


@pytest.mark.parametrize(
    ("protocol", "kind", "path", "asked"),
    [
        (Protocol.API_V1, T.READ_CREDIT, "/COMM_RemoteReadingTask", {"TaskNo": "17"}),
        (Protocol.API_V1, T.TURN_ON, "/COMM_RemoteControlTask", {"TaskNo": "17"}),
        (Protocol.API_V1, T.SET_DATE, "/COMM_RemoteWriteTask", {"TaskNo": "17"}),
        (Protocol.API_V1, T.TOP_UP, "/COMM_RemoteTokenTask", {"TaskNo": "17"}),
        (Protocol.API_V2, T.READ_CREDIT, "/API/RemoteMeterTask/GetReadingTask", {"id": 17}),
        (Protocol.API_V2, T.TURN_ON, "/API/RemoteMeterTask/GetControlTask", {"id": 17}),
        (Protocol.API_V2, T.SET_DATE, "/API/RemoteMeterTask/GetSettingTask", {"id": 17}),
        (Protocol.API_V2, T.TOP_UP, "/API/RemoteMeterTask/GetTokenTask", {"id": 17}),
    ],
)
async def test_a_task_is_asked_for_where_it_was_made(
    vendor: Scripted, protocol: Protocol, kind: CommandType, path: str, asked: dict[str, Any]
) -> None:
    vendor.answer = told(protocol, "unknown" if protocol is Protocol.API_V1 else 0)
    async with network(vendor.server.url, protocol) as made:
        assert await made.poll(order(kind), "17") is None
    who: dict[str, Any] = {"CompanyName": "Acme", "UserName": "admin", "Password": PASSWORD}
    if protocol is Protocol.API_V2:
        who = {"lang": "en", "company": "Acme"}
    assert [(where, body) for where, body, _ in vendor.asked] == [(path, {**who, **asked})]


@both
@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (T.READ_TIME, None),
        (T.SET_TIME, "10:00:00"),
        (T.READ_REPORT, None),
        (T.JOIN_NETWORK, None),
        (T.TOP_UP, None),
        (T.TOP_UP, 61234567890123450500),
        (T.TOP_UP, TOKEN[:-1]),
        (T.TOP_UP, f"{TOKEN}1"),
        (T.TOP_UP, {"code": TOKEN}),
        (T.SET_DATE, "15/03/2026"),
        (T.SET_DATE, TOKEN),
        (T.SET_DATE, 20260315),
        (T.SET_DATE, "1999-12-31"),
    ],
)
async def test_what_cannot_be_asked_ends_at_once(
    vendor: Scripted, protocol: Protocol, kind: CommandType, data: Any
) -> None:
    async with network(vendor.server.url, protocol) as made:
        error = await send_fails(made, order(kind, data=data))
    assert (error.final, error.certain) == (EndReason.UNSUPPORTED_COMMAND, True)
    assert TOKEN[:-1] not in str(error)
    assert not vendor.asked


async def test_v2_does_not_pass_phase_a_off_as_another(vendor: Scripted) -> None:
    async with network(vendor.server.url, Protocol.API_V2) as made:
        error = await send_fails(made, order(T.READ_VOLTAGE, phase=Phase.B))
    assert error.final is EndReason.UNSUPPORTED_COMMAND


@both
@pytest.mark.parametrize(
    ("kind", "reason", "final"),
    [
        (T.TOP_UP, "Token 6123 4567 8901 2345 0500 has been used", EndReason.BAD_TOKEN),
        (T.CLEAR_CREDIT, "error", EndReason.BAD_TOKEN),
        (T.TOP_UP, f"Meter {SERIAL} does not exist", EndReason.UNKNOWN_DEVICE),
        (T.READ_CREDIT, "The meter was not found", EndReason.UNKNOWN_DEVICE),
        (T.READ_CREDIT, "Unknown meter", EndReason.UNKNOWN_DEVICE),
        (T.READ_CREDIT, "Meter is offline", None),
        (T.TURN_OFF, "System busy", None),
    ],
)
async def test_a_refused_create_is_certain_and_says_why(
    vendor: Scripted, protocol: Protocol, kind: CommandType, reason: str, final: EndReason | None
) -> None:
    vendor.answer = refused(protocol, reason)
    async with network(vendor.server.url, protocol) as made:
        error = await send_fails(made, order(kind, data=TOKEN))
    assert (error.certain, error.final) == (True, final)
    assert error.code == ("99" if protocol is Protocol.API_V1 else "5")
    assert reason.split(maxsplit=1)[0] in str(error)


@both
async def test_a_token_is_not_bad_because_the_password_is(vendor: Scripted, protocol: Protocol) -> None:
    vendor.answer = refused(protocol, f"UserName or Password {PASSWORD} error")
    async with network(vendor.server.url, protocol) as made:
        error = await send_fails(made, order(T.TOP_UP, data=TOKEN))
    assert (error.code, error.certain, error.final) == ("unauthorized", True, None)


@both
@pytest.mark.parametrize(
    ("answer", "code", "certain"),
    [
        (lambda: HTMLResponse("<html>Bad Gateway</html>", 502), "http_502", False),
        (lambda: HTMLResponse("<html>oops</html>", 500), "http_500", False),
        (lambda: Response(status_code=302, headers={"location": "/elsewhere"}), "http_302", False),
        (lambda: HTMLResponse("<html>not here</html>", 404), "http_404", True),
        (lambda: JSONResponse({}, 429), "http_429", True),
        (lambda: HTMLResponse("<html>maintenance</html>"), "bad_answer", False),
        (lambda: Response(b""), "bad_answer", False),
        (lambda: Response(b"[" * 100_000), "bad_answer", False),
        (lambda: JSONResponse(["what"]), "bad_answer", False),
        (lambda: JSONResponse(None), "bad_answer", False),
        (lambda: JSONResponse({}), "bad_answer", False),
        (lambda: JSONResponse({"ResultCode": "00", "code": 0}), "bad_answer", False),
        (
            lambda: JSONResponse({"ResultCode": "00", "Result": {}, "code": 0, "result": []}),
            "bad_answer",
            False,
        ),
        (
            lambda: JSONResponse({"ResultCode": "00", "Result": [1], "code": 0, "result": [1]}),
            "bad_answer",
            False,
        ),
        (lambda: JSONResponse({"ResultCode": "42", "Result": None, "code": "0"}), "bad_answer", False),
        (lambda: JSONResponse({"pad": "x" * (1 << 20)}), "oversize_answer", False),
    ],
)
async def test_a_strange_answer_leaves_open_whether_there_is_a_task(
    vendor: Scripted, protocol: Protocol, answer: Callable[[], Response], code: str, certain: bool
) -> None:
    vendor.answer = answer()
    asked = order(T.TOP_UP, data=TOKEN)
    async with network(vendor.server.url, protocol) as made:
        error = await send_fails(made, asked)
        assert (error.code, error.certain, error.final) == (code, certain, None)
        vendor.answer = answer()
        await poll_fails(made, asked)


@both
async def test_a_missing_task_id_leaves_it_open(vendor: Scripted, protocol: Protocol) -> None:
    for number in (None, "", 0, {"no": 1}):
        vendor.answer = created(protocol, number)
        async with network(vendor.server.url, protocol) as made:
            error = await send_fails(made, order())
        assert (error.code, error.certain) == ("bad_answer", False)


@both
async def test_a_connection_that_breaks_off_leaves_it_open(vendor: Scripted, protocol: Protocol) -> None:
    vendor.answer = lambda _: vendor.server.cut()
    async with network(vendor.server.url, protocol) as made:
        error = await send_fails(made, order(T.TOP_UP, data=TOKEN))
        assert (error.code, error.certain, error.final) == ("connection_lost", False, None)
        assert (await poll_fails(made, order())).code == "connection_lost"
    assert len(vendor.asked) == 2  # nothing is sent a second time


@both
async def test_without_a_connection_nothing_was_sent(protocol: Protocol) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        async with network(f"http://127.0.0.1:{port}", protocol) as made:
            error = await send_fails(made, order())
            assert (error.code, error.certain) == ("no_connection", True)
            assert (await poll_fails(made, order())).code == "no_connection"


@both
async def test_a_call_without_an_answer_ends_at_its_deadline(vendor: Scripted, protocol: Protocol) -> None:
    async with network(vendor.server.url, protocol, call_deadline=timedelta(milliseconds=500)) as made:
        vendor.answer = created(protocol)
        await made.send(order())  # V2 is logged in now
        vendor.answer = lambda _: asyncio.Event().wait()
        sent, polled = await asyncio.gather(
            send_fails(made, order(T.TOP_UP, data=TOKEN)), poll_fails(made, order())
        )
    assert (sent.code, sent.certain) == ("timeout", False)
    assert polled.code == "timeout"


@both
async def test_a_call_that_would_start_too_late_is_not_started(vendor: Scripted, protocol: Protocol) -> None:
    options = {"concurrency": 1, "call_deadline": timedelta(milliseconds=500)}
    async with network(vendor.server.url, protocol, **options) as made:
        vendor.answer = created(protocol)
        await made.send(order())
        vendor.answer = lambda _: asyncio.Event().wait()
        first, second = await asyncio.gather(send_fails(made, order()), send_fails(made, order(T.TURN_ON)))
    assert (first.code, first.certain) == ("timeout", False)
    assert (second.code, second.certain) == ("busy", True)
    assert len(vendor.asked) == 2


@both
async def test_no_more_calls_are_under_way_than_allowed(vendor: Scripted, protocol: Protocol) -> None:
    async def answer() -> Any:
        await asyncio.sleep(0.005)
        return created(protocol)

    vendor.answer = lambda _: answer()
    async with network(vendor.server.url, protocol, concurrency=4) as made:
        await asyncio.gather(*(made.send(order()) for _ in range(30)))
    assert vendor.most_at_once == 4
    assert len(vendor.asked) == 30


READINGS = [
    (T.READ_CREDIT, "12.5,ON", {"value": 12.5, "relay": "on"}),
    (T.READ_CREDIT, "-0.3, OFF", {"value": -0.3, "relay": "off"}),
    (T.READ_CREDIT, "108.8", {"value": 108.8}),
    (T.READ_CREDIT, 108.8, {"value": 108.8}),
    (T.READ_CREDIT, "nan,ON", {"value": "nan", "relay": "on"}),
    (T.READ_CREDIT, "what", {"value": "what"}),
    (T.READ_CREDIT, None, None),
    (T.READ_CREDIT, " ", None),
    (T.READ_VOLTAGE, "230.1 V", {"value": 230.1}),
    (T.READ_POWER, 0, {"value": 0.0}),
    (T.READ_VERSION, "1.10", {"value": "1.10"}),
    (T.READ_DATE, "26-03-15 0", {"value": "2026-03-15"}),
    (T.READ_DATE, "26031500", {"value": "2026-03-15"}),
    (T.READ_DATE, "2026-03-15 10:20:30", {"value": "2026-03-15"}),
    (T.READ_DATE, "99-99-99", {"value": "99-99-99"}),
    (T.TOP_UP, TOKEN, None),
    (T.TURN_ON, "Connected", None),
]


@both
@pytest.mark.parametrize(("kind", "data", "read"), READINGS)
async def test_a_success_brings_what_was_read(
    vendor: Scripted, protocol: Protocol, kind: CommandType, data: Any, read: Any
) -> None:
    vendor.answer = told(protocol, "True" if protocol is Protocol.API_V1 else 1, data)
    async with network(vendor.server.url, protocol) as made:
        result = await made.poll(order(kind), "17")
    assert result == TaskResult(execution=Execution.EXECUTION_SUCCESS, data=read)


@pytest.mark.parametrize(
    ("protocol", "status", "is_refusal", "code"),
    [
        (Protocol.API_V1, "False", False, "False"),
        (Protocol.API_V2, 2, False, "2"),
        (Protocol.API_V2, 3, True, "3"),
    ],
)
async def test_a_failure_is_a_refusal_only_where_the_meter_said_no(
    vendor: Scripted, protocol: Protocol, status: Any, is_refusal: bool, code: str
) -> None:
    vendor.answer = told(protocol, status, "")
    async with network(vendor.server.url, protocol) as made:
        result = await made.poll(order(T.TOP_UP), "17")
    assert result == TaskResult(execution=Execution.EXECUTION_FAILURE, refused=is_refusal, code=code)


@pytest.mark.parametrize(
    ("protocol", "status"), [(Protocol.API_V1, "unknown"), (Protocol.API_V1, None), (Protocol.API_V2, 0)]
)
async def test_a_task_that_goes_on_has_no_result(vendor: Scripted, protocol: Protocol, status: Any) -> None:
    vendor.answer = told(protocol, status)
    async with network(vendor.server.url, protocol) as made:
        assert await made.poll(order(), "17") is None


@both
@pytest.mark.parametrize("what", ["another task", "a strange status", "no such task", "refusal"])
async def test_a_poll_that_tells_nothing_is_to_be_repeated(
    vendor: Scripted, protocol: Protocol, what: str
) -> None:
    is_v1 = protocol is Protocol.API_V1
    vendor.answer = {
        "another task": told(protocol, "True" if is_v1 else 1, "12,ON", number=18),
        "a strange status": told(protocol, "maybe" if is_v1 else 7),
        "no such task": refused(protocol, "Token task does not exist")
        if is_v1
        else {"code": 0, "reason": "success", "result": {"total": 0, "data": []}},
        "refusal": refused(protocol, "System busy"),
    }[what]
    async with network(vendor.server.url, protocol) as made:
        await poll_fails(made, order(T.TOP_UP))


async def test_v1_tells_at_the_poll_too_that_a_token_was_refused(vendor: Scripted) -> None:
    vendor.answer = refused(Protocol.API_V1, f"Token {TOKEN} rejected or used")
    async with network(vendor.server.url, Protocol.API_V1) as made:
        result = await made.poll(order(T.TOP_UP), "17")
        assert result == TaskResult(execution=Execution.EXECUTION_FAILURE, refused=False, code="99")
        await poll_fails(made, order(T.READ_CREDIT))


async def test_an_expired_jwt_is_renewed_once_for_fifty_calls(vendor: Scripted) -> None:
    def answer(headers: dict[str, str]) -> Any:
        if headers["authorization"] != f"Bearer {vendor.jwt}":
            return Response(status_code=401)
        return created(Protocol.API_V2)

    vendor.answer = answer
    async with network(vendor.server.url, Protocol.API_V2, concurrency=50) as made:
        await asyncio.gather(*(made.send(order()) for _ in range(50)))
        assert vendor.logins == 1
        vendor.jwt = "ddd.eee.fff"
        ids = await asyncio.gather(*(made.send(order(T.TOP_UP, data=TOKEN)) for _ in range(50)))
        assert ids == ["17"] * 50
        assert vendor.logins == 2


@pytest.mark.parametrize(
    "unauthorized", [Response(status_code=401), JSONResponse({"code": 401, "reason": "x"})]
)
async def test_a_second_401_gives_up_and_nothing_was_done(vendor: Scripted, unauthorized: Response) -> None:
    vendor.answer = unauthorized
    async with network(vendor.server.url, Protocol.API_V2) as made:
        error = await send_fails(made, order(T.TOP_UP, data=TOKEN))
        assert (error.code, error.certain, error.final) == ("unauthorized", True, None)
        assert (len(vendor.asked), vendor.logins) == (2, 2)
        assert (await poll_fails(made, order())).code == "unauthorized"


async def test_v1_that_says_401_has_done_nothing(vendor: Scripted) -> None:
    vendor.answer = Response(status_code=401)
    async with network(vendor.server.url, Protocol.API_V1) as made:
        error = await send_fails(made, order(T.TOP_UP, data=TOKEN))
    assert (error.code, error.certain) == ("unauthorized", True)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (lambda: HTMLResponse("<html></html>", 503), "http_503"),
        (lambda: HTMLResponse("<html></html>"), "bad_answer"),
        (lambda: JSONResponse({"code": 1, "reason": f"wrong password {PASSWORD}"}), "unauthorized"),
        (lambda: JSONResponse({"code": 0, "result": {"token": "a\nb"}}), "bad_answer"),
        (lambda: JSONResponse({"code": 0, "result": None}), "bad_answer"),
    ],
)
async def test_a_login_that_fails_is_certain_since_nothing_else_was_sent(
    vendor: Scripted, answer: Callable[[], Response], code: str
) -> None:
    def log_in(_: dict[str, str]) -> Response:
        return answer()

    log_in.logs_in = True  # type: ignore[attr-defined]
    vendor.answer = log_in
    async with network(vendor.server.url, Protocol.API_V2) as made:
        error = await send_fails(made, order(T.TOP_UP, data=TOKEN))
        assert (error.code, error.certain, error.final) == (code, True, None)
        assert (await poll_fails(made, order())).code == code
    assert {path for path, _, _ in vendor.asked} == {"/API/User/Login"}


async def test_a_slow_login_goes_on_when_its_calls_have_given_up(vendor: Scripted) -> None:
    logging_in = asyncio.Event()

    async def slow() -> Response:
        await logging_in.wait()
        return JSONResponse({"code": 0, "result": {"token": JWT}})

    def log_in(_: dict[str, str]) -> Any:
        return slow()

    log_in.logs_in = True  # type: ignore[attr-defined]
    vendor.answer = log_in
    async with network(vendor.server.url, Protocol.API_V2, call_deadline=timedelta(milliseconds=500)) as made:
        error = await send_fails(made, order(T.TOP_UP, data=TOKEN))
        assert (error.code, error.certain) == ("busy", True)
        logging_in.set()
        vendor.answer = created(Protocol.API_V2)
        assert await made.send(order(T.TOP_UP, data=TOKEN)) == "17"
    assert vendor.logins == 1


@both
async def test_a_network_that_is_closed_sends_nothing(vendor: Scripted, protocol: Protocol) -> None:
    async with network(vendor.server.url, protocol) as made:
        pass
    error = await send_fails(made, order())
    assert (error.code, error.certain) == ("closed", True)


@both
async def test_neither_logs_nor_repr_show_a_secret(
    vendor: Scripted, protocol: Protocol, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    vendor.answer = created(protocol)
    async with network(vendor.server.url, protocol) as made:
        await made.send(order(T.TOP_UP, data=TOKEN))
        assert vendor.server.url in repr(made)
        shown = repr(made) + caplog.text
    assert not [secret for secret in (PASSWORD, JWT, TOKEN) if secret in shown]


@both
@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://calin.example/api", "allow_plain_http"),
        ("http://10.0.0.1", "allow_plain_http"),
        ("ftp://calin.example", "https://"),
        ("calin.example", "https://"),
        (f"https://admin:{PASSWORD}@calin.example", "no user"),
        ("https://calin.example/?a=b", "query"),
    ],
)
def test_a_base_url_is_a_place_for_credentials(protocol: Protocol, url: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        NETWORKS[protocol](url, company="Acme", user="admin", password=PASSWORD)
    shows_no_secret(caught.value)


@both
@pytest.mark.parametrize("url", ["https://calin.example/api", "http://localhost:1", "http://[::1]:1"])
def test_tls_and_this_machine_need_no_permission(protocol: Protocol, url: str) -> None:
    NETWORKS[protocol](url, company="Acme", user="admin", password=PASSWORD)


@both
@pytest.mark.parametrize("option", [{"concurrency": 0}, {"call_deadline": timedelta(0)}])
def test_limits_must_make_sense(protocol: Protocol, option: dict[str, Any]) -> None:
    plain = {"company": "Acme", "user": "admin", "password": PASSWORD, "allow_plain_http": True}
    NETWORKS[protocol]("http://calin.example", **plain)
    with pytest.raises(ConfigurationError, match=next(iter(option))):
        NETWORKS[protocol]("http://calin.example", **plain, **option)
