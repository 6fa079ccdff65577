"""One process of the sampler's benchmark: steps of four phases, with a tool in one of its modes.

Run as a file: `sampling_worker.py TOOL`, TOOL is `cirron-otel` or `stormlog`. Each line of standard
input is a JSON object, `{"mode": "sampled", "steps": 400}`, and is answered by a line with the CPU
time of a step in µs: of the training thread, and of the process.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

PHASES = ("data_load", "forward", "backward", "optimizer_step")
WORK = 12_000
"""The size of the work of a phase: about half a millisecond."""
OFTEN_S = 0.05
MODES = {"traced": None, "sampled": 1.0, "sampled often": OFTEN_S}
"""The sample intervals of cirron-otel's modes; `bare` is a run without a tool."""

Scope = Callable[[str], Any]
sample_us: list[float] = []
"""The mean CPU time of a sample in each block, µs."""


def train(steps: int, scope: Scope) -> None:
    """Run the steps; each phase computes in Python."""
    for _ in range(steps):
        with scope("step"):
            for name in PHASES:
                with scope(name):
                    sum(range(WORK))


@contextlib.contextmanager
def bare(_mode: str) -> Iterator[tuple[Scope, Callable[[], object]]]:
    """No tool."""
    nothing = contextlib.nullcontext()
    yield lambda _: nothing, lambda: None


@contextlib.contextmanager
def cirron_otel(mode: str) -> Iterator[tuple[Scope, Callable[[], object]]]:
    """A session that writes its spool; a flush at the end counts as well."""
    import cirron_otel as ci

    ci.profile(
        output_dir=tempfile.mkdtemp(dir="."), exporters="none", join="none", frameworks=[],
        handle_signals=False, snapshots=None, run_details="none", sample_interval=MODES[mode],
    )  # fmt: skip
    yield ci.scope, ci.flush
    health = ci.health()
    sampling = health["sampling"]
    if sampling["samples"]:
        sample_us.append(sampling["cpu_ns"] / sampling["samples"] / 1000)
    assert not health["swallowed_errors"], health["swallowed_errors"]
    assert bool(health["sampling"]["samples"]) is (MODES[mode] is not None)
    ci.shutdown()


@contextlib.contextmanager
def stormlog(_mode: str) -> Iterator[tuple[Scope, Callable[[], object]]]:
    """The CPU tracker with a sink, as its documentation shows it."""
    from stormlog.cpu_profiler import CPUMemoryTracker
    from stormlog.telemetry_sink import TelemetrySinkConfig

    tracker = CPUMemoryTracker(
        sampling_interval=OFTEN_S,
        telemetry_sink_config=TelemetrySinkConfig(tempfile.mkdtemp(dir=".")),
    )
    tracker.start_tracking()
    yield tracker.phase, lambda: None
    tracker.stop_tracking()


def main() -> None:
    """Answer the questions on standard input."""
    tool = {"cirron-otel": cirron_otel, "stormlog": stormlog}[sys.argv[1]]
    for line in sys.stdin:
        asked = json.loads(line)
        steps: int = asked["steps"]
        with (bare if asked["mode"] == "bare" else tool)(asked["mode"]) as (scope, finish):
            train(max(steps // 10, 1), scope)
            finish()
            gc.collect()
            thread, process = time.thread_time_ns(), time.process_time_ns()
            train(steps, scope)
            finish()
            figures = time.thread_time_ns() - thread, time.process_time_ns() - process
        print(json.dumps([*(each / steps / 1000 for each in figures), *sample_us[-1:]]), flush=True)


if __name__ == "__main__":
    main()
