"""`add`: one job from the command line, or many from a file of JSON lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remuda.cli import output
from remuda.cli.exits import run
from remuda.cli.opening import opened_queue
from remuda.cli.options import DURATION, TIME, AsJson, QueueName, Url, duration, instant
from remuda.cli.reading import read_bytes, read_payload
from remuda.cli.times import parse_instant, relative
from remuda.codec import PayloadFormat
from remuda.durations import parse_duration
from remuda.errors import ConfigurationError, InvalidJobError

if TYPE_CHECKING:
    from remuda.message import NewJob
    from remuda.queue import Queue

CHUNK = 1_000


def add(
    queue: QueueName,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="The job's name; with --from-jsonl, that of lines without one.",
            show_default=False,
        ),
    ] = None,
    url: Url = None,
    payload: Annotated[
        str | None,
        typer.Option("--payload", "-p", metavar="JSON", help="The payload; - reads it from stdin."),
    ] = None,
    payload_file: Annotated[
        str | None, typer.Option("--payload-file", metavar="FILE", help="A file with the payload as JSON.")
    ] = None,
    delay: Annotated[
        timedelta | None,
        typer.Option("--delay", parser=duration, metavar=DURATION, help="Not before: 30s, 5m, 1h30m."),
    ] = None,
    at: Annotated[
        datetime | None,
        typer.Option("--at", parser=instant, metavar=TIME, help="Not before this ISO time."),
    ] = None,
    priority: Annotated[
        int, typer.Option("--priority", metavar="N", help="From -2 (last) to 2 (first).")
    ] = 0,
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="KEY=VALUE", help="May be given again.")
    ] = None,
    expires_in: Annotated[
        timedelta | None,
        typer.Option("--expires-in", parser=duration, metavar=DURATION, help="Not started after this."),
    ] = None,
    job_id: Annotated[
        str | None,
        typer.Option("--job-id", metavar="ID", help="An id of your own; not added while one with it lives."),
    ] = None,
    unique_for: Annotated[
        timedelta | None,
        typer.Option(
            "--unique-for", parser=duration, metavar=DURATION, help="Nor for this long after it has ended."
        ),
    ] = None,
    rate_key: Annotated[
        str | None,
        typer.Option("--rate-key", metavar="KEY", help="Counts against the limit of each key."),
    ] = None,
    payload_format: Annotated[
        PayloadFormat,
        typer.Option("--payload-format", metavar="FORMAT", help="How it is stored: msgpack or json."),
    ] = PayloadFormat.MSGPACK,
    from_jsonl: Annotated[
        str | None,
        typer.Option("--from-jsonl", metavar="FILE", help="Add a job for each line; - reads stdin."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Add a job, or many at once with --from-jsonl. Prints the id.

    \b
    remuda add emails welcome --payload '{"to": "a@example.org"}' --delay 5m
    remuda add emails --from-jsonl jobs.jsonl
    """
    options = {
        "delay": delay,
        "next_attempt_at": at,
        "priority": priority,
        "headers": _headers(header),
        "expires_in": expires_in,
        "job_id": job_id,
        "unique_for": unique_for,
        "rate_key": rate_key,
    }
    if from_jsonl is not None:
        if payload is not None or payload_file is not None or any(options.values()):
            raise typer.BadParameter("with --from-jsonl each line has its own payload and options")
        run(lambda: _add_lines(queue, name, url, from_jsonl, payload_format, as_json=as_json))
        return
    if name is None:
        raise typer.BadParameter("the job needs a NAME")
    value = read_payload(payload, payload_file)
    run(lambda: _add_one(queue, name, value, options, url, payload_format, as_json=as_json))


def _headers(pairs: list[str] | None) -> dict[str, str] | None:
    headers = {}
    for pair in pairs or ():
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise typer.BadParameter(f"a header is KEY=VALUE, not {pair!r}", param_hint="--header")
        headers[key] = value
    return headers or None


