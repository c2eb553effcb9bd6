"""`limit`: how many jobs of a queue may run in a time."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from remuda.cli import output
from remuda.cli.exits import run
from remuda.cli.opening import opened_queue
from remuda.cli.options import DURATION, AsJson, QueueName, Url, duration
from remuda.cli.times import span

if TYPE_CHECKING:
    from remuda.rate import RateLimit, RateLimits


def limit(
    queue: QueueName,
    url: Url = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, metavar="N", help="So many jobs of the queue …")
    ] = None,
    per: Annotated[
        timedelta | None,
        typer.Option("--per", parser=duration, metavar=DURATION, help="… in this time: 1s, 1m."),
    ] = None,
    key_jobs: Annotated[
        int | None, typer.Option("--key-jobs", min=1, metavar="N", help="So many jobs of each rate key …")
    ] = None,
    key_per: Annotated[
        timedelta | None,
        typer.Option("--key-per", parser=duration, metavar=DURATION, help="… in this time."),
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="Take the limits away.")] = False,
    as_json: AsJson = False,
) -> None:
    """Limit how many jobs run in a time, on all workers together. Without options, show the limits.

    Workers notice within a second; limits outlive restarts. The one that is not given is taken away.

    \b
    remuda limit emails --jobs 100 --per 1s --key-jobs 10 --key-per 1m
    remuda limit emails --off
    """
    _check_pair("--jobs", jobs, "--per", per)
    _check_pair("--key-jobs", key_jobs, "--key-per", key_per)
    given = jobs is not None or key_jobs is not None
    if off and given:
        raise typer.BadParameter("give limits or --off, not both")
    run(lambda: _limit(queue, url, (jobs, per), (key_jobs, key_per), change=given or off, as_json=as_json))


def _check_pair(jobs_name: str, jobs: int | None, per_name: str, per: timedelta | None) -> None:
    if (jobs is None) != (per is None):
        raise typer.BadParameter(f"{jobs_name} and {per_name} belong together: so many jobs in that time")


_Pair = tuple[int | None, timedelta | None]


async def _limit(
    name: str, url: str | None, for_queue: _Pair, for_key: _Pair, *, change: bool, as_json: bool
) -> None:
    from remuda.cli.records import limits_fields

    async with opened_queue(name, url) as queue:
        if change:
            await queue.limit_rate(queue=_made(for_queue), key=_made(for_key))
        limits = await queue.rate_limits()
    if as_json:
        output.emit({"queue": name, "rate_limits": limits_fields(limits)})
    else:
        output.say(f"{name}: {limits_text(limits) or 'no rate limit'}")


def _made(pair: _Pair) -> RateLimit | None:
    from remuda.rate import RateLimit

    jobs, per = pair
    return None if jobs is None or per is None else RateLimit(jobs, per)


def limits_text(limits: RateLimits) -> str:
    """The limits for people; empty when there are none."""
    told = []
    if limits.queue is not None:
        told.append(f"at most {_text(limits.queue)}")
    if limits.key is not None:
        told.append(f"for each key at most {_text(limits.key)}")
    return ", ".join(told)


def _text(limit: RateLimit) -> str:
    return f"{output.plural(limit.jobs, 'job')} in {span(limit.per)}"
