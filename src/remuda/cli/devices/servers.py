"""A simulated world in real time: network servers on the loopback, and settings for an engine."""

from __future__ import annotations

import asyncio
import contextlib
import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from remuda.cli import output
from remuda.cli.devices.assembling import extra_needed
from remuda.clock import SystemClock
from remuda.errors import ConfigurationError
from remuda.stores import redact
from remuda.worker.signals import stopped_by_signals

if TYPE_CHECKING:
    from remuda.devices.command import Device
    from remuda.devices.simulator.webhooks import WebhookSender
    from remuda.devices.simulator.world import World, WorldOptions

SECRET = "simulated"  # noqa: S105  # it opens a simulation on the loopback, and nothing else
VARIABLE = "REMUDA_SIMULATED"


class Ports(NamedTuple):
    chirpstack: int = 0
    calin: int = 0


class Addresses(NamedTuple):
    """Where the servers listen, and where events are posted."""

    chirpstack: str
    calin: str
    webhooks: str


async def serve(
    options: WorldOptions,
    webhooks: str,
    ports: Ports,
    *,
    write: Path | None,
    url: str | None,
    every: timedelta,
    lasting: timedelta | None,
    as_json: bool,
) -> None:
    """Run a world until a stop signal, or for so long."""
    with extra_needed("the simulator"):
        from remuda.devices.simulator.calin_http import CalinServer
        from remuda.devices.simulator.chirpstack_grpc import ChirpStackServer
        from remuda.devices.simulator.webhooks import WebhookSender
        from remuda.devices.simulator.world import World
    _check_webhooks(webhooks)
    world = World(options, SystemClock())
    world.calin.password = SECRET
    stopping = asyncio.Event()
    async with contextlib.AsyncExitStack() as stack:
        sender = await stack.enter_async_context(WebhookSender(webhooks, world.weather))
        world.deliver_by(sender)
        calin = CalinServer(world.calin)
        await calin.start(ports.calin)
        stack.push_async_callback(calin.stop)
        server = ChirpStackServer(world.chirpstack, token=SECRET, port=ports.chirpstack)
        chirpstack = await stack.enter_async_context(server)
        world.start()
        stack.push_async_callback(world.stop)
        addresses = Addresses(chirpstack.address, calin.url, webhooks)
        with stopped_by_signals(stopping.set):
            _say_start(world, addresses, write, url, as_json=as_json)
            await _tell(world, sender, stopping, every, lasting, as_json=as_json)


