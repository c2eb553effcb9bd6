"""`add`: one job with every option, and many from a file."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from remuda.cli.exits import ExitCode
from tests.cli.conftest import Remuda


def test_a_job_is_added_with_all_its_options(remuda: Remuda) -> None:
    job_id = remuda.ok(
        *(
            "add",
            "emails",
            "welcome",
            "--payload",
            '{"to": "a@example.org"}',
            "--delay",
            "5m",
            "--priority",
            "2",
        ),
        *("--header", "trace=abc", "--header", "equation=a=b", "--expires-in", "1h", "--rate-key", "acme"),
    ).strip()
    job = remuda.json("jobs", "show", "emails", job_id)["job"]
    assert job["payload"] == {"to": "a@example.org"}
    assert (job["name"], job["priority"], job["rate_key"]) == ("welcome", 2, "acme")
    assert "rate key" in remuda.ok("jobs", "show", "emails", job_id)
    assert job["headers"] == {"trace": "abc", "equation": "a=b"}
    added, due, expires = (
        datetime.fromisoformat(job[name]) for name in ("created_at", "next_attempt_at", "expires_at")
    )
    assert timedelta(minutes=4.9) < due - added < timedelta(minutes=5.1)
    assert timedelta(minutes=59) < expires - added < timedelta(minutes=61)


def test_a_job_is_added_for_a_moment(on_sqlite: Remuda) -> None:
    at = (datetime.now(UTC) + timedelta(days=1)).replace(microsecond=0)
    job_id = on_sqlite.ok("add", "emails", "welcome", "--at", at.isoformat()).strip()
    due = on_sqlite.json("jobs", "show", "emails", job_id)["job"]["next_attempt_at"]
    assert datetime.fromisoformat(due) == at


def test_the_payload_comes_from_a_file_or_from_stdin(on_sqlite: Remuda) -> None:
    Path(on_sqlite.directory, "payload.json").write_text("[1, 2]")
    file = str(Path(on_sqlite.directory, "payload.json"))
    ids = [
        on_sqlite.ok("add", "emails", "n", "--payload-file", file).strip(),
        on_sqlite.ok("add", "emails", "n", "--payload-file", "-", stdin='"from stdin"').strip(),
        on_sqlite.ok("add", "emails", "n", "--payload", "-", stdin='{"a": null}').strip(),
        on_sqlite.ok("add", "emails", "n").strip(),
        on_sqlite.ok("add", "emails", "n", "--payload", "3", "--payload-format", "json").strip(),
    ]
    payloads = [on_sqlite.json("jobs", "show", "emails", each)["job"]["payload"] for each in ids]
    assert payloads == [[1, 2], "from stdin", {"a": None}, None, 3]


def test_a_job_with_an_id_of_its_own_is_added_once(remuda: Remuda) -> None:
    arguments = ("add", "emails", "invoice", "--job-id", "invoice-42", "--unique-for", "1h")
    first, second = remuda.json(*arguments), remuda.json(*arguments)
    assert first == {"id": "invoice-42", "queue": "emails", "name": "invoice", "new": True}
    assert second == {**first, "new": False}
    assert remuda.count("pending") == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("welcome", "--payload", "{"), "the payload is not JSON"),
        (("welcome", "--payload", "1", "--payload-file", "x"), "not both"),
        (("welcome", "--payload-file", "/nowhere"), "cannot read /nowhere"),
        (("welcome", "--header", "novalue"), "a header is KEY=VALUE"),
        (("welcome", "--delay", "soon"), "not a duration: 'soon'"),
        (("welcome", "--at", "soon"), "not a time: 'soon'"),
        (("welcome", "--unique-for", "1h"), "needs a --job-id"),
        ((), "needs a NAME"),
        (("--from-jsonl", "x", "--delay", "5m"), "each line has its own payload and options"),
    ],
)
def test_what_makes_no_sense_is_refused(on_sqlite: Remuda, arguments: tuple[str, ...], told: str) -> None:
    ended = on_sqlite("add", "emails", *arguments)
    assert ended.code == ExitCode.USAGE
    assert told in ended.err


def test_many_jobs_are_added_from_a_file(remuda: Remuda) -> None:
    lines = [{"name": "welcome", "payload": {"n": n}} for n in range(2_345)]
    lines += [{"payload": 1, "delay": "1h", "priority": -1, "headers": {"a": 1}, "job_id": "mine"}]
    file = Path(remuda.directory, "jobs.jsonl")
    file.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    added = remuda.json("add", "emails", "other", "--from-jsonl", str(file))
    assert added["added"] == 2_346
    assert added["ids"][-1] == "mine"
    assert remuda.count("pending") == 2_346
    mine = remuda.json("jobs", "show", "emails", "mine", "--no-history")["job"]
    assert (mine["name"], mine["payload"], mine["priority"], mine["headers"]) == ("other", 1, -1, {"a": 1})


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"payload": 1}', "the job has no name"),
        ('{"name": "n", "prioriyt": 1}', "unknown: prioriyt; a line has name, payload"),
        ('{"name": "n", "priority": 9}', "from -2 to 2, not 9"),
        ('{"name": "n", "delay": "soon"}', "not a duration"),
        ('{"name": "n", "delay": 5}', "delay is text, such as 5m"),
        ('{"name": "n"', "truncated"),
        ("[1]", "a line is a JSON object"),
    ],
)
def test_a_mistake_in_one_line_adds_nothing(on_sqlite: Remuda, line: str, told: str) -> None:
    lines = '{"name": "n"}\n' * 1_500 + line
    ended = on_sqlite("add", "emails", "--from-jsonl", "-", stdin=lines)
    assert ended.code == ExitCode.USAGE
    assert "line 1501 of -:" in ended.err
    assert told in ended.err
    assert on_sqlite.count("pending") == 0
