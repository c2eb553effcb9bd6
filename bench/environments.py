"""A virtual environment for each peer, made once and kept until the peer's requirements change."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from bench.catalogue import BENCH, ROOT, PeerFile
from bench.complaints import last_line

ENVIRONMENTS = BENCH / ".venvs"
PINS = ROOT / "constraints.txt"


class EnvironmentFailure(Exception):
    """The peer's requirements could not be installed."""


def python_for(peer: PeerFile) -> Path:
    """The interpreter of the peer's environment, which is made or renewed first if need be."""
    directory = ENVIRONMENTS / peer.name
    python = directory / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    stamp = directory / "requirements.sha256"
    wanted = _fingerprint(peer)
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    shutil.rmtree(directory, ignore_errors=True)
    venv.create(directory, with_pip=True)
    if peer.dependencies:
        _install(python, [*peer.dependencies])
    if peer.editable:
        _install(python, ["--editable", peer.editable, "--constraint", str(PINS)])
    stamp.write_text(wanted)  # last, so that a broken installation is tried again
    return python


def _install(python: Path, requirements: list[str]) -> None:
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements]
    done = subprocess.run(pip, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise EnvironmentFailure(f"pip install: {last_line(done.stderr)}")


def _fingerprint(peer: PeerFile) -> str:
    """Changes with anything that asks for a new environment; a repository's code itself does not."""
    parts = [sys.version, *peer.dependencies, peer.editable]
    if peer.editable:
        parts += [(ROOT / "pyproject.toml").read_text(), PINS.read_text()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
