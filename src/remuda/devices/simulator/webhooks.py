"""Events over HTTP as ChirpStack's integration sends them: one attempt, in no certain order, maybe never."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Self

import httpx
import msgspec
from chirpstack_api import integration
from google.protobuf import json_format  # type: ignore[import-untyped]  # no types of its own

from remuda.devices.simulator.events import Event
from remuda.devices.simulator.radio import Weather

log = logging.getLogger("remuda.simulator")

_MESSAGES: Mapping[str, Any] = {
    "up": integration.UplinkEvent,
    "ack": integration.AckEvent,
    "txack": integration.TxAckEvent,
    "log": integration.LogEvent,
    "status": integration.StatusEvent,
    "join": integration.JoinEvent,
}


class WebhookSender:
    """The `deliver` of a simulated ChirpStack that posts each event to `url`, as the weather lets it.

    headers      are sent with every event (a secret, say)
    encoding     `json`, or `protobuf` as application/octet-stream
    timeout      after which an attempt has failed; there is no second
    concurrency  how many are under way at once; the rest waits

    `sent`, `failed` and `lost` count: answered with 2xx, not so, swallowed by the weather.

    >>> sender = WebhookSender("http://127.0.0.1:8080/chirpstack", weather, headers={"x-secret": "…"})
    """

    def __init__(
        self,
        url: str,
        weather: Weather,
        *,
        headers: Mapping[str, str] | None = None,
        encoding: Literal["json", "protobuf"] = "json",
        timeout: timedelta = timedelta(seconds=5),
        concurrency: int = 32,
    ) -> None:
        self.sent = 0
        self.failed = 0
        self.lost = 0
        self._url = httpx.URL(url)
        self._weather = weather
        self._encoding = encoding
        self._turns = asyncio.Semaphore(concurrency)
        content_type = "application/json" if encoding == "json" else "application/octet-stream"
        self._client = httpx.AsyncClient(
            headers={**(headers or {}), "content-type": content_type},
            timeout=timeout.total_seconds(),
            limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
            trust_env=False,  # a proxy of the machine has no place between a simulator and its client
        )
        self._posts: set[asyncio.Task[None]] = set()

    def __call__(self, kind: str, event: Event) -> None:
        """Send an event on the side, once, twice or never."""
        delays = self._weather.webhook(event["deviceInfo"]["devEui"])
        if not delays:
            self.lost += 1
            return
        body = self._body(kind, event)
        for delay_s in delays:
            task = asyncio.get_running_loop().create_task(self._post(kind, body, delay_s))
            self._posts.add(task)
            task.add_done_callback(self._posts.discard)

    async def drain(self) -> None:
        """Return when everything was sent, or has failed."""
        while self._posts:
            await asyncio.wait(self._posts)

    async def close(self) -> None:
        """Give up what was not sent yet."""
        posts = list(self._posts)
        for task in posts:
            task.cancel()
        await asyncio.gather(*posts, return_exceptions=True)
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _body(self, kind: str, event: Event) -> bytes:
        if self._encoding == "json":
            return msgspec.json.encode(event)
        packed: bytes = json_format.ParseDict(event, _MESSAGES[kind]()).SerializeToString()
        return packed

    async def _post(self, kind: str, body: bytes, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        async with self._turns:
            try:
                answer = await self._client.post(self._url.copy_merge_params({"event": kind}), content=body)
                answer.raise_for_status()
            except httpx.HTTPError as error:
                self.failed += 1
                # Only the kind of error: its text may repeat an address with a secret in it.
                log.debug(
                    "an event (%s) was not delivered: %s",
                    kind,
                    type(error).__name__,
                    extra={"action": "webhook_failed"},
                )
            else:
                self.sent += 1
