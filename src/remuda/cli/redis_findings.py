"""What `doctor` looks at on Redis and Valkey: settings and neighbours that make a queue lose jobs or stop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from remuda.cli.findings import Finding, ok, problem, unknown, warning
from remuda.cli.output import plural, size
from remuda.cli.times import span
from remuda.stores.redis import findings
from remuda.stores.redis.connected import DEFAULT_DLQ_MAX, DEFAULT_TRAIL_AGE, DEFAULT_TRAIL_MAX
from remuda.stores.redis.link import Link
from remuda.stores.redis.refusals import RefusedError
from remuda.stores.redis.urls import Address, parse

if TYPE_CHECKING:
    from remuda.stores.contract import Store
    from remuda.stores.redis.findings import Consumer, QueueState

NEARLY_FULL = 0.8
CHASQUIMQ_TRIMS_AT = 1_000_000
LONG_SILENT = timedelta(hours=1)
QUEUES_TRIED = 100  # for one on which this user may do what is needed

_MODES = {
    "single": "one server",
    "sentinel": "the primary that Sentinels name",
    "cluster": "a cluster",
    "embedded": "a private server",
}
_FSYNCS = {
    "always": "a crash of the machine costs nothing",
    "everysec": "a crash of the machine may cost the last second",
}

Information = dict[str, str]


class Look(NamedTuple):
    """What was found, and how long the server took to answer."""

    findings: list[Finding]
    trips: list[float]


async def look_into(store: Store, url: str, trips: int) -> Look:
    """Everything there is to say about the server and its queues; what may not be looked at is said."""
    address = parse(url)
    link = Link(address)
    try:
        await link.open()
        found = [each async for each in _all(link, store, address)]
        return Look(found, await findings.round_trips(link, trips))
    finally:
        await link.close()


async def _all(link: Link, store: Store, address: Address) -> AsyncIterator[Finding]:
    yield _server(link, address)
    for each in await _servers(link, address.mode):
        yield each
    try:
        queues = await store.queues()
    except RefusedError as error:
        yield await _rights(link, [], address.username)
        yield unknown("queues", f"could not be listed: {error}", "let this user SCAN")
        return
    yield await _rights(link, queues, address.username)
    caps = Caps(
        address.dlq_max or DEFAULT_DLQ_MAX,
        address.trail_max or DEFAULT_TRAIL_MAX,
        address.trail_age or DEFAULT_TRAIL_AGE,
    )
    for each in await _queues(link, queues, caps, store.now()):
        yield each


def _server(link: Link, address: Address) -> Finding:
    features = ", ".join(link.server.features())
    told = f"{link.server.kind.title()} {link.server.release}, {_MODES[address.mode]}"
    return ok("server", f"{told}; it has {features}" if features else told)


# -- servers: one, or the primaries of a cluster


async def _servers(link: Link, mode: str) -> list[Finding]:
    try:
        information = await findings.information(link)
    except RefusedError as error:
        return [unknown("settings", f"memory, durability and replication are not shown: {error}")]
    return [
        *_replication(information, mode),
        *_memory(information, has_flags=link.server.has_flags),
        *await _durability(link, information),
    ]


def _where(information: Sequence[Information], holds: Callable[[Information], bool]) -> str | None:
    """On which of them something holds, as the beginning of a sentence; None when on none."""
    count = sum(map(holds, information))
    if not count:
        return None
    return "" if len(information) == 1 else f"on {count} of {len(information)} nodes, "


def _replication(information: Sequence[Information], mode: str) -> Iterator[Finding]:
    if (where := _where(information, lambda each: each.get("role") == "slave")) is not None:
        yield problem(
            "replication",
            f"{where}this is a replica: nothing can be added or worked on here",
            "name the primary in the URL, or the Sentinels: redis+sentinel://host:26379/service",
        )
        return
    replicas = sum(int(each.get("connected_slaves", 0)) for each in information)
    if mode == "sentinel" and not replicas:
        yield warning(
            "replication",
            "no replica follows the primary: when it is lost there is nothing to go on with",
            "see why its replicas are not connected (INFO replication)",
        )
    elif replicas:
        yield ok("replication", f"{plural(replicas, 'replica')}; a failover may lose what was not copied yet")
    else:
        yield ok("replication", "a primary, without replicas")


def _memory(information: Sequence[Information], *, has_flags: bool) -> Iterator[Finding]:
    limited = [each for each in information if int(each.get("maxmemory", 0))]
    evicting = {each["maxmemory_policy"] for each in limited} - {"noeviction"}
    if evicting:
        yield problem(
            "memory",
            f"maxmemory-policy is {', '.join(sorted(evicting))}: when memory is full the server throws away "
            + ("jobs" if any(each.startswith("allkeys") for each in evicting) else "marks of unique ids"),
            "CONFIG SET maxmemory-policy noeviction, and the same in its configuration file",
        )
    used = max(information, key=_fullness)
    told = f"{size(int(used.get('used_memory', 0)))} in use"
    if not limited:
        yield ok("memory", f"{told}, without a limit (maxmemory)")
        return
    told += f" of {size(int(used['maxmemory']))}"
    if _fullness(used) >= NEARLY_FULL:
        refused = "adds are refused" if has_flags else "adds are refused, and so are workers' outcomes"
        yield warning(
            "memory",
            f"{told}: when it is full {refused}",
            "raise maxmemory, work the queues off, or keep less (done_max, dlq_max, trail_max in the URL)",
        )
    elif not evicting:
        yield ok("memory", f"{told}, nothing is evicted")


def _fullness(information: Information) -> float:
    limit = int(information.get("maxmemory", 0))
    return int(information.get("used_memory", 0)) / limit if limit else 0.0


async def _durability(link: Link, information: Sequence[Information]) -> list[Finding]:
    try:
        fsync = set(await findings.setting(link, "appendfsync"))
        snapshots = any(await findings.setting(link, "save"))
    except RefusedError as error:
        return [
            *_files(information, snapshots=None),
            unknown("durability", f"no look at its settings: {error}"),
        ]
    found = [*_files(information, snapshots=snapshots)]
    if not found:
        found += _syncing(fsync)
    return found


def _files(information: Sequence[Information], *, snapshots: bool | None) -> Iterator[Finding]:
    """Whether what is written is still there after a restart. `snapshots`: None where that is not known."""
    broken = _where(information, lambda each: each.get("aof_last_write_status", "ok") != "ok")
    if broken is not None:
        yield problem(
            "durability",
            f"{broken}the append-only file cannot be written, so that nothing can be added",
            "make room on its disk; its log says what is wrong",
        )
    if (where := _where(information, lambda each: each.get("aof_enabled") == "0")) is not None:
        since = "" if snapshots is False else " since the last snapshot"
        yield warning(
            "durability",
            f"{where}the append-only file is off: a restart loses all that was added or done{since}",
            "CONFIG SET appendonly yes, and the same in its configuration file",
        )


def _syncing(fsync: set[str]) -> Iterator[Finding]:
    if "no" in fsync:
        yield warning(
            "durability",
            "appendfsync is no: a crash of the machine may cost the last half minute",
            "CONFIG SET appendfsync everysec, and the same in its configuration file",
        )
    else:
        mode = "everysec" if "everysec" in fsync else "always"
        yield ok("durability", f"append-only file, appendfsync {mode}: {_FSYNCS[mode]}")


# -- this user


async def _rights(link: Link, queues: Sequence[str], user: str | None) -> Finding:
    """On one queue at least everything that is needed should be allowed: others may not be this user's."""
    if not link.server.has_flags:
        return unknown(
            "rights", "before Redis 7.0 no user can ask for them", "as an administrator: ACL GETUSER"
        )
    tried = []
    for queue in [*queues[:QUEUES_TRIED], "remuda-doctor"]:
        try:
            missing = await findings.missing_rights(link, queue)
        except RefusedError as error:
            if " key" in str(error):
                continue
            tried = [["eval", "evalsha"]]
            break
        if not missing:
            return ok("rights", "this user may do what a queue and a worker need")
        tried.append(missing)
    if not tried:
        return unknown(
            "rights", "none of the queues here is this user's", "look again when there is one that is"
        )
    fewest = min(tried, key=len)
    return problem(
        "rights",
        f"this user lacks {plural(len(fewest), 'right')}: {', '.join(fewest)}",
        f"ACL SETUSER {user or 'default'} {' '.join(f'+{each}' for each in fewest)}",
    )


