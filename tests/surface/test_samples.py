"""What the documents show is run: programs, sessions at a terminal and scripts, as a reader would.

The samples of a document share one process, one terminal and one empty folder. What a command is shown to
answer is what it answers, but for ids, times and the like. A URL of a server becomes that of a server of
the tests. A sample that cannot be run here has `<!-- not run: why -->` on the line above it, and stands in
the list below. Those that need Spark are run by tests/lake/test_lake_samples.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.samples.given import GIVEN
from tests.samples.reading import DOCUMENTS, ROOT, all_samples
from tests.samples.steps import steps_of
from tests.servers import free_port

# Every sample that is not run or not compared, by document, mark and reason.
MARKED = Counter(
    {
        ("README.md", "not run", "tests/surface/test_demo.py"): 1,
        ("README.md", "not run", "installs"): 1,
        ("README.md", "not run", "these tests"): 1,
        (
            "command-line.md",
            "output not compared",
            "it is that of a server in trouble; tests/cli/test_doctor.py",
        ): 1,
        (
            "command-line.md",
            "output not compared",
            "it is that of a server in trouble; tests/cli/test_redis_doctor.py",
        ): 1,
        ("devices.md", "not run", "installs"): 1,
        ("lake.md", "not run", "installs"): 1,
    }
)

# Which URLs become those of a server of the tests: what follows the scheme is replaced.
SERVERS = {
    r'(?<=[" ])(postgresql(?:\+\w+)?)://[^"\s]*': "postgres_url",
    r'(?<=[" ])((?:mysql|mariadb)(?:\+\w+)?)://[^"\s]*': "mariadb_url",
    r'(?<=[" ])(redis|valkey)://[^"\s]*': "valkey_url",
}

# The port that ChirpStack's events come in by becomes one that is free.
PORTS = {
    r"(?<=port=)8090": "{port}",
    r"(?=--write fleet\.toml)": "--webhooks http://127.0.0.1:{port}/chirpstack ",
}

# Mistakes that a worker only logs, for it takes them for a handler's failure.
_MISTAKE = re.compile(r"\b(?:Attribute|Import|Name|Syntax|Type|UnboundLocal)Error\b")
AT_MOST_S = 120


@pytest.mark.parametrize(
    "document", [each for each in DOCUMENTS if steps_of(each, GIVEN)], ids=lambda document: document.name
)
def test_the_samples_of_a_document_run(
    document: Path, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    steps = steps_of(document, GIVEN)
    if shutil.which("jq") is None and "jq" not in os.environ.get("REMUDA_TEST_REQUIRE", "").split(","):
        steps = [step for step in steps if "| jq " not in step["source"]]
    port = free_port()
    for step in steps:
        step["source"] = _on_our_servers(step["source"], request)
        for pattern, instead in PORTS.items():
            step["source"] = re.sub(pattern, instead.format(port=port), step["source"])
    home = Path(sys.executable).parent
    done = subprocess.run(
        [sys.executable, "-m", "tests.samples.running", document.name],
        input=json.dumps(steps),
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{home}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "REMUDA_URL": "sqlite:///app.db",
        },
        capture_output=True,
        text=True,
        timeout=AT_MOST_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not _MISTAKE.search(done.stderr), done.stderr


def _on_our_servers(source: str, request: pytest.FixtureRequest) -> str:
    for pattern, fixture in SERVERS.items():
        if re.search(pattern, source):
            place = request.getfixturevalue(fixture).partition("://")[2]
            source = re.sub(pattern, rf"\1://{place}", source)
    return source


def test_what_is_not_run_is_known() -> None:
    marked = [(each.document, each.mark, each.why) for each in all_samples() if each.mark is not None]
    assert Counter(marked) == MARKED


def test_commands_stand_in_sessions() -> None:
    """What is shown as plain text, or as the settings of another program, is not run."""
    for sample in all_samples():
        if not sample.language:
            assert not re.search(r"^(?:\$ )?remuda ", sample.source, re.MULTILINE), sample


def test_what_is_given_is_for_a_sample_that_is_run() -> None:
    run = Counter((sample.document, sample.heading) for sample in all_samples() if sample.is_run)
    assert [key for key in GIVEN if run[key[:2]] < key[2]] == []
