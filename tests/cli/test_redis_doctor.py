"""`doctor` on Redis and Valkey: settings that lose jobs, replicas, rights, queues that are nearly full."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from remuda import NewJob
from remuda.cli import redis_findings
from remuda.cli.exits import ExitCode
from remuda.stores.redis.findings import needed_commands, right_of
from tests.cli.conftest import Remuda, until
from tests.redis import test_acl
from tests.redis.links import linked
from tests.redis_servers import RedisServer, Sentinel, ValkeyServer

STREAM = "{chasqui:emails}:stream"


def _report(remuda: Remuda, url: str | None = None) -> tuple[int, Any]:
    ended = remuda("doctor", "--json", *(() if url is None else ("-u", url)))
    return ended.code, json.loads(ended.out)


def _found(report: Any, check: str) -> list[tuple[str, str]]:
    return [(each["level"], each["message"]) for each in report["findings"] if each["check"] == check]


def _set(server: RedisServer, **settings: str) -> None:
    with server.client() as client:
        for name, value in settings.items():
            client.config_set(name.replace("_", "-"), value)


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    """A server that a test may set as it likes."""
    with ValkeyServer() as server:
        yield server


@pytest.fixture
def remuda(server: ValkeyServer, tmp_path: Path) -> Remuda:
    return Remuda(server.url(), tmp_path)


# -- the server


def test_a_server_says_what_it_is(on_redis: Remuda) -> None:
    _, report = _report(on_redis)
    ((level, told),) = _found(report, "server")
    assert level == "ok"
    assert told.startswith(f"{report['backend'].title()} {report['version']}, ")
    assert ("a cluster" in told) == ("cluster" in on_redis.url)
    assert all(feature in told for feature in report["features"])


def test_a_policy_that_evicts_jobs_is_a_problem(remuda: Remuda, server: ValkeyServer) -> None:
    _set(server, maxmemory_policy="allkeys-lru")
    assert _found(_report(remuda)[1], "memory")[0][0] == "ok"  # without a limit nothing is evicted
    _set(server, maxmemory="1gb")
    code, report = _report(remuda)
    assert code == ExitCode.ERROR
    assert _found(report, "memory") == [
        ("problem", "maxmemory-policy is allkeys-lru: when memory is full the server throws away jobs")
    ]
    _set(server, maxmemory_policy="volatile-ttl")
    assert "throws away marks of unique ids" in _found(_report(remuda)[1], "memory")[0][1]


def test_memory_that_is_nearly_full(
    remuda: Remuda, server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    _set(server, maxmemory="1gb")
    assert _found(_report(remuda)[1], "memory")[0][1].endswith("of 1.0 GiB, nothing is evicted")
    monkeypatch.setattr(redis_findings, "NEARLY_FULL", 0.0)
    code, report = _report(remuda)
    ((level, told),) = _found(report, "memory")
    assert (code, level) == (0, "warning")
    assert told.endswith("of 1.0 GiB: when it is full adds are refused")


@pytest.mark.parametrize(
    ("settings", "level", "told"),
    [
        ({"appendonly": "no"}, "warning", "a restart loses all that was added or done"),
        ({"appendonly": "no", "save": "3600 1"}, "warning", "added or done since the last snapshot"),
        ({"appendfsync": "no"}, "warning", "may cost the last half minute"),
        ({"appendfsync": "everysec"}, "ok", "appendfsync everysec: a crash of the machine may cost the last"),
        ({"appendfsync": "always"}, "ok", "appendfsync always: a crash of the machine costs nothing"),
    ],
)
def test_what_a_crash_would_cost(
    remuda: Remuda, server: ValkeyServer, settings: dict[str, str], level: str, told: str
) -> None:
    _set(server, **settings)
    code, report = _report(remuda)
    assert code == 0
    ((found, message),) = _found(report, "durability")
    assert (found, told in message) == (level, True), message


def test_a_replica_is_a_problem(remuda: Remuda, server: ValkeyServer) -> None:
    with ValkeyServer() as replica:
        replica.replica_of(server)
        code, report = _report(remuda, replica.url())
        assert code == ExitCode.ERROR
        ((level, told),) = _found(report, "replication")
        assert (level, told) == (
            "problem",
            "this is a replica: nothing can be added or worked on here",
        )
        assert _found(_report(remuda)[1], "replication")[0][1].startswith("1 replica; a failover may lose")


def test_a_service_without_replicas_is_noticed(tmp_path: Path) -> None:
    with Sentinel() as service:
        remuda = Remuda(service.url(), tmp_path)
        assert _found(_report(remuda)[1], "replication")[0][0] == "ok"
        service.servers[1].stop()
        until(lambda: _found(_report(remuda)[1], "replication")[0][0] == "warning", "the replica is missed")


# -- this user


def _allow(server: RedisServer, *words: str) -> str:
    """The URL of a user with these rights."""
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "clerk", "reset", "on", ">secret", *words)
    return server.url().replace("://", "://clerk:secret@")


def test_rights_that_are_missing_are_named(remuda: Remuda, server: ValkeyServer) -> None:
    remuda.add(NewJob("good"))
    url = _allow(server, "~{chasqui:*", "+@all", "-xclaim", "-xgroup|create")
    code, report = _report(remuda, url)
    assert code == ExitCode.ERROR
    assert _found(report, "rights") == [("problem", "this user lacks 2 rights: xclaim, xgroup|create")]
    assert "-> ACL SETUSER clerk +xclaim +xgroup|create" in remuda("doctor", "-u", url).out
    scriptless = _report(remuda, _allow(server, "~{chasqui:*", "+@all", "-eval", "-evalsha"))[1]
    assert _found(scriptless, "rights") == [("problem", "this user lacks 2 rights: eval, evalsha")]


def test_what_this_user_may_not_see_is_no_error(remuda: Remuda, server: ValkeyServer) -> None:
    remuda.add(NewJob("good"), queue="emails")
    remuda.add(NewJob("good"), queue="invoices")
    code, report = _report(remuda, _allow(server, "~{chasqui:invoices}:*", "+@all", "-info", "-config"))
    assert code == 0
    assert _found(report, "settings")[0][0] == "unknown"
    assert _found(report, "rights")[0][0] == "ok"
    assert _found(report, "queues")[0][1].endswith("1 more are closed to this user")

    code, report = _report(remuda, _allow(server, "~{chasqui:unborn}:*", "+@all", "-config", "-scan"))
    assert code == 0
    assert [_found(report, check)[0][0] for check in ("durability", "rights", "queues")] == ["unknown"] * 3


def test_the_rights_that_are_asked_for_are_those_that_are_needed() -> None:
    proved = f"{test_acl.CONNECTING} {test_acl.SCRIPTS} {test_acl.STREAMS} {test_acl.OTHERS} {test_acl.NEWER}"
    needed = set(proved.split()) - {"hello", "select"}  # everybody's; only for another db than 0
    assert set(map(right_of, needed_commands(newer=True))) == needed


def test_every_command_is_one_that_a_server_knows(redis_store_url: str) -> None:
    """What it did not know it could not refuse."""

    async def keys_of_all() -> list[Any]:
        async with linked(redis_store_url) as link:
            commands = needed_commands(newer=link.server.has_ackdel)
            with_keys = [each for each in commands if "KEY" in each]
            return [await link.call("COMMAND", "GETKEYS", *each) for each in with_keys]

    assert all(keys == [b"KEY"] for keys in asyncio.run(keys_of_all()))


# -- queues


def test_other_programs_on_a_queue_are_noticed(
    on_valkey: Remuda, valkey_server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_valkey.add(*(NewJob("good") for _ in range(3)))
    on_valkey.work()
    on_valkey.add(*(NewJob("good") for _ in range(3)))
    assert _found(_report(on_valkey)[1], "queues") == [("ok", "1 queue, none near what it may hold")]
    with valkey_server.client() as client:
        client.xgroup_createconsumer(STREAM, "default", "c-4711")
    code, report = _report(on_valkey)
    ((level, told),) = _found(report, "consumers")
    assert (code, level) == (0, "warning")
    assert "emails: 1 consumer of other programs" in told
    assert "(c-4711)" in told
    assert not _found(report, "stream")

    monkeypatch.setattr(redis_findings, "CHASQUIMQ_TRIMS_AT", 2)
    code, report = _report(on_valkey)
    assert code == ExitCode.ERROR
    ((level, told),) = _found(report, "stream")
    assert (level, told.startswith("emails: 3 entries; beyond a million")) == ("problem", True)

    monkeypatch.setattr(redis_findings, "LONG_SILENT", timedelta(0))
    report = _report(on_valkey)[1]
    assert (
        "1 consumer of other programs left in its group (c-4711), silent for"
        in _found(report, "consumers")[0][1]
    )
    assert not _found(report, "stream")


def test_a_queue_that_nears_its_caps(on_valkey: Remuda) -> None:
    on_valkey.work([NewJob("bad") for _ in range(8)])
    assert not _found(_report(on_valkey)[1], "dead letters")
    code, report = _report(on_valkey, f"{on_valkey.url}?dlq_max=10&trail_max=30")
    assert code == 0
    assert _found(report, "dead letters") == [
        ("warning", "emails: 8, and 10 are kept: beyond that the oldest go")
    ]
    ((level, told),) = _found(report, "trail")
    assert (level, told.startswith("emails: 24 transitions of at most 30 go back ")) == ("warning", True)
    assert told.endswith("not 7 d")
    assert not _found(_report(on_valkey, f"{on_valkey.url}?trail_max=30&trail_age=1ms")[1], "trail")
