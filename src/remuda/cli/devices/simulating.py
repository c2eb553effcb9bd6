"""`simulate`: a world of meters to try an engine on, in real time or in virtual time."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from remuda.cli.asking import confirm
from remuda.cli.exits import ExitCode, run, told_in_one_line
from remuda.cli.options import DURATION, AsJson, Url, Yes, duration


def simulate(
    meters: Annotated[
        int | None, typer.Option("--meters", min=1, metavar="N", help="How many; 20, virtual 100.")
    ] = None,
    loss: Annotated[
        float,
        typer.Option(
            "--loss", min=0, max=1, metavar="SHARE", help="Of frames on each leg; other troubles follow it."
        ),
    ] = 0.1,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="The same seed, the same world.")] = 0,
    outages: Annotated[bool, typer.Option("--outages", help="Let gateways fail now and then.")] = False,
    webhooks: Annotated[
        str,
        typer.Option("--webhooks", metavar="URL", help="Where the simulated ChirpStack posts its events."),
    ] = "http://127.0.0.1:8090/chirpstack",
    chirpstack_port: Annotated[
        int, typer.Option("--chirpstack-port", min=0, max=65535, metavar="PORT", help="0: any that is free.")
    ] = 0,
    calin_port: Annotated[
        int, typer.Option("--calin-port", min=0, max=65535, metavar="PORT", help="0: any that is free.")
    ] = 0,
    write: Annotated[
        Path | None,
        typer.Option("--write", metavar="FILE", help="Write settings for an engine, ready to run."),
    ] = None,
    every: Annotated[
        timedelta, typer.Option("--every", parser=duration, metavar=DURATION, help="How often to tell.")
    ] = "10s",  # type: ignore[assignment]  # the parser reads defaults, too
    lasting: Annotated[
        timedelta | None,
        typer.Option("--for", parser=duration, metavar=DURATION, help="End by itself after this."),
    ] = None,
    virtual: Annotated[
        bool, typer.Option("--virtual", help="Engine and world in this process: days in seconds.")
    ] = False,
    hours: Annotated[float, typer.Option("--hours", min=0.1, metavar="N", help="Virtual: how long.")] = 24.0,
    url: Url = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Simulate meters, gateways and network servers.

    In real time: a ChirpStack (gRPC and webhooks) and a Calin (V1 and V2) on this machine's loopback, until
    Ctrl-C. With --virtual: an engine works on a store in memory, under reads, switchings and top-ups, and
    what it says is compared with what the meters did; a difference is exit code 1.

    \b
    remuda devices simulate --write fleet.toml
    remuda devices simulate --virtual --meters 600 --hours 24 --loss 0.15 --seed 7
    """
    from remuda.devices.simulator.world import WorldOptions

    if virtual:
        with told_in_one_line():
            options = WorldOptions(meters=meters or 100, seed=seed, loss=loss, outages=outages)
            code = _virtual(options, timedelta(hours=hours), as_json=as_json)
        raise typer.Exit(code)
    from remuda.cli.devices.servers import Ports, serve

    if write is not None and write.exists():
        confirm(f"{write} exists. Overwrite it?", yes=yes)
    ports = Ports(chirpstack_port, calin_port)
    run(
        lambda: serve(
            WorldOptions(meters=meters or 20, seed=seed, loss=loss, outages=outages),
            webhooks,
            ports,
            write=write,
            url=url,
            every=every,
            lasting=lasting,
            as_json=as_json,
        )
    )


def _virtual(options: object, lasting: timedelta, *, as_json: bool) -> int:
    import logging

    from remuda.cli import output
    from remuda.cli.devices.summaries import say_summary, summary_of
    from remuda.devices.simulator.rehearsal import rehearse
    from remuda.devices.simulator.world import WorldOptions

    assert isinstance(options, WorldOptions)  # noqa: S101  # for the type checker
    logging.basicConfig(level=logging.ERROR)  # a gateway that is down now and then is what was asked for
    with output.progress("virtual minutes", round(lasting / timedelta(minutes=1))) as advance:
        told = rehearse(
            options,
            lasting=lasting,
            on_progress=lambda passed: advance(round(passed / timedelta(minutes=1))),
        )
    summary = summary_of(told)
    if as_json:
        output.emit(summary)
    else:
        say_summary(told, summary, options)
    return ExitCode.ERROR if told.lies or told.unended or len(told.ended) != told.sent else ExitCode.OK
