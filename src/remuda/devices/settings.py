"""The settings of an engine, as a TOML file says them. Pure: secrets are named here, and read elsewhere.

Every error names the key, and the value where that is no secret.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from remuda.devices.timings import Timings
from remuda.devices.toml_tables import (
    Read,
    SecretSource,
    SettingsError,
    Table,
    read_bool,
    read_count,
    read_duration,
    read_duration_or_never,
    read_names,
    read_number,
    read_port,
    read_share,
    read_text,
)
from remuda.errors import ConfigurationError
from remuda.retry import Exponential

T = TypeVar("T")


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    url: str | SecretSource | None = None
    fleet: str = "devices"


class ChirpStackSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The words of `networks.chirpstack.ChirpStack`."""

    address: str
    token: SecretSource
    tls: bool | None = None
    ca_file: Path | None = None
    tenant: str | None = None
    concurrency: int = 32
    grids: dict[str, str] = {}


class CalinSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The words of `networks.calin_v1.CalinV1` and `CalinV2`; `customer` is V2's alone."""

    base_url: str
    company: str
    user: str
    password: SecretSource
    allow_plain_http: bool = False
    concurrency: int = 16
    customer: str = ""


class IngressSettings(msgspec.Struct, frozen=True, kw_only=True):
    host: str = "127.0.0.1"
    port: int = 8090
    secret: SecretSource | None = None
    header: str = "X-Remuda-Secret"


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`airtime`: share out each gateway's air time; its lanes are then by gateway unless told otherwise."""

    airtime: bool = False
    duty: float = 0.1
    burst: timedelta = timedelta(seconds=1)
    lanes_by_gateway: bool = False
    max_calls: int = 256
    gateways_every: timedelta | None = timedelta(seconds=30)


class WebhookSettings(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    url: str
    secret: SecretSource


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a settings file can say."""

    store: StoreSettings = StoreSettings()
    chirpstack: ChirpStackSettings | None = None
    calin_v1: CalinSettings | None = None
    calin_v2: CalinSettings | None = None
    ingress: IngressSettings = IngressSettings()
    engine: EngineSettings = EngineSettings()
    timings: Timings = Timings()
    webhooks: tuple[WebhookSettings, ...] = ()


def parse_settings(text: str, *, folder: Path = Path()) -> Settings:
    """The settings that a TOML text says. Names of files are relative to `folder`.

    >>> parse_settings(Path("fleet.toml").read_text(), folder=Path())
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"the settings are not TOML: {error}") from error
    top = Table("", document, folder)
    calin_v1, calin_v2 = top.table("calin_v1"), top.table("calin_v2")
    settings = Settings(
        store=_store(top.table("store") or top.empty("store")),
        chirpstack=_optional(top.table("chirpstack"), _chirpstack),
        calin_v1=_optional(calin_v1, _calin),
        calin_v2=_optional(
            calin_v2, lambda table: _calin(table, customer=table.take("customer", "", read_text))
        ),
        ingress=_ingress(top.table("ingress") or top.empty("ingress")),
        engine=_engine(top.table("engine") or top.empty("engine")),
        timings=_timings(top.table("timings") or top.empty("timings")),
        webhooks=tuple(_webhook(each) for each in top.tables("webhooks")),
    )
    top.end()
    names = [each.name for each in settings.webhooks]
    if len(set(names)) < len(names):
        raise SettingsError(f"webhooks: two have the same name: {', '.join(sorted(names))}")
    return settings


