"""The shortest and the longest delay that a policy's jitter can have drawn."""

from __future__ import annotations

import random
from datetime import timedelta

from remuda.retry import RetryPolicy


class _Edge(random.Random):
    """Takes jitter to one of its ends."""

    def __init__(self, *, most: bool) -> None:
        super().__init__(0)
        self._most = most

    def uniform(self, a: float, b: float) -> float:
        return b if self._most else a


_LEAST, _MOST = _Edge(most=False), _Edge(most=True)


def shortest_delay(policy: RetryPolicy, attempts: int) -> timedelta:
    """The least that comes after so many attempts."""
    return policy.delay(attempts, _LEAST)


def longest_delay(policy: RetryPolicy, attempts: int) -> timedelta:
    """The most that comes after so many attempts."""
    return policy.delay(attempts, _MOST)
