"""`run`: an engine with its ingress and its webhooks, until it is told to stop."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remuda.cli import output
from remuda.cli.devices.fleets import FleetName, Where, fleet_name, url_of
from remuda.cli.exits import ExitCode, told_in_one_line
from remuda.cli.logs import LogLevel, set_up
from remuda.cli.options import AsJson, Url
from remuda.errors import ConfigurationError

if TYPE_CHECKING:
    import asyncio

    from remuda.devices.engine import Engine
    from remuda.devices.fleet import Fleet
    from remuda.devices.ingress import IngressServer
    from remuda.devices.settings import Settings
    from remuda.worker import Worker

AT_ONCE_S = 12.0


def run_engine(
    config: Annotated[
        Path,
        typer.Option(
            "--config",
            "-c",
            envvar="REMUDA_DEVICES_CONFIG",
            metavar="FILE",
            help="The settings, as TOML.",
            show_default=False,
        ),
    ],
    url: Url = None,
    fleet: FleetName = None,
    check: Annotated[
        bool, typer.Option("--check", help="Read the settings and the secrets, say what would run, and end.")
    ] = False,
    log_level: Annotated[
        LogLevel,
        typer.Option(
            "--log-level", metavar="LEVEL", help="debug, info, warning or error.", case_sensitive=False
        ),
    ] = LogLevel.INFO,
    as_json: AsJson = False,
) -> None:
    """Carry commands to their devices until SIGTERM or SIGINT. With --json, log as JSON lines.

    Any number of engines may run on one store, side by side. The first signal stops: nothing more is
    sent, calls under way are waited for, and what is unfinished is taken up by another engine or by the
    next run. The second ends at once.
    """
    set_up(log_level, as_json=as_json)
    _quieten(log_level)
    with told_in_one_line():
        code = _run_here(Where(url, fleet, config), check=check)
    raise typer.Exit(code)


def _quieten(level: LogLevel) -> None:
    """Libraries tell of every request, with its address; that is for --log-level debug."""
    import logging

    if level is not LogLevel.DEBUG:
        for name in ("httpx", "httpcore", "uvicorn", "uvicorn.error"):
            logging.getLogger(name).setLevel(logging.WARNING)


def _run_here(where: Where, *, check: bool) -> int:
    import asyncio

    from remuda.cli.work import loop_factory

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(_run(where, check=check))


async def _run(where: Where, *, check: bool) -> int:
    from remuda.cli.devices.assembling import (
        make_engine,
        make_fleet,
        make_ingress_server,
        make_networks,
    )

    settings = where.settings()
    if settings is None:
        raise ConfigurationError("which settings? Give --config FILE")
    url, name = url_of(where, settings), fleet_name(where, settings)
    networks = make_networks(settings, os.environ)
    fleet = make_fleet(settings, url, name)
    engine = make_engine(settings, fleet, networks)
    ingress = make_ingress_server(settings, engine, os.environ)
    worker = _worker(settings, url, name, engine)
    runs = _Run(settings, fleet, engine, ingress, worker)
    if check:
        output.say(f"the settings are in order: {runs.words()}")
        return ExitCode.OK
    return await runs.until_stopped()


def _worker(settings: Settings, url: str, name: str, engine: Engine) -> Worker | None:
    """The worker that sends webhooks; the engine gives it what to send."""
    from remuda.cli.devices.assembling import make_targets

    targets = make_targets(settings, os.environ)
    if not targets:
        return None
    from remuda.devices.webhooks import WebhookSubscriber, webhook_worker
    from remuda.queue import Queue

    queue = Queue(webhook_queue(name), url)
    engine.subscribe(WebhookSubscriber(queue, targets))
    return webhook_worker(queue, targets)


def webhook_queue(fleet: str) -> str:
    """The queue of a fleet's webhooks: jobs like others, for `inspect` and `dlq`."""
    return f"{fleet}-webhooks"


class _Run:
    """What runs side by side in this process, and how it is stopped."""

    def __init__(
        self,
        settings: Settings,
        fleet: Fleet,
        engine: Engine,
        ingress: IngressServer | None,
        worker: Worker | None,
    ) -> None:
        import asyncio
        import logging

        self._log = logging.getLogger("remuda.devices")
        self._settings = settings
        self._fleet = fleet
        self._engine = engine
        self._ingress = ingress
        self._worker = worker
        self._stopping = asyncio.Event()

    def words(self) -> str:
        """What this is, in one line."""
        networks = ", ".join(each.value for each in self._engine.networks)
        pace = "air time shared out by gateway" if self._settings.engine.airtime else "lanes locked in turn"
        told = "".join(f", webhooks to {each.name}" for each in self._settings.webhooks)
        return f"fleet {self._fleet.store.fleet} on {self._fleet.store.url}: {networks}; {pace}{told}"

    async def until_stopped(self) -> int:
        from remuda.worker.signals import stopped_by_signals

        with stopped_by_signals(self._stop):
            try:
                if await self._open():
                    await self._work()
            finally:
                await self._close()
        self._log.info("the engine has stopped", extra={"action": "engine_stopped"})
        return ExitCode.OK

    def _stop(self) -> None:
        if self._stopping.is_set():
            from remuda.cli.crew import leave_now

            leave_now(ExitCode.ERROR)
        self._log.info("stopping: calls under way are waited for", extra={"action": "engine_stopping"})
        self._stopping.set()

    async def _open(self) -> bool:
        """Open the store, however long it takes to be there; False when told to stop before."""
        import asyncio

        opening = asyncio.create_task(self._open_patiently())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([opening, stopping], return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                opening.result()
            return opening.done() and not self._stopping.is_set()
        finally:
            for task in (opening, stopping):
                task.cancel()
            await asyncio.gather(opening, stopping, return_exceptions=True)

    async def _open_patiently(self) -> None:
        from remuda.backoff import Backoff
        from remuda.cli.opening import opening
        from remuda.errors import StoreUnavailableError

        backoff = Backoff("the store cannot be opened", self._log)
        while True:
            try:
                with opening(self._fleet.store):
                    await self._fleet.store.open()
                return backoff.over()
            except StoreUnavailableError as error:
                await backoff.wait(error)

    async def _work(self) -> None:
        """Everything side by side. The ingress ends last: an event that nobody takes is lost."""
        import asyncio

        if self._ingress is not None:
            await self._ingress.start()
            where = f"{self._ingress.url}/chirpstack"
            self._log.info("takes ChirpStack's events at %s", where, extra={"action": "ingress_started"})
        tasks = []
        if self._worker is not None:
            tasks.append(asyncio.create_task(self._worker.run(signals=False), name="webhooks"))
        try:
            await self._engine.start()
            self._log.info("runs %s", self.words(), extra={"action": "engine_started"})
            await self._wait(tasks)
        finally:
            await self._engine.stop()
            if self._ingress is not None:
                await self._ingress.stop()
            if self._worker is not None:
                self._worker.stop()
            await asyncio.gather(*tasks)

    async def _wait(self, tasks: list[asyncio.Task[None]]) -> None:
        import asyncio

        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()

    async def _close(self) -> None:
        if self._worker is not None:
            await self._worker.queue.close()
            await self._worker.queue.store.close()
        await self._fleet.close()
