"""``python -m bench.devices``: commands through the whole lifecycle, on each store, with one engine.

The network server answers at once and in the same process, so that what is measured is the engine and
its store: add, claim, dispatch, accept, tx-ack, ACK and uplink through the inbox, the end, and its
publication. Each store is measured twice in one run, empty and with commands waiting in a lane that is held:
the ratio shows what a pile of waiting commands costs. Then a day of a grid in virtual time.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

from bench import catalogue, machine
from remuda.devices import (
    Command,
    CommandType,
    Device,
    DutyCycle,
    Engine,
    Fleet,
    Gateway,
    NewCommand,
    Protocol,
    Timings,
)
from remuda.devices.codecs.dlt645 import answer_frame, parse_request
from remuda.devices.networks.contract import Network, Order
from remuda.devices.networks.signals import Ack, Signal, TxAck, Uplink
from remuda.devices.simulator.rehearsal import rehearse
from remuda.devices.simulator.world import WorldOptions
from remuda.lifecycle import CommandStatus

DEVICES = 5_000
LANES = 50
AIMS = {"valkey": 1_000, "postgres": 300}
NO_LIMIT = DutyCycle(share=1.0, burst=timedelta(days=1))


class PromptNetwork(Network):
    """Accepts every order, transmits it and answers, all at once; signals go in as an ingress brings them."""

    protocol = Protocol.LORAWAN

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self._told: list[Signal] = []
        self._keeping: asyncio.Task[None] | None = None

    async def send(self, order: Order) -> str:
        name = f"{order.command_id}-{order.attempt}"
        assert order.downlink is not None
        key, now = order.device.key, datetime.now(UTC)
        data = answer_frame(parse_request(order.downlink.data), value=12.5)
        self._told += (
            TxAck(id=f"t{name}", device=key, at=now, external_id=name),
            Ack(id=f"a{name}", device=key, at=now, external_id=name, acknowledged=True, dedup=name),
            Uplink(id=f"u{name}", device=key, at=now, dedup=name, data=data, f_port=1),
        )
        if self._keeping is None:
            self._keeping = asyncio.create_task(self._keep())
        return name

    async def _keep(self) -> None:
        assert self.engine is not None
        while self._told:
            told, self._told = self._told[:1_000], self._told[1_000:]
            await self.engine.keep(told)
        self._keeping = None


def some(count: int, *, grid: str) -> list[NewCommand]:
    """Reads for `count` devices in turn, over many lanes."""
    return [
        NewCommand(
            type=CommandType.READ_CREDIT,
            device=Device(
                reference=f"{n % DEVICES:011}",
                protocol=Protocol.LORAWAN,
                gateway=Gateway(id=f"{grid}-{n % LANES}", snr=5.0),
            ),
            merge=False,
        )
        for n in range(count)
    ]


async def lifecycle(url: str, *, commands: int, waiting: int) -> dict[str, float]:
    """How many commands a second are added, and go from their lane to their published end."""
    network = PromptNetwork()
    async with Fleet(url, timings=Timings(lock=timedelta(0)), lanes_by_gateway=True) as fleet:
        if waiting:
            await fleet.send_many(some(waiting, grid="held"))
            for lane in range(LANES):
                await fleet.hold_lane(f"lorawan_gateway:held-{lane}", why="bench")
        started = time.perf_counter()
        # Other devices than those that wait: a device has one downlink at a time.
        await fleet.send_many(
            [
                NewCommand(
                    type=each.type,
                    device=Device(
                        reference=f"9{each.device.reference[1:]}",
                        protocol=Protocol.LORAWAN,
                        gateway=each.device.gateway,
                    ),
                    merge=False,
                )
                for each in some(commands, grid="open")
            ]
        )
        added = time.perf_counter()
        ended: list[Command] = []
        done = asyncio.Event()

        def note(command: Command) -> None:
            ended.append(command)
            if len(ended) == commands:
                done.set()

        engine = network.engine = Engine(fleet, [network], airtime=NO_LIMIT, gateways_every=None)
        engine.subscribe(note)
        began = time.perf_counter()
        async with engine:
            await done.wait()
            finished = time.perf_counter()
        wrong = [each for each in ended if each.status is not CommandStatus.DELIVERY_SUCCESSFUL]
        if wrong or len({each.id for each in ended}) != commands:
            raise RuntimeError(f"{len(wrong)} of {len(ended)} ended wrongly")
        return {"add": commands / (added - started), "lifecycle": commands / (finished - began)}


def measure_stores(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for store in options.stores:
        with tempfile.TemporaryDirectory() as folder, catalogue.serve(store, Path(folder)) as server:
            runs: dict[str, list[dict[str, float]]] = {"empty": [], "full": []}
            for _ in range(options.repeats):
                for kind, waiting in (("empty", 0), ("full", options.waiting)):
                    with server.fresh() as url:
                        runs[kind].append(
                            uvloop.run(lifecycle(url, commands=options.commands, waiting=waiting))
                        )
            empty, full = (
                {key: median(run[key] for run in runs[kind]) for key in ("add", "lifecycle")}
                for kind in ("empty", "full")
            )
            ratios = sorted(
                one["lifecycle"] / other["lifecycle"]
                for one, other in zip(runs["full"], runs["empty"], strict=True)
            )
            yield {
                "store": store,
                "version": server.facts.get("version") or server.facts.get("server_version"),
                "added_per_s": round(empty["add"]),
                "commands_per_s": round(empty["lifecycle"]),
                "commands_per_s_with_waiting": round(full["lifecycle"]),
                "ratio_with_waiting": round(median(ratios), 2),
                "ratios": [round(each, 2) for each in ratios],
                "aim_per_s": AIMS.get(store),
            }


def measure_day(options: argparse.Namespace) -> dict[str, Any]:
    """A day of a grid of 600 meters in virtual time, checked against what the meters did."""
    told = rehearse(
        WorldOptions(meters=600, seed=7, loss=0.15), lasting=timedelta(hours=options.hours), timings=Timings()
    )
    return {
        "meters": 600,
        "hours": options.hours,
        "commands": len(told.ended),
        "unended": told.unended,
        "untrue": len(told.lies),
        "seconds": round(told.took.total_seconds(), 1),
        "speed_up": round(told.lasted / told.took),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.devices", description=__doc__)
    parser.add_argument("--stores", type=lambda text: text.split(","), default=catalogue.stores())
    parser.add_argument("--commands", type=int, default=5_000)
    parser.add_argument("--waiting", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--hours", type=float, default=24)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    result: dict[str, Any] = {"machine": machine.facts(), "stores": []}
    print(json.dumps(result["machine"]))
    with contextlib.suppress(KeyboardInterrupt):
        for row in measure_stores(options):
            print(json.dumps(row))
            result["stores"].append(row)
        if options.hours:
            result["day"] = measure_day(options)
            print(json.dumps(result["day"]))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
