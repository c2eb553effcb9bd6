"""`repeatable`: specs are added, listed, run and removed; workers make their jobs."""

from __future__ import annotations

import pytest

from remuda.cli.exits import ExitCode
from tests.cli.conftest import Remuda

DAILY = "daily::cron:0 9 * * MON-FRI:Europe/Berlin"


def test_a_repeatable_job_from_its_adding_to_its_end(remuda: Remuda) -> None:
    remuda.ok("init")
    assert "no repeatable jobs" in remuda("repeatable", "list", "emails").err
    key = remuda.ok(
        *("repeatable", "add", "emails", "daily", "--cron", "0 9 * * MON-FRI", "--tz", "Europe/Berlin"),
        *("--payload", '{"to": "a"}', "--limit", "40"),
    )
    assert key == f"{DAILY}\n"
    changed = remuda.json("repeatable", "add", "emails", "good", "--every", "90s", "--missed", "fire-once")
    assert (changed["key"], changed["every_seconds"], changed["missed"]) == (
        "good::every:90000",
        90.0,
        "fire-once",
    )

    listed = remuda.json("repeatable", "list", "emails")["repeatables"]
    assert [each["key"] for each in listed] == ["good::every:90000", DAILY]
    assert (listed[1]["zone"], listed[1]["limit"], listed[1]["fired"]) == ("Europe/Berlin", 40, 0)
    table = remuda.ok("repeatable", "list", "emails")
    assert "0 9 * * MON-FRI (Europe/Berlin)" in table
    assert "every 1 min 30 s, missed: fire-once" in table
    assert "0 of 40" in table
    seen = remuda.json("inspect", "emails")
    assert (seen["repeatables"], seen["next_repeatable_at"]) == (2, listed[0]["next_at"])
    assert "repeatable  2, next in 1 min" in remuda.ok("inspect", "emails")
    assert [each["queue"] for each in remuda.json("inspect")["queues"]] == ["emails"]

    job_id = remuda.ok("repeatable", "run", "emails", "good::every:90000").strip()
    assert remuda.json("jobs", "show", "emails", job_id)["job"]["name"] == "good"
    remuda.work()
    assert remuda.counts("completed") == (1,)

    asked = remuda("repeatable", "remove", "emails", DAILY)
    assert (asked.code, "nothing was changed" in asked.err) == (ExitCode.NOT_CONFIRMED, True)
    assert remuda.json("repeatable", "remove", "emails", DAILY, "--yes")["removed"] is True
    assert (
        remuda.ok("repeatable", "remove", "emails", "good::every:90000", "-y")
        == "removed good::every:90000\n"
    )
    assert remuda.json("repeatable", "list", "emails")["repeatables"] == []


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ((), "give either every or cron"),
        (("--every", "1h", "--cron", "* * * * *"), "give either every or cron"),
        (("--cron", "99 * * * *"), "'99 * * * *' cannot be read: Bad minute"),
        (("--cron", "* * * * *", "--tz", "Mars/Base"), "no time zone 'Mars/Base'"),
        (("--every", "often"), "not a duration"),
        (("--every", "1h", "--most", "3"), "goes with fire-all"),
        (("--every", "1h", "--missed", "perhaps"), "--missed"),
        (("--every", "1h", "--payload", "{"), "the payload is not JSON"),
    ],
)
def test_what_means_nothing_is_refused(on_sqlite: Remuda, options: tuple[str, ...], complaint: str) -> None:
    on_sqlite.ok("init")
    ended = on_sqlite("repeatable", "add", "emails", "good", *options)
    assert ended.code == ExitCode.USAGE
    assert complaint in ended.err
    assert on_sqlite.json("repeatable", "list", "emails")["repeatables"] == []


@pytest.mark.parametrize("what", ["remove", "run"])
def test_what_is_not_there_is_said_so(on_sqlite: Remuda, what: str) -> None:
    on_sqlite.ok("init")
    ended = on_sqlite("repeatable", what, "emails", "nothing")
    assert (ended.code, ended.err) == (ExitCode.NOT_FOUND, "remuda: emails has no repeatable job 'nothing'\n")
