"""What a worker has done since it was made."""

from __future__ import annotations

import msgspec


class Counts(msgspec.Struct):
    """Numbers of deliveries, by what became of them; `recovered` counts those of dead workers."""

    fetched: int = 0
    completed: int = 0
    retried: int = 0
    failed: int = 0
    released: int = 0
    lost: int = 0
    recovered: int = 0