def _check_webhooks(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(
            f"--webhooks is an address such as http://127.0.0.1:8090/chirpstack, not {url!r}"
        )


# -- the settings of an engine for it


def settings_text(addresses: Addresses, *, url: str, secret: str) -> str:
    """The TOML of an engine that works on this world. `secret` is what `…_env` or `…_file` is."""
    hook = urlsplit(addresses.webhooks)
    port = hook.port or (443 if hook.scheme == "https" else 80)
    calin = f'base_url = "{addresses.calin}"\ncompany = "Acme"\nuser = "admin"\npassword_{secret}\n'
    return (
        f'[store]\nurl = "{url}"\n\n'
        f'[chirpstack]\naddress = "{addresses.chirpstack}"\ntoken_{secret}\n\n'
        f"[calin_v1]\n{calin}\n[calin_v2]\n{calin}\n"
        f'[ingress]\nhost = "{hook.hostname}"\nport = {port}\n\n'
        "[engine]\nairtime = true\n"
    )


def _write_settings(write: Path, addresses: Addresses, url: str) -> None:
    secret = write.with_suffix(".secret")
    # Nobody else needs to read it, even though it opens nothing of worth.
    with os.fdopen(os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(f"{SECRET}\n")
    write.write_text(settings_text(addresses, url=url, secret=f'file = "{secret.name}"'), encoding="utf-8")


def _store_url(url: str | None) -> str:
    """The store that the settings name: one with a password stays where it was named."""
    if url is None or url != redact(url):
        return "sqlite:///fleet.db"
    return url


def _say_start(
    world: World, addresses: Addresses, write: Path | None, url: str | None, *, as_json: bool
) -> None:
    store = _store_url(url)
    text = settings_text(addresses, url=store, secret=f'env = "{VARIABLE}"')
    if write is not None:
        _write_settings(write, addresses, store)
    if as_json:
        output.emit_line(
            {
                "chirpstack": addresses.chirpstack,
                "calin": addresses.calin,
                "webhooks": addresses.webhooks,
                "settings": text,
                "written": None if write is None else str(write),
                "meters": [_meter_fields(world, each) for each in world.devices.values()],
            }
        )
        return
    output.facts(
        [
            ("ChirpStack", f"{addresses.chirpstack} (gRPC), posts events to {addresses.webhooks}"),
            ("Calin", f"{addresses.calin} (V1 and V2)"),
            ("meters", ", ".join(f"{len(world.of(each)):,} by {each}" for each in world.protocols())),
        ]
    )
    output.say()
    if write is None:
        output.say(f"# export {VARIABLE}={SECRET}, and save this as fleet.toml (or say --write fleet.toml):")
        output.say(text)
        config, before = "fleet.toml", f"{VARIABLE}={SECRET} "
    else:
        output.say(f"wrote {write} and {write.with_suffix('.secret')}")
        config, before = str(write), ""
    output.say("then, in other terminals:", "bold")
    output.say(f"  {before}remuda devices run --config {config}")
    for protocol in world.protocols():
        output.say(f"  {_example(world, world.of(protocol)[0], config)}")
    output.say()


def _example(world: World, device: Device, config: str) -> str:
    grid = world.grids.get(device.reference)
    words = [
        "remuda devices send READ_CREDIT",
        f"--device {device.reference}",
        f"--protocol {device.protocol}",
    ]
    if device.gateway is not None:
        words.append(f"--gateway {device.gateway.id}")
    if device.spreading_factor is not None:
        words.append(f"--spreading-factor {device.spreading_factor}")
    if grid:
        words.append(f"--grid {grid}")
    return " ".join([*words, "--wait 2m", f"--config {config}"])


def _meter_fields(world: World, device: Device) -> dict[str, Any]:
    return {
        "serial": device.reference,
        "protocol": device.protocol.value,
        "gateway": None if device.gateway is None else device.gateway.id,
        "grid": world.grids.get(device.reference),
        "spreading_factor": device.spreading_factor,
    }


# -- what the meters do


async def _tell(
    world: World,
    sender: WebhookSender,
    stopping: asyncio.Event,
    every: timedelta,
    lasting: timedelta | None,
    *,
    as_json: bool,
) -> None:
    """A line now and then, when something has happened since the last."""
    loop = asyncio.get_running_loop()
    until = None if lasting is None else loop.time() + lasting.total_seconds()
    before: dict[str, Any] = {}
    while not stopping.is_set():
        left = every.total_seconds() if until is None else min(every.total_seconds(), until - loop.time())
        if left <= 0:
            break
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), left)
        now = _numbers(world, sender)
        if now != before:
            _say_numbers(world.clock.now(), now, as_json=as_json)
            before = now


def _numbers(world: World, sender: WebhookSender) -> dict[str, int]:
    deeds = world.deeds()
    return {
        **{field: getattr(deeds, field) for field in deeds.__struct_fields__},
        "tasks": len(world.calin.tasks),
        "events_sent": sender.sent,
        "events_lost": sender.lost,
        "events_failed": sender.failed,
    }


def _say_numbers(at: datetime, numbers: dict[str, int], *, as_json: bool) -> None:
    if as_json:
        output.emit_line({"at": at, **numbers})
        return
    meters = (
        f"{numbers['reads']:,} reads, {numbers['switched']:,} switched, {numbers['written']:,} set, "
        f"{numbers['tokens']:,} tokens applied, {numbers['refused']:,} refused"
    )
    events = f"events: {numbers['events_sent']:,} sent, {numbers['events_lost']:,} lost" + (
        f", {numbers['events_failed']:,} NOT TAKEN" if numbers["events_failed"] else ""
    )
    output.say(f"{at.astimezone():%H:%M:%S}  {meters}; {numbers['tasks']:,} tasks; {events}")
