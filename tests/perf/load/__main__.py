"""`make soak`: a collector under load, for longer than a test may take; exits 1 where it fails.

A section's name runs that section alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from .files import cost
from .isolation import delays
from .kills import killed
from .steady import steady

KILLS = 40
STEADY_S, SPANS_A_SECOND, WARM_S = 600.0, 875.0, 180.0
MOST_GROWTH, MOST_TREND = 1.05, 1e6
"""Limits of the resident set: its median in the last three minutes, as a multiple of that in the
third minute, and its slope from the third minute on, bytes a minute. Medians, since one large
request shows in single samples."""
FEW, MANY, COST_S, MOST_COST = 400, 40_000, 60.0, 1.2
TURNS, MOST_DELAY_S = 40, 1.0
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
    before = run.median(WARM_S - 60, WARM_S)
    later = run.median(STEADY_S - 180, STEADY_S + 1)
    trend = run.trend(WARM_S)
    print(
        f"memory: {run.spans:,} spans; median {before / _MB:.0f} MB in the third minute and"
        f" {later / _MB:.0f} MB in the last three; {trend / _MB:+.2f} MB a minute after the third",
        flush=True,
    )
    return later <= MOST_GROWTH * before and trend <= MOST_TREND


def isolation(folder: Path) -> bool:
    """Batches that an endpoint refuses delay the batches of other tenants by less than a second."""
    results = delays(folder, TURNS)
    for each in results:
        seconds = each.seconds
        print(
            f"isolation, {each.protocol}: {each.kinds} kinds of refusal; delay of {TURNS} good"
            f" batches: median {seconds[len(seconds) // 2]:.2f} s, longest {seconds[-1]:.2f} s",
            flush=True,
        )
    return all(each.seconds[-1] < MOST_DELAY_S for each in results)


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


SECTIONS = {"kills": kills, "isolation": isolation, "memory": memory, "files": files}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.perf.load", description=__doc__)
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
