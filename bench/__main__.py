"""``python -m bench``: run the measures and print them side by side."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import aims, catalogue, machine, report
from bench.catalogue import PeerFile, Server
from bench.complaints import without_paths
from bench.measures import MEASURES, Order
from bench.report import Row
from bench.run import run_peer

FULL = {"jobs": 200_000, "seconds": 5.0, "repeats": 3, "memory_jobs": 1_000_000, "memory_seconds": 120.0}
QUICK = {"jobs": 20_000, "seconds": 1.5, "repeats": 1, "memory_jobs": 20_000, "memory_seconds": 5.0}
INTERRUPTED = 130  # the exit code that shells give


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options, with ``--quick`` only filling in for what was not said."""
    peers = [peer.name for peer in catalogue.peers()]
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--stores", type=_some_of(catalogue.stores()), default=catalogue.stores())
    parser.add_argument("--peers", type=_some_of(peers), default=peers)
    parser.add_argument("--measures", type=_some_of(list(MEASURES)), default=list(MEASURES))
    parser.add_argument("--jobs", type=int, help="at most so many jobs in a run")
    parser.add_argument("--seconds", type=float, help="about how long the timed part of a run takes")
    parser.add_argument("--repeats", type=int, help="runs of each measure, except memory, which has one")
    parser.add_argument("--rate", type=int, help="jobs added a second for latency (else the store's own)")
    parser.add_argument("--memory-jobs", type=int, help="jobs that a worker handles for memory")
    parser.add_argument("--memory-seconds", type=float, help="fewer jobs for peers that would need longer")
    parser.add_argument("--quick", action="store_true", help="a short run, to see that all works")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep everything here")
    options = parser.parse_args(arguments)
    for name, value in (QUICK if options.quick else FULL).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def _some_of(known: list[str]) -> Any:
    """An argument type: names separated by commas, all of them known."""

    def names(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := set(chosen) - set(known):
            raise argparse.ArgumentTypeError(f"no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
        return chosen

    return names


def rows_for(store: str, peers: list[PeerFile], options: argparse.Namespace) -> list[Row]:
    """The empty rows of a store, in the order in which they are shown."""
    return [
        Row(
            *(store, measure, peer.name, variant, peer.bare),
            native=peer.native,
            acks=variant not in peer.without_acks,
        )
        for measure in options.measures
        for peer in peers
        if store in peer.stores
        for variant in peer.variants_in(measure)
    ]


def fill(rows: list[Row], server: Server, peers: list[PeerFile], options: argparse.Namespace) -> None:
    """Run everything, all peers in turn before any is repeated, so that a slow minute hits them alike."""
    by_name = {peer.name: peer for peer in peers}
    for repeat in range(options.repeats):
        for row in rows:
            if row.measure == "memory" and repeat > 0:
                continue
            order, time_limit = _order(row, options, server)
            run = run_peer(by_name[row.peer], server, order, time_limit)
            row.runs.append(run)
            outcome = run.failure or json.dumps(run.figures)
            print(f"{row.store} {row.measure} {row.label} {repeat + 1}: {outcome}", file=sys.stderr)


def _order(row: Row, options: argparse.Namespace, server: Server) -> tuple[Order, float]:
    """What to run for a row, and how long it may take altogether: preloading can be slower than work."""
    memory = row.measure == "memory"
    jobs = options.memory_jobs if memory else options.jobs
    seconds = options.memory_seconds if memory else options.seconds
    rate = options.rate or server.latency_rate
    order = Order(row.measure, "", row.variant, jobs=jobs, seconds=seconds, rate=rate)
    return order, 120 + 10 * seconds


@contextlib.contextmanager
def _stopped_in_order() -> Iterator[None]:
    """Let a SIGTERM unwind like Ctrl-C does, so that no server is left running."""
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _bench(options: argparse.Namespace, rows: list[Row], stores: dict[str, dict[str, str]]) -> None:
    """Fill ``rows`` and ``stores`` as the run goes on, so that an interrupted one can be reported too."""
    peers = [peer for peer in catalogue.peers() if peer.name in options.peers]
    for store in options.stores:
        # Open to others: a PostgreSQL started by root runs as a user of its own.
        with tempfile.TemporaryDirectory(prefix="bench-") as directory:
            Path(directory).chmod(0o755)
            try:
                with catalogue.serve(store, Path(directory)) as server:
                    fit, unfit = _sorted_out(peers, store, server.facts)
                    stores[store] = server.facts | unfit
                    store_rows = rows_for(store, fit, options)
                    rows.extend(store_rows)
                    fill(store_rows, server, peers, options)
            except RuntimeError as unusable:
                stores[store] = {"failure": without_paths(str(unusable))}
                print(f"{store} left out: {unusable}", file=sys.stderr)


def _sorted_out(
    peers: list[PeerFile], store: str, facts: dict[str, str]
) -> tuple[list[PeerFile], dict[str, str]]:
    """The peers that can run on this server, and for the others a word that goes with its facts."""
    unmet = {peer.name: peer.unmet_on(store, facts) for peer in peers if store in peer.stores}
    unfit = {f"without {name}": f"(it {reason})" for name, reason in unmet.items() if reason}
    return [peer for peer in peers if not unmet.get(peer.name)], unfit


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    facts = machine.facts()
    rows: list[Row] = []
    stores: dict[str, dict[str, str]] = {}
    interrupted = False
    try:
        with _stopped_in_order():
            _bench(options, rows, stores)
    except KeyboardInterrupt:
        interrupted = True
    rows = [row for row in rows if row.runs]
    print("machine: " + ", ".join(f"{name} {value}" for name, value in facts.items()))
    for store, store_facts in stores.items():
        print(f"{store}: " + ", ".join(f"{name} {value}" for name, value in store_facts.items()))
    print("\n" + report.tables(rows))
    found = aims.outcomes(rows)
    if text := aims.table(found):
        print("\n" + text)
    if facts["load_before"] > facts["cores"] / 4:
        print("\nThe machine was busy before the run began (load_before): take the figures with care.")
    if options.json:
        settings = {name: value for name, value in vars(options).items() if name != "json"}
        document = {
            "taken_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": facts,
            "options": settings,
            "stores": stores,
            "results": [row.as_json() for row in rows],
            "aims": [outcome.as_json() for outcome in found],
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    if interrupted:
        return INTERRUPTED
    return 1 if any(row.failures for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
