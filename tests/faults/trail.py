"""What was recorded: the trail of a queue, and whether it makes sense."""

from __future__ import annotations

from collections import Counter, defaultdict

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


async def audited(queue: Queue) -> dict[str, list[Transition]]:
    """`histories`, after checking that the queue holds what they say: nothing more, and nothing less."""
    found = await histories(queue)
    ends = Counter(history[-1].entered for history in found.values())
    stats = await queue.stats()
    assert {
        State.PENDING: stats.pending,
        State.RETRYABLE: stats.retryable,
        State.PROCESSING: stats.processing,
        State.COMPLETED: stats.completed,
        State.FAILED: stats.failed,
    } == {state: ends[state] for state in State if state is not State.REMOVED}
    return found
