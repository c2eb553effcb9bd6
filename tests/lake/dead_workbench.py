"""The words of the tests about dead letters: jobs that die, commands that fail, a lake of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import SparkSession

from remuda import Queue, Reason
from remuda.clock import VirtualClock
from remuda.devices.command import CommandType, Device, Protocol
from remuda.devices.fleet import Fleet
from remuda.devices.happenings import CallFailed, Dispatched
from remuda.devices.sending import NewCommand
from remuda.lake.deaths import capture_deaths
from remuda.lake.ingest import ingest_round
from remuda.lake.place import Lake
from remuda.lifecycle import EndReason
from remuda.stores.contract import Failure
from tests.contract.workbench import acked, dead, fetch, settle

START = datetime(2030, 1, 1, 12, tzinfo=UTC)
SOURCE = "shop"
MINUTE = timedelta(minutes=1)
METER = Device(reference="47000000001", protocol=Protocol.LORAWAN)
TRACE = 'Traceback (most recent call last):\n  File "a.py", line {line}, in charge\nConnectionError: x\n'


def refused(order: int) -> Failure:
    """The same fault each time, with what varies."""
    return Failure(
        "ConnectionError", f"order {order} refused by 10.0.0.{order}:443", TRACE.format(line=10 + order)
    )


async def die(
    queue: Queue,
    ids: Sequence[str],
    failure: Callable[[int], Failure | None] = refused,
    *,
    name: str = "charge",
    reason: Reason = Reason.RETRIES_EXHAUSTED,
    clock: VirtualClock | None = None,
) -> None:
    """Jobs of these ids are added (unless they wait already), run, and become dead letters, one by one."""
    for order, job_id in enumerate(ids, 1):
        await queue.add_unique(name, {"n": order}, job_id=job_id)
        deliveries = await fetch(queue, 1)
        assert [each.id for each in deliveries] == [job_id]
        await settle(queue, dead(deliveries[0], reason, failure(order)))
        if clock is not None:
            clock.advance(timedelta(seconds=1))


async def succeed(queue: Queue, count: int = 100) -> list[str]:
    """What waits is run and acked; the ids."""
    deliveries = await fetch(queue, count)
    assert await settle(queue, *(acked(each) for each in deliveries)) == []
    return [each.id for each in deliveries]


async def fail_again(queue: Queue, count: int = 100) -> list[str]:
    """What waits is run and dies; the ids."""
    deliveries = await fetch(queue, count)
    assert (
        await settle(queue, *(dead(each, Reason.RETRIES_EXHAUSTED, refused(7)) for each in deliveries)) == []
    )
    return [each.id for each in deliveries]


async def fail_command(
    fleet: Fleet, device: Device = METER, kind: CommandType = CommandType.READ_CREDIT
) -> str:
    """A command that its network server has refused for good."""
    sent = await fleet.send(NewCommand(type=kind, device=device, grid="lagos-7", data={"token": "1234"}))
    refusal = CallFailed(
        attempt=1,
        code="NOT_FOUND",
        details="device 47 is unknown",
        certain=True,
        final=EndReason.UNKNOWN_DEVICE,
    )
    await fleet.ledger.happen({sent.id: [Dispatched(), refusal]})
    return sent.id


def gather(
    lake: Lake, spark: SparkSession, url: str, *, source: str = SOURCE, described: bool = True
) -> None:
    """One round of an ingest, and the deaths in it."""
    ingest_round(lake, spark, url, source=source, tasks=1)
    capture_deaths(lake, spark, url if described else None, source=source)


def rows_of(lake: Lake, spark: SparkSession) -> list[dict[str, Any]]:
    """The table of dead letters, in the order of the trails."""
    found = lake.dead_letters.read(spark).toArrow().to_pylist()
    return sorted(found, key=lambda row: (row["source"], row["queue"], row["seq"]))


class Killed(BaseException):
    """Stands for SIGKILL: nothing may catch it."""


@contextmanager
def killed_at(step: int) -> Iterator[Callable[..., None]]:
    """A callback that ends the program at its call of that number; the block goes on without it."""
    calls = 0

    def on_step(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == step:
            raise Killed

    try:
        yield on_step
    except Killed:
        return
