"""`make kafka SPANS=5000000`: the faults of test_faults.py under a load of any size."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.backends.kafka import kafka
from tests.backends.postgres import postgres

from .faults import FAULTS, Chain, chain, replay, settle
from .load import SPANS

SECONDS = 6 * 3600.0


def main(argv: list[str]) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="make kafka", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("spans", type=int, help=f"the number of spans, a multiple of {SPANS}")
    parser.add_argument("--no-replay", action="store_true", help="deliver every message once only")
    arguments = parser.parse_args(argv)
    spans = max(1, arguments.spans // SPANS) * SPANS
    with tempfile.TemporaryDirectory(prefix="cirron-otel-kafka-") as name:
        directory = Path(name) / "load"
        directory.mkdir()
        with (
            kafka(Path(name)) as broker,
            postgres() as server,
            chain(broker, server.new_database(), spans, directory, SECONDS) as running,
        ):
            return _run(running, spans, not arguments.no_replay)


def _run(running: Chain, spans: int, is_replayed: bool) -> int:
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - started:7.0f} s  {text}", flush=True)

    say(f"{spans:,} spans")
    running.load.allow(0.2)
    for fault in FAULTS:
        fault(running)
        say(fault.__name__.replace("_", " "))
    results = {"delivered": settle(running)}
    seconds = time.monotonic() - started
    say(f"delivered: {running.topics.end():,} messages, {spans / seconds:,.0f} spans a second")
    if is_replayed:
        results["delivered again"] = replay(running)
    exact = True
    for name, counts in results.items():
        lost, once = counts.count(0), counts.count(1)
        say(f"{name}: {once:,} spans once, {spans - once - lost:,} more than once, {lost:,} lost")
        exact = exact and once == spans
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
