"""What was recorded: the trail of a queue, and whether it makes sense."""

from __future__ import annotations

from collections import defaultdict

from remuda import Queue, State, Transition
from remuda.lifecycle import JOB_MOVES


async def histories(queue: Queue) -> dict[str, list[Transition]]:
    """The transitions of each message, checked: no gap, no illegal move, no move from elsewhere."""
    found: dict[str, list[Transition]] = defaultdict(list)
    last_seq = 0
    async for transition in queue.transitions():
        assert transition.seq == last_seq + 1, f"the trail has a gap before {transition}"
        last_seq = transition.seq
        history = found[transition.message]
        before = history[-1].entered if history else None
        assert transition.left == before, (
            f"{transition} leaves {transition.left}, but the message was {before}"
        )
        assert (before, transition.entered) in JOB_MOVES, f"an illegal move: {transition}"
        history.append(transition)
    return found


def states(history: list[Transition]) -> list[State]:
    """The states that a message has been in, in order."""
    return [transition.entered for transition in history]
