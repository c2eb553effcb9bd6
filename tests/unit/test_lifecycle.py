"""The table of legal moves: complete, closed, and enforced."""

from __future__ import annotations

import itertools

import pytest

from remuda.errors import IllegalMoveError, RemudaError
from remuda.lifecycle import (
    JOB_MOVES,
    LIVE_STATES,
    PRODUCER_REASONS,
    REASON_MEANINGS,
    TERMINAL_STATES,
    WAITING_STATES,
    Reason,
    State,
    check_move,
)


def reachable_from(start: State | None) -> set[State]:
    found: set[State] = set()
    edge: set[State | None] = {start}
    while edge:
        edge = {entered for left, entered in JOB_MOVES if left in edge} - found
        found |= {each for each in edge if each is not None}
    return found


def test_every_state_can_be_reached() -> None:
    assert reachable_from(None) == set(State)


@pytest.mark.parametrize("state", sorted(LIVE_STATES))
def test_every_live_state_leads_to_an_end(state: State) -> None:
    assert State.COMPLETED in reachable_from(state)
    assert State.FAILED in reachable_from(state)


def test_completed_and_removed_are_final() -> None:
    assert reachable_from(State.COMPLETED) == set()
    assert reachable_from(State.REMOVED) == set()


def test_a_dead_letter_comes_back_only_by_being_replayed() -> None:
    assert {entered for left, entered in JOB_MOVES if left is State.FAILED} == {State.PENDING, State.REMOVED}


def test_a_message_begins_pending_and_in_no_other_way() -> None:
    assert [entered for left, entered in JOB_MOVES if left is None] == [State.PENDING]


def test_only_a_held_message_gets_an_outcome() -> None:
    ended_from = {left for left, entered in JOB_MOVES if entered in TERMINAL_STATES}
    assert ended_from == {State.PROCESSING}


def test_what_is_running_cannot_be_removed() -> None:
    assert (State.PROCESSING, State.REMOVED) not in JOB_MOVES


def test_the_groups_of_states_part_them_all() -> None:
    assert LIVE_STATES | TERMINAL_STATES | {State.REMOVED} == set(State)
    assert not LIVE_STATES & TERMINAL_STATES
    assert LIVE_STATES - {State.PROCESSING} == WAITING_STATES


@pytest.mark.parametrize("move", list(itertools.product([None, *State], State)), ids=str)
def test_a_move_is_allowed_exactly_if_it_is_in_the_table(move: tuple[State | None, State]) -> None:
    if move in JOB_MOVES:
        check_move(*move)
        assert JOB_MOVES[move]
    else:
        with pytest.raises(IllegalMoveError, match=str(move[1])):
            check_move(*move)


def test_the_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        JOB_MOVES[(State.COMPLETED, State.PENDING)] = "no"  # type: ignore[index]


def test_every_reason_is_explained() -> None:
    assert set(REASON_MEANINGS) == set(Reason)
    assert all(REASON_MEANINGS.values())
    assert set(Reason) >= PRODUCER_REASONS


def test_an_illegal_move_is_an_error_of_remuda() -> None:
    assert issubclass(IllegalMoveError, RemudaError)
