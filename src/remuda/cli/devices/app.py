"""The commands under `remuda devices`, put together."""

from __future__ import annotations

import typer

from remuda.cli.devices import looking, operating, running, sending, showing, simulating

app = typer.Typer(no_args_is_help=True)

app.command("run")(running.run_engine)
app.command()(sending.send)
app.command()(showing.show)
app.command("list")(looking.list_commands)
app.command()(looking.stats)
app.command()(looking.lanes)
app.command()(operating.hold)
app.command()(operating.release)
app.command()(operating.cancel)
app.command()(operating.replay)
app.command()(simulating.simulate)
