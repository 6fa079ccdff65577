"""`make soak`: a collector under load, for longer than a test may take; exits 1 where it fails.

A section's name runs that section alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from .files import cost
from .kills import killed
from .steady import steady

KILLS = 40
STEADY_S, SPANS_A_SECOND, WARM_S = 600.0, 875.0, 180.0
MOST_GROWTH, MOST_TREND = 1.1, 1e6
"""So much more than in the third minute may be resident later on, and so much more each minute,
bytes: sizes of requests vary, and SQLite and the allocator of memory keep what they had once."""
FEW, MANY, COST_S, MOST_COST = 400, 40_000, 60.0, 1.2
_MB = 1e6


def kills(folder: Path) -> bool:
    """Kill it under load; nothing is lost, and nothing comes twice without a reason."""
    found = killed(folder, KILLS)
    print(f"kills: {found}", flush=True)
    try:
        found.see()
    except AssertionError as error:
        print(f"  failed: {error}")
        return False
    return True


def memory(folder: Path) -> bool:
    """Ten minutes of steady load; what is resident does not grow."""
    run = steady(folder, STEADY_S, SPANS_A_SECOND)
    for each in run.samples[::6]:
        print(
            f"  {each.at_s:5.0f} s  {each.batches:6,} batches  first process"
            f" {each.receiver / _MB:4.0f} MB  second {each.translator / _MB:4.0f} MB"
        )
    before, later = run.most(WARM_S - 60, WARM_S), run.most(WARM_S, STEADY_S + 1)
    trend = run.trend(WARM_S)
    print(
        f"memory: {run.spans:,} spans; at most {before / _MB:.0f} MB in the third minute and"
        f" {later / _MB:.0f} MB after it; {trend / _MB:+.2f} MB a minute from then on",
        flush=True,
    )
    return later <= MOST_GROWTH * before and trend <= MOST_TREND


def files(folder: Path) -> bool:
    """The cost of a new batch does not grow with the spool."""
    few, many = cost(folder / "few", FEW, COST_S), cost(folder / "many", MANY, COST_S)
    ratio = many.a_batch_s / few.a_batch_s
    print(
        f"files: {few.a_batch_s * 1e3:.1f} ms of CPU a batch with {FEW:,} batches in the spool,"
        f" {many.a_batch_s * 1e3:.1f} ms with {MANY:,}: {ratio:.2f} times; started anew, the first"
        f" batch is everywhere after {few.restart_s:.2f} s and {many.restart_s:.2f} s of CPU",
        flush=True,
    )
    return ratio <= MOST_COST


SECTIONS = {"kills": kills, "memory": memory, "files": files}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.load", description=__doc__)
    parser.add_argument("section", nargs="?", choices=SECTIONS)
    chosen = parser.parse_args().section
    failed = []
    for name, section in SECTIONS.items():
        if chosen in (None, name):
            with tempfile.TemporaryDirectory(prefix="cirron-otel-soak-") as folder:
                if not section(Path(folder)):
                    failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
