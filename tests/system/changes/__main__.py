"""Scores `diff` on pairs of real runs: `python -m tests.system.changes`."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .judging import equal, judged
from .plants import EQUAL, PLANTS


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each pair, and the score; return 1 if a pair is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.changes", description=__doc__)
    parser.add_argument("--name", default="", help="only changes whose name contains this text")
    parser.add_argument("--equal", type=int, default=EQUAL, help="the number of equal pairs")
    parser.add_argument("--repeat", type=int, default=1, help="how often each pair is run")
    options = parser.parse_args(arguments)
    wrong = pairs = 0
    for _ in range(options.repeat):
        jobs = [(lambda where, plant=plant: judged(plant, where)) for plant in PLANTS
                if options.name in plant.name]  # fmt: skip
        jobs += [lambda where, n=number: equal(n, where) for number in range(options.equal)]
        for job in jobs:
            with tempfile.TemporaryDirectory() as directory:
                result = job(Path(directory))
            wrong, pairs = wrong + (not result.is_right), pairs + 1
            print(f"{'right' if result.is_right else 'WRONG':6} {result.name:22} {result.headline}",
                  flush=True)  # fmt: skip
            if result.detail:
                print(f"{'':6} {result.detail}", flush=True)
    print(f"{pairs - wrong} of {pairs} right")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
