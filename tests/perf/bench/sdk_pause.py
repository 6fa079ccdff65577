"""How long a flush keeps the training thread from running.

The thread reads the clock in a tight loop and makes 20,000 records a second, a scope with a mark
every 100 µs. What lies between two readings is a gap; a process of its own for each subject.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import cirron_otel as ci

RECORDS_PER_SECOND = 20_000
_EVERY_NS = 2 * 1_000_000_000 // RECORDS_PER_SECOND  # a scope and its mark
_WORTH_NOTING_NS = 100_000

BARE, OURS, CIRRON = "no SDK", "cirron-otel", "cirron-sdk"


class Watched(NamedTuple):
    """What one watch saw. Times in ms."""

    longest: float
    over_1_ms: int
    lost: float
    """The sum of gaps above 0.1 ms, a second of watching."""
    longest_collection: float
    """Of Python's collector of garbage: it stops every thread and looks through what waits."""
    records: int
    dropped: int


def watch(seconds: float, record: Callable[[], object]) -> tuple[list[int], int]:
    """The gaps above 0.1 ms, ns, and how often `record` was called."""
    clock = time.perf_counter_ns
    gaps = []
    made = 0
    last = due = clock()
    end = last + int(seconds * 1e9)
    while last < end:
        if last >= due:
            record()
            made += 1
            due += _EVERY_NS
        now = clock()
        if now - last > _WORTH_NOTING_NS:
            gaps.append(now - last)
        last = now
    return gaps, made


def _started(subject: str) -> Any:
    if subject == OURS:
        ci.profile(frameworks=[], snapshots=None, output_dir="pause")
        return ci
    if subject == CIRRON:
        from . import neighbour

        return neighbour.start()
    return None


def _record_of(sdk: Any) -> Callable[[], object]:
    if sdk is None:
        return lambda: None

    def record() -> None:
        with sdk.scope("step"):
            sdk.mark("loss", 0.5)

    return record


class _Collections:
    """How long Python's collector of garbage took, ns, each time."""

    def __init__(self) -> None:
        self.took = [0]
        self._begun = 0

    def __call__(self, phase: str, _: object) -> None:
        if phase == "start":
            self._begun = time.perf_counter_ns()
        else:
            self.took.append(time.perf_counter_ns() - self._begun)


def watched(subject: str, seconds: float) -> Watched:
    """Watch this thread with that subject's session open."""
    sdk = _started(subject)
    record = _record_of(sdk)
    watch(min(seconds, 0.5), record)
    collections = _Collections()
    gc.callbacks.append(collections)
    gaps, made = watch(seconds, record)
    gc.callbacks.remove(collections)
    dropped = 0
    if sdk is not None:
        health = sdk.health()
        dropped = health["scope_drop_count"] + health["mark_drop_count"]
        sdk.shutdown()
    return Watched(
        max(gaps, default=0) / 1e6,
        sum(gap > 1_000_000 for gap in gaps),
        sum(gaps) / 1e6 / seconds,
        max(collections.took) / 1e6,
        2 * made if sdk is not None else 0,
        dropped,
    )


def _in_a_process(subject: str, seconds: float) -> Watched:
    command = [sys.executable, "-m", "tests.perf.bench.sdk_pause", subject, str(seconds)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return Watched(*json.loads(done.stdout))


def pauses(seconds: float, rounds: int, has_cirron: bool) -> None:
    """The longest gap with and without the SDK; the median and the worst of some rounds."""
    subjects = [BARE, OURS, *([CIRRON] if has_cirron else [])]
    interval = sys.getswitchinterval() * 1e3
    print(
        f"pauses of the training thread at {RECORDS_PER_SECOND:,} records/s, {rounds} rounds of"
        f" {seconds:g} s; the interpreter's switch interval is {interval:g} ms"
    )
    found: dict[str, list[Watched]] = {subject: [] for subject in subjects}
    for _ in range(rounds):
        for subject in subjects:
            found[subject].append(_in_a_process(subject, seconds))
    print(
        f"  {'':<12}{'longest gap':>13}{'worst round':>13}{'longest gc':>12}{'gaps > 1 ms':>13}"
        f"{'lost, gaps > 0.1 ms':>21}   dropped"
    )
    for subject, rows in found.items():
        longest = [row.longest for row in rows]
        print(
            f"  {subject:<12}{statistics.median(longest):10.2f} ms{max(longest):10.2f} ms"
            f"{statistics.median(row.longest_collection for row in rows):9.2f} ms"
            f"{statistics.mean(row.over_1_ms for row in rows) / seconds:11.1f}/s"
            f"{statistics.mean(row.lost for row in rows):16.1f} ms/s"
            f"   {sum(row.dropped for row in rows)} of {sum(row.records for row in rows):,}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("subject", choices=[BARE, OURS, CIRRON])
    parser.add_argument("seconds", type=float)
    given = parser.parse_args()
    print(json.dumps(watched(given.subject, given.seconds)))
