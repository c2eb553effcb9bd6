"""The simulated vendor over HTTP: Calin's V1 and V2 on one port, in the running event loop."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from remuda.devices.command import Family
from remuda.devices.networks.calin_words import (
    V1_ACCEPTED,
    V1_PATHS,
    V1_REFUSED,
    V2_KINDS,
    V2_LOGIN_PATH,
    v2_path,
)
from remuda.devices.simulator.calin import RefusedError, SimulatedCalin, read_v1, read_v2, v1_result, v2_row
from remuda.devices.simulator.radio import Fault

HTML_ERROR = "<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>"
Answer = Callable[[Request, Any], dict[str, Any] | Response]


class HttpServer:
    """An ASGI app on 127.0.0.1, at a port of its own. `cut` ends a request's connection without an answer."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._app = app
        self._transports: dict[tuple[str, int], asyncio.Transport] = {}
        self._state = ServerState()
        self._server: asyncio.Server | None = None
        self.url = ""

    async def start(self, port: int = 0) -> None:
        """Listen; `url` says where."""
        config = uvicorn.Config(
            self._app, ws="none", lifespan="off", log_config=None, access_log=False, proxy_headers=False
        )
        config.load()
        # Not uvicorn's own server: that takes the program's signals, and its time to stop.
        self._server = await asyncio.get_running_loop().create_server(
            lambda: _CuttableProtocol(config, self._state, self._transports), "127.0.0.1", port
        )
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Cut every connection and stop listening."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        running = list(self._state.tasks)
        for transport in list(self._transports.values()):
            transport.abort()
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await server.wait_closed()

    def cut(self) -> Response:
        """An answer that is none: the connection is reset."""
        return _Cut(self._transports)


class _CuttableProtocol(H11Protocol):
    """uvicorn's protocol, which also keeps its transport where an app can find it."""

    def __init__(
        self,
        config: uvicorn.Config,
        state: ServerState,
        transports: dict[tuple[str, int], asyncio.Transport],
    ) -> None:
        super().__init__(config=config, server_state=state, app_state={})
        self._transports = transports
        self._peer = ("", 0)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as there
        super().connection_made(transport)
        self._peer = transport.get_extra_info("peername")
        self._transports[self._peer] = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transports.pop(self._peer, None)
        super().connection_lost(exc)


class _Cut(Response):
    def __init__(self, transports: dict[tuple[str, int], asyncio.Transport]) -> None:
        super().__init__()
        self._transports = transports

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        transport = self._transports.get(tuple(scope["client"]))
        if transport is not None:
            transport.abort()
        while (await receive())["type"] != "http.disconnect":
            pass


