"""The commands under `remuda lake`, put together."""

from __future__ import annotations

import typer

from remuda.cli.lake import answers, campaigning, generating, pipeline, querying, replaying

app = typer.Typer(no_args_is_help=True)

app.command()(pipeline.ingest)
app.command()(pipeline.build)
app.command()(pipeline.status)
app.command()(answers.audit)
app.command()(answers.triage)
app.command()(replaying.replay)
app.command()(replaying.plans)
app.add_typer(campaigning.app, name="campaign", help="Send one command to many devices, carefully.")
app.command()(answers.whatif)
app.command()(answers.report)
app.command()(querying.sql)
app.command()(querying.export)
app.command()(generating.generate)
app.command()(pipeline.upkeep)
