"""A fleet's commands in a fresh store of each kind, on a clock that stands still until a test moves it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from remuda.clock import VirtualClock
from remuda.stores.commands import CommandStore
from remuda.stores.opening_commands import open_commands
from tests.conftest import REDIS_STORES, SQL_STORES, _store_url


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture(params=["memory", *SQL_STORES, *REDIS_STORES])
def commands_url(request: pytest.FixtureRequest) -> str:
    """The URL of a fresh, empty store: the test runs once for each kind. Pick one with `-k sqlite`."""
    return "memory://" if request.param == "memory" else _store_url(request)


@pytest.fixture
async def commands(commands_url: str, clock: VirtualClock) -> AsyncIterator[CommandStore]:
    async with open_commands(commands_url, clock=clock) as store:
        yield store


@pytest.fixture
async def another_commands(
    commands_url: str, commands: CommandStore, clock: VirtualClock
) -> AsyncIterator[CommandStore]:
    """A second replica on the same commands; those in memory have one owner alone, so it is the same one."""
    if commands_url == "memory://":
        yield commands
        return
    async with open_commands(commands_url, clock=clock) as store:
        yield store


@pytest.fixture
async def other_fleet(
    commands_url: str, commands: CommandStore, clock: VirtualClock
) -> AsyncIterator[CommandStore]:
    """Another fleet in the same store."""
    async with open_commands(commands_url, fleet="others", clock=clock) as store:
        yield store
