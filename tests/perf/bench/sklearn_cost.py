"""The cost of a recorded call of a wrapped estimator, compared with the bare call.

The section runs in the environment of scikit-learn, in a process and a directory of its own. The
estimator does next to nothing, so that the difference is the cost of the record. Blocks of bare and
of wrapped calls take turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

from tests.kit.environments import EnvironmentUnavailableError

BAR_US = 20.0


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    calls: int = 2000
    """Calls of a block; small enough that no buffer is full before the flush between blocks."""
    blocks: int = 15


TINY = Sizes(50, 2)
"""Enough to see that everything runs."""


def section(sizes: Sizes = Sizes()) -> None:
    """Run it and let it print. Raises CalledProcessError if it fails."""
    from tests.system.frameworks.environments import ENVIRONMENTS

    from .sdk import environment

    sys.stdout.flush()
    try:
        python = ENVIRONMENTS["sklearn"].make()
    except EnvironmentUnavailableError as error:
        print(f"scikit-learn: {error}")
        return
    with tempfile.TemporaryDirectory(prefix="cirron-otel-bench-") as folder:
        subprocess.run(
            [python, "-u", "-m", "tests.perf.bench.sklearn_cost", *map(str, astuple(sizes))],
            cwd=folder, env=environment(folder), check=True,
        )  # fmt: skip


def main(sizes: Sizes) -> None:
    """The section itself, in the process that `section` has made."""
    import numpy as np
    from sklearn.base import BaseEstimator, TransformerMixin
    from sklearn.pipeline import make_pipeline

    import cirron_otel as ci

    class Nothing(TransformerMixin, BaseEstimator):  # type: ignore[misc]
        def fit(self, *_: Any) -> Any:
            self.is_fitted_ = True
            return self

        def transform(self, inputs: Any) -> Any:
            return inputs

    ci.profile(frameworks=[], snapshots=None, output_dir="out", exporters="none")
    inputs = np.zeros((2, 2))
    print(
        f"wrapped estimators, µs a call added: medians of {sizes.blocks} blocks of {sizes.calls:,}"
    )
    print(f"  load {os.getloadavg()[0]:.1f} before it starts; CPU time of the thread")
    bare, wrapped = Nothing(), ci.wrap(Nothing())
    _compare("transform", lambda: bare.transform(inputs), lambda: wrapped.transform(inputs), sizes)
    _compare("fit", lambda: bare.fit(inputs), lambda: wrapped.fit(inputs), sizes)
    pipes = [make_pipeline(Nothing(), Nothing(), Nothing()).fit(inputs) for _ in range(2)]
    ci.wrap(pipes[1])
    three = (lambda: pipes[0].transform(inputs), lambda: pipes[1].transform(inputs))
    _compare("transform of a pipeline of three, a scope", *three, sizes, scopes=4)
    health = ci.health()
    print(
        f"  {health['scope_drop_count']} scopes dropped, {health['swallowed_error_count']} errors"
    )
    ci.shutdown()


def _compare(
    title: str, bare: Callable[[], Any], wrapped: Callable[[], Any], sizes: Sizes, scopes: int = 1
) -> None:
    import cirron_otel as ci

    found: dict[bool, list[float]] = {False: [], True: []}
    for work in (bare, wrapped):
        work()
    for _ in range(sizes.blocks):
        for is_wrapped, work in ((False, bare), (True, wrapped)):
            start = time.thread_time()
            for _ in range(sizes.calls):
                work()
            found[is_wrapped].append((time.thread_time() - start) / sizes.calls * 1e6)
            ci.flush()
    before, after = statistics.median(found[False]), statistics.median(found[True])
    added = (after - before) / scopes
    verdict = "met" if added <= BAR_US else "MISSED"
    print(f"  {title:<44}{added:8.2f}  (bare {before:.2f}; bar {BAR_US:.0f}, {verdict})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("calls", "blocks"):
        parser.add_argument(name, type=int)
    given = parser.parse_args()
    main(Sizes(given.calls, given.blocks))
