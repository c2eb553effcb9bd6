"""One replica of a device engine as a process of its own: an engine, its networks and its ingress.

Run as a program it takes a `Replica` as JSON, prints `READY` and the ingress's URL, and works until SIGTERM,
or until its standard input is closed, so that it does not outlive the tests. Every end that it is told of
goes into a file.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import msgspec

from remuda import Exponential
from remuda.devices import Command, Engine, Fleet, Timings
from remuda.devices.ingress import IngressServer
from remuda.devices.networks.calin_v1 import CalinV1
from remuda.devices.networks.calin_v2 import CalinV2
from remuda.devices.networks.chirpstack import ChirpStack

COMPANY, USER, PASSWORD = "Acme", "admin", "secret"
TOKEN, SECRET = "an-api-key", "the-secret-of-the-ingress"


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica works with."""

    store: str
    chirpstack: str
    calin: str
    directory: str


def quick_timings() -> Timings:
    """Every stage in a tenth of its time or less."""
    return Timings(
        accept=timedelta(seconds=1),
        call=timedelta(seconds=6),
        gateway=timedelta(seconds=6),
        device=timedelta(seconds=3),
        correlation=timedelta(seconds=1),
        max_age=timedelta(minutes=10),
        polls=((timedelta(seconds=4), timedelta(seconds=1)), (timedelta.max, timedelta(seconds=2))),
        sweep=timedelta(milliseconds=250),
        reap=timedelta(milliseconds=100),
        lock=timedelta(milliseconds=400),
        slot_for=timedelta(seconds=20),
        retry=Exponential(
            initial=timedelta(milliseconds=100), cap=timedelta(seconds=3), jitter=0.5, max_attempts=12
        ),
        look_again=timedelta(milliseconds=500),
        late_result=timedelta(seconds=6),
        unmatched=timedelta(seconds=5),
    )


async def work(replica: Replica) -> None:
    """Be a replica, until it is told to stop."""
    ends = os.open(Path(replica.directory, f"{os.getpid()}.ends"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(command: Command) -> None:
        os.write(ends, f"{command.id} {command.version}\n".encode())

    deadline = timedelta(seconds=4)
    fleet = Fleet(replica.store, timings=quick_timings())
    engine = Engine(
        fleet,
        [
            ChirpStack(address=replica.chirpstack, token=TOKEN, concurrency=64, call_deadline=deadline),
            *(
                calin(
                    replica.calin,
                    company=COMPANY,
                    user=USER,
                    password=PASSWORD,
                    concurrency=64,
                    call_deadline=deadline,
                )
                for calin in (CalinV1, CalinV2)
            ),
        ],
    )
    engine.subscribe(note)
    ingress = IngressServer(engine.keep, secret=SECRET)
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    loop.add_reader(sys.stdin.fileno(), stopped.set)
    async with fleet, engine:
        await ingress.start()
        sys.stdout.write(f"READY {ingress.url}\n")
        sys.stdout.flush()
        await stopped.wait()
        loop.remove_reader(sys.stdin.fileno())
        await ingress.stop()


def main() -> None:
    replica = msgspec.json.decode(sys.argv[1], type=Replica)
    logging.basicConfig(
        filename=Path(replica.directory, f"{os.getpid()}.log"),
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    logging.getLogger("httpx").setLevel(logging.WARNING)
    asyncio.run(work(replica))


if __name__ == "__main__":
    main()