# -- queues


class Caps(NamedTuple):
    """What a queue keeps at most, as the URL says."""

    dead: int
    trail: int
    trail_age: timedelta


async def _queues(link: Link, queues: Sequence[str], caps: Caps, now: datetime) -> list[Finding]:
    found: list[Finding] = []
    closed = 0
    for queue in queues:
        try:
            state = await findings.queue_state(link, queue)
        except RefusedError:
            closed += 1
            continue
        found += [*_strangers(state), *_dead_letters(state, caps.dead), *_trail(state, caps, now)]
    if found:
        return found
    told = f"{plural(len(queues) - closed, 'queue')}, none near what it may hold" if queues else "none yet"
    return [ok("queues", f"{told}; {closed} more are closed to this user" if closed else told)]


def _strangers(state: QueueState) -> Iterator[Finding]:
    """ChasquiMQ's programs, which are welcome but to be known of."""
    at_work = [each for each in state.strangers if each.silent < LONG_SILENT]
    left = [each for each in state.strangers if each.silent >= LONG_SILENT]
    if at_work:
        yield warning(
            "consumers",
            f"{state.queue}: {plural(len(at_work), 'consumer')} of other programs at work on it "
            f"({_names(at_work)}); what they do is not in its trail",
            "nothing to do if ChasquiMQ is meant to share it: docs/chasquimq.md",
        )
        if state.waiting > NEARLY_FULL * CHASQUIMQ_TRIMS_AT:
            full = state.waiting > CHASQUIMQ_TRIMS_AT
            yield (problem if full else warning)(
                "stream",
                f"{state.queue}: {state.waiting:,} entries; beyond a million ChasquiMQ's producers drop the "
                "oldest, also those that nobody has read",
                "let ours do the adding, with max_live below a million, until it is worked off",
            )
    elif left:
        yield warning(
            "consumers",
            f"{state.queue}: {plural(len(left), 'consumer')} of other programs left in its group "
            f"({_names(left)}), silent for {span(min(each.silent for each in left))}",
            "XGROUP DELCONSUMER, if they will not come back and hold nothing (XINFO CONSUMERS)",
        )


def _names(consumers: Sequence[Consumer]) -> str:
    shown = ", ".join(each.name for each in consumers[:3])
    return f"{shown}, …" if len(consumers) > 3 else shown


def _dead_letters(state: QueueState, cap: int) -> Iterator[Finding]:
    if state.dead >= NEARLY_FULL * cap:
        yield warning(
            "dead letters",
            f"{state.queue}: {state.dead:,}, and {cap:,} are kept: beyond that the oldest go",
            f"remuda dlq peek {state.queue}; then replay, export or drop them, or raise dlq_max in the URL",
        )


def _trail(state: QueueState, caps: Caps, now: datetime) -> Iterator[Finding]:
    """A full trail is ordinary; one that does not go back as far as it should is not."""
    if state.trail is None or state.trail.length < NEARLY_FULL * caps.trail:
        return
    reach = now - state.trail.begins
    if reach < caps.trail_age:
        yield warning(
            "trail",
            f"{state.queue}: {state.trail.length:,} transitions of at most {caps.trail:,} go back "
            f"{span(reach)}, not {span(caps.trail_age)}",
            "raise trail_max in the URL, or say with trail_age that less is enough",
        )
