"""The oldest torch that is supported, in an environment of its own: the other end of the matrix.

The newest torch is in the tests' own environment. `make torch-oldest` makes this one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess

from tests.kit.environments import Environment, EnvironmentUnavailableError, run_in

ROOT = Path(__file__).parents[4]
OLDEST_VERSION = "2.6.0"

OLDEST = Environment(
    f"torch-{OLDEST_VERSION}", pins=Path(__file__).with_name(f"torch-{OLDEST_VERSION}.txt")
)
"""Holds that torch, and what cirron-otel and the tests need; not the checkout."""


def run_in_oldest(
    args: Sequence[str | Path], *, cwd: Path = ROOT, timeout: float = 120.0
) -> CompletedProcess[str]:
    """`run_in` with OLDEST, where this checkout can be imported and torch uses one thread."""
    variables = {
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
    }
    return run_in(OLDEST, args, cwd=cwd, variables=variables, timeout=timeout)


def main() -> int:
    """Make OLDEST, and say before how large it is."""
    if not OLDEST.is_made:
        print(
            f"PyTorch {OLDEST_VERSION} is installed into {OLDEST.home}: on Linux, with CUDA's "
            "libraries, about 2.7 GB to fetch and 4.5 GB on disk",
            flush=True,
        )
    try:
        OLDEST.make()
    except EnvironmentUnavailableError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
