"""`make kafka SPANS=5000000`: the faults of test_faults.py under a load of any size.

Unlike the tests, it runs the pinned configurations unchanged, with their pauses between attempts.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.kit.backends.kafka import kafka
from tests.kit.backends.postgres import postgres
from tests.kit.backends.versitygw import versitygw

from .faults import (
    FAULTS,
    Chain,
    chain,
    compact,
    replay,
    settle,
)
from .load import SPANS

SECONDS = 6 * 3600.0
EVERY_S = 30.0
BUCKET = "tables"


def main(argv: list[str]) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="make kafka", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("spans", type=int, help=f"the number of spans, a multiple of {SPANS}")
    parser.add_argument("--no-replay", action="store_true", help="deliver every message once only")
    parser.add_argument("--s3", action="store_true", help="columnar tables in S3 (versitygw)")
    parser.add_argument("--directory", type=Path, help="for temporary files, about 1.5 kB a span")
    arguments = parser.parse_args(argv)
    spans = max(1, arguments.spans // SPANS) * SPANS
    with tempfile.TemporaryDirectory(prefix="cirron-otel-kafka-", dir=arguments.directory) as name:
        directory = Path(name) / "load"
        directory.mkdir()
        with (
            kafka(Path(name)) as broker,
            postgres() as server,
            _tables(Path(name), in_bucket=arguments.s3) as tables,
            chain(broker, server.new_database(), tables, spans, directory, SECONDS) as running,
        ):
            return _run(running, spans, not arguments.no_replay)


@contextlib.contextmanager
def _tables(directory: Path, *, in_bucket: bool) -> Iterator[str]:
    if not in_bucket:
        yield str(directory / "tables")
        return
    with versitygw(directory / "versitygw") as server:
        server.make_bucket(BUCKET)
        os.environ.update(server.environment())
        yield f"s3://{BUCKET}/load"


def _run(running: Chain, spans: int, is_replayed: bool) -> int:
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - started:7.0f} s  {text}", flush=True)

    say(f"{spans:,} spans")
    exact = True
    with _progress(running, say):
        running.load.allow(0.2)
        for fault in FAULTS:
            fault(running)
            say(fault.__name__.replace("_", " "))
        steps = [("delivered", settle), ("delivered again", replay), ("compacted", compact)]
        for name, step in steps:
            if step is replay and not is_replayed:
                continue
            results = step(running)
            if step is settle:
                rate = spans / (time.monotonic() - started)
                say(f"{running.topics.end():,} messages, {rate:,.0f} spans a second")
            for place, counts in results.items():
                lost, once = counts.count(0), counts.count(1)
                more = spans - once - lost
                say(f"{name}, {place}: {once:,} once, {more:,} more than once, {lost:,} lost")
                exact = exact and once == spans
    return 0 if exact else 1


@contextlib.contextmanager
def _progress(running: Chain, say: Callable[[str], None]) -> Iterator[None]:
    """Print how many requests are acknowledged, from time to time."""
    is_over = threading.Event()

    def report() -> None:
        last = -1
        while not is_over.wait(EVERY_S):
            number = sum(running.load.acknowledged)
            if number != last:
                say(f"{number * SPANS:,} spans are acknowledged")
            last = number

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
