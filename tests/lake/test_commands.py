"""`remuda lake …` as a person or a script uses it. One session serves all of them here."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from remuda import Queue
from remuda.cli.app import app
from remuda.stores.contract import Store
from tests.lake.stores import on_store, worked

Run = Callable[..., Result]


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr("remuda.lake.session.open_session", lambda **_: spark)
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)
    monkeypatch.setenv("REMUDA_LAKE", str(tmp_path / "lake"))
    monkeypatch.setenv("REMUDA_URL", sqlite_url)

    def invoke(*arguments: str, code: int = 0) -> Result:
        done = CliRunner().invoke(app, ["lake", *arguments])
        assert done.exit_code == code, done.output + done.stderr
        return done

    return invoke


def _json(done: Result) -> Any:
    return json.loads(done.stdout)


def test_from_the_store_to_answers_and_back(run: Run, sqlite_url: str, tmp_path: Path) -> None:
    dead = worked(sqlite_url, "emails", 30, dead_every=10)
    assert "there is no lake at" in run("status", code=2).stderr
    lines = [json.loads(line) for line in run("ingest", "--json", "--trim").stdout.splitlines()]
    assert lines[0]["round"]["transitions"] == 90
    assert lines[1]["build"]["histories"] == 30
    assert lines[2] == {"trimmed": {"emails": 90}}
    assert "nothing new" in run("ingest").stderr

    found = _json(run("status", "--json"))
    assert {each["table"]: each["rows"] for each in found["tables"]}["histories"] == 30
    assert [(each["trail"], each["behind"]) for each in found["trails"]] == [("emails", 0)]

    (fault,) = _json(run("triage", "--json"))
    assert (fault["dead_now"], fault["queue"], fault["reason"]) == (3, "emails", "retries_exhausted")
    assert "ValueError" in fault["fault"]
    plan = _json(run("replay", "--fingerprint", fault["fingerprint"], "--dry-run", "--json"))
    assert plan["letters"] == 3
    assert "Nobody is there to be asked" in run("replay", "--resume", plan["id"], code=6).stderr
    done = _json(run("replay", "--resume", plan["id"], "--yes", "--json"))
    assert (done["replayed"], done["done"]) == (3, 3)
    assert _json(run("replay", "--resume", plan["id"], "--yes", "--json"))["replayed"] == 3
    assert "nothing that was asked for" in run("replay", "--queue", "nothing", code=5).stderr

    # An audit brings the lake up to date first.
    assert on_store(sqlite_url, lambda store: Queue("emails", store).purge()) == 3
    answer = _json(run("audit", "--json"))
    assert answer["clean"] is True
    (queue,) = answer["queues"]
    assert (queue["added"], queue["delivered"], queue["dead"], queue["removed"]) == (30, 27, 0, 3)
    rows = _json(run("sql", "SELECT message FROM histories WHERE outcome = 'removed' ORDER BY 1", "--json"))
    assert [row["message"] for row in rows] == sorted(dead)
    assert "does not make sense" in run("sql", "SELECT nonsense FROM nowhere", code=2).stderr


def test_a_generated_lake_can_be_asked_everything(run: Run, tmp_path: Path) -> None:
    made = _json(run("generate", "-n", "3000", "--seed", "3", "--json"))
    assert made["transitions"] > 2_000
    assert "already" in run("generate", code=2).stderr
    assert "one of" in run("generate", "--fault", "flood=1", "--lake", str(tmp_path / "x"), code=2).stderr
    page = tmp_path / "report.html"
    assert _json(run("report", str(page), "--json"))["file"] == str(page)
    assert page.read_text().startswith("<!doctype html>".upper()) or "<html" in page.read_text()[:200]
    figures = _json(run("whatif", "emails", "--policy", "none", "--json"))
    assert figures["what_if"]["delivered"] <= figures["recorded"]["delivered"]
    assert "say --policy" in run("whatif", "emails", code=2).stderr
    out = tmp_path / "out"
    query = ("SELECT queue, outcome FROM histories", str(out), "--format", "csv", "--files", "1")
    assert _json(run("export", *query, "--json")) == {"folder": str(out), "format": "csv"}
    (file,) = out.glob("*.csv")
    with file.open() as lines:
        exported = list(csv.DictReader(lines))
    assert len(exported) == polars.read_delta(str(tmp_path / "lake" / "histories")).height
    assert "is there already" in run("export", "histories", str(out), code=2).stderr
    refused = run("upkeep", "--keep", "transitions=2d", code=6).stderr
    assert "Let transitions older than 2 d expire for good? Nobody is there to be asked" in refused
    kept = _json(run("upkeep", "--keep", "transitions=2d", "--yes", "--json"))
    by_table = {each["table"]: each for each in kept}
    assert by_table["transitions"]["days_expired"] >= 4
    assert by_table["measures"]["files_after"] <= by_table["measures"]["files_before"]
    assert "can expire by the day" in run("upkeep", "--keep", "anomalies=9d", code=2).stderr


def test_a_campaign_from_a_file_to_its_end(run: Run, sqlite_url: str, tmp_path: Path) -> None:
    on_store(sqlite_url, _nothing)
    devices = tmp_path / "meters.csv"
    devices.write_text("device,protocol,gateway\n47003333771,API_V1,gw-1\n47003333772,API_V1,gw-1\n")
    begun = _json(
        run(
            "campaign",
            "start",
            "credit",
            "READ_CREDIT",
            "--devices",
            str(devices),
            "--waves",
            "1,rest",
            "--json",
        )
    )
    assert begun == {"name": "credit", "devices": 2, "waves": [1, 2]}
    assert (
        "already"
        in run("campaign", "start", "credit", "READ_CREDIT", "--devices", str(devices), code=2).stderr
    )
    first = _json(run("campaign", "run", "credit", "--once", "--yes", "--json"))
    assert (first["sent_now"], first["counts"]["under_way"], first["state"]) == (1, 1, "running")
    run("campaign", "pause", "credit")
    assert _json(run("campaign", "status", "credit", "--json"))["state"] == "paused"
    assert _json(run("campaign", "pause", "credit", "--json"))["state"] == "paused"
    assert _json(run("campaign", "resume", "credit", "--json"))["state"] == "running"
    assert _json(run("campaign", "abort", "credit", "--yes", "--json"))["state"] == "aborted"
    last = [
        json.loads(line)
        for line in run("campaign", "run", "credit", "--yes", "--json", code=1).stdout.splitlines()
    ][-1]
    assert (last["state"], last["counts"]["called_off"], last["counts"]["sent"]) == ("aborted", 1, 1)
    assert _json(run("campaign", "list", "--json"))[0]["name"] == "credit"


async def _nothing(_: Store) -> None:
    """Opening it made its tables."""