async def _add_one(
    queue_name: str,
    name: str,
    payload: Any,
    options: dict[str, Any],
    url: str | None,
    payload_format: PayloadFormat,
    *,
    as_json: bool,
) -> None:
    async with opened_queue(queue_name, url, create=True, payload_format=payload_format) as queue:
        if options["job_id"] is None:
            plain = {key: value for key, value in options.items() if key not in ("job_id", "unique_for")}
            if options["unique_for"] is not None:
                raise ConfigurationError("--unique-for needs a --job-id to be unique by")
            job_id, new = await queue.add(name, payload, **plain), True
        else:
            added = await queue.add_unique(name, payload, **options)
            job_id, new = added.id, added.new
        now = queue.store.now()
    if as_json:
        output.emit({"id": job_id, "queue": queue_name, "name": name, "new": new})
    elif not output.on_terminal():
        output.say(job_id)
    elif new:
        output.say(f"added {name} {job_id} to {queue_name}{_when(options, now)}")
    else:
        output.say(f"{job_id} is in {queue_name} already: nothing was added")


def _when(options: dict[str, Any], now: datetime) -> str:
    if options["delay"]:
        return f", due {relative(now + options['delay'], now)}"
    return f", due {relative(options['next_attempt_at'], now)}" if options["next_attempt_at"] else ""


# -- many


_PARSERS: dict[str, Callable[[str], Any]] = {
    "delay": parse_duration,
    "expires_in": parse_duration,
    "unique_for": parse_duration,
    "next_attempt_at": parse_instant,
    "expires_at": parse_instant,
}
_FIELDS = ("name", "payload", "priority", "headers", "job_id", "rate_key", *_PARSERS)


def _value(field: str, told: Any) -> Any:
    parse = _PARSERS.get(field)
    if parse is None:
        return told
    if not isinstance(told, str):
        raise TypeError(f"{field} is text, such as 5m or 2030-01-31T08:00Z, not {told!r}")
    return parse(told)


async def _add_lines(
    queue_name: str,
    default_name: str | None,
    url: str | None,
    file: str,
    payload_format: PayloadFormat,
    *,
    as_json: bool,
) -> None:
    """All lines are checked before the first is added, so that a mistake in the last one adds nothing."""
    lines = read_bytes(file).splitlines()
    async with opened_queue(queue_name, url, create=True, payload_format=payload_format) as queue:
        jobs = _checked(queue, lines, default_name, file)
        with output.progress("adding", len(jobs)) as advance:
            ids = await _add_in_chunks(queue, jobs, advance)
    if as_json:
        output.emit({"queue": queue_name, "added": len(ids), "ids": ids})
    else:
        output.say(f"added {output.plural(len(ids), 'job')} to {queue_name}")


def _checked(queue: Queue, lines: list[bytes], default_name: str | None, file: str) -> list[NewJob]:
    jobs = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            job = _job(line, default_name)
            queue.encode([job])
        except (ValueError, TypeError, InvalidJobError) as error:
            raise InvalidJobError(f"line {number} of {file}: {error}; nothing was added") from error
        jobs.append(job)
    return jobs


def _job(line: bytes, default_name: str | None) -> NewJob:
    import msgspec

    from remuda.message import NewJob

    fields = msgspec.json.decode(line)
    if not isinstance(fields, dict):
        raise TypeError(f"a line is a JSON object, not {line[:40].decode(errors='replace')}")
    unknown = fields.keys() - set(_FIELDS)
    if unknown:
        raise ValueError(f"unknown: {', '.join(sorted(unknown))}; a line has {', '.join(_FIELDS)}")
    values = {field: _value(field, told) for field, told in fields.items() if told is not None}
    values.setdefault("name", default_name)
    if not values["name"]:
        raise ValueError("the job has no name; give it one, or give NAME on the command line")
    return NewJob(**values)


async def _add_in_chunks(queue: Queue, jobs: Iterable[NewJob], advance: Callable[[int], None]) -> list[str]:
    ids: list[str] = []
    remaining = iter(jobs)
    try:
        while chunk := list(islice(remaining, CHUNK)):
            ids += await queue.add_many(chunk)
            advance(len(chunk))
    except BaseException:
        output.note(f"{output.plural(len(ids), 'job')} had been added by then: the first lines of the file")
        raise
    return ids
