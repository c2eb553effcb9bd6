"""`dlq peek`, `replay`, `drop`, `export` on every store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from remuda import NewJob
from remuda.cli import dlq
from remuda.cli.exits import ExitCode
from tests.cli.conftest import Remuda
from tests.redis_servers import ValkeyServer


def _make_dead(remuda: Remuda) -> Remuda:
    """Twelve that ran out of attempts and three that were beyond help, all told by their numbers."""
    remuda.work(
        [NewJob("fail", n, job_id=f"fail-{n}") for n in range(12)],
        [NewJob("bad", n, job_id=f"bad-{n}") for n in range(3)],
    )
    return remuda


@pytest.fixture
def dead(remuda: Remuda) -> Remuda:
    """Dead letters in each kind of store."""
    return _make_dead(remuda)


@pytest.fixture
def dead_on_sqlite(on_sqlite: Remuda) -> Remuda:
    """Dead letters where the store does not matter."""
    return _make_dead(on_sqlite)


def test_peek_counts_by_reason_and_shows_the_latest(dead: Remuda) -> None:
    found = dead.json("dlq", "peek", "emails", "--limit", "4")
    assert found["total"] == 15
    assert found["by_reason"] == {"retries_exhausted": 12, "unrecoverable": 3}
    assert len(found["letters"]) == 4
    assert {each["name"] for each in found["letters"][:3]} == {"bad"}

    told = dead("dlq", "peek", "emails", "--limit", "4")
    assert told.out.splitlines()[:3] == ["by reason", "retries_exhausted  12", "unrecoverable       3"]
    assert told.err == "and 11 older ones (--limit)\n"
    row = next(line for line in told.out.splitlines() if line.startswith("bad-1"))
    assert "UnrecoverableError: no such customer" in row
    assert "Traceback" not in told.out
    assert "    Traceback" in dead.ok("dlq", "peek", "emails", "--limit", "1", "--trace")


def test_peek_tells_the_faults_apart_whatever_varies_in_their_words(dead: Remuda) -> None:
    first, second = dead.json("dlq", "peek", "emails", "--limit", "1")["by_fault"]
    assert (first["name"], first["letters"]) == ("fail", 12)
    assert first["fault"] == "ConnectionError: no connection for #"
    assert (second["name"], second["letters"]) == ("bad", 3)
    told = dead.ok("dlq", "peek", "emails").splitlines()
    place = told.index("by fault")
    assert told[place + 1].split() == ["FINGERPRINT", "LETTERS", "NAME", "FAULT"]
    assert told[place + 2].split(None, 3) == [first["fingerprint"], "12", "fail", first["fault"]]
    narrowed = dead.json("dlq", "peek", "emails", "--name", "bad")["by_fault"]
    assert [each["fingerprint"] for each in narrowed] == [second["fingerprint"]]


def test_of_many_letters_the_latest_tell_the_faults(
    dead_on_sqlite: Remuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dlq, "PAGE", 4)
    monkeypatch.setattr(dlq, "FAULTS_FROM", 8)
    monkeypatch.setattr(dlq, "FAULTS_SHOWN", 1)
    faults = dead_on_sqlite.json("dlq", "peek", "emails")["by_fault"]
    assert [(each["name"], each["letters"]) for each in faults] == [("fail", 5), ("bad", 3)]
    told = dead_on_sqlite("dlq", "peek", "emails").err
    assert "of the latest 8; the lake (`remuda lake triage`) counts all" in told
    assert "and 1 rarer faults" in told


CONDITIONS = {
    ("--reason", "unrecoverable"): 3,
    ("--name", "fail"): 12,
    ("--id", "fail-1", "--id", "bad-1", "--id", "nobody"): 2,
    ("--since", "1h"): 15,
    ("--until", "1h"): 0,
    ("--since", "2020-01-01", "--until", "2100-01-01T00:00Z", "--name", "bad"): 3,
}


def test_the_conditions_hold_on_every_store(dead: Remuda) -> None:
    for conditions, total in CONDITIONS.items():
        assert dead.json("dlq", "peek", "emails", *conditions)["total"] == total


@pytest.mark.parametrize(("conditions", "total"), CONDITIONS.items())
def test_every_command_takes_the_same_conditions(
    dead_on_sqlite: Remuda, conditions: tuple[str, ...], total: int
) -> None:
    remuda = dead_on_sqlite
    assert len(remuda.json("dlq", "replay", "emails", *conditions, "--dry-run")["ids"]) == total
    assert len(remuda.json("dlq", "drop", "emails", *conditions, "--dry-run")["ids"]) == total
    assert len(remuda.ok("dlq", "export", "emails", *conditions).splitlines()) == total
    assert remuda.count("failed") == 15


def test_a_condition_that_makes_no_sense_is_refused(on_sqlite: Remuda) -> None:
    for conditions in (("--reason", "boredom"), ("--since", "yesterday"), ("--limit", "0")):
        assert on_sqlite("dlq", "replay", "emails", *conditions).code == ExitCode.USAGE


def test_a_few_are_replayed_without_asking(dead: Remuda) -> None:
    replayed = dead.json("dlq", "replay", "emails", "--limit", "10")
    assert (replayed["replayed"], replayed["dry_run"], replayed["still_live"]) == (10, False, [])
    assert set(replayed["ids"]) < {f"fail-{n}" for n in range(12)}
    assert dead.counts("pending", "failed") == (10, 5)


def test_many_are_replayed_only_when_confirmed(dead: Remuda) -> None:
    refused = dead("dlq", "replay", "emails")
    assert refused.code == ExitCode.NOT_CONFIRMED
    assert "Replay 15 dead letters of emails: 12 retries_exhausted, 3 unrecoverable?" in refused.err
    assert dead.count("failed") == 15
    assert dead.ok("dlq", "replay", "emails", "--yes") == "replayed 15 dead letters of emails\n"
    assert dead.counts("pending", "failed") == (15, 0)
    assert dead.ok("dlq", "replay", "emails") == "replayed 0 dead letters of emails\n"


def test_what_lives_again_stays_dead_and_is_named(dead: Remuda) -> None:
    dead.add(NewJob("fail", job_id="fail-3"))
    ended = dead("dlq", "replay", "emails", "--name", "fail", "--yes", "--json")
    assert ended.code == 0
    assert json.loads(ended.out)["still_live"] == ["fail-3"]
    assert json.loads(ended.out)["replayed"] == 11


def test_letters_that_no_handler_can_read_are_not_replayed_unwarned(on_sqlite: Remuda) -> None:
    on_sqlite.add_undecodable()
    on_sqlite.work()
    ended = on_sqlite("dlq", "replay", "emails")
    assert ended.code == 0
    assert ended.err.startswith("warning: 1 decode_fail: no handler can read these")


def test_what_no_job_can_be_made_of_stays_and_is_told(on_valkey: Remuda, valkey_server: ValkeyServer) -> None:
    with valkey_server.client() as client:
        client.xadd("{chasqui:emails}:stream", {"d": "garbage", "n": "welcome"})
    on_valkey.work()
    for options in ((), ("--dry-run",)):
        ended = on_valkey("dlq", "replay", "emails", *options)
        assert ended.code == 0
        assert "1 stayed: no job can be made of them" in ended.err
    assert on_valkey.count("failed") == 1


def test_a_drop_always_asks(dead: Remuda) -> None:
    refused = dead("dlq", "drop", "emails", "--reason", "unrecoverable")
    assert refused.code == ExitCode.NOT_CONFIRMED
    assert "Drop 3 dead letters of emails: 3 unrecoverable for good?" in refused.err
    assert dead.count("failed") == 15
    dropped = dead.json("dlq", "drop", "emails", "--reason", "unrecoverable", "--limit", "2", "--yes")
    assert dropped["dropped"] == 2
    assert dead.count("failed") == 13
    assert dead.json("dlq", "drop", "emails", "--yes")["dropped"] == 13
    assert dead.count("failed") == 0


def test_an_id_that_is_not_there_is_not_found(dead_on_sqlite: Remuda) -> None:
    dead = dead_on_sqlite
    for command in ("replay", "drop", "export"):
        ended = dead("dlq", command, "emails", "--id", "nobody")
        assert ended.code == ExitCode.NOT_FOUND
        assert "no dead letter of emails has the id nobody" in ended.err


def test_a_dry_run_lists_the_ids_and_changes_nothing(dead_on_sqlite: Remuda) -> None:
    dead = dead_on_sqlite
    for command in ("replay", "drop"):
        ended = dead("dlq", command, "emails", "--limit", "12", "--dry-run")
        assert ended.code == 0
        assert set(ended.out.split()) == {f"fail-{n}" for n in range(12)}
        assert ended.err == f"would {command} 12 dead letters of emails\n"
    assert dead.count("failed") == 15


def test_an_export_holds_everything_oldest_first(dead: Remuda) -> None:
    file = Path(dead.directory, "dead.jsonl")
    ended = dead("dlq", "export", "emails", str(file))
    assert (ended.code, ended.out) == (0, "")
    assert ended.err == f"wrote 15 dead letters of emails to {file}\n"
    letters = [json.loads(line) for line in file.read_text().splitlines()]
    assert [each["name"] for each in letters] == ["fail"] * 12 + ["bad"] * 3
    assert {"id", "payload", "headers", "reason", "error_type", "error_trace", "ended_at"} <= letters[
        0
    ].keys()
    assert not Path(f"{file}.part").exists()
    assert dead("dlq", "export", "emails", str(file)).code == ExitCode.NOT_CONFIRMED
    told = dead.json("dlq", "export", "emails", str(file), "--yes", "--name", "bad")
    assert told == {"queue": "emails", "file": str(file), "written": 3}
    assert len(file.read_text().splitlines()) == 3


def test_what_was_exported_can_be_added_again(on_sqlite: Remuda) -> None:
    on_sqlite.add(NewJob("bad", {"n": 1}, headers={"a": "b"}))
    on_sqlite.work()
    letter = json.loads(on_sqlite.ok("dlq", "export", "emails"))
    kept = {key: letter[key] for key in ("name", "payload", "headers", "priority")}
    on_sqlite.ok("add", "second", "--from-jsonl", "-", stdin=json.dumps(kept))
    (job,) = on_sqlite.json("jobs", "list", "second")["jobs"]
    assert {key: job[key] for key in kept} == kept
