"""Run seeded plans: `python -m tests.sdk.flush.ending [FIRST [COUNT [PARALLEL]]]`.

The plans with odd seeds run beside two busy processes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from .plan import (
    UNANNOUNCED,
    Outcome,
    problems,
    run,
    spec_of,
)

_BUSY = "while True: sum(range(10_000))"


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep so many processes busy."""
    processes = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()


def one(seed: int, root: Path) -> tuple[Outcome, list[str]]:
    """Run one plan, and check its spool."""
    directory = root / str(seed)
    outcome = run(spec_of(seed), directory)
    return outcome, problems(outcome, directory)


def main(first: int = 0, count: int = 200, parallel: int = 2) -> int:
    """Run the plans, print what is wrong and a summary, and return the exit code."""
    bad = refused = assembling = 0
    over: list[float] = []
    handled: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        for is_loaded in (False, True):
            seeds = [seed for seed in range(first, first + count) if seed % 2 == is_loaded]
            with busy(2 * is_loaded), ThreadPoolExecutor(parallel) as pool:
                for outcome, found in pool.map(lambda seed: one(seed, Path(name)), seeds):
                    spec = outcome.spec
                    refused += outcome.is_refused
                    assembling += outcome.is_refused and bool(outcome.facts.get("assembling"))
                    if spec.limit is not None and spec.end not in UNANNOUNCED:
                        over.append(outcome.took - spec.limit)
                        handled.append(outcome.handled - spec.limit)
                        if over[-1] > 1.0:
                            text = f"slow by {over[-1]:.2f} s, the handlers by {handled[-1]:.2f} s"
                            print(f"{text}: {spec}", flush=True)
                    if found:
                        bad += 1
                        print(f"wrong: {spec}: {found}", outcome.stderr[-300:], flush=True)
    print(
        f"{count} runs, {bad} wrong; shutdown returned False in {refused}, in {assembling} of them"
        f" while a batch was being assembled; exits took up to {max(over, default=0):.2f} s more"
        f" than their limit, {sum(each > 1.0 for each in over)} of {len(over)} more than 1 s; the"
        f" handlers up to {max(handled, default=0):.2f} s more,"
        f" {sum(each > 1.0 for each in handled)} more than 1 s"
    )
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
