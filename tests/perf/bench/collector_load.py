"""The collector section of `make bench`: ours beside the real OpenTelemetry Collector.

The same client, requests and machine for each; one is running at a time, in an order shuffled
anew each round. First as much as is acknowledged, then half of that rate for the latencies. The
CPU is that of all processes of a collector until everything that it took is where it belongs: the
spool's batches are sealed, the file is written. Medians of the rounds. Once with spans that are all
alike and once with varied ones, of which less is found again that was made before; the bars are the
same for both.

The Collector is set up twice: as it comes, its file exporter behind the receiver, which
acknowledges what is in memory; and with the queue that outlives it (file_storage, fsync on), which
is what our acknowledgement means. Nobody listens where that queue is sent: it costs nothing more.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tests.kit.backends.build import missing
from tests.kit.backends.run import FILE, otelcol
from tests.kit.servers.serving import PROGRAM, serving

from . import collector_parts

CLIENT = Path(__file__).with_name("load_client.py")
QUEUED = Path(__file__).with_name("otelcol-queue.yaml")
OURS, MEMORY, QUEUE = "cirron-otel", "otelcol, file exporter", "otelcol, fsynced queue"
_TICK = os.sysconf("SC_CLK_TCK")
_SETTLE_S = 180.0


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    seconds: float = 5.0
    """Of each half of a round."""
    rounds: int = 3
    streams: int = 8
    traffic: str = "alike"
    """What the spans are like: see load_client."""
    quiet_s: float = 0.9
    """How long a collector's processes do nothing until they are taken to be done."""
    bodies: int = 40
    """The different requests of a client."""
    part_blocks: int = 7
    """Of each part of the collector that is measured alone."""


TINY = Sizes(0.2, 1, 2, quiet_s=0.1, bodies=2, part_blocks=1)


@dataclass
class Figures:
    """One collector's in one round."""

    rate: float
    """Acknowledged spans a second, at most."""
    placed: float
    """The same, counted until its processes had nothing more to do: all are where they belong."""
    p50_s: float
    p99_s: float
    """At half of that rate."""
    cpu_us: dict[str, float]
    """CPU a span by process, at most rate."""
    peak_bytes: int
    """The resident sets of its processes together, each at its largest."""
    refused: int


@dataclass
class Running:
    """A collector that takes requests."""

    endpoint: str
    pids: dict[str, int]

    def cpu_s(self) -> dict[str, float]:
        """CPU so far by process, of all its threads."""
        return {name: _cpu_s(pid) for name, pid in self.pids.items()}

    def settle(self, quiet_s: float) -> float:
        """Wait until its processes have nothing to do any more; how long they had, seconds.

        Raises RuntimeError where they do not end.
        """
        begun = time.monotonic()
        busy_until, before = begun, self.cpu_s()
        while time.monotonic() - busy_until < quiet_s:
            if time.monotonic() - begun > _SETTLE_S:
                raise RuntimeError(f"after {_SETTLE_S:g} s there is still something done")
            time.sleep(0.3)
            now = self.cpu_s()
            if sum(now.values()) - sum(before.values()) >= 0.05:
                busy_until = time.monotonic()
            before = now
        return busy_until - begun

    def peak_bytes(self) -> int:
        """See Figures."""
        return sum(_peak_bytes(pid) for pid in self.pids.values())


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def _peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


@contextlib.contextmanager
def started(label: str, folder: Path) -> Iterator[Running]:
    """Start one, and end it afterwards."""
    if label == OURS:
        with serving(folder / "spool", program=PROGRAM) as own:
            translator = own.translator()
            pids = {"receive": own.process.pid}
            if translator is not None:
                pids["translate, seal"] = translator
            yield Running(own.grpc, pids)
            own.end()
        return
    config = FILE if label == MEMORY else QUEUED
    with otelcol(config, folder) as theirs:
        yield Running(theirs.otlp_grpc, {"all": theirs.process.pid})


def _load(running: Running, seconds: float, rate: float, sizes: Sizes, seed: int) -> dict:
    command = [sys.executable, CLIENT, running.endpoint, seconds, rate, sizes.streams, seed]
    command += [sizes.traffic, sizes.bodies]
    output = subprocess.run(
        [str(each) for each in command], check=True, capture_output=True, text=True
    )
    return dict(json.loads(output.stdout))


