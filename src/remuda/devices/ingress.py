"""The HTTP ingress: takes what ChirpStack's HTTP integration posts, stores it, and only then answers.

ChirpStack posts each event once, waits 5 s and does not try again. So nothing is decided here: an event
is read as signals, the signals are kept, and which command they belong to is found out later.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import NamedTuple, TypeAlias

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from remuda.devices.networks.chirpstack_events import MAX_BYTES, InvalidSignalError, parse_event
from remuda.devices.networks.loopback import is_loopback
from remuda.devices.networks.signals import Signal
from remuda.errors import ConfigurationError, StoreError, StoreUnavailableError

log = logging.getLogger("remuda.devices")

SECRET_HEADER = "X-Remuda-Secret"  # noqa: S105  # the name of a header
MERGED_AT_MOST = 1_000
BODY_WITHIN = timedelta(seconds=10)  # ChirpStack itself gives up after 5 s
_CLOSE = {"Connection": "close"}  # the rest of a body that was refused is not read

# Returns when the signals are durable; raises `StoreError` when they are not.
Keep: TypeAlias = Callable[[Sequence[Signal]], Awaitable[None]]


class _Waiting(NamedTuple):
    signals: Sequence[Signal]
    kept: asyncio.Future[None]


class MergingKeeper:
    """Keeps signals. Those that come while others are being kept share the next call: few transactions.

    The calls are made by a task of its own, so that a client that hangs up takes nobody's signals along.
    """

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._waiting: list[_Waiting] = []
        self._writer: asyncio.Task[None] | None = None

    async def keep(self, signals: Sequence[Signal]) -> None:
        """Keep signals; returns when they are durable, and raises what keeping them raised."""
        waiting = _Waiting(signals, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_all())
        await waiting.kept

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:MERGED_AT_MOST], self._waiting[MERGED_AT_MOST:]
                await self._keep_together(batch)
        finally:
            self._writer = None
            abandoned, self._waiting = self._waiting, []
            _refuse(abandoned, StoreUnavailableError("the ingress was stopped"))

    async def _keep_together(self, batch: Sequence[_Waiting]) -> None:
        try:
            await self._keep([signal for each in batch for signal in each.signals])
        except BaseException as error:
            if not isinstance(error, Exception):
                _refuse(batch, StoreUnavailableError("the ingress was stopped"))
                raise
            if len(batch) == 1 or isinstance(error, StoreUnavailableError):
                _refuse(batch, error)
                return
            # The store refuses one of them: its neighbours, who know nothing of it, go without it.
            half = len(batch) // 2
            await self._keep_together(batch[:half])
            await self._keep_together(batch[half:])
            return
        for each in batch:
            if not each.kept.done():
                each.kept.set_result(None)


def _refuse(batch: Sequence[_Waiting], error: Exception) -> None:
    for each in batch:
        if not each.kept.done():
            each.kept.set_exception(error)


def check_listen(host: str, secret: str | None) -> None:
    """`ConfigurationError` where anybody on the network could post events: a secret is needed there."""
    _check_secret(secret)
    if secret is None and not is_loopback(host):
        raise ConfigurationError(
            f"an ingress that listens on {host!r} needs a secret; without one it listens on 127.0.0.1 only"
        )


def _check_secret(secret: str | None) -> None:
    # A blank one is most likely a variable that was not set; every request without a header would pass.
    if secret is not None and not secret.strip():
        raise ConfigurationError("the secret of the ingress is blank")


def make_ingress(
    keep: Keep,
    *,
    secret: str | None,
    header: str = SECRET_HEADER,
    max_bytes: int = MAX_BYTES,
    body_within: timedelta = BODY_WITHIN,
) -> Starlette:
    """The ASGI app: POST /chirpstack?event=… and GET /healthz.

    It answers 204 when `keep` has returned, and 503 when that raised `StoreError`. Whoever serves it on
    more than the loopback passes a secret (see `check_listen`), and has ChirpStack send it as `header`.
    """
    _check_secret(secret)
    endpoint = _Endpoint(MergingKeeper(keep), secret, header, max_bytes, body_within)
    return Starlette(
        routes=[
            Route("/chirpstack", endpoint.take, methods=["POST"]),
            Route("/healthz", _healthz, methods=["GET"]),
        ]
    )


async def _healthz(_request: Request) -> Response:
    return PlainTextResponse("ok\n")


class _TooLargeError(Exception):
    """The body is larger than allowed; the rest of it was not read."""


class _Endpoint:
    """What is done with one request."""

    def __init__(
        self, keeper: MergingKeeper, secret: str | None, header: str, max_bytes: int, body_within: timedelta
    ) -> None:
        self._keeper = keeper
        self._secret = None if secret is None else secret.encode()
        self._header = header
        self._max_bytes = max_bytes
        self._body_within_s = body_within.total_seconds()

    async def take(self, request: Request) -> Response:
        """Check, read, keep, answer; in this order."""
        if not self._is_trusted(request):
            return Response(status_code=401, headers=_CLOSE)
        try:
            body = await self._body(request)
            signals = parse_event(
                request.query_params.get("event", ""),
                body,
                content_type=request.headers.get("content-type", ""),
                max_bytes=self._max_bytes,
            )
        except _TooLargeError:
            return _problem(413, f"the body is larger than {self._max_bytes:,} bytes", headers=_CLOSE)
        except TimeoutError:
            return _problem(408, "the body did not come in time", headers=_CLOSE)
        except ClientDisconnect:
            return Response(status_code=400)  # nobody is there to read it
        except InvalidSignalError as error:
            log.warning("an event was refused: %s", error, extra={"action": "event_refused"})
            return _problem(400, str(error), field=error.field)
        return await self._kept(signals)

    async def _kept(self, signals: Sequence[Signal]) -> Response:
        if signals:
            try:
                await self._keeper.keep(signals)
            except StoreError as error:
                # ChirpStack will not send it again, but a proxy in front that is told to may. Without it
                # the reaper's look at ChirpStack's queue has to find out.
                ids = ", ".join(each.id for each in signals)
                log.error("not stored: %s: %s", ids, error, extra={"action": "event_not_stored"})
                return _problem(503, "not stored; send it again", headers={"Retry-After": "1"})
        return Response(status_code=204)

    def _is_trusted(self, request: Request) -> bool:
        if self._secret is None:
            return True
        # Starlette decodes headers as latin-1; this gives back the bytes that came.
        given = request.headers.get(self._header, "").encode("latin-1")
        return hmac.compare_digest(given, self._secret)

    async def _body(self, request: Request) -> bytes:
        """The body, read no further than it may be large: its stated length may be missing, or a lie."""
        stated = request.headers.get("content-length", "")
        if stated.isdecimal() and int(stated[:20]) > self._max_bytes:
            raise _TooLargeError
        body = bytearray()
        async with asyncio.timeout(self._body_within_s):
            async for chunk in request.stream():
                body += chunk
                if len(body) > self._max_bytes:
                    raise _TooLargeError
        return bytes(body)


def _problem(
    status: int, error: str, *, field: str | None = None, headers: dict[str, str] | None = None
) -> Response:
    said = {"error": error} if field is None else {"error": error, "field": field}
    return JSONResponse(said, status_code=status, headers=headers)


class _Server(uvicorn.Server):
    """Uvicorn as a guest in somebody else's event loop."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_ready = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the process's signals to the program that it is a guest of."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_ready.set()


