"""`make demo`, run as a user runs it."""

from __future__ import annotations

import os
import re
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
    # On a starved machine a lease may run out and one more job die; the sum holds all the same.
    said = re.fullmatch(
        r"added = completed \+ dead:  (\d+) = (\d+) \+ (\d+)", done.stdout.strip().splitlines()[-1]
    )
    assert said is not None, done.stdout
    added, completed, dead = map(int, said.groups())
    assert added == completed + dead == 3000
    assert 10 <= dead < 20
