"""Minutes of steady load on a collector with all kinds of targets: the memory of its processes."""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path

from tests.kit.servers.serving import PROGRAM, Serving
from tests.perf.bench.load_client import varied

from .sink import Sink, config_of, sink

REQUEST_SPANS = 100
_END_S = 300.0
"""A machine with much else to do needs long for what is left."""


@dataclass
class Sample:
    """One moment."""

    at_s: float
    receiver: int
    translator: int
    """Resident bytes of each process."""
    batches: int
    """In the spool."""


@dataclass
class Run:
    """A run, and what its processes had resident."""

    spans: int = 0
    samples: list[Sample] = field(default_factory=list)

    def median(self, begin_s: float, end_s: float) -> float:
        """The median of both processes' resident bytes together, between two moments."""
        return statistics.median(
            each.receiver + each.translator for each in self.samples if begin_s <= each.at_s < end_s
        )

    def trend(self, begin_s: float) -> float:
        """By how much the resident bytes grow a minute, from a moment on: least squares."""
        points = [(s.at_s / 60, s.receiver + s.translator) for s in self.samples]
        points = [point for point in points if point[0] * 60 >= begin_s]
        middle = [sum(values) / len(points) for values in zip(*points, strict=True)]
        over = sum((x - middle[0]) * (y - middle[1]) for x, y in points)
        return over / sum((x - middle[0]) ** 2 for x, _ in points)


def resident(pid: int) -> int:
    """The resident set of a process, bytes; 0 where it is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return 0


@contextlib.contextmanager
def loaded(folder: Path, endpoint: Sink) -> Iterator[Serving]:
    """A collector with a database, a directory for tensors and an OTLP endpoint."""
    here = Serving(folder / "data", "--config", str(config_of(folder, endpoint)), program=PROGRAM)
    try:
        yield here
    finally:
        if here.process.poll() is None:
            here.kill()


def steady(folder: Path, seconds: float, spans_a_second: float, every_s: float = 10.0) -> Run:
    """Send varied spans at a rate, none of them twice; the memory every few seconds."""
    found, choice = Run(), random.Random(3)
    with sink() as endpoint, loaded(folder, endpoint) as here:
        endpoint.is_kept = False
        client = HTTPConnection(here.http.removeprefix("http://"), timeout=60)
        begin = time.monotonic()
        while (at_s := time.monotonic() - begin) < seconds:
            if not found.samples or at_s >= found.samples[-1].at_s + every_s:
                found.samples.append(_sample(here, at_s))
            body = varied(choice, REQUEST_SPANS)[0]
            client.request("POST", "/v1/traces", body, {"Content-Type": "application/x-protobuf"})
            answer = client.getresponse()
            answer.read()
            assert answer.status == 200
            found.spans += REQUEST_SPANS
            time.sleep(max(begin + found.spans / spans_a_second - time.monotonic(), 0.0))
        found.samples.append(_sample(here, seconds))
        client.close()
        here.process.terminate()
        assert here.process.wait(_END_S) == 0
    return found


def _sample(here: Serving, at_s: float) -> Sample:
    translator = here.translator()
    batches = sum(1 for _ in (here.folder / "spool").glob("*.json"))
    return Sample(
        at_s, resident(here.process.pid), resident(translator) if translator else 0, batches
    )
