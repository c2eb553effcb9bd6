"""Job ids: ULIDs, made many at a time, in order within a process."""

from __future__ import annotations

import os
import secrets
import threading

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]
_COUNTER_BITS = 40
_COUNTER_LIMIT = 1 << _COUNTER_BITS


def _spell(number: int, length: int) -> str:
    return "".join(_ALPHABET[(number >> (5 * place)) & 31] for place in reversed(range(length)))


class IdMaker:
    """Makes ULIDs: 48 bits of milliseconds, then 40 random bits and a 40-bit counter from a random start.

    Ids of one maker and one millisecond are consecutive, so that a batch keeps its order and goes
    to the right-hand edge of an index.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._millisecond = -1
        self._prefix = ""
        self._counter = 0

    def make(self, count: int, now_ms: int) -> list[str]:
        """`count` new ids, ascending."""
        if self._process != os.getpid():
            # A forked child would otherwise go on with its parent's counter and make the same ids; and
            # its parent's lock may be held by a thread that was not forked along.
            self._process, self._millisecond, self._lock = os.getpid(), -1, threading.Lock()
        with self._lock:
            if now_ms > self._millisecond or self._counter + count >= _COUNTER_LIMIT:
                self._millisecond = max(now_ms, self._millisecond + 1)
                self._prefix = _spell(self._millisecond, 10) + _spell(secrets.randbits(40), 8)
                self._counter = secrets.randbits(_COUNTER_BITS - 1)
            first = self._counter
            self._counter += count
            prefix = self._prefix
        pairs = _PAIRS
        return [
            f"{prefix}{pairs[n >> 30]}{pairs[n >> 20 & 1023]}{pairs[n >> 10 & 1023]}{pairs[n & 1023]}"
            for n in range(first, first + count)
        ]
