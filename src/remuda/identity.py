"""Who did it: the name under which a process appears in the trail."""

from __future__ import annotations

import os
import secrets
import socket


def make_identity(role: str) -> str:
    """A name for one publisher or worker, readable and unlike any other: `worker-host-4711-a1b2c3`."""
    return f"{role}-{socket.gethostname()[:64]}-{os.getpid()}-{secrets.token_hex(3)}"
