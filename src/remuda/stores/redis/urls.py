"""What a Redis or Valkey URL says: where the server is, who we are to it, and how its queues are kept.

    redis://[user:password@]host[:port][/db]            one server; also valkey://
    rediss://…                                          with TLS; also valkeys://
    redis+unix://[user:password@]/path/of/the/socket    a Unix socket; also unix:///path and valkey+unix://
    redis+sentinel://[…@]host:port,host:port/service[/db]   the primary that Sentinels name
    redis+cluster://[…@]host:port,host:port             a cluster, found from any of its nodes
    valkey+embedded:///folder                           a private server; four slashes: an absolute path

After a `?` come parameters, `name=value` joined by `&`; `PARAMETERS` lists them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal, NamedTuple, NoReturn
from urllib.parse import unquote, unquote_plus

import msgspec

from remuda.errors import ConfigurationError
from remuda.stores import redact

Mode = Literal["single", "sentinel", "cluster", "embedded"]

SERVER_PORT = 6379
SENTINEL_PORT = 26379
_SOCKET_PATH_LIMIT = 103  # on macOS; Linux takes 107

_PLAIN = ("redis", "valkey")
_TLS = ("rediss", "valkeys")
SCHEMES = (
    *_PLAIN,
    *_TLS,
    "unix",
    *(f"{name}+unix" for name in _PLAIN),
    *(f"{name}+{mode}" for mode in ("sentinel", "cluster") for name in (*_PLAIN, *_TLS)),
    "valkey+embedded",
)


class Place(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """A store's URL, taken apart and checked. `None` means that the store decides."""

    url: str  # without its secrets
    mode: Mode
    places: tuple[Place, ...] = ()
    path: str | None = None  # of the Unix socket, or of the embedded server's folder
    service: str | None = None  # the primary's name among Sentinels
    db: int = 0
    tls: bool = False
    username: str | None = None
    password: str | None = None
    sentinel_username: str | None = None
    sentinel_password: str | None = None
    client_name: str = "remuda"
    timeout: float = 10.0
    max_connections: int | None = None
    ssl_ca_certs: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_cert_reqs: Literal["none", "optional", "required"] = "required"
    ssl_check_hostname: bool = True
    events: bool = False
    dlq_max: int | None = None
    trail_max: int | None = None
    trail_age: timedelta | None = None
    done_max: int | None = None

    def __repr__(self) -> str:
        return f"Address({self.url!r})"


def parse(url: str) -> Address:
    """The address that a URL gives; `ConfigurationError` names what is wrong with it, and no password.

    >>> parse("redis://cache.example.org/2?timeout=5").places
    (Place(host='cache.example.org', port=6379),)
    """
    scheme, separator, rest = url.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in SCHEMES:
        raise ConfigurationError(
            f"{redact(url)!r} is no URL of a Redis store; one begins with {'://, '.join(SCHEMES)}://"
        )
    family, _, kind = scheme.partition("+")
    if family == "unix":
        kind = "unix"
    head, _, query = rest.partition("?")
    credentials, _, location = head.rpartition("@")
    parameters = _parameters(query, url)
    place = _LOCATIONS[kind](location)
    if "db" in place and "db" in parameters:
        raise ConfigurationError(f"db stands twice in {redact(url)!r}")
    fields: dict[str, Any] = {"url": redact(url), "tls": family in _TLS}
    fields.update(**_who(credentials), **place, **parameters)
    _check(fields)
    return Address(**fields)


def _who(credentials: str) -> dict[str, str]:
    user, _, password = credentials.partition(":")
    given = {"username": unquote(user), "password": unquote(password)}
    return {name: value for name, value in given.items() if value}


# -- where it is


def _at_one_server(location: str) -> dict[str, Any]:
    authority, _, path = location.partition("/")
    if "," in authority:
        raise ConfigurationError(
            f"{authority!r} names several servers; write redis+sentinel:// or redis+cluster:// to use them"
        )
    return {"mode": "single", "places": (_place(authority, SERVER_PORT),), **_db(path)}


def _among_sentinels(location: str) -> dict[str, Any]:
    authority, _, path = location.partition("/")
    service, _, number = path.partition("/")
    if not service:
        raise ConfigurationError(
            "a Sentinel URL names the service that they watch: redis+sentinel://host:26379/service"
        )
    places = _places(authority, SENTINEL_PORT)
    return {"mode": "sentinel", "places": places, "service": unquote(service), **_db(number)}


def _in_a_cluster(location: str) -> dict[str, Any]:
    authority, _, path = location.partition("/")
    return {"mode": "cluster", "places": _places(authority, SERVER_PORT), **_db(path)}


def _at_a_socket(location: str) -> dict[str, Any]:
    if not location.startswith("/") or location.rstrip("/") == "":
        raise ConfigurationError(
            f"{location!r} is no path of a Unix socket; write redis+unix:///path/of/the/socket?db=0"
        )
    path = unquote(location)
    if len(os.fsencode(path)) > _SOCKET_PATH_LIMIT:
        raise ConfigurationError(
            f"{path!r} is too long for a Unix socket: at most {_SOCKET_PATH_LIMIT} bytes"
        )
    return {"mode": "single", "path": path}


def _in_a_folder(location: str) -> dict[str, Any]:
    # As with sqlite:///: what follows the third slash is the path, so a fourth one makes it absolute.
    folder = unquote(location.removeprefix("/"))
    if not location.startswith("/") or not folder:
        raise ConfigurationError(
            f"{location!r} is no folder; write valkey+embedded:///folder, or valkey+embedded:////absolute/folder"
        )
    return {"mode": "embedded", "path": folder}


