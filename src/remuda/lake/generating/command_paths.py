"""What becomes of commands, and how often: by the way that they go, and by how well that works."""

from __future__ import annotations

from remuda.lake.generating.paths import (
    HOUR,
    MINUTE,
    SECOND,
    CommandWalk,
    Path,
    Wait,
    about,
    between,
)
from remuda.lifecycle import CommandStatus, EndReason

MOST_ATTEMPTS = 12
# The deadlines of `remuda.devices.timings`, and what the reaper takes to notice.
ACCEPT = between(20 * SECOND, 22 * SECOND)
DEVICE = between(12 * SECOND, 14 * SECOND)
GATEWAY = between(15 * MINUTE, 15 * MINUTE + 2 * SECOND)
PULL_MAX_AGE = between(48 * HOUR, 48 * HOUR + 30 * SECOND)
LATE_RESULT = between(15 * MINUTE, 16 * MINUTE)
TASK = about(45 * SECOND)  # what a pull task takes

Weighted = list[tuple[float, CommandWalk]]


def _unanswered(times: int) -> CommandWalk:
    """Transmitted, and not answered, so many times."""
    walk = CommandWalk()
    for _ in range(times):
        walk.transmitted().retried("device_timeout", DEVICE)
    return walk


def _refused_calls(times: int, *, each: Wait | None = None) -> CommandWalk:
    """The network server could not be reached so many times."""
    walk = CommandWalk()
    for _ in range(times):
        walk.sent().retried("call_failed", each or about(200))
    return walk


def _silent() -> CommandWalk:
    """Every attempt goes out, and the device never answers."""
    return _unanswered(MOST_ATTEMPTS - 1).transmitted().failed(EndReason.RETRIES_EXHAUSTED, DEVICE)


def _unreachable() -> CommandWalk:
    return _refused_calls(MOST_ATTEMPTS - 1).sent().failed(EndReason.RETRIES_EXHAUSTED, about(200))


def _ended_while_waiting() -> Weighted:
    """Ended by a person, a program or the clock before they were sent."""
    return [
        (0.004, CommandWalk().stopped_by(EndReason.SUPERSEDED, between(SECOND, MINUTE), "sender")),
        (0.003, CommandWalk().stopped_by(EndReason.CANCELLED, between(SECOND, 5 * MINUTE), "cli")),
        (0.002, CommandWalk().failed(EndReason.EXPIRED, between(10 * MINUTE, 2 * HOUR))),
    ]


def _refused_for_good() -> Weighted:
    call = about(200)
    return [
        (0.0015, CommandWalk().sent().failed(EndReason.UNKNOWN_DEVICE, call)),
        (0.001, CommandWalk().sent().failed(EndReason.UNSUPPORTED_COMMAND, call)),
        (0.001, CommandWalk().sent().failed(EndReason.BAD_TOKEN, call)),
    ]


def _expired_and_replayed(unanswered: int) -> CommandWalk:
    walk = _unanswered(unanswered).transmitted()
    return walk.failed(EndReason.EXPIRED, DEVICE).replayed()


def _push_ends() -> Weighted:
    """What happens on the push path besides the usual."""
    late_accept = CommandWalk().sent().then(CommandStatus.TO_RETRY, ACCEPT, "accept_timeout")
    late_accept.then(CommandStatus.DELIVERED_TO_NS, about(3 * SECOND), "late_accept")
    unknown = CommandWalk().transmitted().then(CommandStatus.TO_RETRY, DEVICE, "device_timeout")
    early = CommandWalk().sent().then(CommandStatus.SENT_TO_DEVICE, about(120))
    acked = CommandWalk().accepted().then(CommandStatus.SENT_TO_DEVICE, about(2_500), "ack_before_txack")
    late = CommandWalk().transmitted().then(CommandStatus.TO_RETRY, DEVICE, "device_timeout")
    again = CommandWalk().sent().failed(EndReason.UNKNOWN_DEVICE, about(200)).replayed()
    return [
        (0.008, early.answered()),
        (0.006, acked.answered()),
        (0.004, CommandWalk().transmitted().answered(DEVICE, "answer_without_ack")),
        (0.003, late.answered(about(SECOND), "late_result")),
        (0.002, _unanswered(1).answered(about(300), "late_result")),
        (0.003, late_accept.then(CommandStatus.SENT_TO_DEVICE, about(2_500)).answered()),
        (0.0015, unknown.failed(EndReason.OUTCOME_UNKNOWN, LATE_RESULT)),
        (0.001, again.transmitted().answered()),
        (0.001, _expired_and_replayed(2).transmitted().answered()),
        (0.0005, _expired_and_replayed(1).sent().failed(EndReason.BAD_TOKEN, about(200))),
    ]


def _retries(shares: tuple[float, ...]) -> Weighted:
    """Answered at last, after 1, 2, 3 … attempts that were not."""
    return [(share, _unanswered(n).transmitted().answered()) for n, share in enumerate(shares, start=1)]


