"""A program of the reference broker's: it publishes, consumes, or makes its tables. Knows nothing of Remuda.

Runs in an environment of its own: `python faststream_program.py '{"do": "publish", "url": …}'`.
What it receives it writes to its standard output, one JSON object to a line.
"""

import asyncio
import base64
import json
import sys
from datetime import datetime
from typing import Any

from faststream_sqlbroker import SqlBroker, SqlBrokerMessage, SqlBrokerSchemaConfig, SqlBrokerSchemaType
from faststream_sqlbroker.sqlbroker.schema import define_sqlbroker_schema
from sqlalchemy.ext.asyncio import create_async_engine


def say(**line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


async def create(request: dict[str, Any]) -> None:
    tables = define_sqlbroker_schema(config=SqlBrokerSchemaConfig()).tables
    engine = create_async_engine(request["url"])
    async with engine.begin() as connection:
        await connection.run_sync(tables[SqlBrokerSchemaType.MESSAGE].metadata.create_all)
    await engine.dispose()


async def publish(request: dict[str, Any]) -> None:
    broker = SqlBroker(engine=create_async_engine(request["url"]))
    await broker.start()
    for message in request["messages"]:
        moment = message.get("next_attempt_at")
        await broker.publish(
            base64.b64decode(message["base64"]) if "base64" in message else message["body"],
            queue=request["queue"],
            headers=message.get("headers"),
            next_attempt_at=datetime.fromisoformat(moment) if moment else None,
        )
    if request.get("batch"):
        await broker.publish_batch(*request["batch"], queue=request["queue"])
    await broker.stop()


async def consume(request: dict[str, Any]) -> None:
    """Until `count` messages were handled; `hold_s` is how long each takes."""
    broker = SqlBroker(engine=create_async_engine(request["url"]), logger=None)
    enough = asyncio.Event()
    handled = 0

    @broker.subscriber(
        queues=[request["queue"]],
        max_workers=10,
        max_fetch_interval=0.1,
        fetch_batch_size=10,
        flush_interval=0.1,
        **request.get("options", {}),
    )
    async def handle(body: Any, message: SqlBrokerMessage) -> None:
        nonlocal handled
        say(event="start", body=body, headers=message.headers, id=message.raw_message.id)
        await asyncio.sleep(request.get("hold_s", 0))
        say(event="end", id=message.raw_message.id)
        handled += 1
        if handled == request["count"]:
            enough.set()

    await broker.start()
    await enough.wait()
    await broker.stop()


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    asyncio.run({"create": create, "publish": publish, "consume": consume}[asked["do"]](asked))
