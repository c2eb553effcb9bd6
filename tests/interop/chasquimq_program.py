"""A program of ChasquiMQ's own package: it adds, cancels, replays, looks, or works. Knows nothing of Remuda.

Runs in an environment of its own: `python chasquimq_program.py '{"do": "add", "url": …, "queue": …}'`.
What it learns it writes to its standard output, one JSON object to a line.
"""

import asyncio
import json
import os
import signal
import sys
from typing import Any

from chasquimq import (
    BackoffSpec,
    Job,
    MissedFiresPolicy,
    Queue,
    QueueEvents,
    RepeatPattern,
    UnrecoverableError,
    Worker,
)


def say(event: str, **line: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **line}) + "\n")
    sys.stdout.flush()


async def add(queue: Queue, request: dict[str, Any]) -> None:
    """Add `jobs`, each with the words of `Queue.add`, and `bulk` at once."""
    for job in request.get("jobs", []):
        if isinstance(job.get("backoff"), dict):
            job["backoff"] = BackoffSpec(**job["backoff"])
        say("added", id=(await queue.add(**job)).id)
    for added in await queue.add_bulk(request.get("bulk", [])):
        say("added", id=added.id)


async def cancel(queue: Queue, request: dict[str, Any]) -> None:
    for job_id in request["ids"]:
        say("cancelled", id=job_id, removed=await queue.cancel_delayed(job_id))


async def peek(queue: Queue, request: dict[str, Any]) -> None:
    for letter in await queue.peek_dlq():
        say("letter", name=letter["name"], reason=letter["reason"], source=letter["source_id"])


async def replay(queue: Queue, request: dict[str, Any]) -> None:
    say("replayed", count=await queue.replay_dlq())


async def results(queue: Queue, request: dict[str, Any]) -> None:
    for job_id in request["ids"]:
        say("result", id=job_id, value=await queue.get_job_result(job_id))


async def repeat(queue: Queue, request: dict[str, Any]) -> None:
    """Put `specs`, each with the words of `upsert_repeatable_job`, and tell all that are there."""
    for spec in request.get("specs", []):
        pattern, missed = spec.pop("repeat"), spec.pop("missed", None)
        if missed is not None:
            spec["missed_fires"] = MissedFiresPolicy(**missed)
        say("put", key=(await queue.upsert_repeatable_job(repeat=RepeatPattern(**pattern), **spec)).id)
    for spec in await queue.get_repeatable_jobs():
        missed_fires = spec.missed_fires and spec.missed_fires.to_dict()
        say("spec", key=spec.key, name=spec.job_name, pattern=spec.pattern.to_dict(), missed=missed_fires)


async def events(queue: Queue, request: dict[str, Any]) -> None:
    """From the beginning, until `count` have come."""
    stream = QueueEvents(request["queue"], redis_url=request["url"], last_event_id="0", block_ms=200)
    count = 0
    async for event in stream:
        say("seen", kind=event.name, id=event.job_id, name=event.job_name, fields=event.fields)
        count += 1
        if count == request["count"]:
            break
    await stream.close()


async def work(queue: Queue, request: dict[str, Any]) -> None:
    """Until a SIGTERM. What the handler does is in the job's data: `hold_s`, `fail` (so often), `returns`."""

    async def handle(job: Job) -> Any:
        say("start", id=job.id, name=job.name, data=job.data, attempt=job.attempt)
        wish = job.data if isinstance(job.data, dict) else {}
        await asyncio.sleep(wish.get("hold_s", 0))
        if wish.get("fail", 0) > job.attempt:
            raise ValueError("as it was asked to")
        if wish.get("hopeless"):
            raise UnrecoverableError("as it was asked to")
        say("end", id=job.id)
        return wish.get("returns")

    worker = Worker(
        request["queue"], handle, redis_url=request["url"], read_block_ms=100, **request.get("options", {})
    )
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    running = asyncio.create_task(worker.run())
    say("working")
    await ended.wait()
    await worker.close()
    await running


async def main(request: dict[str, Any]) -> None:
    what = {
        "add": add,
        "cancel": cancel,
        "peek": peek,
        "replay": replay,
        "results": results,
        "events": events,
        "repeat": repeat,
        "work": work,
    }
    async with Queue(request["queue"], redis_url=request["url"]) as queue:
        await what[request["do"]](queue, request)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
    # Its threads sometimes bring the interpreter down on its way out, when all is done and said.
    os._exit(0)
