"""What a sample takes for granted, by document, heading and which of the samples below it.

It is run just before the sample, in the same process and folder.
"""

from __future__ import annotations

_SHOP = """
from datetime import timedelta
from sqlalchemy import Column, Integer, MetaData, Table, insert
from sqlalchemy.ext.asyncio import create_async_engine
from remuda import Job, Queue, RateLimit, Worker

queue = emails = Queue("orders", "postgresql://app@db/shop")
engine = create_async_engine("postgresql+asyncpg://app@db/shop")
orders = Table("orders", MetaData(), Column("id", Integer, primary_key=True))
async with engine.begin() as connection:
    await connection.run_sync(orders.create)
"""

# A queue with what a queue has after a while: 24 completed jobs, 14 dead letters and one for tomorrow.
_EMAILS = """
from datetime import timedelta
from pathlib import Path

from remuda import NewJob, Queue

Path("app.py").write_text('''from datetime import timedelta

from remuda import Constant, Job, Queue, UnrecoverableError, Worker

emails = Queue("emails", "sqlite:///app.db")
worker = Worker(emails, retry=Constant(every=timedelta(0), max_attempts=3))


@worker.handler("welcome")
async def welcome(job: Job) -> None:
    if job.payload["n"] > 36:
        raise UnrecoverableError(f"no such user: {job.payload['n']}")
    if job.payload["n"] > 24:
        raise ConnectionError(f"smtp-{job.payload['n'] % 3}.example.org: too many connections")


@worker.handler("newsletter")
async def newsletter(job: Job) -> None:
    for page in (1, 2, 3):
        job.log(f"page {page} written")
''')


async def emails_after_a_while(waiting=0):
    import app

    async with Queue("emails", "sqlite:///app.db") as emails:
        await emails.obliterate(force=True)
        await emails.add_unique("newsletter", job_id="issue-7")
        for numbers in (range(2, 25), (37, 38), range(25, 37)):
            await emails.add_many(
                NewJob("welcome", {"n": n, "to": f"user{n}@example.org"}) for n in numbers
            )
            while await app.worker.step():
                pass
        await emails.add_unique(
            "welcome", {"n": 1, "to": "user1@example.org"}, job_id="tomorrow", delay=timedelta(minutes=5)
        )
        await emails.add_many(NewJob("welcome", {"n": n}) for n in range(1, waiting))


await emails_after_a_while()
"""

GIVEN = {
    ("README.md", "In a minute", 2): _SHOP,
    ("README.md", "In a minute", 7): '''
import os
from pathlib import Path

Path("fleet.toml").write_text("""
[calin_v1]
base_url = "https://calin.example.org/api"
company = "Acme"
user = "admin"
password_env = "PASSWORD"
""")
os.environ["PASSWORD"] = "secret"
''',
    ("adding-jobs.md", "With your own data", 1): _SHOP,
    ("adding-jobs.md", "Change your mind", 1): """
job_id, another_id = [await queue.add("later", delay=timedelta(hours=1)) for _ in range(2)]
""",
    ("chasquimq.md", "Sharing a queue with ChasquiMQ", 1): "from remuda import Queue",
    ("command-line.md", "Look at queues", 1): _EMAILS,
    ("command-line.md", "Add", 1): """
Path("payload.json").write_text('{"to": "b@example.org"}')
Path("invoice.json").write_text('{"number": 42}')
""",
    ("command-line.md", "Add", 2): """
Path("jobs.jsonl").write_text(
    '{"name": "welcome", "payload": {"to": "a@example.org"}}\\n'
    '{"name": "welcome", "payload": {"to": "b@example.org"}, "delay": "5m", "priority": 1, '
    '"headers": {"source": "shop"}}\\n'
)
""",
    ("command-line.md", "Run workers", 1): """
Path("shop").mkdir()
Path("shop/jobs.py").write_text("from app import worker\\n\\nworkers = [worker]\\n")
""",
    ("command-line.md", "Send a command", 1): """
from pathlib import Path

Path("token").write_text("90001234567890120500")
""",
    ("command-line.md", "Send a command", 2): """
Path("commands.jsonl").write_text(
    '{"device": "47003000004", "type": "TURN_ON"}\\n'
    '{"device": "47003000005", "type": "READ_VOLTAGE", "phase": "B", "expires": "30m"}\\n'
)
""",
    ("command-line.md", "Pause, resume, drain, purge", 1): "await emails_after_a_while(waiting=1_204)",
    ("command-line.md", "Doctor", 1): """
async with Queue("emails", "postgresql://shop@db.example.org/shop"):
    pass  # its tables are there
""",
    ("dead-letters.md", "Look", 1): _EMAILS,
    ("devices.md", "Run an engine", 1): """
fleet, api_key, webhook_secret = Fleet("memory://"), "a key", "a secret of the webhook's"
""",
    ("devices.md", "Who is told", 1): """
from remuda.devices.networks.calin_v1 import CalinV1

calin = CalinV1("https://calin.example/api", company="Acme", user="admin", password="secret")
engine, secret = Engine(Fleet("memory://"), [calin]), "a secret of the receiver's"
""",
    ("workers.md", "Workers", 1): """
from datetime import timedelta
from remuda import Job, Queue, RateLimit, Worker

queue = Queue("orders", "sqlite:///app.db")
""",
    ("workers.md", "Results", 1): """
reporter = Worker(queue, store_results=True)
reporter.handler("report")(lambda job: 42)
job_id = await queue.add("report")
await reporter.run(until_empty=True)
""",
}
