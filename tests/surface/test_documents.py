"""What the documents show is what there is: samples compile, links lead somewhere, tables agree."""

from __future__ import annotations

import ast
import inspect
import re
import runpy
import subprocess
import sys
import tomllib
from datetime import timedelta
from pathlib import Path

import pytest

from remuda import Queue, Reason, Worker
from remuda.cli.app import app
from remuda.devices.settings import parse_settings
from remuda.lifecycle import JOB_MOVES
from remuda.stores.redis.findings import needed_commands, right_of
from remuda.stores.redis.urls import PARAMETERS
from remuda.worker import WorkerOptions
from tests.samples.reading import all_samples

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_samples_compile(document: Path) -> None:
    for sample in re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL):
        compile(sample, document.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
        assert (document.parent / target).exists(), f"{document.name} links to {target}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_headings(document: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", document.read_text()):
        other = document.parent / target if target else document
        headings = re.findall(r"^#+ (.+)$", other.read_text(), re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert anchor in anchors, f"{document.name} links to {target}#{anchor}"


def test_the_samples_for_tests_of_your_own_pass(tmp_path: Path) -> None:
    samples = re.findall(r"```python\n(.*?)```", (ROOT / "docs/testing.md").read_text(), re.DOTALL)
    for number, sample in enumerate(samples):
        (tmp_path / f"test_sample_{number}.py").write_text(sample)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-o", "asyncio_mode=auto", "--rootdir", ".", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert f"{len(samples)} passed" in done.stdout, done.stdout + done.stderr


def test_the_settings_of_an_engine_are_read_as_they_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shown,) = [each.source for each in all_samples() if each.language == "toml"]
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "calin").write_text("secret")
    for name in re.findall(r'_env = "(\w+)"', shown):
        monkeypatch.setenv(name, "a secret of sixteen letters")
    settings = parse_settings(shown, folder=tmp_path)
    assert settings.chirpstack is not None
    assert settings.calin_v1 is not None
    assert settings.timings.accept == timedelta(seconds=20)
    assert [hook.name for hook in settings.webhooks] == ["billing"]


@pytest.mark.parametrize("language", ["ini", "dockerfile", "yaml"])
def test_the_commands_of_settings_of_others_exist(language: str) -> None:
    """Those of systemd, of containers: not run here, but what they would run is understood."""
    found = 0
    for sample in all_samples():
        if sample.language == language:
            for line in re.findall(r'remuda"?,? .*', sample.source):
                _, *words = re.findall(r"[\w:=./-]+", line)
                if words[0] in ("worker", "migrate"):
                    app([*words, "--help"], standalone_mode=False)
                    found += 1
    assert found > 0


def test_the_extras_that_are_installed_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for document in DOCUMENTS:
        for named in re.findall(r"remuda\[([\w,]+)\]", document.read_text()):
            assert set(named.split(",")) <= set(extras), document.name


def test_every_parameter_of_a_redis_url_is_documented() -> None:
    section = (ROOT / "docs/stores.md").read_text().split("## Redis and Valkey")[1].split("###")[0]
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", section, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == set(PARAMETERS)


def test_the_rights_of_a_redis_user_are_those_that_doctor_looks_for() -> None:
    text = (ROOT / "docs/stores.md").read_text()
    (command,) = re.findall(r"```\n(ACL SETUSER .*?)```", text, re.DOTALL)
    assert set(re.findall(r"\+([\w|]+)", command)) == set(map(right_of, needed_commands(newer=False)))
    assert {"xackdel"} == {right_of(each) for each in needed_commands(newer=True)} - set(
        map(right_of, needed_commands(newer=False))
    )


def test_every_option_of_a_worker_is_documented_with_its_default() -> None:
    text = (ROOT / "docs/workers.md").read_text()
    parameters = inspect.signature(Worker).parameters
    for name in WorkerOptions.__struct_fields__:
        assert f"`{name}`" in text, f"docs/workers.md says nothing of {name}"
        default = WorkerOptions.__struct_defaults__[WorkerOptions.__struct_fields__.index(name)]
        assert parameters[name].default == default


def test_every_reason_is_documented() -> None:
    text = (ROOT / "docs/dead-letters.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == {reason.value for reason in Reason}


def test_the_table_of_moves_is_the_one_in_the_code() -> None:
    text = (ROOT / "docs/delivery.md").read_text().split("## Exactly")[0]
    rows = re.findall(r"^\| ([^|]+) \| ([A-Z]+) \|", text, re.MULTILINE)
    shown = {
        (None if left == "—" else left, entered) for lefts, entered in rows for left in lefts.split(", ")
    }
    assert shown == {(left and left.value, entered.value) for left, entered in JOB_MOVES}


def test_adding_documents_every_option() -> None:
    text = (ROOT / "docs/adding-jobs.md").read_text()
    for name in inspect.signature(Queue.add_unique).parameters:
        if name not in ("self", "name", "payload"):
            assert name in text


def test_the_tables_of_the_lake_are_documented_as_they_are() -> None:
    script = ROOT / "scripts" / "write-lake-tables"
    scope = runpy.run_path(str(script))
    assert (ROOT / "docs" / "lake-tables.md").read_text() == scope["document"]()
