"""URLs of Redis stores: what they say, and what is wrong with those that are refused."""

from __future__ import annotations

from datetime import timedelta
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from remuda.errors import ConfigurationError
from remuda.stores.redis.urls import PARAMETERS, Address, Place, parse

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("redis://cache.example.org", Place("cache.example.org", 6379)),
        ("redis://", Place("localhost", 6379)),
        ("redis://:7000", Place("localhost", 7000)),
        ("valkey://10.0.0.1:7000/", Place("10.0.0.1", 7000)),
        ("rediss://[::1]:7000/1", Place("::1", 7000)),
        ("redis://[fe80::1]", Place("fe80::1", 6379)),
        ("REDIS://Host?timeout=5", Place("Host", 6379)),
        ("redis://user:a@b:c/d@host:1", Place("host", 1)),
    ],
)
def test_one_server(url: str, place: Place) -> None:
    address = parse(url)
    assert address.mode == "single"
    assert address.places == (place,)
    assert address.path is None


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
def test_tls_is_in_the_scheme(scheme: str) -> None:
    assert not parse(f"{scheme}://host").tls
    assert parse(f"{scheme}s://host").tls
    assert parse(f"{scheme}s+sentinel://host/main").tls
    assert parse(f"{scheme}s+cluster://host").tls


def test_the_database_stands_in_the_path_or_in_the_query() -> None:
    assert parse("redis://host/3").db == 3
    assert parse("redis://host?db=3").db == 3
    assert parse("unix:///run/redis.sock?db=3").db == 3
    assert parse("redis+sentinel://host/main/3").db == 3
    assert parse("redis://host/").db == 0


@pytest.mark.parametrize("scheme", ["unix", "redis+unix", "valkey+unix"])
def test_a_unix_socket(scheme: str) -> None:
    address = parse(f"{scheme}://user:{SECRET}@/run/my%20redis.sock")
    assert (address.mode, address.path) == ("single", "/run/my redis.sock")
    assert (address.username, address.password) == ("user", SECRET)


def test_sentinels_and_the_service_that_they_watch() -> None:
    address = parse("redis+sentinel://user:pw@a,b:1234,[::1]/main/2?sentinel_username=s&sentinel_password=t")
    assert address.mode == "sentinel"
    assert address.places == (Place("a", 26379), Place("b", 1234), Place("::1", 26379))
    assert (address.service, address.db) == ("main", 2)
    assert (address.username, address.password) == ("user", "pw")
    assert (address.sentinel_username, address.sentinel_password) == ("s", "t")


def test_the_nodes_of_a_cluster() -> None:
    address = parse("valkey+cluster://a:7001,b:7002/0")
    assert address.mode == "cluster"
    assert address.places == (Place("a", 7001), Place("b", 7002))


def test_the_folder_of_an_embedded_server_is_written_like_a_sqlite_file() -> None:
    assert parse("valkey+embedded:///var/jobs").path == "var/jobs"
    assert parse("valkey+embedded:////var/jobs").path == "/var/jobs"
    assert parse("valkey+embedded:///./jobs?timeout=3").path == "./jobs"


@given(st.text(st.characters(codec="utf-8"), min_size=1), st.text(st.characters(codec="utf-8"), min_size=1))
def test_any_name_and_password_can_be_written_in_a_url(user: str, password: str) -> None:
    address = parse(f"redis://{quote(user, safe='')}:{quote(password, safe='')}@host/1?timeout=2")
    assert (address.username, address.password) == (user, password)
    assert address.places == (Place("host", 6379),)


def test_a_password_without_a_user() -> None:
    address = parse("redis://:secret@host")
    assert (address.username, address.password) == (None, "secret")


def test_parameters() -> None:
    address = parse(
        "rediss://host?events=true&dlq_max=5&trail_max=1000&trail_age=1d12h&done_max=0&timeout=2.5"
        "&max_connections=20&client_name=shop&ssl_cert_reqs=none&ssl_ca_certs=/a%20b.pem&ssl_check_hostname=no"
    )
    assert address.events is True
    assert (address.dlq_max, address.trail_max, address.done_max) == (5, 1000, 0)
    assert address.trail_age == timedelta(days=1, hours=12)
    assert (address.timeout, address.max_connections, address.client_name) == (2.5, 20, "shop")
    assert (address.ssl_cert_reqs, address.ssl_ca_certs) == ("none", "/a b.pem")
    assert address.ssl_check_hostname is False


def test_what_a_url_does_not_say() -> None:
    address = parse("redis://host")
    assert address.timeout == 10
    assert address.events is False
    assert address.ssl_cert_reqs == "required"
    assert {address.dlq_max, address.trail_max, address.trail_age, address.done_max} == {None}
    assert {address.username, address.password, address.max_connections} == {None}