def read_settings(path: Path) -> Settings:
    """The settings in a file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SettingsError(f"the settings {path} cannot be read: {why}") from error
    try:
        return parse_settings(text, folder=path.parent)
    except ConfigurationError as error:
        raise SettingsError(f"{path}: {error}") from error


def _optional(table: Table | None, make: Callable[[Table], T]) -> T | None:
    return None if table is None else make(table)


# -- the tables


def _store(table: Table) -> StoreSettings:
    url = table.take("url", None, read_text)
    source = table.secret("url", is_needed=False, inline=True)
    if url is not None and source is not None:
        raise SettingsError("store.url and store.url_env or store.url_file: give one of them")
    if url is not None and ":" in url.partition("://")[2].rpartition("@")[0]:
        raise SettingsError(
            "store.url carries a password, and secrets do not stand in the settings: "
            "put the URL into a variable or a file, and name that as url_env or url_file"
        )
    made = StoreSettings(url=url or source, fleet=table.take("fleet", "devices", read_text))
    table.end()
    return made


def _chirpstack(table: Table) -> ChirpStackSettings:
    made = ChirpStackSettings(
        address=table.needed("address", read_text),
        token=table.needed_secret("token"),
        tls=table.take("tls", None, read_bool),
        ca_file=table.take("ca_file", None, table.path),
        tenant=table.take("tenant", None, read_text),
        concurrency=table.take("concurrency", 32, read_count),
        grids=table.take("grids", {}, read_names),
    )
    table.end()
    return made


def _calin(table: Table, *, customer: str = "") -> CalinSettings:
    made = CalinSettings(
        base_url=table.needed("base_url", read_text),
        company=table.needed("company", read_text),
        user=table.needed("user", read_text),
        password=table.needed_secret("password"),
        allow_plain_http=table.take("allow_plain_http", False, read_bool),
        concurrency=table.take("concurrency", 16, read_count),
        customer=customer,
    )
    table.end()
    return made


def _ingress(table: Table) -> IngressSettings:
    made = IngressSettings(
        host=table.take("host", "127.0.0.1", read_text),
        port=table.take("port", 8090, read_port),
        secret=table.secret("secret", is_needed=False),
        header=table.take("header", "X-Remuda-Secret", read_text),
    )
    table.end()
    return made


def _engine(table: Table) -> EngineSettings:
    airtime = table.take("airtime", False, read_bool)
    made = EngineSettings(
        airtime=airtime,
        duty=table.take("duty", 0.1, read_share),
        burst=table.take("burst", timedelta(seconds=1), read_duration),
        lanes_by_gateway=table.take("lanes_by_gateway", airtime, read_bool),
        max_calls=table.take("max_calls", 256, read_count),
        gateways_every=table.take("gateways_every", timedelta(seconds=30), read_duration_or_never),
    )
    table.end()
    return made


def _timings(table: Table) -> Timings:
    given: dict[str, Any] = {}
    for field in Timings.__struct_fields__:
        if field in table:
            given[field] = table.take(field, None, _TIMINGS.get(field, read_duration))
    table.end(known=Timings.__struct_fields__)
    try:
        return Timings(**given)
    except ConfigurationError as error:
        raise SettingsError(f"timings: {error}") from error


def _webhook(table: Table) -> WebhookSettings:
    made = WebhookSettings(
        name=table.needed("name", read_text),
        url=table.needed("url", read_text),
        secret=table.needed_secret("secret"),
    )
    table.end()
    return made


# -- values


def _polls(key: str, value: Any) -> tuple[tuple[timedelta, timedelta], ...]:
    if not isinstance(value, list) or not all(isinstance(each, list) and len(each) == 2 for each in value):
        raise SettingsError(
            f'{key} is a list of pairs (younger than, ask after) such as ["20s", "10s"], not {value!r}'
        )
    return tuple(
        (timedelta.max if age == "forever" else read_duration(key, age), read_duration(key, wait))
        for age, wait in value
    )


def _retry(key: str, value: Any) -> Exponential:
    if not isinstance(value, dict):
        raise SettingsError(
            f'{key} is a table such as {{ initial = "2s", max_attempts = 12 }}, not {value!r}'
        )
    table = Table(key, value, Path())
    usual = Timings().retry
    cap = table.take("cap", usual.cap, read_duration)
    try:
        made = Exponential(
            initial=table.take("initial", usual.initial, read_duration),
            multiplier=table.take("multiplier", usual.multiplier, read_number),
            cap=cap,
            jitter=table.take("jitter", usual.jitter, read_number),
            max_attempts=table.take("max_attempts", usual.max_attempts, read_count),
        )
    except SettingsError:
        raise
    except ConfigurationError as error:
        raise SettingsError(f"{key}: {error}") from error
    table.end()
    return made


_TIMINGS: Mapping[str, Read] = {"per_gateway": read_count, "polls": _polls, "retry": _retry}
