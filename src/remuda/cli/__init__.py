"""The `remuda` command.

`app` puts the commands together; `schema`, `queues`, `jobs`, `dlq`, `work` and `doctor` hold them.
What they share: `opening` (stores), `exits` (errors and exit codes), `output` (terminal, pipe and
JSON), `records` (the JSON fields), `times`, `asking`. Nothing outside touches more than `main`, and
no module here imports a store, Rich or asyncio before a command needs it: `--help` is quick.
"""

from __future__ import annotations


def main() -> None:
    """The entry point of the `remuda` command."""
    from remuda.cli.app import run

    run()