def measure(label: str, folder: Path, sizes: Sizes, seed: int) -> Figures:
    """One round of one collector."""
    with started(label, folder) as running:
        _load(running, min(sizes.seconds, 1.0), 0.0, sizes, seed)  # to warm up
        running.settle(sizes.quiet_s)
        before = running.cpu_s()
        most = _load(running, sizes.seconds, 0.0, sizes, seed + 1)
        took_s = sizes.seconds + running.settle(sizes.quiet_s)
        spent = {name: cpu - before[name] for name, cpu in running.cpu_s().items()}
        rate = most["spans"] / sizes.seconds
        half = _load(running, sizes.seconds, rate / 2 / 500, sizes, seed + 2)
        return Figures(
            rate,
            most["spans"] / took_s,
            half["p50"],
            half["p99"],
            {name: cpu / max(most["spans"], 1) * 1e6 for name, cpu in spent.items()},
            running.peak_bytes(),
            most["refused"] + half["refused"],
        )


def section(sizes: Sizes) -> None:
    """Run it and print it."""
    version = " ".join(sys.version.split())
    print(f"Python {version}: a plain build, without the compiler's profile, takes a third more")
    report(compared(sizes))
    report(compared(replace(sizes, seconds=min(sizes.seconds, 3.0), traffic="varied")))
    collector_parts.section(sizes.part_blocks)


def compared(sizes: Sizes) -> dict[str, list[Figures]]:
    """The rounds of each collector."""
    labels = [OURS, MEMORY, QUEUE]
    print(
        f"collector, requests of 500 {sizes.traffic} spans over gRPC, {sizes.streams} at once",
        flush=True,
    )
    if reason := missing("otelcol"):
        print(f"  without otelcol: {reason}")
        labels = [OURS]
    found: dict[str, list[Figures]] = {label: [] for label in labels}
    order = random.Random(0)
    for number in range(sizes.rounds):
        for label in order.sample(labels, len(labels)):
            with tempfile.TemporaryDirectory(prefix="cirron-otel-bench-") as folder:
                found[label].append(measure(label, Path(folder), sizes, number * 10))
    return found


def report(found: dict[str, list[Figures]]) -> None:
    """The table, and what the bars are about."""
    print(
        f"  {'':<26}{'spans/s':>12}{'in place':>12}{'CPU µs/span':>13}"
        f"{'p50 ms':>9}{'p99 ms':>9}{'MB':>7}"
    )
    for label, rounds in found.items():
        print(
            f"  {label:<26}{_median(each.rate for each in rounds):12,.0f}"
            f"{_placed(label, rounds):>12}{_cpu(rounds):13.2f}"
            f"{_median(each.p50_s for each in rounds) * 1e3:9.1f}"
            f"{_median(each.p99_s for each in rounds) * 1e3:9.1f}"
            f"{_median(each.peak_bytes for each in rounds) / 1e6:7.0f}"
            f"   refused: {sum(each.refused for each in rounds)}"
        )
    ours = found[OURS]
    for name in ours[0].cpu_us:
        print(f"    of which {name}: {_median(each.cpu_us[name] for each in ours):.2f} µs a span")
    if QUEUE in found:
        most = _median(each.rate for each in ours) / _median(each.rate for each in found[QUEUE])
        print(f"  acknowledged a second beside the fsynced queue: {most:.2f} (bar: at least 2)")
        cost = _cpu(ours) / max(_cpu(found[MEMORY]), 1e-9)  # of a tiny load it may be 0
        print(f"  CPU a span beside the file exporter: {cost:.2f} (bar: at most 3)")


def _placed(label: str, rounds: list[Figures]) -> str:
    """Nobody takes what is in the queue."""
    return "nowhere" if label == QUEUE else f"{_median(each.placed for each in rounds):,.0f}"


def _cpu(rounds: list[Figures]) -> float:
    return _median(sum(each.cpu_us.values()) for each in rounds)


def _median(values: Iterator[float]) -> float:
    return statistics.median(values)