def test_every_parameter_is_a_field_of_the_address() -> None:
    assert set(PARAMETERS) <= set(Address.__struct_fields__)


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("http://host", "http://host"),
        ("redis:host", "redis:host"),
        ("rediss+unix:///run/redis.sock", "rediss"),
        ("redis+embedded:///dir", "redis\\+embedded"),
        ("redis://host:99999", "host:99999"),
        ("redis://host:0", "host:0"),
        ("redis://host:http", "host:http"),
        ("redis://::1", "brackets"),
        ("redis://a,b", "redis\\+sentinel"),
        ("redis://host/one", "db=one"),
        ("redis://host/-1", "db=-1"),
        ("redis://host/0/1", "db=0/1"),
        ("unix://run/redis.sock", "run/redis.sock"),
        ("unix:///", "no path"),
        (f"unix:///{'long' * 30}", "too long"),
        ("redis+sentinel://host", "service"),
        ("redis+sentinel://host/main/x", "db=x"),
        ("redis+cluster://host/1", "only db 0"),
        ("redis+cluster://host?db=2", "only db 0"),
        ("redis://host/1?db=2", "db stands twice"),
        ("valkey+embedded://", "no folder"),
        ("valkey+embedded://me:secret@/dir", "no users"),
        ("valkey+embedded://./dir", "\\./dir"),
        ("redis://host?tiemout=3", "'tiemout'.*timeout"),
        ("redis://host?timeout", "name=value"),
        ("redis://host?timeout=3&timeout=4", "twice"),
        ("redis://host?timeout=soon", "timeout=soon"),
        ("redis://host?timeout=0", "timeout=0"),
        ("redis://host?timeout=-1", "timeout=-1"),
        ("redis://host?timeout=inf", "timeout=inf"),
        ("redis://host?dlq_max=0", "dlq_max=0"),
        ("redis://host?dlq_max=1e3", "dlq_max=1e3"),
        ("redis://host?trail_age=7", "trail_age=7"),
        ("redis://host?trail_age=0d", "trail_age=0d"),
        ("redis://host?trail_age=999999999w", "trail_age=999999999w"),
        ("redis://host?events=maybe", "events=maybe"),
        ("redis://host?max_connections=1", "max_connections=1"),
        ("redis://host?client_name=my%20shop", "client_name=my shop"),
        ("redis://host?ssl_ca_certs=/a.pem", "ssl_ca_certs.*rediss"),
        ("rediss://host?ssl_cert_reqs=maybe", "ssl_cert_reqs=maybe"),
        ("rediss://host?ssl_keyfile=/a.pem", "ssl_certfile"),
        ("redis://host?sentinel_password=x", "sentinel_password"),
        ("redis+sentinel://host/main?sentinel_password=", "empty"),
    ],
)
def test_what_is_wrong_is_named(url: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        parse(url)


# As people write them who do not know that some signs must be escaped: the URL may or may not be understood,
# but what is said of it shows no password.
@pytest.mark.parametrize(
    "url",
    [
        f"redis://user:{SECRET}@host:port",
        f"redis://user:{SECRET}?x@host",
        f"redis://user:a?{SECRET}@host",
        f"redis://user:a?{SECRET}=b@host",
        f"redis://user:a@b?{SECRET}@host",
        f"redis://user:{SECRET}#x@host/db",
        f"redis://user:a/{SECRET}@host/db",
        f"redis+sentinel://user:{SECRET}@host",
        f"redis+sentinel://host/main?sentinel_password={SECRET}&timeout=x",
        f"redis+cluster://user:{SECRET}?@host/1",
        f"unix://user:{SECRET}@socket",
        f"valkey+embedded://user:{SECRET}@dir",
    ],
)
def test_no_error_shows_a_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(url)
    assert SECRET not in str(caught.value)


@given(st.text(st.characters(codec="ascii", categories=("L", "N", "P", "S")), max_size=8))
@example("?=")
@example("?timeout=")
def test_no_password_is_shown_however_it_is_written(signs: str) -> None:
    url = f"redis://user:{signs}geheim@host:port"
    try:
        shown = repr(parse(url))
    except ConfigurationError as error:
        shown = str(error)
    assert "geheim" not in shown


def test_an_address_is_shown_without_its_secrets() -> None:
    address = parse(f"redis+sentinel://user:{SECRET}@host/main?sentinel_password={SECRET}")
    assert SECRET not in repr(address)
    assert SECRET not in address.url
    assert "user" in address.url
