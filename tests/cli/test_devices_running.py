"""`remuda devices run` and `simulate`: an engine against the simulated servers, over real sockets."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from remuda.cli.devices.servers import SECRET, Addresses, settings_text
from remuda.cli.devices.summaries import percentile
from remuda.cli.exits import ExitCode
from remuda.devices.settings import parse_settings
from remuda.devices.webhooks import is_signed
from tests.cli.conftest import PACKAGE_HOME, Remuda, Started, until
from tests.servers import free_port

TOKEN = "90001234567890120500"


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """The command sets up the logs of its process, which here is the tests'."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in ("httpx", "httpcore", "uvicorn", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def settings(remuda: Remuda, text: str) -> str:
    Path(remuda.directory, "fleet.toml").write_text(text)
    return str(Path(remuda.directory, "fleet.toml"))


CALIN = '[calin_v1]\nbase_url = "http://127.0.0.1:1"\ncompany = "c"\nuser = "u"\npassword_env = "PASSWORD"\n'
CHIRPSTACK = '[chirpstack]\naddress = "127.0.0.1:1"\ntoken_env = "TOKEN"\n'
SECRETS = {"TOKEN": "t", "PASSWORD": "p", "SECRET": "0123456789abcdef"}


# -- the whole way


class Receiver(ThreadingHTTPServer):
    """Takes webhooks. `told` are those with a true signature."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Hook)
        self.told: list[dict[str, Any]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/hook"
        Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()


class _Hook(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        header = self.headers["X-Remuda-Signature"]
        assert isinstance(self.server, Receiver)
        if is_signed(body, header, secret=SECRETS["SECRET"], now=time.time()):
            self.server.told.append(json.loads(body))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.shutdown()
    made.server_close()


def test_commands_go_the_whole_way_to_simulated_meters(on_sqlite: Remuda, receiver: Receiver) -> None:
    hook = f"http://127.0.0.1:{free_port()}/chirpstack"
    simulator = on_sqlite.start(
        "devices", "simulate", "--meters", "4", "--loss", "0", "--webhooks", hook, "--write", "fleet.toml",
        "--every", "200ms", "--json",
    )  # fmt: skip
    world = json.loads(simulator.readline())
    assert world["written"] == "fleet.toml"
    with Path(on_sqlite.directory, "fleet.toml").open("a") as file:
        file.write(f'[[webhooks]]\nname = "billing"\nurl = "{receiver.url}"\nsecret_env = "SECRET"\n')
    engine = on_sqlite.start("devices", "run", "--config", "fleet.toml", "--json", **SECRETS)
    engine.logs("engine_started")
    meter = next(each for each in world["meters"] if each["protocol"] == "LORAWAN")
    where = ("--protocol", "LORAWAN", "--device", meter["serial"], "--gateway", meter["gateway"])
    config = str(Path(on_sqlite.directory, "fleet.toml"))
    more = ("--spreading-factor", "7", "--config", config, "--wait", "30s", "--json")
    told = json.loads(on_sqlite.ok("devices", "send", "READ_CREDIT", *where, *more))
    assert told["command"]["outcome"] == "executed"
    assert told["command"]["response"]["data"]["value"] > 0
    ended = on_sqlite("devices", "send", "TOP_UP", *where, "--token-stdin", *more, stdin=TOKEN)
    assert ended.code == ExitCode.OK
    assert TOKEN not in ended.out
    until(lambda: len(receiver.told) == 2, "the webhook was told of both ends")
    assert [each["outcome"] for each in receiver.told] == ["executed", "executed"]
    _stop(engine)
    logged = [json.loads(line) for line in engine.log().splitlines()]
    assert [each["action"] for each in logged if "action" in each][-1] == "engine_stopped"
    assert SECRET not in engine.log()
    simulator.signal(signal.SIGINT)
    counted = [json.loads(line) for line in simulator.finish().out.splitlines()]
    assert (counted[-1]["reads"], counted[-1]["tokens"]) == (1, 1)


def _stop(started: Started) -> None:
    started.signal(signal.SIGTERM)
    assert started.finish().code == 0, started.log()


def test_an_engine_waits_for_a_store_that_is_not_there_and_can_be_stopped(on_sqlite: Remuda) -> None:
    settings(on_sqlite, CALIN)
    url = "postgresql://nobody@127.0.0.1:1/x"
    started = on_sqlite.start("devices", "run", "-c", "fleet.toml", REMUDA_URL=url, **SECRETS)
    started.logs("the store cannot be opened; trying again")
    _stop(started)


def test_what_the_settings_say_is_checked_without_running(on_sqlite: Remuda) -> None:
    hook = '[[webhooks]]\nname = "billing"\nurl = "https://b.example.org"\nsecret_env = "SECRET"\n'
    config = settings(on_sqlite, CHIRPSTACK + CALIN + hook)
    told = on_sqlite("devices", "run", "--config", config, "--check", env=SECRETS)
    assert told.code == 0
    assert "LORAWAN, API_V1; lanes locked in turn, webhooks to billing" in told.out
    assert not Path(on_sqlite.directory, "remuda.db").exists()


# -- settings that cannot be used


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the settings name no network"),
        (CALIN + "[engine]\nairtime = 3", "engine.airtime is true or false, not 3"),
        (CALIN.replace("PASSWORD", "NOWHERE"), "calin_v1.password: the variable NOWHERE is empty"),
        (CHIRPSTACK + '[ingress]\nhost = "0.0.0.0"', "needs a secret"),
        (CHIRPSTACK.replace("127.0.0.1", "10.0.0.7"), "would go to 10.0.0.7:1 in clear"),
        (CALIN.replace("127.0.0.1:1", "10.0.0.7"), "in clear"),
        (CALIN.replace("password_env", "password"), "secrets do not"),
        (CALIN + '[store]\nfleet = "a/b"', "a fleet's name is"),
    ],
)
def test_settings_that_cannot_be_used_end_it_with_one_line(on_sqlite: Remuda, text: str, told: str) -> None:
    ended = on_sqlite("devices", "run", "--config", settings(on_sqlite, text), "--check", env=SECRETS)
    assert ended.code == ExitCode.USAGE
    assert told in ended.err
    assert ended.err.count("\n") == 1


def test_beyond_the_loopback_a_secret_opens_the_ingress(on_sqlite: Remuda) -> None:
    text = CHIRPSTACK + '[ingress]\nhost = "0.0.0.0"\nsecret_env = "SECRET"\n'
    assert on_sqlite("devices", "run", "-c", settings(on_sqlite, text), "--check", env=SECRETS).code == 0


@pytest.mark.parametrize(("module", "text"), [("grpc", CHIRPSTACK), ("httpx", CALIN)])
def test_a_missing_package_is_said_to_be_one(on_sqlite: Remuda, module: str, text: str) -> None:
    """In a process of its own: what is imported once stays."""
    settings(on_sqlite, text)
    program = f"import sys; sys.modules[{module!r}] = None; from remuda.cli import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", program, "devices", "run", "-c", "fleet.toml", "--check"],
        cwd=on_sqlite.directory,
        env={**os.environ, "PYTHONPATH": PACKAGE_HOME, "REMUDA_URL": on_sqlite.url, **SECRETS},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == ExitCode.USAGE, ended.stderr
    assert f"needs the package {module}: pip install 'remuda[devices]'" in ended.stderr


def test_other_commands_take_store_and_fleet_from_the_settings(on_sqlite: Remuda) -> None:
    store = f'[store]\nurl = "{on_sqlite.url}"\nfleet = "north"\n[engine]\nairtime = true\n'
    config = settings(on_sqlite, store)
    send = ("devices", "send", "READ_CREDIT", "-d", "47003333771", "-p", "LORAWAN", "--gateway", "gw-1")
    assert on_sqlite(*send, "-c", config, env={"REMUDA_URL": ""}).code == 0
    (sent,) = on_sqlite.json("devices", "list", "--fleet", "north")["commands"]
    assert sent["lane"] == "lorawan_gateway:gw-1"


# -- simulate


def test_the_settings_of_a_simulated_world_can_be_used() -> None:
    addresses = Addresses("127.0.0.1:1234", "http://127.0.0.1:1235", "http://127.0.0.1:8090/chirpstack")
    told = parse_settings(settings_text(addresses, url="sqlite:///f.db", secret='env = "S"'))
    assert told.chirpstack is not None
    assert told.calin_v2 is not None
    assert (told.chirpstack.address, told.chirpstack.token.env) == ("127.0.0.1:1234", "S")
    assert told.calin_v2.base_url == "http://127.0.0.1:1235"
    assert (told.ingress.host, told.ingress.port) == ("127.0.0.1", 8090)
    assert told.engine.lanes_by_gateway


def test_a_world_in_real_time_prints_its_settings_and_ends_after_its_time(on_sqlite: Remuda) -> None:
    told = on_sqlite.ok("devices", "simulate", "--meters", "10", "--for", "10ms")
    assert "8 by LORAWAN, 1 by API_V1, 1 by API_V2" in told
    assert 'token_env = "REMUDA_SIMULATED"' in told
    assert "remuda devices send READ_CREDIT --device 47003000000" in told


def test_settings_are_not_overwritten_unasked(on_sqlite: Remuda) -> None:
    config = settings(on_sqlite, "mine")
    arguments = ("devices", "simulate", "--meters", "1", "--for", "1ms", "--write", config)
    assert on_sqlite(*arguments).code == ExitCode.NOT_CONFIRMED
    assert Path(config).read_text() == "mine"
    assert on_sqlite(*arguments, "--yes").code == 0
    secret = Path(on_sqlite.directory, "fleet.secret")
    assert secret.stat().st_mode & 0o077 == 0


def test_an_address_that_events_cannot_be_posted_to_is_refused(on_sqlite: Remuda) -> None:
    ended = on_sqlite("devices", "simulate", "--webhooks", "nowhere", "--for", "1ms")
    assert ended.code == ExitCode.USAGE
    assert "not 'nowhere'" in ended.err


def test_a_virtual_day_is_told_in_numbers(on_sqlite: Remuda) -> None:
    arguments = ("devices", "simulate", "--virtual", "--meters", "20", "--hours", "2", "--loss", "0.15")
    told = on_sqlite.json(*arguments, "--seed", "7")
    assert told["sent"] == told["ended"] == sum(each["commands"] for each in told["types"])
    assert told["by_outcome"]["executed"] > 30
    assert (told["unended"], told["lies"]) == (0, [])
    assert sum(told["attempts"].values()) == told["ended"]
    assert told["virtual_seconds"] >= 7200
    assert told["speed_up"] > 100
    again = on_sqlite.json(*arguments, "--seed", "7")
    assert again["types"] == told["types"]
    words = on_sqlite.ok(*arguments, "--seed", "7")
    assert "every record agrees with its meter" in words
    assert "READ_CREDIT  LORAWAN  DELIVERY_SUCCESSFUL  executed" in words


def test_a_virtual_day_with_a_lie_is_an_error(on_sqlite: Remuda, monkeypatch: pytest.MonkeyPatch) -> None:
    from remuda.devices.simulator.truth import Lie

    lie = Lie(command="c", device="d", type="TOP_UP", said=None, why="applied 2 times")
    monkeypatch.setattr("remuda.devices.simulator.rehearsal.lies", lambda *_: [lie])
    ended = on_sqlite("devices", "simulate", "--virtual", "--meters", "2", "--hours", "0.2", "--loss", "0")
    assert ended.code == ExitCode.ERROR
    assert "applied 2 times" in ended.out


def test_a_percentile_is_a_value_that_was_there() -> None:
    values = [timedelta(seconds=each) for each in range(10)]
    assert percentile(values, 0.5) == timedelta(seconds=5)
    assert percentile(values, 0.99) == timedelta(seconds=9)
    assert percentile(values[:1], 0.5) == timedelta(0)
