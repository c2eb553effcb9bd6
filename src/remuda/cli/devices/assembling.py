"""From settings to what runs: networks, fleet, engine, ingress, webhooks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from remuda.errors import ConfigurationError

if TYPE_CHECKING:
    from remuda.devices.engine import Engine
    from remuda.devices.fleet import Fleet
    from remuda.devices.ingress import IngressServer
    from remuda.devices.networks.contract import Network
    from remuda.devices.settings import CalinSettings, ChirpStackSettings, Settings
    from remuda.devices.webhooks import WebhookTarget

_EXTRA = frozenset({"chirpstack_api", "google", "grpc", "httpx", "starlette", "uvicorn"})
_CHIRPSTACK_CALL = timedelta(seconds=30)
_CALIN_CALL = timedelta(seconds=45)


@contextlib.contextmanager
def extra_needed(what: str) -> Iterator[None]:
    """Packages that come with an extra are imported in here: a missing one is said to be one."""
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRA:
            raise
        raise ConfigurationError(
            f"{what} needs the package {package}: pip install 'remuda[devices]'"
        ) from error


def make_networks(settings: Settings, environ: Mapping[str, str]) -> list[Network]:
    """An adapter for each network that the settings name."""
    networks: list[Network] = []
    if settings.chirpstack is not None:
        networks.append(_chirpstack(settings.chirpstack, settings, environ))
    if settings.calin_v1 is not None:
        with extra_needed("[calin_v1]"):
            from remuda.devices.networks.calin_v1 import CalinV1

            networks.append(CalinV1(**_calin(settings.calin_v1, settings, environ)))
    if settings.calin_v2 is not None:
        with extra_needed("[calin_v2]"):
            from remuda.devices.networks.calin_v2 import CalinV2

            told = _calin(settings.calin_v2, settings, environ)
            networks.append(CalinV2(**told, customer=settings.calin_v2.customer))
    if not networks:
        raise ConfigurationError("the settings name no network: give [chirpstack], [calin_v1] or [calin_v2]")
    return networks


def _chirpstack(told: ChirpStackSettings, settings: Settings, environ: Mapping[str, str]) -> Network:
    with extra_needed("[chirpstack]"):
        from remuda.devices.networks.chirpstack import ChirpStack

        return ChirpStack(
            address=told.address,
            token=told.token.read(environ),
            tls=told.tls,
            ca_file=told.ca_file,
            tenant=told.tenant,
            concurrency=told.concurrency,
            grids=told.grids,
            # A call must have ended before the rules take it for lost.
            call_deadline=min(_CHIRPSTACK_CALL, settings.timings.call),
        )


def _calin(told: CalinSettings, settings: Settings, environ: Mapping[str, str]) -> dict[str, Any]:
    return {
        "base_url": told.base_url,
        "company": told.company,
        "user": told.user,
        "password": told.password.read(environ),
        "allow_plain_http": told.allow_plain_http,
        "concurrency": told.concurrency,
        "call_deadline": min(_CALIN_CALL, settings.timings.call),
    }


def make_fleet(settings: Settings, url: str, name: str) -> Fleet:
    """The fleet that an engine works on."""
    from remuda.devices.fleet import Fleet
    from remuda.identity import make_identity

    return Fleet(
        url,
        name=name,
        timings=settings.timings,
        lanes_by_gateway=settings.engine.lanes_by_gateway,
        who=make_identity("engine"),
    )


def make_engine(settings: Settings, fleet: Fleet, networks: list[Network]) -> Engine:
    """The engine as the settings want it."""
    from remuda.devices.airtime import DutyCycle
    from remuda.devices.engine import Engine

    told = settings.engine
    return Engine(
        fleet,
        networks,
        airtime=DutyCycle(share=told.duty, burst=told.burst) if told.airtime else None,
        max_calls=told.max_calls,
        gateways_every=told.gateways_every,
    )


def make_ingress_server(
    settings: Settings, engine: Engine, environ: Mapping[str, str]
) -> IngressServer | None:
    """Where ChirpStack posts its events; None where no ChirpStack is used."""
    if settings.chirpstack is None:
        return None
    with extra_needed("[ingress]"):
        from remuda.devices.ingress import IngressServer

    told = settings.ingress
    return IngressServer(
        engine.keep,
        secret=None if told.secret is None else told.secret.read(environ),
        host=told.host,
        port=told.port,
        header=told.header,
    )


def make_targets(settings: Settings, environ: Mapping[str, str]) -> list[WebhookTarget]:
    """Who is told of ends."""
    if not settings.webhooks:
        return []
    with extra_needed("[[webhooks]]"):
        from remuda.devices.webhooks import WebhookTarget

    return [
        WebhookTarget(name=each.name, url=each.url, secret=each.secret.read(environ))
        for each in settings.webhooks
    ]
