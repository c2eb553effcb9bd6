"""The documentation as a site: made with warnings as errors, so that a broken link or a lost name fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from scripts.docs_docstrings import as_lists

ROOT = Path(__file__).parents[2]


def test_the_site_is_made_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    commands = (tmp_path / "reference/commands/index.html").read_text()
    for word in ("remuda dlq replay", "--dry-run", "REMUDA_URL", "remuda devices send", "remuda lake triage"):
        assert word in commands
    queues = (tmp_path / "reference/queues/index.html").read_text()
    assert "With <code>timeout</code> (in seconds, or a timedelta) it is waited for" in queues
    assert 'id="remuda.sync.SyncQueue.obliterate"' in queues
    index = (tmp_path / "index.html").read_text()
    assert 'href="getting-started/"' in index


def test_columns_of_docstrings_become_lists() -> None:
    told = as_lists("Every option.\n\nbatch   jobs in a fetch\n        at most\nevery  how often\n\nThe end.")
    assert told == "Every option.\n\n- `batch`: jobs in a fetch at most\n- `every`: how often\n\nThe end."
    assert as_lists("No  columns here\nbut prose") == "No  columns here\nbut prose"
