"""Python environments for other people's programs: made once, then kept in the user's cache."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path


class EnvironmentUnavailableError(Exception):
    """The packages cannot be had; the message says what pip had to say."""


def python_with(name: str, *requirements: str) -> Path:
    """The interpreter of an environment with these packages."""
    place = _cache() / f"{name}-py{sys.version_info.major}.{sys.version_info.minor}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place.with_suffix(".lock"), "w") as lock:  # several test processes may want it at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        made_of = place / "made-of"
        if not made_of.exists() or made_of.read_text().split() != list(requirements):
            shutil.rmtree(place, ignore_errors=True)
            venv.create(place, with_pip=True)
            _install(place, requirements)
            made_of.write_text("\n".join(requirements))
    return place / "bin/python"


def _install(place: Path, requirements: tuple[str, ...]) -> None:
    command = [place / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*command, *requirements], capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise EnvironmentUnavailableError(
            f"pip cannot install {', '.join(requirements)}: {done.stderr[-1000:]}"
        )


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "remuda-tests")
