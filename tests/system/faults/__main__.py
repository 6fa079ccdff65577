"""`make faults`: seeds of mixed answers; exits 1 if a span is lost, or stored twice."""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.kit.backends import postgres

from .driver import Outcome, Plan, database_url, run


@contextlib.contextmanager
def _databases(members: int) -> Iterator[postgres.Postgres | None]:
    """PostgreSQL, which several members need."""
    if members == 1:
        yield None
        return
    if reason := postgres.missing():
        sys.exit(f"two members need PostgreSQL: {reason}")
    with postgres.postgres() as server:
        yield server


def main() -> int:
    """Run the seeds, and print a line for each."""
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("--seeds", type=int, default=50, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--members", type=int, default=1, help="collectors on one database")
    parser.add_argument("--jobs", type=int, default=2, help="seeds that run at the same time")
    given = parser.parse_args()
    failed = spans = 0
    with _databases(given.members) as server, tempfile.TemporaryDirectory() as folder:

        def one(seed: int) -> Outcome:
            own = Path(folder) / str(seed)
            own.mkdir()
            url = server.new_database() if server else database_url(own)
            return run(own, Plan.drawn(seed, given.members), url)

        with ThreadPoolExecutor(given.jobs) as pool:
            for outcome in pool.map(one, range(given.first, given.first + given.seeds)):
                errors = outcome.errors()
                failed += bool(errors)
                spans += len(outcome.acknowledged)
                print("FAILED" if errors else "ok", outcome, flush=True)
                for error in errors:
                    print("   ", error, flush=True)
    print(f"{given.seeds} seeds, {spans:,} spans acknowledged, {failed} seeds failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
