"""The simulated ChirpStack's API over real gRPC, with ChirpStack's own messages and status codes."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable
from datetime import UTC
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc.aio  # type: ignore[import-untyped]  # no types of its own
from chirpstack_api import api
from google.protobuf.empty_pb2 import Empty  # type: ignore[import-untyped]  # no types of its own

from remuda.devices.simulator.chirpstack import (
    GatewayRow,
    InvalidItemError,
    SimulatedChirpStack,
    UnknownDeviceError,
)
from remuda.devices.simulator.radio import Fault
from remuda.devices.simulator.session import Item
from remuda.errors import ConfigurationError, RemudaError

T = TypeVar("T")

_FOREIGN_KEY = (
    'insert or update on table "device_queue_item" violates foreign key constraint '
    '"device_queue_item_dev_eui_fkey"'
)


class _StatusError(RemudaError):
    """A call ends with a gRPC status."""

    def __init__(self, code: Any, details: str) -> None:
        super().__init__(details)
        self.code = code


class _Calls:
    """Calls as the weather lets them pass. A call that began goes on when its client has given up."""

    def __init__(self, core: SimulatedChirpStack, token: str) -> None:
        self._core = core
        self._expected = f"Bearer {token}".encode()
        self._running: set[asyncio.Task[Any]] = set()

    async def serve(self, context: Any, name: str, effect: Callable[[], T]) -> T:
        """Answer one call with what `effect` gives, or with a status as ChirpStack would."""
        given = dict(context.invocation_metadata()).get("authorization", "")
        if not hmac.compare_digest(str(given).encode(), self._expected):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "authentication failed: invalid token")
        task = asyncio.create_task(self._perform(name, effect))
        self._running.add(task)
        task.add_done_callback(self._forget)
        try:
            return await asyncio.shield(task)
        except _StatusError as error:
            await context.abort(error.code, str(error))
            raise  # never reached: abort raises

    async def _perform(self, name: str, effect: Callable[[], T]) -> T:
        call = self._core.weather.call(name)
        await asyncio.sleep(call.before_s)
        if call.fault is Fault.BEFORE:
            raise _StatusError(grpc.StatusCode.UNAVAILABLE, "the connection was reset")
        result = _with_status(effect)
        await asyncio.sleep(call.after_s)
        if call.fault is Fault.AFTER:
            raise _StatusError(grpc.StatusCode.UNAVAILABLE, "the connection was reset")
        return result

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # nobody may be left to ask for it

    async def stop(self) -> None:
        """Give up what is still under way."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def _with_status(effect: Callable[[], T]) -> T:
    try:
        return effect()
    except UnknownDeviceError as error:
        raise _StatusError(grpc.StatusCode.NOT_FOUND, f"Object does not exist ({error})") from None
    except InvalidItemError as error:
        raise _StatusError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from None


class _Devices(api.DeviceServiceServicer):  # type: ignore[misc]  # generated without types
    """DeviceService, as far as queues go; the rest is UNIMPLEMENTED."""

    def __init__(self, core: SimulatedChirpStack, calls: _Calls) -> None:
        self._core = core
        self._calls = calls

    async def Enqueue(self, request: Any, context: Any) -> Any:  # noqa: N802  # gRPC's name
        item = request.queue_item

        def enqueue() -> str:
            try:
                return self._core.enqueue(
                    item.dev_eui,
                    confirmed=item.confirmed,
                    f_port=item.f_port,
                    data=item.data,
                    expires_at=item.expires_at.ToDatetime(UTC) if item.HasField("expires_at") else None,
                    flush_queue=request.flush_queue,
                )
            except UnknownDeviceError:
                # The real one finds out by its database's refusal, and passes the text on.
                raise _StatusError(grpc.StatusCode.INTERNAL, _FOREIGN_KEY) from None

        item_id = await self._calls.serve(context, item.dev_eui, enqueue)
        return api.EnqueueDeviceQueueItemResponse(id=item_id)

    async def GetQueue(self, request: Any, context: Any) -> Any:  # noqa: N802
        eui = request.dev_eui
        items = await self._calls.serve(context, eui, lambda: self._core.queue(eui))
        shown = [] if request.count_only else [_queue_item(eui, each) for each in items]
        return api.GetDeviceQueueItemsResponse(total_count=len(items), result=shown)

    async def FlushQueue(self, request: Any, context: Any) -> Any:  # noqa: N802
        await self._calls.serve(context, request.dev_eui, lambda: self._core.flush(request.dev_eui))
        return Empty()

    async def GetNextFCntDown(self, request: Any, context: Any) -> Any:  # noqa: N802
        eui = request.dev_eui
        counter = await self._calls.serve(context, eui, lambda: self._core.next_f_cnt_down(eui))
        return api.GetDeviceNextFCntDownResponse(f_cnt_down=counter)


class _Gateways(api.GatewayServiceServicer):  # type: ignore[misc]  # generated without types
    """GatewayService, as far as the list goes."""

    def __init__(self, core: SimulatedChirpStack, calls: _Calls) -> None:
        self._core = core
        self._calls = calls

    async def List(self, request: Any, context: Any) -> Any:  # noqa: N802  # gRPC's name
        rows = await self._calls.serve(context, "gateways", self._core.gateways)
        page = rows[request.offset : request.offset + request.limit]
        return api.ListGatewaysResponse(total_count=len(rows), result=[_gateway(each) for each in page])


class ChirpStackServer:
    """A gRPC server in front of a simulated ChirpStack; port 0 takes a free one.

    >>> async with ChirpStackServer(core, token="secret") as server:
    ...     network = ChirpStack(address=server.address, token="secret")
    """

    def __init__(
        self, core: SimulatedChirpStack, *, token: str, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self._core = core
        self._calls = _Calls(core, token)
        self._host = host
        self._port = port
        self._server: Any = None

    @property
    def address(self) -> str:
        """host:port, once it has started."""
        return f"{self._host}:{self._port}"

    async def start(self) -> None:
        """Listen; `ConfigurationError` where the port cannot be had."""
        server = grpc.aio.server()
        api.add_DeviceServiceServicer_to_server(_Devices(self._core, self._calls), server)
        api.add_GatewayServiceServicer_to_server(_Gateways(self._core, self._calls), server)
        try:
            self._port = server.add_insecure_port(self.address)
        except RuntimeError as error:
            raise ConfigurationError(f"cannot listen on {self.address}: {error}") from error
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """Hang up. Calls under way are given up."""
        await self._calls.stop()
        if self._server is not None:
            await self._server.stop(grace=None)
            self._server = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


def _queue_item(dev_eui: str, item: Item) -> Any:
    shown = api.DeviceQueueItem(
        id=item.id,
        dev_eui=dev_eui,
        confirmed=item.confirmed,
        f_port=item.f_port,
        data=item.data,
        is_pending=item.is_pending,
        f_cnt_down=item.f_cnt_down or 0,
    )
    if item.expires_at is not None:
        shown.expires_at.FromDatetime(item.expires_at)
    return shown


def _gateway(row: GatewayRow) -> Any:
    state = api.GatewayState.ONLINE if row.online else api.GatewayState.OFFLINE
    if row.last_seen is None:
        state = api.GatewayState.NEVER_SEEN
    shown = api.GatewayListItem(
        gateway_id=row.id,
        name=row.id,
        state=state,
        properties={} if row.grid is None else {"grid_id": row.grid},
    )
    if row.last_seen is not None:
        shown.last_seen_at.FromDatetime(row.last_seen)
    return shown
