"""`limit`: rate limits set, shown and taken away."""

from __future__ import annotations

import pytest

from remuda import NewJob
from remuda.cli.exits import ExitCode
from tests.cli.conftest import Remuda


def test_a_limit_is_set_shown_and_taken_away(remuda: Remuda) -> None:
    remuda.add(NewJob("good"))
    assert remuda.ok("limit", "emails") == "emails: no rate limit\n"
    told = remuda.ok("limit", "emails", "--jobs", "100", "--per", "1s", "--key-jobs", "1", "--key-per", "5m")
    assert told == "emails: at most 100 jobs in 1 s, for each key at most 1 job in 5 min\n"
    assert remuda.ok("limit", "emails") == told
    limits = {"queue": {"jobs": 100, "per_seconds": 1.0}, "key": {"jobs": 1, "per_seconds": 300.0}}
    assert remuda.json("limit", "emails") == {"queue": "emails", "rate_limits": limits}
    assert remuda.json("inspect", "emails")["rate_limits"] == limits
    assert remuda.json("inspect")["queues"][0]["rate_limits"] == limits
    assert remuda.json("watch", "emails", "--count", "1")["rate_limits"] == limits
    assert "at most 100 jobs in 1 s" in remuda.ok("inspect", "emails")
    assert "at most 100 jobs in 1 s" in remuda.ok("inspect")
    assert remuda.ok("limit", "emails", "--off") == "emails: no rate limit\n"
    assert "at most" not in remuda.ok("inspect", "emails")


def test_a_limit_that_is_not_given_is_taken_away(on_sqlite: Remuda) -> None:
    on_sqlite.ok("init")
    on_sqlite.ok("limit", "emails", "--jobs", "5", "--per", "1m")
    assert (
        on_sqlite.ok("limit", "emails", "--key-jobs", "2", "--key-per", "1h")
        == "emails: for each key at most 2 jobs in 1 h\n"
    )


def test_a_limit_holds_for_workers(remuda: Remuda) -> None:
    remuda.add(*(NewJob("good") for _ in range(5)))
    remuda.ok("limit", "emails", "--jobs", "2", "--per", "1h")
    remuda.work()
    assert remuda.counts("completed", "pending") == (2, 3)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--jobs", "5"), "--jobs and --per belong together"),
        (("--key-per", "5s"), "--key-jobs and --key-per belong together"),
        (("--jobs", "5", "--per", "1s", "--off"), "not both"),
        (("--jobs", "0", "--per", "1s"), "--jobs"),
        (("--jobs", "5", "--per", "soon"), "not a duration"),
        (("--jobs", "5000000", "--per", "1s"), "microsecond"),
    ],
)
def test_a_limit_that_means_nothing_is_refused(
    on_sqlite: Remuda, options: tuple[str, ...], complaint: str
) -> None:
    on_sqlite.ok("init")
    ended = on_sqlite("limit", "emails", *options)
    assert ended.code == ExitCode.USAGE
    assert complaint in " ".join(ended.err.split())
