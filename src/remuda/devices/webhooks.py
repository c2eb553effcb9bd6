"""Webhooks: how commands ended, sent to other programs as signed HTTP requests.

Each is a job with retries and dead letters of its own, so that a receiver that is down loses nothing
and holds up nobody. The receiver checks the signature with `signature_of`.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import httpx
import msgspec

from remuda.devices.command import Command
from remuda.devices.listening import DeviceReport
from remuda.devices.publishing import BatchSubscriber
from remuda.errors import ConfigurationError, UnrecoverableError
from remuda.message import NewJob
from remuda.queue import Queue
from remuda.retry import Exponential
from remuda.worker import Job, Worker

SIGNATURE_HEADER = "X-Remuda-Signature"
EVENT_HEADER = "X-Remuda-Event"
_JOB = "webhook"
_RETRY = Exponential(initial=timedelta(seconds=2), cap=timedelta(minutes=10), jitter=0.5, max_attempts=15)
_ONCE_FOR = timedelta(hours=1)  # an end that is told again within this is the same one
# The receiver says that it will never take it: sending it again cannot help.
_HOPELESS = frozenset({400, 401, 403, 404, 405, 410, 413, 415, 422})


class WebhookTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A receiver. `name` stands in jobs instead of the address; `secret` signs, and is never logged."""

    name: str
    url: str
    secret: str

    def __post_init__(self) -> None:
        if not self.url.startswith(("https://", "http://")):
            raise ConfigurationError(
                f"the address of webhook {self.name!r} must begin with https:// or http://"
            )
        if len(self.secret) < 16:
            raise ConfigurationError(
                f"the secret of webhook {self.name!r} is too short: at least 16 characters"
            )

    def __repr__(self) -> str:
        return f"WebhookTarget(name={self.name!r})"


def signature_of(body: bytes, *, secret: str, at: int) -> str:
    """The signature of a body sent at a moment (seconds since 1970): `t=…,v1=…`."""
    mac = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={mac}"


def is_signed(body: bytes, header: str, *, secret: str, now: float, within: float = 300) -> bool:
    """Whether a received body carries a true signature that is not older than `within` seconds."""
    parts = dict(part.partition("=")[::2] for part in header.split(","))
    if not parts.get("t", "").isdecimal() or abs(now - int(parts["t"])) > within:
        return False
    expected = signature_of(body, secret=secret, at=int(parts["t"]))
    return hmac.compare_digest(expected.encode(), header.encode())


def body_of(command: Command) -> dict[str, Any]:
    """What a receiver is told of a command that has ended. A token itself is not told."""
    response = command.response
    return {
        "id": command.id,
        "type": command.type.value,
        "device": command.device.reference,
        "protocol": command.device.protocol.value,
        "grid": command.grid,
        "correlation_ids": [each for each in (command.correlation_id, *command.joined) if each is not None],
        "status": command.status.value,
        "outcome": None if command.outcome is None else command.outcome.value,
        "reason": None if command.reason is None else command.reason.value,
        "execution": None if response is None else response.execution.value,
        "data": None if response is None else response.data,
        "attempts": len(command.attempts),
        "created_at": command.created_at.isoformat(),
        "ended_at": command.status_since.isoformat(),
    }


class WebhookSubscriber(BatchSubscriber):
    """Adds a job for every end and every target, once, however often it is told."""

    def __init__(self, queue: Queue, targets: Sequence[WebhookTarget]) -> None:
        self._queue = queue
        self._targets = list(targets)

    async def told(self, commands: list[Command]) -> None:
        jobs = [
            NewJob(
                name=_JOB,
                payload={"target": target.name, "event": "command.ended", "body": body_of(command)},
                job_id=f"{target.name}:{command.id}:{command.version}",
                unique_for=_ONCE_FOR,
                retry=_RETRY,
            )
            for command in commands
            for target in self._targets
        ]
        if jobs:
            await self._queue.add_many(jobs)

    async def reported(self, report: DeviceReport) -> None:
        jobs = [
            NewJob(
                name=_JOB,
                payload={
                    "target": target.name,
                    "event": "device.reported",
                    "body": msgspec.to_builtins(report),
                },
                job_id=f"{target.name}:{report.device}:{report.id}",
                unique_for=_ONCE_FOR,
                retry=_RETRY,
            )
            for target in self._targets
        ]
        if jobs:
            await self._queue.add_many(jobs)


class WebhookWorker(Worker):
    """A worker that sends the jobs of a `WebhookSubscriber`. Run it in the same program, or in others."""

    def __init__(
        self, queue: Queue, targets: Sequence[WebhookTarget], *, timeout: timedelta = timedelta(seconds=10)
    ) -> None:
        super().__init__(queue, concurrency=20)
        self._targets = {each.name: each for each in targets}
        self._timeout = timeout
        self._client: httpx.AsyncClient | None = None
        self.handler(_JOB)(self._send)

    async def run(self, *, until_empty: bool = False, signals: bool = True) -> None:
        async with httpx.AsyncClient(timeout=self._timeout.total_seconds()) as self._client:
            await super().run(until_empty=until_empty, signals=signals)

    async def _send(self, job: Job) -> None:
        payload = job.payload
        target = self._targets.get(payload["target"])
        if target is None:
            raise UnrecoverableError(f"no webhook is named {payload['target']!r} any more")
        if self._client is None:
            raise ConnectionError("the worker has stopped")
        await _post(self._client, target, payload["event"], msgspec.json.encode(payload["body"]), job.id)


def webhook_worker(
    queue: Queue, targets: Sequence[WebhookTarget], *, timeout: timedelta = timedelta(seconds=10)
) -> WebhookWorker:
    """A worker that sends webhooks."""
    return WebhookWorker(queue, targets, timeout=timeout)


async def _post(
    client: httpx.AsyncClient, target: WebhookTarget, event: str, body: bytes, job_id: str
) -> None:
    headers = {
        "Content-Type": "application/json",
        EVENT_HEADER: event,
        "X-Remuda-Delivery": job_id,
        SIGNATURE_HEADER: signature_of(body, secret=target.secret, at=int(time.time())),
    }
    answer = await client.post(target.url, content=body, headers=headers)
    if answer.status_code in _HOPELESS:
        raise UnrecoverableError(f"webhook {target.name!r} answered {answer.status_code}")
    if not answer.is_success:
        raise ConnectionError(f"webhook {target.name!r} answered {answer.status_code}")
