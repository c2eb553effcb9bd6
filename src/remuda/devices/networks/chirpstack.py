"""ChirpStack v4 as a network: commands become queue items of a device, over ChirpStack's own gRPC.

What ChirpStack tells in return comes by its HTTP integration; see `chirpstack_events`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc.aio  # type: ignore[import-untyped]  # no types of its own
import msgspec
from chirpstack_api import api

from remuda.devices.command import Device, Protocol
from remuda.devices.networks.contract import (
    GatewayState,
    Network,
    NetworkError,
    Order,
    QueueItem,
    SendError,
    Withdrawal,
)
from remuda.devices.networks.loopback import is_loopback
from remuda.errors import ConfigurationError, RemudaError
from remuda.lifecycle import EndReason

PAGE = 100  # gateways asked for at once
LONGEST_DETAILS = 300

CHANNEL_OPTIONS = (
    # A server that vanished without a word is noticed within one call's deadline. Only while a call is
    # running: servers hang up on clients that ping an idle connection.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 250),
    ("grpc.max_reconnect_backoff_ms", 10_000),
    # An Enqueue has no idempotency key, so nobody but the engine may send it again: no retry policy
    # that a DNS record might bring along.
    ("grpc.service_config_disable_resolution", 1),
    # Two adapters in one process have a connection, and a backoff, each.
    ("grpc.use_local_subchannel_pool", 1),
)

_EUI = re.compile(r"[0-9a-f]{16}")
_NEVER_CONNECTED = ("failed to connect", "connection refused", "errors resolving", "dns resolution failed")
_UNKNOWN_DEVICE_KEY = "device_queue_item_dev_eui_fkey"
# "relation … does not exist" is a broken database, and says nothing of the device.
_MISSING_SCHEMA = re.compile(r"\b(relation|table|column|database|role|function|schema)\b")
_REFUSED = frozenset({"UNAUTHENTICATED", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION"})


class _CallError(RemudaError):
    """A call failed. `unsent`: it never left this process."""

    def __init__(self, code: str, details: str, *, unsent: bool = False) -> None:
        super().__init__(f"{code}: {details}" if details else code)
        self.code = code
        self.details = details
        self.unsent = unsent


class Verdict(msgspec.Struct, frozen=True):
    """What a failed Enqueue means for its command; see `SendError`."""

    certain: bool
    final: EndReason | None = None


def judge(code: str, details: str) -> Verdict:
    """What a failed Enqueue with that status and text means. In doubt ChirpStack may have queued it."""
    text = details.lower()
    if code == "NOT_FOUND" or (code == "INTERNAL" and _says_unknown_device(text)):
        return Verdict(certain=True, final=EndReason.UNKNOWN_DEVICE)
    if code == "UNIMPLEMENTED" and "http2 header" in text:
        return Verdict(certain=True)  # a proxy's 404: its configuration is wrong, not the command
    if code in ("INVALID_ARGUMENT", "UNIMPLEMENTED"):
        return Verdict(certain=True, final=EndReason.UNSUPPORTED_COMMAND)
    if code in _REFUSED:
        return Verdict(certain=True)
    return Verdict(certain=code == "UNAVAILABLE" and any(words in text for words in _NEVER_CONNECTED))


def _says_unknown_device(text: str) -> bool:
    if _UNKNOWN_DEVICE_KEY in text:
        return True
    return "does not exist" in text and _MISSING_SCHEMA.search(text) is None


def endpoint(address: str, tls: bool | None) -> tuple[str, bool]:
    """The gRPC target of an address, and whether to use TLS; `ConfigurationError` where that is unsafe."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    if "@" in parts.netloc:
        raise ConfigurationError("ChirpStack's address has no place for a user or password; pass a token")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if parts.scheme in ("http", "https"):
        port = port or (443 if parts.scheme == "https" else 80)
    if not host or not port or parts.scheme not in ("", "http", "https") or parts.path.strip("/"):
        raise ConfigurationError(f"ChirpStack's address is host:port or https://host:port, not {address!r}")
    if tls is not None and parts.scheme and tls is not (parts.scheme == "https"):
        raise ConfigurationError(f"tls={tls} contradicts ChirpStack's address {address!r}")
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    secure = parts.scheme == "https" if tls is None else tls
    if tls is None and not secure and not is_loopback(host):
        raise ConfigurationError(
            f"the API token would go to {target} in clear: say https:// or tls=True;"
            " tls=False if the network between is trusted"
        )
    return target, secure


def _checked_token(token: str) -> str:
    """The token, fit for a header. Refused here, because gRPC's own error would repeat it."""
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable():
        raise ConfigurationError("ChirpStack's API token must be printable ASCII, and not empty")
    return token


