"""`events`: the trail as it grows, narrowed to what is wanted."""

from __future__ import annotations

import json
import signal

from remuda import NewJob
from tests.cli.conftest import Remuda


def lines(told: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in told.splitlines()]


def test_what_has_happened_is_told_in_order(remuda: Remuda) -> None:
    good, bad = remuda.add(NewJob("good"), NewJob("bad"))
    remuda.work()
    seen = lines(remuda.ok("events", "emails", "--since", "1h", "--no-follow", "--json"))
    assert [each["entered"] for each in seen if each["id"] == good] == ["PENDING", "PROCESSING", "COMPLETED"]
    assert [each["entered"] for each in seen if each["id"] == bad] == ["PENDING", "PROCESSING", "FAILED"]
    assert {(each["id"], each["name"]) for each in seen} == {(good, "good"), (bad, "bad")}
    assert [each["seq"] for each in seen] == sorted(each["seq"] for each in seen)

    told = remuda.ok("events", "emails", "--since", "1h", "--no-follow")
    assert len(told.splitlines()) == 6
    assert f"FAILED      {bad}" in told
    assert "unrecoverable" in told


def test_only_what_is_wanted_is_told(remuda: Remuda) -> None:
    good, bad = remuda.add(NewJob("good"), NewJob("bad"))
    remuda.work()

    def ids(*options: str) -> list[object]:
        return [each["id"] for each in lines(remuda.ok(*EVENTS, *options))]

    assert ids("--state", "failed") == [bad]
    assert ids("--state", "FAILED", "--state", "COMPLETED") in ([good, bad], [bad, good])
    assert ids("--name", "good") == [good] * 3
    assert ids("--id", bad) == [bad] * 3
    assert ids("--reason", "unrecoverable") == [bad]
    assert len(ids("--count", "2")) == 2
    assert ids("--reason", "nothing") == []
    assert "no such events" in remuda(*EVENTS[:-1], "--name", "nobody").err


def test_of_a_queue_that_is_gone_the_record_tells(remuda: Remuda) -> None:
    remuda.add(NewJob("good"), NewJob("bad"))
    remuda.work()
    remuda.ok("obliterate", "emails", "--yes")
    told = remuda("events", "emails", "--since", "1h", "--no-follow", "--state", "REMOVED", "--json")
    assert [each["name"] for each in lines(told.out)] == ["bad"]
    assert told.err == ""


EVENTS = ("events", "emails", "--since", "1h", "--no-follow", "--json")


def test_what_comes_is_followed(on_sqlite: Remuda) -> None:
    on_sqlite.add(NewJob("good"))
    following = on_sqlite.start("events", "emails", "--json", "--since", "1h")
    first = json.loads(following.readline())
    assert (first["name"], first["entered"]) == ("good", "PENDING")
    (later,) = on_sqlite.add(NewJob("good"))
    assert json.loads(following.readline())["id"] == later
    following.signal(signal.SIGINT)
    assert following.finish().code in (0, 130)