_LOCATIONS: dict[str, Callable[[str], dict[str, Any]]] = {
    "": _at_one_server,
    "unix": _at_a_socket,
    "sentinel": _among_sentinels,
    "cluster": _in_a_cluster,
    "embedded": _in_a_folder,
}


def _places(authority: str, port: int) -> tuple[Place, ...]:
    return tuple(_place(part, port) for part in authority.split(","))


def _place(text: str, default_port: int) -> Place:
    """`host`, `host:port`, `[v6]`, `[v6]:port`; with nothing before the port it is this machine."""
    match = re.fullmatch(r"(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<host>[^\[\]:/@]*))(?::(?P<port>[0-9]*))?", text)
    port = int(match["port"] or default_port) if match else 0
    if not match or not 0 < port < 65536:
        raise ConfigurationError(
            f"{text!r} is no host:port; write an @, / or ? in a password as %40, %2F or %3F, and an IPv6 "
            "address in brackets"
        )
    return Place(match["v6"] or unquote(match["host"]) or "localhost", port)


def _db(text: str) -> dict[str, int]:
    return {"db": _whole("db", text)} if text else {}


# -- the parameters


def _wrong(name: str, value: str, expected: str) -> NoReturn:
    raise ConfigurationError(f"{name}={value} in the store's URL: {expected}")


def _whole(name: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,15}", value):
        _wrong(name, value, "a whole number from 0 on")
    return int(value)


def _positive(name: str, value: str) -> int:
    return _whole(name, value) or _wrong(name, value, "a whole number from 1 on")


def _connections(name: str, value: str) -> int:
    number = _whole(name, value)
    return number if number >= 2 else _wrong(name, value, "at least 2, one of them for waiting")


def _seconds(name: str, value: str) -> float:
    if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?", value) or float(value) == 0:
        _wrong(name, value, "a number of seconds above 0")
    return float(value)


_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def _duration(name: str, value: str) -> timedelta:
    parts = re.findall(r"([0-9]{1,9})(ms|[smhdw])", value)
    if not parts or "".join(number + unit for number, unit in parts) != value:
        _wrong(name, value, "a duration such as 30m, 12h, 7d or 1d12h")
    try:
        length = sum((timedelta(**{_UNITS[unit]: int(number)}) for number, unit in parts), timedelta(0))
    except OverflowError:
        _wrong(name, value, "a duration that can be waited for")
    return length or _wrong(name, value, "a duration above 0")


def _flag(name: str, value: str) -> bool:
    known = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False}
    known["off"] = False
    if value.lower() not in known:
        _wrong(name, value, "true or false")
    return known[value.lower()]


def _text(name: str, value: str) -> str:
    return value or _wrong(name, value, "it is empty")


def _client_name(name: str, value: str) -> str:
    if not re.fullmatch(r"[!-~]+", value):
        _wrong(name, value, "letters, digits and signs, no spaces")
    return value


def _cert_reqs(name: str, value: str) -> str:
    return (
        value
        if value in ("none", "optional", "required")
        else _wrong(name, value, "none, optional or required")
    )


PARAMETERS: dict[str, Callable[[str, str], object]] = {
    "client_name": _client_name,  # what CLIENT LIST shows
    "db": _whole,
    "dlq_max": _positive,  # dead letters that are kept
    "done_max": _whole,  # completed jobs that are kept
    "events": _flag,  # also write ChasquiMQ's events stream
    "max_connections": _connections,  # to one server
    "sentinel_password": _text,
    "sentinel_username": _text,
    "ssl_ca_certs": _text,
    "ssl_cert_reqs": _cert_reqs,
    "ssl_certfile": _text,
    "ssl_check_hostname": _flag,
    "ssl_keyfile": _text,
    "timeout": _seconds,  # of a server's silence, after which it counts as unavailable
    "trail_age": _duration,  # how long transitions are kept
    "trail_max": _positive,  # transitions that are kept
}


def _parameters(query: str, url: str) -> dict[str, object]:
    given: dict[str, object] = {}
    if "@" in query:
        # Most likely a password with a ? in it: no part of it may be shown, nor taken for something else.
        raise ConfigurationError(
            f"there is an @ after the ? of {redact(url)!r}; write a ? in a password as %3F, and an @ in a "
            "parameter as %40"
        )
    for part in filter(None, query.split("&")):
        name, equals, value = part.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
            raise ConfigurationError(
                f"the query of {redact(url)!r} is not name=value&name=value; a ? in a password is written %3F"
            )
        if name not in PARAMETERS:
            raise ConfigurationError(
                f"{name!r} is no parameter of a Redis store's URL; there are {', '.join(PARAMETERS)}"
            )
        if name in given:
            raise ConfigurationError(f"{name!r} stands twice in the store's URL")
        given[name] = PARAMETERS[name](name, unquote_plus(value))
    return given


def _check(fields: dict[str, Any]) -> None:
    """What does not go together."""
    for name in fields:
        if name.startswith("ssl_") and not fields["tls"]:
            raise ConfigurationError(f"{name} asks for TLS; write rediss:// or valkeys://")
        if name.startswith("sentinel_") and fields["mode"] != "sentinel":
            raise ConfigurationError(f"{name} is for a redis+sentinel:// URL")
    if fields["mode"] == "embedded" and {"username", "password"} & set(fields):
        raise ConfigurationError(
            "an embedded server has no users: it is yours alone; leave out user and password"
        )
    if fields["mode"] == "cluster" and fields.get("db"):
        raise ConfigurationError(f"db {fields['db']}: a cluster has only db 0")
    if fields.get("ssl_keyfile") and not fields.get("ssl_certfile"):
        raise ConfigurationError("ssl_keyfile needs its certificate: ssl_certfile")
