"""The trail of a fleet: every move once, in order, numbered without a gap. And lists of commands in pages."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from remuda.clock import VirtualClock
from remuda.lifecycle import CommandStatus
from remuda.stores.commands import CommandStore, Home
from remuda.transition import Transition
from tests.commands.workbench import (
    DAY,
    HOUR,
    SECOND,
    START,
    claimed,
    due,
    ended,
    ids_of,
    move,
    new,
    next_of,
    put,
    trail,
    tried,
)

QUEUED, SENT, RETRY = CommandStatus.QUEUED, CommandStatus.SENT_TO_NS, CommandStatus.TO_RETRY
FAILED = CommandStatus.DELIVERY_FAILED
ABOUT = {"device": "dev-1", "lane": "gateway:g1", "grid": "north"}
ADDED = (move(None, QUEUED),)


async def test_a_move_is_recorded_with_all_that_is_known(commands: CommandStore) -> None:
    added = move(None, QUEUED, name="read_credit", about=ABOUT)
    sent = move(QUEUED, SENT, at=START + SECOND, dwell_ms=1_000, attempt=1)
    failed = move(SENT, FAILED, at=START + 3.25 * SECOND, dwell_ms=2_250, attempt=1, reason="bad_token")
    await put(commands, new("A", moves=(added,)), who="publisher")
    await put(commands, next_of("A", 1, Home.TO_NS, moves=(sent,)), who="engine-1")
    await put(commands, ended("A", 2, moves=(failed,)), who="engine-2")
    assert await trail(commands) == [
        Transition(
            seq=1,
            queue="devices:devices",
            message="A",
            left=None,
            entered=QUEUED,
            at=START,
            who="publisher",
            name="read_credit",
            about=ABOUT,
        ),
        Transition(
            seq=2,
            queue="devices:devices",
            message="A",
            left=QUEUED,
            entered=SENT,
            at=START + SECOND,
            dwell=SECOND,
            attempt=1,
            who="engine-1",
        ),
        Transition(
            seq=3,
            queue="devices:devices",
            message="A",
            left=SENT,
            entered=FAILED,
            at=START + 3.25 * SECOND,
            dwell=timedelta(milliseconds=2_250),
            attempt=1,
            reason="bad_token",
            who="engine-2",
        ),
    ]


async def test_the_moves_of_one_call_keep_their_order(commands: CommandStore) -> None:
    await put(
        commands,
        new("B", moves=ADDED),
        new("A", Home.RETRY, moves=(*ADDED, move(QUEUED, SENT, attempt=1), move(SENT, RETRY, attempt=1))),
        new("C"),
        ended("D", 0, moves=(*ADDED, move(QUEUED, FAILED, reason="expired"))),
    )
    assert [(each.seq, each.message, each.entered) for each in await trail(commands)] == [
        (1, "B", QUEUED),
        (2, "A", QUEUED),
        (3, "A", SENT),
        (4, "A", RETRY),
        (5, "D", QUEUED),
        (6, "D", FAILED),
    ]


async def test_a_refused_change_is_not_recorded(commands: CommandStore) -> None:
    await put(commands, new("A", key="key-1", moves=ADDED))
    assert await tried(
        commands, new("A", moves=ADDED), new("B", key="key-1", moves=ADDED), new("C", moves=ADDED)
    ) == [False, False, True]
    assert await tried(commands, new("D", moves=ADDED), new("A", moves=ADDED), whole=True) == [False, False]
    assert [(each.seq, each.message) for each in await trail(commands)] == [(1, "A"), (2, "C")]


async def test_looking_and_claiming_record_nothing(commands: CommandStore, clock: VirtualClock) -> None:
    await put(commands, new("A", moves=ADDED))
    assert await claimed(commands) == ["A"]
    clock.advance(HOUR)
    assert await due(commands, Home.TO_NS) == ["A"]
    await put(commands, ended("A", 1))
    await commands.take_ended(limit=1, hold=SECOND)
    await commands.mark_published(["A"])
    clock.advance(DAY)
    await commands.prune(ended_before=clock.now(), limit=10)
    assert len(await trail(commands)) == 1


async def test_a_trail_is_read_in_pages_from_any_offset(commands: CommandStore) -> None:
    await put(commands, *(new(f"A{n:02}", moves=ADDED) for n in range(60)))
    await put(commands, new("B", moves=ADDED))
    for n in range(10):
        await put(commands, next_of(f"A{n:02}", 1, Home.TO_NS, moves=(move(QUEUED, SENT),)))
    whole = await trail(commands)
    assert [each.seq for each in whole] == list(range(1, 72))
    for after in (0, 1, 30, 59, 60, 61, 62, 70, 71):
        page = await commands.transitions(after=after, limit=7)
        assert page.transitions == whole[after : after + len(page.transitions)]
        assert page.next_offset == after + len(page.transitions)
        assert len(page.transitions) >= min(7, 71 - after)
    for limit in (1, 3, 50, 1_000):
        assert await trail(commands, limit=limit) == whole


async def test_beyond_the_end_there_is_nothing_and_the_offset_stays(commands: CommandStore) -> None:
    await put(commands, new("A", moves=ADDED))
    page = await commands.transitions(after=5, limit=10)
    assert (page.transitions, page.next_offset) == ([], 5)


async def test_a_trimmed_trail_keeps_its_numbers(commands: CommandStore) -> None:
    await put(commands, *(new(f"A{n}", moves=ADDED) for n in range(10)))
    await put(commands, *(next_of(f"A{n}", 1, Home.TO_NS, moves=(move(QUEUED, SENT),)) for n in range(10)))
    whole = await trail(commands)
    assert await commands.trim_transitions(up_to=0) == 0
    # Only what was written together goes together: the first ten end at 10, the next at 20.
    assert await commands.trim_transitions(up_to=15) == 10
    assert await trail(commands) == whole[10:]
    assert await commands.trim_transitions(up_to=15) == 0
    assert await commands.trim_transitions(up_to=20) == 10
    assert await trail(commands) == []
    await put(commands, new("B", moves=ADDED))
    assert [each.seq for each in await trail(commands)] == [21]


async def test_an_offset_for_a_moment_has_everything_since_after_it(
    commands: CommandStore, clock: VirtualClock
) -> None:
    assert await commands.trail_offset(since=START) == 0
    for n in range(6):
        await put(commands, new(f"A{n}", moves=(move(None, QUEUED, at=clock.now()),)))
        clock.advance(DAY)
    whole = await trail(commands)
    for since in (START - DAY, START, START + SECOND, START + 3 * DAY, START + 5 * DAY):
        offset = await commands.trail_offset(since=since)
        assert all(each.at < since for each in whole[:offset])
    assert await commands.trail_offset(since=START + 4 * DAY) >= 3
    assert await commands.trail_offset(since=START + 30 * DAY) == 6


async def test_a_call_with_more_moves_than_one_entry_holds(commands: CommandStore) -> None:
    moves = (*ADDED, move(QUEUED, SENT), move(SENT, RETRY), move(RETRY, QUEUED), move(QUEUED, SENT))
    await put(commands, *(new(f"A{n:04}", Home.TO_NS, moves=moves) for n in range(1_200)))
    whole = await trail(commands)
    assert [each.seq for each in whole] == list(range(1, 6_001))
    assert [each.message for each in whole] == [f"A{n // 5:04}" for n in range(6_000)]
    for after in (4_998, 4_999, 5_000, 5_001, 5_999):
        page = await commands.transitions(after=after, limit=3)
        assert page.transitions[:3] == whole[after : after + 3]


async def test_writers_side_by_side_leave_no_gap(
    commands: CommandStore, another_commands: CommandStore
) -> None:
    stores = commands, another_commands
    await asyncio.gather(
        *(
            put(
                stores[n % 2],
                new(f"A{n:02}", moves=(*ADDED, move(QUEUED, SENT))),
                new(f"B{n:02}", moves=ADDED),
            )
            for n in range(20)
        )
    )
    whole = await trail(commands)
    assert [each.seq for each in whole] == list(range(1, 61))
    for n in range(20):
        assert [each.entered for each in whole if each.message == f"A{n:02}"] == [QUEUED, SENT]
    assert await trail(another_commands) == whole


# -- commands in pages


async def paged(store: CommandStore, *, limit: int, **wanted: Any) -> list[str]:
    """The ids of all that fit, page by page."""
    found: list[str] = []
    while page := ids_of(await store.commands(before=found[-1] if found else None, limit=limit, **wanted)):
        found += page
    return found


async def test_commands_are_listed_in_pages(commands: CommandStore, other_fleet: CommandStore) -> None:
    ids = [f"A{n:03}" for n in range(40)] + ["a-1", "a.1", "a:1", "a@1", "a_1", "Z"]
    for n, each in enumerate(ids):
        await put(commands, new(each, lane=f"gateway:g{n % 3}", device=f"dev-{n % 2}"))
        await put(other_fleet, new(each))
    for n in range(0, 40, 4):
        await put(commands, ended(f"A{n:03}", 1, lane=f"gateway:g{n % 3}", device=f"dev-{n % 2}"))
    newest_first = sorted(ids, reverse=True)
    for limit in (1, 7, 100):
        assert await paged(commands, limit=limit) == newest_first
        assert await paged(commands, limit=limit, status=FAILED) == [f"A{n:03}" for n in range(36, -1, -4)]
        for number in range(3):
            in_lane = [each for each in newest_first if ids.index(each) % 3 == number]
            assert await paged(commands, limit=limit, lane=f"gateway:g{number}") == in_lane
        of_both = [each for each in newest_first if ids.index(each) % 6 == 2]
        assert await paged(commands, limit=limit, lane="gateway:g2", device="dev-0") == of_both


async def test_below_an_id_is_what_sorts_before_it_whether_there_is_one_or_not(
    commands: CommandStore,
) -> None:
    await put(commands, new("B"), new("D"))
    for before, below in (("", []), ("A", []), ("B", []), ("C", ["B"]), ("D", ["B"]), ("E", ["D", "B"])):
        assert ids_of(await commands.commands(before=before)) == below
