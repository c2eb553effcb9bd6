"""The settings of an engine, as a TOML file says them. Pure: secrets are named here, and read elsewhere.

Every error names the key, and the value where that is no secret.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from remuda.devices.timings import Timings
from remuda.durations import parse_duration
from remuda.errors import ConfigurationError
from remuda.retry import Exponential

T = TypeVar("T")
Read = Callable[[str, Any], Any]


class SettingsError(ConfigurationError):
    """The settings cannot be used as they are."""


class SecretSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where a secret is: a variable of the environment, or a file. `key` is what it is for."""

    key: str
    env: str | None = None
    file: Path | None = None

    def read(self, environ: Mapping[str, str]) -> str:
        """The secret itself, without blanks around it; `SettingsError` where there is none."""
        if self.env is not None:
            where, found = f"the variable {self.env}", environ.get(self.env, "")
        else:
            where, found = f"the file {self.file}", self._read_file()
        if not found.strip():
            raise SettingsError(f"{self.key}: {where} is empty or not there")
        return found.strip()

    def _read_file(self) -> str:
        try:
            return Path(self.file or "").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not text"
            raise SettingsError(f"{self.key}: the file {self.file} cannot be read: {why}") from error


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
    burst: timedelta = timedelta(seconds=10)
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
    top = _Table("", document, folder)
    calin_v1, calin_v2 = top.table("calin_v1"), top.table("calin_v2")
    settings = Settings(
        store=_store(top.table("store") or top.empty("store")),
        chirpstack=_optional(top.table("chirpstack"), _chirpstack),
        calin_v1=_optional(calin_v1, _calin),
        calin_v2=_optional(calin_v2, lambda table: _calin(table, customer=table.take("customer", "", _text))),
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


def _optional(table: _Table | None, make: Callable[[_Table], T]) -> T | None:
    return None if table is None else make(table)


# -- the tables


def _store(table: _Table) -> StoreSettings:
    url = table.take("url", None, _text)
    source = table.secret("url", is_needed=False, inline=True)
    if url is not None and source is not None:
        raise SettingsError("store.url and store.url_env or store.url_file: give one of them")
    if url is not None and ":" in url.partition("://")[2].rpartition("@")[0]:
        raise SettingsError(
            "store.url carries a password, and secrets do not stand in the settings: "
            "put the URL into a variable or a file, and name that as url_env or url_file"
        )
    made = StoreSettings(url=url or source, fleet=table.take("fleet", "devices", _text))
    table.end()
    return made


def _chirpstack(table: _Table) -> ChirpStackSettings:
    made = ChirpStackSettings(
        address=table.needed("address", _text),
        token=table.needed_secret("token"),
        tls=table.take("tls", None, _bool),
        ca_file=table.take("ca_file", None, table.path),
        tenant=table.take("tenant", None, _text),
        concurrency=table.take("concurrency", 32, _count),
        grids=table.take("grids", {}, _names),
    )
    table.end()
    return made


def _calin(table: _Table, *, customer: str = "") -> CalinSettings:
    made = CalinSettings(
        base_url=table.needed("base_url", _text),
        company=table.needed("company", _text),
        user=table.needed("user", _text),
        password=table.needed_secret("password"),
        allow_plain_http=table.take("allow_plain_http", False, _bool),
        concurrency=table.take("concurrency", 16, _count),
        customer=customer,
    )
    table.end()
    return made


def _ingress(table: _Table) -> IngressSettings:
    made = IngressSettings(
        host=table.take("host", "127.0.0.1", _text),
        port=table.take("port", 8090, _port),
        secret=table.secret("secret", is_needed=False),
        header=table.take("header", "X-Remuda-Secret", _text),
    )
    table.end()
    return made


def _engine(table: _Table) -> EngineSettings:
    airtime = table.take("airtime", False, _bool)
    made = EngineSettings(
        airtime=airtime,
        duty=table.take("duty", 0.1, _share),
        burst=table.take("burst", timedelta(seconds=10), _duration),
        lanes_by_gateway=table.take("lanes_by_gateway", airtime, _bool),
        max_calls=table.take("max_calls", 256, _count),
        gateways_every=table.take("gateways_every", timedelta(seconds=30), _duration_or_never),
    )
    table.end()
    return made


def _timings(table: _Table) -> Timings:
    given: dict[str, Any] = {}
    for field in Timings.__struct_fields__:
        if field in table:
            given[field] = table.take(field, None, _TIMINGS.get(field, _duration))
    table.end(known=Timings.__struct_fields__)
    try:
        return Timings(**given)
    except ConfigurationError as error:
        raise SettingsError(f"timings: {error}") from error


def _webhook(table: _Table) -> WebhookSettings:
    made = WebhookSettings(
        name=table.needed("name", _text),
        url=table.needed("url", _text),
        secret=table.needed_secret("secret"),
    )
    table.end()
    return made


# -- values


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise SettingsError(f"{key} is a text, not {value!r}")
    return value


def _bool(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise SettingsError(f"{key} is true or false, not {value!r}")
    return value


def _count(key: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise SettingsError(f"{key} is a whole number from 1 up, not {value!r}")
    return value


def _port(key: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value <= 65_535:
        raise SettingsError(f"{key} is a port from 0 (any that is free) to 65535, not {value!r}")
    return value


def _share(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise SettingsError(f"{key} is a share above 0 and at most 1, not {value!r}")
    return float(value)


def _duration(key: str, value: Any) -> timedelta:
    if not isinstance(value, str):
        raise SettingsError(f'{key} is a duration such as "20s" or "15m", not {value!r}')
    try:
        return parse_duration(value)
    except ValueError as error:
        raise SettingsError(f"{key}: {error}") from None


def _duration_or_never(key: str, value: Any) -> timedelta | None:
    return None if value == "never" else _duration(key, value)


def _names(key: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise SettingsError(f"{key} is a table of names, not {value!r}")
    return {name: _text(f"{key}.{name}", each) for name, each in value.items()}


def _polls(key: str, value: Any) -> tuple[tuple[timedelta, timedelta], ...]:
    if not isinstance(value, list) or not all(isinstance(each, list) and len(each) == 2 for each in value):
        raise SettingsError(
            f'{key} is a list of pairs (younger than, ask after) such as ["20s", "10s"], not {value!r}'
        )
    return tuple(
        (timedelta.max if age == "forever" else _duration(key, age), _duration(key, wait))
        for age, wait in value
    )


def _retry(key: str, value: Any) -> Exponential:
    if not isinstance(value, dict):
        raise SettingsError(
            f'{key} is a table such as {{ initial = "2s", max_attempts = 12 }}, not {value!r}'
        )
    table = _Table(key, value, Path())
    usual = Timings().retry
    cap = table.take("cap", usual.cap, _duration)
    try:
        made = Exponential(
            initial=table.take("initial", usual.initial, _duration),
            multiplier=table.take("multiplier", usual.multiplier, _number),
            cap=cap,
            jitter=table.take("jitter", usual.jitter, _number),
            max_attempts=table.take("max_attempts", usual.max_attempts, _count),
        )
    except SettingsError:
        raise
    except ConfigurationError as error:
        raise SettingsError(f"{key}: {error}") from error
    table.end()
    return made


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SettingsError(f"{key} is a number, not {value!r}")
    return float(value)


_TIMINGS: Mapping[str, Read] = {"per_gateway": _count, "polls": _polls, "retry": _retry}


class _Table:
    """A table whose keys are taken one by one; what is left over at the end is a mistake."""

    def __init__(self, name: str, values: Mapping[str, Any], folder: Path) -> None:
        self._name = name
        self._values = dict(values)
        self._folder = folder
        self._known: list[str] = []

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def empty(self, key: str) -> _Table:
        return _Table(self._key(key), {}, self._folder)

    def table(self, key: str) -> _Table | None:
        value = self._pop(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise SettingsError(f"{self._key(key)} is a table, [{self._key(key)}], not {value!r}")
        return _Table(self._key(key), value, self._folder)

    def tables(self, key: str) -> list[_Table]:
        value = self._pop(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise SettingsError(f"{self._key(key)} is a list of tables: write [[{self._key(key)}]]")
        return [
            _Table(f"{self._key(key)}[{place}]", each, self._folder) for place, each in enumerate(value, 1)
        ]

    def take(self, key: str, usual: Any, read: Read) -> Any:
        """A value, or the usual one."""
        value = self._pop(key)
        return usual if value is None else read(self._key(key), value)

    def needed(self, key: str, read: Read) -> Any:
        value = self._pop(key)
        if value is None:
            raise SettingsError(f"{self._key(key)} is missing")
        return read(self._key(key), value)

    def needed_secret(self, key: str) -> SecretSource:
        source = self.secret(key, is_needed=True)
        assert source is not None  # noqa: S101  # for the type checker
        return source

    def secret(self, key: str, *, is_needed: bool, inline: bool = False) -> SecretSource | None:
        """Where a secret is, by `key_env` or `key_file`. Written down it is refused, and not shown."""
        if not inline and self._pop(key) is not None:
            raise SettingsError(
                f"{self._key(key)} stands in the settings, and secrets do not: put it into a variable or a "
                f"file, and name that as {key}_env or {key}_file"
            )
        env = self.take(f"{key}_env", None, _text)
        file = self.take(f"{key}_file", None, self.path)
        if env is not None and file is not None:
            raise SettingsError(f"{self._key(key)}_env and {self._key(key)}_file: give one of them")
        if env is None and file is None:
            if is_needed:
                raise SettingsError(f"{self._key(key)}_env or {self._key(key)}_file is missing")
            return None
        return SecretSource(key=self._key(key), env=env, file=file)

    def path(self, key: str, value: Any) -> Path:
        return self._folder / Path(_text(key, value)).expanduser()

    def end(self, known: tuple[str, ...] = ()) -> None:
        """Nothing may be left."""
        for key in self._values:
            allowed = sorted({*self._known, *known})
            near = difflib.get_close_matches(key, allowed, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(allowed)}"
            raise SettingsError(f"{self._key(key)} is not known here; {hint}")

    def _pop(self, key: str) -> Any:
        self._known.append(key)
        return self._values.pop(key, None)

    def _key(self, key: str) -> str:
        return f"{self._name}.{key}" if self._name else key
