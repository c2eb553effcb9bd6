"""`make demo`, run as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys


def test_the_demo_ends_with_the_sum_that_must_hold() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "remuda.demo"],
        capture_output=True,
        text=True,
        timeout=150,
        env={**os.environ, "COLUMNS": "120"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "max_deliveries" in done.stdout
    assert "0 gaps" in done.stdout
    assert done.stdout.strip().endswith("added = completed + dead:  3000 = 2990 + 10")
