"""Completion of queues' names in a shell: what the store of the command has."""

from __future__ import annotations

import contextlib
import os

import typer

PATIENCE_S = 2.0  # a person has pressed a key


def queue_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """The queues that begin like this. Whatever goes wrong, nothing is printed into the person's line."""
    url = ctx.params.get("url") or os.environ.get("REMUDA_URL")
    if not url:
        return []
    import asyncio

    names: list[str] = []
    with contextlib.suppress(Exception):
        names = asyncio.run(_names(url))
    return [each for each in names if each.startswith(incomplete)]


async def _names(url: str) -> list[str]:
    import asyncio

    from remuda.cli.opening import opened_store

    async with asyncio.timeout(PATIENCE_S), opened_store(url) as store:
        return await store.queues()
