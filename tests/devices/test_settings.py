"""The settings of an engine: what a file can say, and what is said of one that cannot be used."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from remuda.devices.settings import (
    SecretSource,
    Settings,
    SettingsError,
    parse_settings,
    read_settings,
)
from remuda.devices.timings import Timings
from remuda.retry import Exponential

EVERYTHING = """
[store]
url = "sqlite:///fleet.db"
fleet = "north"

[chirpstack]
address = "https://chirpstack.example.org"
token_env = "CHIRPSTACK_TOKEN"
tls = true
ca_file = "ca.pem"
tenant = "t-1"
concurrency = 8
grids = { "0016c001f1500812" = "lagos-7" }

[calin_v1]
base_url = "https://calin.example.org/api"
company = "Acme"
user = "admin"
password_file = "secrets/calin"

[calin_v2]
base_url = "http://10.0.0.7"
company = "Acme"
user = "admin"
password_env = "CALIN_PASSWORD"
allow_plain_http = true
customer = "1"

[ingress]
host = "0.0.0.0"
port = 9000
secret_file = "/run/secrets/ingress"
header = "X-Secret"

[engine]
airtime = true
duty = 0.01
burst = "5s"
max_calls = 64
gateways_every = "1m"

[timings]
accept = "25s"
device = "15s"
per_gateway = 3
polls = [["20s", "5s"], ["forever", "1m"]]
retry = { initial = "4s", max_attempts = 6 }

