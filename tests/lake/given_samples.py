"""What the samples of the lake's documents take for granted, as in tests/samples/given.py.

`give` gives a command. `stack` is closed when the document ends. `instead` says what there is in the place
of an id that is shown.
"""

from __future__ import annotations

GIVEN = {
    ("lake.md", "In five minutes", 1): """
from tests.lake.stores import worked

worked("sqlite:///app.db", "emails", 30, dead_every=10)
""",
    ("lake-campaigns.md", "Campaigns", 1): """
from pathlib import Path

from tests.lake.agreeing_network import engine_at_work

meters = "".join(f"{number},API_V1,gateway\\n" for number in (4701, 4702, 4703))
Path("meters.csv").write_text(f"device,protocol,gateway\\n{meters}")
stack.enter_context(engine_at_work("sqlite:///app.db"))
""",
    ("lake-campaigns.md", "Devices", 1): """
import asyncio

from remuda.devices import CommandType, Device, Fleet, NewCommand, Protocol
from tests.lake.agreeing_network import STRANGER

stranger = Device(reference=STRANGER, protocol=Protocol.API_V1)


async def fail():
    async with Fleet("sqlite:///app.db") as fleet:
        sent = await fleet.send(NewCommand(type=CommandType.READ_CREDIT, device=stranger))
        while not (await fleet.get(sent.id)).has_ended:
            await asyncio.sleep(0.05)


asyncio.run(fail())
give("remuda lake ingest")
""",
    ("lake-campaigns.md", "Looking and operating", 1): """
give("remuda lake campaign start clock-2031 SET_TIME --devices meters.csv")
instead = {"clock-2030": "clock-2031"}
""",
    ("lake-campaigns.md", "From Python", 1): """
from pyspark.sql import functions as F

instead = {}
stack.enter_context(engine_at_work("postgresql://app@localhost/app"))
frame = spark.range(4701, 4703).select(
    F.col("id").cast("string").alias("device"),
    F.lit("API_V1").alias("protocol"),
    F.lit("90001234567890120500").alias("token"),
)
""",
    ("lake-sources.md", "Spark and a store", 1): """
import asyncio
from pathlib import Path

from remuda import Queue
from remuda.devices import CommandType, Device, Fleet, NewCommand, Protocol
from tests.lake.stores import worked

store = "postgresql://app@db/app"
worked(store, "emails", 30, dead_every=10)
meter = Device(reference="4701", protocol=Protocol.API_V1)


async def fill():
    async with Fleet(store, name="meters") as fleet:
        await fleet.send(NewCommand(type=CommandType.READ_CREDIT, device=meter))
    async with Queue("orders", store) as orders:
        await orders.add("order", {"customer": "Ada", "amount": 7.5})


async def waiting(queue):
    async with Queue(queue, store) as opened:
        return (await opened.stats()).pending


asyncio.run(fill())
""",
    ("lake-sources.md", "Dead letters", 1): """
assert sorted(row.seq for row in spark.read.parquet("trail").where("queue = 'emails'").collect()) == list(
    range(1, 91)
)
""",
    ("lake-sources.md", "A queue as a sink", 1): """
customers = spark.createDataFrame(
    [("Ada", 7.5, "north"), ("Bob", 9.0, "south")], "customer string, amount double, tenant string"
)
customers.write.parquet("customers")
""",
    ("lake-sources.md", "A queue as a sink", 2): """
assert asyncio.run(waiting("emails")) == 2
Path("meters.csv").write_text("device_reference,gateway\\n4702,g\\n4703,g\\n")
""",
    ("lake-sources.md", "As a stream", 1): """
assert asyncio.run(waiting("ticks")) == 10
Path("inbox").mkdir()
Path("inbox/one.json").write_text('{"name": "hello", "payload": "world"}\\n')
""",
    ("lake-sources.md", "A queue as a stream", 1): """
assert asyncio.run(waiting("emails")) == 3
""",
    ("lake-triage.md", "Plans", 1): """
from datetime import UTC, datetime

from remuda.lake.place import Lake
from remuda.lake.replay import Selection, make_plan
from remuda.lake.triage import triage
from tests.lake.stores import worked

worked("sqlite:///app.db", "orders", 30, dead_every=10)
give("remuda lake ingest")
lake, now = Lake("lake"), datetime.now(UTC)
(group,) = triage(lake.frames(spark), now)
plan = make_plan(lake, spark, Selection(queue="orders", limit=1), now=now)
instead = {
    "20300101-120000-1f0c": plan.id,
    "1f0c2a9b44d1e7c3": group.fingerprint,
    "stripe": "no mailbox 0",
}
""",
    ("lake-triage.md", "From Python", 1): """
worked("sqlite:///app.db", "orders", 30, dead_every=10)
give("remuda lake ingest")
now = datetime.now(UTC)
instead["1f0c2a9b44d1e7c3"] = next(
    each.fingerprint for each in triage(lake.frames(spark), now) if each.dead_now
)
""",
    ("lake-whatif.md", "Would another retry policy have done better?", 1): """
give("remuda lake generate -n 1000")
""",
    ("lake-whatif.md", "Would another retry policy have done better?", 2): """
from remuda.devices import Timings
from remuda.lake.place import Lake

lake = Lake("lake")
histories, transitions = lake.histories.read(spark), lake.transitions.read(spark)
""",
}