def _other_retries(scale: float) -> Weighted:
    held = CommandWalk().accepted().retried("gateway_timeout", GATEWAY).transmitted().answered()
    nacked = CommandWalk().transmitted().retried("nack", about(SECOND)).transmitted().answered()
    discarded = CommandWalk().accepted().retried("discarded", about(MINUTE)).transmitted().answered()
    slow = CommandWalk().transmitted().retried("correlation_timeout", between(10 * SECOND, 12 * SECOND))
    shares_and_walks = [
        (0.006, held),
        (0.006, nacked),
        (0.004, discarded),
        (0.004, slow.transmitted().answered()),
        (0.004, _refused_calls(1).transmitted().answered()),
    ]
    return [(scale * share, walk) for share, walk in shares_and_walks]


_STATES = CommandStatus
_SOON = 2 * MINUTE


def _live_push() -> list[tuple[float, Path]]:
    failing = CommandWalk().transmitted().then(_STATES.TO_RETRY, DEVICE, "device_timeout")
    return [
        (0.001, CommandWalk().path(late=_SOON)),
        (0.0007, CommandWalk().sent().path(late=_SOON)),
        (0.001, CommandWalk().accepted().path(late=10 * MINUTE)),
        (0.0007, CommandWalk().transmitted().path(late=_SOON)),
        (0.001, failing.path(late=_SOON)),
    ]


def _mixed(
    straight: CommandWalk, others: Weighted, live: list[tuple[float, Path]]
) -> list[tuple[float, Path]]:
    """All of them; the usual path has the share that is left."""
    paths = [*((share, walk.path()) for share, walk in others), *live]
    return [(1.0 - sum(share for share, _ in paths), straight.path()), *paths]


def push_paths() -> list[tuple[float, Path]]:
    """Commands of a healthy LoRaWAN gateway."""
    others = [
        *_retries((0.05, 0.02, 0.008)),
        *_other_retries(1.0),
        *_ended_while_waiting(),
        *_refused_for_good(),
        *_push_ends(),
        (0.001, _silent()),
    ]
    return _mixed(CommandWalk().transmitted().answered(), others, _live_push())


def bad_gateway_paths() -> list[tuple[float, Path]]:
    """Commands of a gateway that hears badly and is often gone."""
    others = [
        *_retries((0.16, 0.10, 0.06, 0.04, 0.03)),
        *_other_retries(5.0),
        *_ended_while_waiting(),
        (0.06, _silent()),
        (0.05, _unanswered(5).transmitted().failed(EndReason.EXPIRED, DEVICE)),
        (0.02, CommandWalk().accepted().retried("gateway_timeout", GATEWAY).accepted()
         .retried("gateway_timeout", GATEWAY).failed(EndReason.EXPIRED, about(SECOND))),
    ]  # fmt: skip
    return _mixed(CommandWalk().transmitted().answered(), others, _live_push())


def pull_paths() -> list[tuple[float, Path]]:
    """Commands that become tasks at the vendor's server."""
    task_failed = CommandWalk().accepted().answered(TASK, "task_failed")
    late = CommandWalk().sent().retried("accept_timeout", ACCEPT).answered(about(SECOND), "late_result")
    again = CommandWalk().accepted().failed(EndReason.CANCELLED, about(HOUR)).replayed().accepted()
    others: Weighted = [
        (0.02, task_failed),
        (0.02, _refused_calls(1).accepted().answered(TASK)),
        (0.006, _refused_calls(3).accepted().answered(TASK)),
        (0.03, CommandWalk().accepted().answered(between(10 * MINUTE, 30 * HOUR))),  # a meter that was off
        (0.008, CommandWalk().accepted().failed(EndReason.MAX_AGE, PULL_MAX_AGE)),
        (0.002, late),
        (0.001, again.answered(TASK)),
        *_ended_while_waiting(),
        *_refused_for_good(),
    ]
    live = [
        (0.001, CommandWalk().path(late=_SOON)),
        (0.0005, CommandWalk().sent().path(late=_SOON)),
        (0.002, CommandWalk().accepted().path(late=HOUR)),
    ]
    return _mixed(CommandWalk().accepted().answered(TASK), others, live)


def outage_paths() -> list[tuple[float, Path]]:
    """Commands added while their network server was down: they go through when it is back, or not at all."""
    long_calls = between(5 * SECOND, 20 * SECOND)
    through = [_refused_calls(n, each=long_calls).accepted().answered(TASK) for n in (7, 8, 9)]
    others: Weighted = [
        (0.30, through[1]),
        (0.15, through[2]),
        (0.20, _refused_calls(6).failed(EndReason.EXPIRED, between(MINUTE, HOUR))),
        (0.05, _unreachable()),
        *_ended_while_waiting(),
    ]
    return _mixed(through[0], others, [])
