"""The `remuda` command.

`app` puts the commands together. They live in `schema`, `work` (with `crew` and `logs`), `adding`,
`queues`, `watch`, `jobs`, `dlq` and `doctor` (with `findings`, `sql_findings` and `redis_findings`).
What they share: `options`, `opening` (stores), `exits` (errors and exit codes), `asking`, `output`
(terminal, pipe and JSON), `records` (the JSON fields), `times`. Nothing outside touches more than `main`,
and no module imports a store, Rich or asyncio before a command needs it, so that `--help` is quick.
"""

from __future__ import annotations


def main() -> None:
    """The entry point of the `remuda` command."""
    from remuda.cli.app import run

    run()
