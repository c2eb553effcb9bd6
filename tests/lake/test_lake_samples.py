"""What the documents show of the lake is run, in the tests' own session of Spark.

Otherwise as in tests/surface/test_samples.py: in the order in which a reader meets it, in an empty folder.
The sample for a cluster is run on one, by test_cluster.py.
"""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from remuda.cli.app import app
from tests.lake.given_samples import GIVEN
from tests.samples.reading import DOCUMENTS, ROOT
from tests.samples.running import Reader
from tests.samples.steps import Step, steps_of
from tests.samples.terminal import exchanges_of

# The README shows nothing of the lake that lake.md does not: the last test here sees to it.
ELSEWHERE = ("README.md", "lake-cluster.md")
LAKE_DOCUMENTS = [
    each for each in DOCUMENTS if each.name not in ELSEWHERE and steps_of(each, GIVEN, with_spark=True)
]


class InProcess:
    """Takes `remuda lake …` as a terminal would, and says yes to what is asked."""

    def __init__(self, scope: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self._scope = scope
        self._monkeypatch = monkeypatch

    def give(self, command: str, shown: str = "") -> str:
        words = shlex.split(self._with_what_there_is(command).replace("\\\n", ""), comments=True)
        if words[0] == "export":
            for name, value in (word.split("=", 1) for word in words[1:]):
                self._monkeypatch.setenv(name, value)
            return ""
        assert words[:2] == ["remuda", "lake"]
        done = CliRunner().invoke(app, words[1:], input="y\n")
        assert done.exit_code == 0, f"$ {command}\n{done.output}\n{done.stderr}\n{done.exception!r}"
        return done.output

    def _with_what_there_is(self, command: str) -> str:
        for shown, real in self._scope.get("instead", {}).items():
            command = command.replace(shown, real)
        return command

    def close(self) -> None: ...


@pytest.fixture
def here(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder, where this process and Spark's both are."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REMUDA_URL", f"sqlite:///{tmp_path}/app.db")
    monkeypatch.setenv("REMUDA_LAKE", "lake")
    monkeypatch.setattr("remuda.lake.session.open_session", lambda **_: spark)
    monkeypatch.setattr(SparkSession, "stop", lambda _: None)
    answers = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("remuda.cli.asking.sys", answers)
    java: Any = spark._jvm
    files = java.org.apache.hadoop.fs.FileSystem.get(spark._jsc.hadoopConfiguration())  # type: ignore[attr-defined]
    before = files.getWorkingDirectory()
    files.setWorkingDirectory(java.org.apache.hadoop.fs.Path(str(tmp_path)))
    yield tmp_path
    files.setWorkingDirectory(before)


@pytest.mark.parametrize("document", LAKE_DOCUMENTS, ids=lambda document: document.name)
def test_the_samples_of_a_document_run(
    document: Path, here: Path, spark: SparkSession, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope: dict[str, Any] = {"__name__": "sample", "spark": spark}
    terminal = InProcess(scope, monkeypatch)
    scope["give"] = terminal.give
    reader = Reader(document.name, scope, terminal)
    with contextlib.closing(reader), contextlib.ExitStack() as scope["stack"]:
        for step in steps_of(document, GIVEN, with_spark=True):
            reader.take(_here(step, here, postgres_url, scope))
            for query in spark.streams.active:
                query.processAllAvailable()
                query.stop()


def _here(step: Step, here: Path, postgres_url: str, scope: dict[str, Any]) -> Step:
    """On the tests' servers and files: tasks and checkpoints of Spark's know no folder but its own."""
    source = re.sub(r"(?<=sqlite:///)app\.db", f"{here}/app.db", step["source"])
    source = re.sub(r'(?<=")(?=\w+-checkpoint")', f"{here}/", source)
    source = re.sub(r'postgresql://[^"\s]*', postgres_url, source)
    for shown, real in scope.get("instead", {}).items():
        source = source.replace(shown, real)
    return {**step, "source": source}


def test_the_readme_shows_what_is_run_for_another_document() -> None:
    shown, run = (
        {
            shlex.join(shlex.split(exchange.command, comments=True))
            for step in steps_of(ROOT / name, {}, with_spark=True)
            if step["language"] == "console"
            for exchange in exchanges_of(step["source"], is_script=False)
        }
        for name in ("README.md", "docs/lake.md")
    )
    assert len(shown) == 4
    assert shown <= run