class IngressServer:
    """The ingress, served over HTTP in the current event loop.

    `port` 0 takes a free one. TLS, where it is wanted, is the business of a proxy in front.
    """

    def __init__(
        self,
        keep: Keep,
        *,
        secret: str | None,
        host: str = "127.0.0.1",
        port: int = 0,
        header: str = SECRET_HEADER,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        check_listen(host, secret)
        self._app = make_ingress(keep, secret=secret, header=header, max_bytes=max_bytes)
        self._host = host.strip("[]")
        self._port = port
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where it listens. ChirpStack's integration is given this with /chirpstack behind it."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    async def start(self) -> None:
        """Listen; returns when requests are taken. `ConfigurationError` where the address is not free."""
        if self._task is not None:
            return
        listening = self._listen()
        self._port = listening.getsockname()[1]
        config = uvicorn.Config(
            self._app,
            log_config=None,
            access_log=False,  # such lines show what came: query, headers
            lifespan="off",
            ws="none",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=5,
        )
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[listening]))
        ready = asyncio.create_task(self._server.is_ready.wait())
        try:
            await asyncio.wait({self._task, ready}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if self._task.done():
            listening.close()
            await self.stop()  # raises what it ended with

    async def stop(self) -> None:
        """Take no more requests, and return when those under way are answered."""
        server, task, self._server, self._task = self._server, self._task, None, None
        if server is not None and task is not None:
            server.should_exit = True
            await task

    def _listen(self) -> socket.socket:
        # Bound here, because uvicorn ends the whole process where an address is taken.
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            return socket.create_server((self._host, self._port), family=family, backlog=2048)
        except OSError as error:
            where = f"{self._host}:{self._port}"
            raise ConfigurationError(f"the ingress cannot listen on {where}: {error.strerror}") from error


@asynccontextmanager
async def serve(
    keep: Keep, *, secret: str | None, host: str = "127.0.0.1", port: int = 0, header: str = SECRET_HEADER
) -> AsyncIterator[IngressServer]:
    """An `IngressServer` that listens as long as the block runs.

    >>> async with serve(engine.keep, host="0.0.0.0", port=8090, secret=secret):
    ...     await engine.run()
    """
    server = IngressServer(keep, secret=secret, host=host, port=port, header=header)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