[[webhooks]]
name = "billing"
url = "https://billing.example.org/hook"
secret_env = "BILLING_SECRET"
"""

CHIRPSTACK = '[chirpstack]\naddress = "127.0.0.1:8080"\ntoken_env = "T"\n'


def test_everything_that_a_file_can_say() -> None:
    told = parse_settings(EVERYTHING, folder=Path("/etc/remuda"))
    assert (told.store.url, told.store.fleet) == ("sqlite:///fleet.db", "north")
    assert told.chirpstack is not None
    assert told.chirpstack.token == SecretSource(key="chirpstack.token", env="CHIRPSTACK_TOKEN")
    assert told.chirpstack.ca_file == Path("/etc/remuda/ca.pem")
    assert told.chirpstack.grids == {"0016c001f1500812": "lagos-7"}
    assert (told.chirpstack.tls, told.chirpstack.tenant, told.chirpstack.concurrency) == (True, "t-1", 8)
    assert told.calin_v1 is not None
    assert told.calin_v1.password.file == Path("/etc/remuda/secrets/calin")
    assert told.calin_v2 is not None
    assert (told.calin_v2.allow_plain_http, told.calin_v2.customer) == (True, "1")
    assert told.ingress.secret is not None
    assert told.ingress.secret.file == Path("/run/secrets/ingress")
    assert (told.ingress.host, told.ingress.port, told.ingress.header) == ("0.0.0.0", 9000, "X-Secret")
    assert (told.engine.duty, told.engine.burst) == (0.01, timedelta(seconds=5))
    assert (told.engine.max_calls, told.engine.gateways_every) == (64, timedelta(minutes=1))
    assert [(each.name, each.secret.env) for each in told.webhooks] == [("billing", "BILLING_SECRET")]


def test_timings_are_durations_and_the_rest_is_usual() -> None:
    told = parse_settings(EVERYTHING).timings
    assert (told.accept, told.device, told.per_gateway) == (timedelta(seconds=25), timedelta(seconds=15), 3)
    assert told.polls == (
        (timedelta(seconds=20), timedelta(seconds=5)),
        (timedelta.max, timedelta(minutes=1)),
    )
    assert isinstance(told.retry, Exponential)
    assert (told.retry.initial, told.retry.max_attempts) == (timedelta(seconds=4), 6)
    assert told.retry.cap == Timings().retry.cap
    assert told.gateway == Timings().gateway


def test_an_empty_file_has_the_usual_values() -> None:
    assert parse_settings("") == Settings()


def test_every_timing_can_be_said() -> None:
    durations = [
        name
        for name in Timings.__struct_fields__
        if isinstance(getattr(Timings(), name), timedelta) and name != "call"
    ]
    assert len(durations) > 10
    text = "[timings]\n" + "\n".join(f'{name} = "7s"' for name in durations)
    told = parse_settings(text).timings
    assert {getattr(told, name) for name in durations} == {timedelta(seconds=7)}


@pytest.mark.parametrize(("text", "by_gateway"), [("airtime = true", True), ("", False)])
def test_lanes_are_by_gateway_where_air_time_is_shared_out(text: str, by_gateway: bool) -> None:
    assert parse_settings(f"[engine]\n{text}").engine.lanes_by_gateway is by_gateway
    other = f"[engine]\n{text}\nlanes_by_gateway = {str(not by_gateway).lower()}"
    assert parse_settings(other).engine.lanes_by_gateway is not by_gateway


def test_gateways_need_not_be_looked_at() -> None:
    assert parse_settings('[engine]\ngateways_every = "never"').engine.gateways_every is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[store", "not TOML"),
        ('[stor]\nurl = "x"', "stor is not known here; did you mean store?"),
        ("[engine]\nmax_cals = 3", "engine.max_cals is not known here; did you mean max_calls?"),
        ("[engine]\nmax_calls = 0", "engine.max_calls is a whole number from 1 up, not 0"),
        ("[engine]\nmax_calls = true", "engine.max_calls is a whole number from 1 up, not True"),
        ("[engine]\nduty = 1.5", "engine.duty is a share above 0 and at most 1, not 1.5"),
        ('[engine]\nairtime = "yes"', "engine.airtime is true or false, not 'yes'"),
        ("[engine]\nburst = 5", "engine.burst is a duration such as"),
        ('[engine]\nburst = "soon"', "engine.burst: not a duration: 'soon'"),
        ("[ingress]\nport = 70000", "ingress.port is a port from 0"),
        ('[timings]\naccept = "0s"', "timings: accept must be longer than nothing"),
        ('[timings]\ncall = "5s"', "timings: call"),
        ('[timings]\nacept = "5s"', "timings.acept is not known here; did you mean accept?"),
        ("[timings]\npolls = [1]", "timings.polls is a list of pairs"),
        ("[timings.retry]\nmultiplier = 0.5", "timings.retry: multiplier must be at least 1"),
        ('[timings.retry]\nfirst = "2s"', "timings.retry.first is not known here"),
        ("chirpstack = 3", "chirpstack is a table"),
        ("[webhooks]\nname = 'x'", "webhooks is a list of tables"),
        ('[chirpstack]\ntoken_env = "T"', "chirpstack.address is missing"),
        ('[chirpstack]\naddress = "h:1"', "chirpstack.token_env or chirpstack.token_file is missing"),
        (CHIRPSTACK + 'token_file = "f"', "give one of them"),
        (CHIRPSTACK + "grids = { a = 1 }", "chirpstack.grids.a is a text, not 1"),
        ('[[webhooks]]\nname = "a"', "webhooks[1].url is missing"),
        ('[calin_v1]\ncustomer = "1"', "calin_v1.base_url is missing"),
        (
            '[calin_v1]\nbase_url="u"\ncompany="c"\nuser="u"\npassword_env="P"\ncustomer="1"',
            "calin_v1.customer is not known here",
        ),
    ],
)
def test_what_cannot_be_used_is_named(text: str, told: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings(text)
    assert told in str(caught.value)


def test_two_webhooks_have_two_names() -> None:
    one = '[[webhooks]]\nname = "a"\nurl = "https://h"\nsecret_env = "S"\n'
    with pytest.raises(SettingsError, match="two have the same name"):
        parse_settings(one * 2)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('[chirpstack]\naddress = "h:1"\ntoken = "hunter2"', "chirpstack.token"),
        ('[calin_v1]\nbase_url="u"\ncompany="c"\nuser="u"\npassword = "hunter2"', "calin_v1.password"),
        ('[ingress]\nsecret = "hunter2"', "ingress.secret"),
        ('[[webhooks]]\nname="a"\nurl="https://h"\nsecret = "hunter2"', "webhooks[1].secret"),
        ('[store]\nurl = "postgresql://app:hunter2@db/app"', "store.url"),
    ],
)
def test_a_secret_in_the_file_is_refused_and_not_repeated(text: str, key: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_settings(text)
    assert key in str(caught.value)
    assert "_env or" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_store_with_a_password_is_named_by_a_variable() -> None:
    told = parse_settings('[store]\nurl_env = "FLEET_URL"').store.url
    assert isinstance(told, SecretSource)
    assert told.read({"FLEET_URL": "postgresql://app:hunter2@db/app"}).startswith("postgresql://")


def test_secrets_are_read_from_variables_and_files(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hunter2\n")
    assert SecretSource(key="k", env="T").read({"T": " hunter2 "}) == "hunter2"
    assert SecretSource(key="k", file=tmp_path / "token").read({}) == "hunter2"
    for source, told in (
        (SecretSource(key="chirpstack.token", env="T"), "chirpstack.token: the variable T"),
        (SecretSource(key="k", file=tmp_path / "nowhere"), "nowhere cannot be read: No such file"),
    ):
        with pytest.raises(SettingsError, match=told):
            source.read({"T": " "})


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    with pytest.raises(SettingsError, match=r"fleet.toml cannot be read: No such file"):
        read_settings(file)
    file.write_text("[engine]\nduty = 2")
    with pytest.raises(SettingsError, match=r"fleet.toml: engine.duty is a share"):
        read_settings(file)
    file.write_text(CHIRPSTACK.replace("token_env", "token_file"))
    told = read_settings(file).chirpstack
    assert told is not None
    assert told.token.file == tmp_path / "T"