class ChirpStack(Network):
    """The adapter to a ChirpStack v4 server.

    address        "host:port", "http://host:port" or "https://host:port"
    token          an API key of ChirpStack; a tenant's own key needs `tenant` for `gateways`
    tls            None: as the address says; False allows a plain connection to another machine
    concurrency    calls under way at once; a channel with thousands of them fails
    call_deadline  how long one call may take, the wait for its turn included
    grids          gateway id to grid; else the gateway's own property `grid_id`

    >>> ChirpStack(address="https://chirpstack.example.org", token=token, tenant=tenant_id)
    """

    protocol = Protocol.LORAWAN

    def __init__(
        self,
        *,
        address: str,
        token: str,
        tls: bool | None = None,
        ca_file: Path | None = None,
        concurrency: int = 32,
        call_deadline: timedelta = timedelta(seconds=30),
        grids: Mapping[str, str] | None = None,
        tenant: str | None = None,
    ) -> None:
        if concurrency < 1:
            raise ConfigurationError(f"concurrency must be at least 1, not {concurrency}")
        if call_deadline <= timedelta(0):
            raise ConfigurationError(f"call_deadline must be above nought, not {call_deadline}")
        self._target, self._secure = endpoint(address, tls)
        if ca_file is not None and not self._secure:
            raise ConfigurationError(f"ca_file is for TLS, and {self._target} is spoken to without")
        self._token = _checked_token(token)
        self._ca_file = ca_file
        self._turns = asyncio.Semaphore(concurrency)
        self._deadline_s = call_deadline.total_seconds()
        self._grids = {gateway.lower(): grid for gateway, grid in (grids or {}).items()}
        self._tenant = tenant or ""
        self._channel: Any = None
        self._devices: Any = None
        self._gateways: Any = None

    def __repr__(self) -> str:
        return f"<ChirpStack {self._target}{' over TLS' if self._secure else ''}>"

    async def open(self) -> None:
        """Get ready; the connection is made by the first call, and made again whenever it broke."""
        if self._channel is not None:
            return
        if self._secure:
            roots = None if self._ca_file is None else await asyncio.to_thread(_read_roots, self._ca_file)
            credentials = grpc.ssl_channel_credentials(root_certificates=roots)
            self._channel = grpc.aio.secure_channel(self._target, credentials, options=CHANNEL_OPTIONS)
        else:
            self._channel = grpc.aio.insecure_channel(self._target, options=CHANNEL_OPTIONS)
        self._devices = api.DeviceServiceStub(self._channel)
        self._gateways = api.GatewayServiceStub(self._channel)

    async def close(self) -> None:
        """Give the connection back. Calls under way fail, and their outcome is not known."""
        channel, self._channel, self._devices, self._gateways = self._channel, None, None, None
        if channel is not None:
            await channel.close()

    async def send(self, order: Order) -> str:
        request = _enqueue_request(order)
        try:
            answer = await self._call(self._devices, "Enqueue", request)
        except _CallError as error:
            verdict = Verdict(certain=True) if error.unsent else judge(error.code, error.details)
            raise SendError(
                f"ChirpStack did not queue command {order.command_id} for {order.device.address}: {error}",
                code=error.code,
                certain=verdict.certain,
                final=verdict.final,
            ) from None
        item: str = answer.id
        if not item:
            raise SendError(
                f"ChirpStack named no queue item for command {order.command_id}", code="NO_ID", certain=False
            )
        return item

    async def look(self, device: Device) -> list[QueueItem]:
        return [
            QueueItem(id=each.id, data=each.data, f_port=each.f_port, pending=each.is_pending)
            for each in await self._queue(device)
        ]

    async def withdraw(self, device: Device, external_id: str) -> Withdrawal:
        """Take an item back by flushing the device's queue, if that loses nothing else. Never for certain.

        A round of ChirpStack's scheduler may fall between the look and the flush. Such a frame is
        transmitted, and neither the queue nor the device's counter shows it afterwards.
        """
        kept = _why_not_flush(await self._queue(device), external_id)
        if kept is not None:
            return Withdrawal(certain=False, details=kept)
        # A failed flush is raised: the withdrawal can be asked for again.
        await self._ask(self._devices, "FlushQueue", api.FlushDeviceQueueRequest(dev_eui=device.address))
        return Withdrawal(certain=False, details=TAKEN_BACK)

    async def gateways(self) -> Sequence[GatewayState]:
        found: list[GatewayState] = []
        while True:
            request = api.ListGatewaysRequest(limit=PAGE, offset=len(found), tenant_id=self._tenant)
            page = await self._ask(self._gateways, "List", request)
            found.extend(self._gateway(each) for each in page.result)
            if not page.result or len(found) >= page.total_count:
                return found

    def _gateway(self, item: Any) -> GatewayState:
        gateway = item.gateway_id.lower()
        grid = self._grids.get(gateway) or item.properties.get("grid_id") or None
        return GatewayState(id=gateway, grid=grid, is_up=_UP.get(item.state))

    async def _queue(self, device: Device) -> Sequence[Any]:
        request = api.GetDeviceQueueItemsRequest(dev_eui=device.address)
        items: Sequence[Any] = (await self._ask(self._devices, "GetQueue", request)).result
        return items

    async def _ask(self, stub: Any, method: str, request: Any) -> Any:
        try:
            return await self._call(stub, method, request)
        except _CallError as error:
            raise NetworkError(f"ChirpStack did not answer {method}: {error}", code=error.code) from None

    async def _call(self, stub: Any, method: str, request: Any) -> Any:
        """One call in its turn, within its deadline; `_CallError` for everything that can go wrong."""
        if stub is None:
            raise _CallError("CANCELLED", "the adapter is not open", unsent=True)
        loop = asyncio.get_running_loop()
        until = loop.time() + self._deadline_s
        try:
            async with asyncio.timeout_at(until):
                await self._turns.acquire()
        except TimeoutError:
            details = f"no turn within {self._deadline_s:g} s: too many calls under way"
            raise _CallError("DEADLINE_EXCEEDED", details, unsent=True) from None
        try:
            return await self._invoke(getattr(stub, method), request, timeout_s=until - loop.time())
        finally:
            self._turns.release()

    async def _invoke(self, method: Any, request: Any, *, timeout_s: float) -> Any:
        metadata = (("authorization", f"Bearer {self._token}"),)
        try:
            return await method(request, timeout=timeout_s, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            # Without its cause: that would carry the text unshortened, and with whatever it repeats.
            raise _CallError(error.code().name, self._safe(error.details() or "")) from None
        except grpc.aio.UsageError as error:
            raise _CallError("CANCELLED", self._safe(str(error)), unsent=True) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Nobody cancelled this task: the channel was closed under the call.
            raise _CallError("CANCELLED", "the adapter was closed during the call") from None

    def _safe(self, text: str) -> str:
        return text.replace(self._token, "[token]")[:LONGEST_DETAILS]


_UP: Mapping[int, bool] = {api.GatewayState.ONLINE: True, api.GatewayState.OFFLINE: False}


def _read_roots(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"ca_file {path} cannot be read: {error.strerror}") from error


def _enqueue_request(order: Order) -> Any:
    """The Enqueue of an order; `SendError` where there can be none, since nothing was sent then."""
    eui, frame = order.device.address, order.downlink
    if not _EUI.fullmatch(eui):
        # ChirpStack answers INTERNAL to these, which would read as a doubt.
        raise SendError(
            f"{eui!r} is no EUI of a device (16 hex digits)",
            code="INVALID_ARGUMENT",
            certain=True,
            final=EndReason.UNKNOWN_DEVICE,
        )
    if frame is None or not 1 <= frame.f_port <= 255:
        what = "without a frame" if frame is None else f"on port {frame.f_port}, outside 1 to 255"
        raise SendError(
            f"command {order.command_id} cannot be sent over LoRaWAN {what}",
            code="INVALID_ARGUMENT",
            certain=True,
            final=EndReason.UNSUPPORTED_COMMAND,
        )
    item = api.DeviceQueueItem(dev_eui=eui, confirmed=frame.confirmed, f_port=frame.f_port, data=frame.data)
    if order.expires_at is not None:
        item.expires_at.FromDatetime(order.expires_at)
    return api.EnqueueDeviceQueueItemRequest(queue_item=item)


TAKEN_BACK = "taken out of ChirpStack's queue; it may have been transmitted just before"


def _why_not_flush(items: Sequence[Any], external_id: str) -> str | None:
    """Why a flush of this queue would be of no use, or would do harm; None if it can be done.

    An item's counter is set when a gateway is given it. Flushed then, it would still go out, and the next
    frame would bear the same counter: the device would take that one for a replay.
    """
    ours = [each for each in items if each.id == external_id]
    if not ours:
        return "the item is no longer in ChirpStack's queue"
    if len(items) > len(ours):
        return f"a flush would lose {len(items) - len(ours)} other items of the device"
    if ours[0].is_pending:
        return "the item was transmitted and waits for its ack"
    if ours[0].f_cnt_down:
        return f"the item was given to a gateway, as frame {ours[0].f_cnt_down}"
    return None