class CalinServer(HttpServer):
    """Calin's APIs V1 and V2 over HTTP. `url` is the base URL for both.

    jwt_lifetime  how long a login lasts
    revocations   the share of V2 calls at which the server has forgotten the login

    >>> server = CalinServer(SimulatedCalin(meters, SystemClock()))
    >>> await server.start()
    """

    def __init__(
        self,
        calin: SimulatedCalin,
        *,
        jwt_lifetime: timedelta = timedelta(hours=1),
        revocations: float = 0.0,
    ) -> None:
        routes = [self._route(V2_LOGIN_PATH, self._log_in, "login")]
        for family, path in V1_PATHS.items():
            routes.append(self._route(path, partial(self._v1_create, family), "create", "MeterNo"))
            routes.append(self._route(path + "Task", self._v1_result, "poll", "TaskNo"))
        for family in V2_KINDS:
            create = partial(self._v2_create, family)
            routes.append(self._route(v2_path("Create", family), create, "create", "meterId"))
            routes.append(self._route(v2_path("Get", family), self._v2_result, "poll", "id"))
        super().__init__(Starlette(routes=routes))
        self.calin = calin
        self.logins = 0
        self._jwt_lifetime = jwt_lifetime
        self._revocations = revocations
        self._sessions: dict[str, datetime] = {}

    async def stop(self) -> None:
        await super().stop()
        await self.calin.close()

    def forget_logins(self) -> None:
        """Let every JWT be answered with 401 from now on."""
        self._sessions.clear()

    def _route(self, path: str, answer: Answer, kind: str, key: str | None = None) -> Route:
        async def endpoint(request: Request) -> Response:
            try:
                body = msgspec.json.decode(await request.body())
            except msgspec.DecodeError:
                return Response("Bad Request", 400)
            call, is_html = self.calin.call(f"{kind}/{_named(body, key)}" if key else kind)
            await asyncio.sleep(call.before_s)
            if call.fault is Fault.BEFORE:
                return self._failure(is_html=is_html)
            answered = answer(request, body)
            await asyncio.sleep(call.after_s)
            if call.fault is Fault.AFTER:
                return self._failure(is_html=is_html)
            return answered if isinstance(answered, Response) else _json(answered)

        return Route(path, endpoint, methods=["POST"])

    def _failure(self, *, is_html: bool) -> Response:
        return HTMLResponse(HTML_ERROR, 502) if is_html else self.cut()

    def _v1_refusal(self, body: Any) -> dict[str, Any] | None:
        who = (self.calin.company, self.calin.user, self.calin.password)
        if isinstance(body, dict) and who == tuple(
            body.get(each) for each in ("CompanyName", "UserName", "Password")
        ):
            return None
        return _v1_no("UserName or Password error")

    def _v1_create(self, family: Family, request: Request, body: Any) -> dict[str, Any]:
        refused = self._v1_refusal(body)
        if refused is not None:
            return refused
        try:
            task_id = self.calin.create_task(str(body.get("MeterNo")), read_v1(family, body))
        except RefusedError as error:
            return _v1_no(str(error))
        return {"ResultCode": V1_ACCEPTED, "Reason": "OK", "Result": {"TaskNo": str(task_id)}}

    def _v1_result(self, request: Request, body: Any) -> dict[str, Any]:
        refused = self._v1_refusal(body)
        if refused is not None:
            return refused
        task = self.calin.result(_number(body.get("TaskNo")))
        if task is None:
            return _v1_no("Task does not exist")
        return {"ResultCode": V1_ACCEPTED, "Reason": "OK", "Result": v1_result(task)}

    def _log_in(self, request: Request, body: Any) -> dict[str, Any]:
        who = (self.calin.company, self.calin.user, self.calin.password)
        if not isinstance(body, dict) or who != tuple(
            body.get(each) for each in ("company", "userId", "password")
        ):
            return {"code": 1, "reason": "User or password error", "result": None}
        self.logins += 1
        jwt = _jwt(self.logins, self.calin.weather.source("jwt").getrandbits(256))
        self._sessions[jwt] = self.calin.clock.now() + self._jwt_lifetime
        return {"code": 0, "reason": "success", "result": {"token": jwt}}

    def _is_logged_in(self, request: Request) -> bool:
        jwt = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self._revocations and self.calin.weather.source("revocation").random() < self._revocations:
            self._sessions.pop(jwt, None)
        ends_at = self._sessions.get(jwt)
        return ends_at is not None and self.calin.clock.now() < ends_at

    def _v2_create(self, family: Family, request: Request, body: Any) -> dict[str, Any] | Response:
        if not self._is_logged_in(request):
            return Response(status_code=401)
        if not isinstance(body, list) or not all(isinstance(each, dict) for each in body):
            return Response("Bad Request", 400)
        try:
            made = [self.calin.create_task(str(each.get("meterId")), read_v2(family, each)) for each in body]
        except RefusedError as error:
            return {"code": 1, "reason": str(error), "result": None}
        return {"code": 0, "reason": "success", "result": [{"id": each} for each in made]}

    def _v2_result(self, request: Request, body: Any) -> dict[str, Any] | Response:
        if not self._is_logged_in(request):
            return Response(status_code=401)
        task = self.calin.result(_number(body.get("id"))) if isinstance(body, dict) else None
        rows = [] if task is None else [v2_row(task)]
        return {"code": 0, "reason": "success", "result": {"total": len(rows), "data": rows}}


def _named(body: Any, key: str) -> str:
    """For which meter or task a call is made."""
    first = body[0] if isinstance(body, list) and body else body
    return str(first.get(key)) if isinstance(first, dict) else ""


def _number(value: Any) -> int:
    return int(value) if str(value).isdecimal() else -1


def _v1_no(reason: str) -> dict[str, Any]:
    return {"ResultCode": V1_REFUSED, "Reason": reason, "Result": None}


def _json(answer: dict[str, Any]) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")


def _jwt(number: int, signature: int) -> str:
    """Something of a JWT's shape. Nobody reads it; it is known or not."""
    parts = (b'{"alg":"HS256","typ":"JWT"}', b'{"jti":%d}' % number, signature.to_bytes(32, "big"))
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)
