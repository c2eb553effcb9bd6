"""From a URL, or a settings file, to an open fleet."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from remuda.cli.opening import check_there, given, opened_store, opening
from remuda.errors import ConfigurationError
from remuda.stores import SQL_SCHEMES

if TYPE_CHECKING:
    from remuda.devices.fleet import Fleet
    from remuda.devices.settings import Settings

DEFAULT_FLEET = "devices"

FleetName = Annotated[
    str | None,
    typer.Option("--fleet", metavar="NAME", help="The fleet.", show_default=DEFAULT_FLEET),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        envvar="REMUDA_DEVICES_CONFIG",
        metavar="FILE",
        help="The settings of the engine: they name the store and the fleet, too.",
        show_default=False,
    ),
]


class Where(NamedTuple):
    """Which fleet, as the command line names it."""

    url: str | None = None
    fleet: str | None = None
    config: Path | None = None

    def settings(self) -> Settings | None:
        """What the settings file says, if one is named."""
        if self.config is None:
            return None
        from remuda.devices.settings import read_settings

        return read_settings(self.config)


def url_of(where: Where, settings: Settings | None) -> str:
    """The store: --url or REMUDA_URL, else what the settings say."""
    if where.url or settings is None or settings.store.url is None:
        return given(where.url)
    told = settings.store.url
    return told if isinstance(told, str) else told.read(os.environ)


def fleet_name(where: Where, settings: Settings | None) -> str:
    """The fleet: --fleet, else what the settings say, else the usual one."""
    return where.fleet or (DEFAULT_FLEET if settings is None else settings.store.fleet)


@contextlib.asynccontextmanager
async def opened_fleet(
    where: Where, *, create: bool = False, lanes_by_gateway: bool | None = None
) -> AsyncIterator[Fleet]:
    """An open fleet. Unless `create`, what is not there is an error: a mistyped name makes no store."""
    from remuda.devices.fleet import Fleet
    from remuda.identity import make_identity

    settings = where.settings()
    url = url_of(where, settings)
    if url == "memory://":
        raise ConfigurationError("memory:// is gone with the process; name a store that others can see")
    if not create:
        await _check(url)
    by_gateway = settings.engine.lanes_by_gateway if settings is not None else False
    fleet = Fleet(
        url,
        name=fleet_name(where, settings),
        timings=None if settings is None else settings.timings,
        lanes_by_gateway=by_gateway if lanes_by_gateway is None else lanes_by_gateway,
        who=make_identity("cli"),
    )
    try:
        with opening(fleet.store):
            await fleet.store.open()
        yield fleet
    finally:
        await fleet.close()


async def _check(url: str) -> None:
    check_there(url)
    if url.partition("://")[0].partition("+")[0].lower() in SQL_SCHEMES:
        async with opened_store(url):
            pass  # its tables are there, and of the right version
