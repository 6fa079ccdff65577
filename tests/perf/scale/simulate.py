"""Simulate the ranks of a job against a real chain: an OTLP endpoint, and a store behind it.

    python -m tests.perf.scale.simulate --ranks 10000 --minutes 10 --speed 0.5 --budget 5 \\
        --to http://localhost:4318

Every rank seals a batch each `--flush` seconds of its time, and an agent of each node sends the
batches of its ranks in one request. `--speed` is the seconds of simulated time in a second; 0 is as
fast as the endpoint accepts requests. All that is generated follows from `--seed`. A request that
fails is repeated until it is accepted, as the SDK does.

The last line of the output is a JSON document: the number of requests, batches and spans, and the
number and the digest of the ids of the span records that were accepted, by rank with `--by-rank`.
`--check URL` compares these with a database instead of sending anything.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import json
import math
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from cirron_otel.core.delivery.batch_target import SealedBatch
from cirron_otel.core.delivery.errors import UnreachableError
from cirron_otel.core.records.step_summaries import GROUP, STEP_COUNT
from cirron_otel.core.targets.exported_part import exported_part
from cirron_otel.core.targets.otlp.config import OtlpConfig, OtlpProtocol
from cirron_otel.core.targets.otlp.target import OtlpTarget
from cirron_otel.core.targets.sql.storage import Storage
from cirron_otel.core.translator.own.encode import Options
from cirron_otel.errors import CirronOtelError

from .ranks import (
    SECOND,
    Job,
    RankBatch,
    SimulatedRank,
)

PER_NODE = 8
PROGRESS_S = 10.0
_MOST_PAUSE_S = 10.0
_ALL = 1 << 128


class _Span(msgspec.Struct, gc=False):
    id: str
    name: str
    rank: int | None = None
    attrs: msgspec.Raw = msgspec.Raw()


class _Spans(msgspec.Struct, gc=False):
    spans: list[_Span]


_decoder = msgspec.json.Decoder(_Spans)


@dataclass
class IdSet:
    """The number and a digest of a set of ids, which do not depend on their order."""

    count: int = 0
    total: int = 0
    steps: int = 0
    """The number of steps, those in groups included."""

    def add(self, span: _Span) -> None:
        self.count += 1
        self.total = (self.total + int(span.id, 16)) % _ALL
        if span.name == "step":
            self.steps += 1
        elif span.name == GROUP:
            self.steps += int(msgspec.json.decode(span.attrs)[STEP_COUNT])

    def to_json(self) -> dict[str, Any]:
        return {"spans": self.count, "steps": self.steps, "digest": f"{self.total:032x}"}


@dataclass
class Tally:
    """What was sent, or what a database has."""

    batches: int = 0
    requests: int = 0
    recorded_spans: int = 0
    """The spans of the ranks' spools."""
    retries: int = 0
    ids: dict[int, IdSet] = field(default_factory=dict)
    """The ids of the exported span records, by rank."""

    def add(self, data: bytes) -> None:
        """Add an exported batch."""
        self.batches += 1
        for span in _decoder.decode(data).spans:
            self.ids.setdefault(-1 if span.rank is None else span.rank, IdSet()).add(span)

    @property
    def spans(self) -> int:
        """The number of span records."""
        return sum(each.count for each in self.ids.values())

    def to_json(self, *, by_rank: bool = False) -> dict[str, Any]:
        total = sum(each.total for each in self.ids.values()) % _ALL
        found: dict[str, Any] = {
            "requests": self.requests, "retries": self.retries, "batches": self.batches,
            "recorded_spans": self.recorded_spans, "ranks": len(self.ids), "spans": self.spans,
            "steps": sum(each.steps for each in self.ids.values()), "digest": f"{total:032x}",
        }  # fmt: skip
        if by_rank:
            found["by_rank"] = {rank: ids.to_json() for rank, ids in sorted(self.ids.items())}
        return found


class NodeRequest(NamedTuple):
    """The batches of a node's ranks that were sealed in the same second."""

    second: int
    node: int
    batches: list[RankBatch]


def requests_of(job: Job, per_node: int = PER_NODE) -> Iterator[NodeRequest]:
    """Yield the requests of all nodes in the order of time; one batch a rank is in memory."""

    def stream(rank: int) -> Iterator[tuple[int, int, RankBatch]]:
        for each in SimulatedRank(job, rank).batches():
            yield each.at_ns // SECOND, rank // per_node, each

    streams = [stream(rank) for rank in job.present]
    merged = heapq.merge(*streams, key=itemgetter(0, 1))
    for (second, node), some in groupby(merged, key=itemgetter(0, 1)):
        yield NodeRequest(second, node, [batch for _, _, batch in some])


def send(
    requests: Iterable[NodeRequest],
    target: OtlpTarget | None,
    speed: float = 0.0,
    progress: Callable[[Tally, int], None] = lambda *_: None,
    accepted: int = 0,
) -> Tally:
    """Send requests, and return what was accepted. Raises RefusedError if one is refused.

    The first `accepted` requests are only counted, and all of them if there is no target.
    """
    tally, begun, shown = Tally(), time.monotonic(), -math.inf
    for request in requests:
        if speed and tally.requests >= accepted:
            time.sleep(max(begun + request.second / speed - time.monotonic(), 0.0))
        if time.monotonic() > shown + PROGRESS_S:
            shown = time.monotonic()
            progress(tally, request.second)
        parts = [exported_part(each.batch) for each in request.batches]
        if target is not None and tally.requests >= accepted:
            tally.retries += _send_one(target, parts)
        tally.requests += 1
        for each, part in zip(request.batches, parts, strict=True):
            tally.recorded_spans += each.spans
            tally.add(part.data)
    return tally


def _send_one(target: OtlpTarget, batches: Sequence[SealedBatch]) -> int:
    """Send the batches of a request until they are accepted; return the number of retries."""
    pause_s, retries = 0.1, 0
    while True:
        try:
            receipt = target.send(batches)
        except UnreachableError as error:
            time.sleep(max(pause_s, error.retry_after or 0.0))
            pause_s, retries = min(pause_s * 2, _MOST_PAUSE_S), retries + 1
        else:
            if receipt.rejected_spans:
                raise AssertionError(f"{receipt.rejected_spans} spans rejected: {receipt.message}")
            return retries


def stored(url: str) -> Tally:
    """Return what the database at `url` has."""
    tally = Tally()
    with Storage.open(url, create=False) as storage:
        for _, data in storage.batches():
            tally.add(data)
    return tally


def await_stored(url: str, batches: int, limit_s: float) -> None:
    """Wait until the database at `url` has this many batches. Raises TimeoutError after `limit_s`.

    A collector that is told to end stores what it can in its time to drain, which a busy machine
    exceeds.
    """
    ends, count = time.monotonic() + limit_s, 0
    while True:
        asked = time.monotonic()
        with contextlib.suppress(CirronOtelError), Storage.open(url, create=False) as storage:
            ((count,),) = storage.database.rows('SELECT COUNT(*) FROM "TraceBatch"')
        if count >= batches:
            return
        if time.monotonic() > ends:
            raise TimeoutError(f"{count} of {batches} batches are stored after {limit_s:.0f} s")
        # A large table takes long to count; that is not a cost of storing.
        time.sleep(max(0.5, 20 * (time.monotonic() - asked)))


def target_of(url: str) -> OtlpTarget:
    """Return the SDK's target for an OTLP/HTTP endpoint."""
    config = OtlpConfig(OtlpProtocol.HTTP_PROTOBUF, url.rstrip("/") + "/v1/traces", timeout=60)
    return OtlpTarget(config, Options(), within_budget=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.perf.scale.simulate")
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--speed", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=int, default=1, help="the factor of the length of a step")
    parser.add_argument("--flush", type=int, default=1, help="seconds between a rank's batches")
    parser.add_argument("--budget", type=float, help="spans per second and rank")
    parser.add_argument("--per-node", type=int, default=PER_NODE)
    parser.add_argument("--to", metavar="URL", help="an OTLP/HTTP endpoint")
    parser.add_argument("--check", metavar="URL", help="a database that has what was sent")
    parser.add_argument("--by-rank", action="store_true")
    given = parser.parse_args(arguments)
    job = Job.of(
        given.ranks, 60 * given.minutes, given.seed, given.budget, given.scale, given.flush
    )
    print(
        f"{len(job.present):,} of {job.ranks:,} ranks; straggler: {job.straggler}; missing:"
        f" {sorted(job.missing)}; restarted: {sorted(job.restarted)}; failing: {job.failing}",
        file=sys.stderr, flush=True,
    )  # fmt: skip
    begun = time.monotonic()

    def progress(tally: Tally, second: int) -> None:
        print(
            f"  {second:5} s of the job after {time.monotonic() - begun:7.1f} s: {tally.spans:,}"
            f" spans, {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB",
            file=sys.stderr, flush=True,
        )  # fmt: skip

    target = target_of(given.to) if given.to else None
    with contextlib.ExitStack() as stack:
        if target is not None:
            stack.callback(target.close)
        tally = send(requests_of(job, given.per_node), target, given.speed, progress)
    result = tally.to_json(by_rank=given.by_rank)
    if given.check:
        found = stored(given.check).to_json(by_rank=True)
        sent = tally.to_json(by_rank=True)
        result["stored"] = {key: found[key] for key in ("ranks", "spans", "steps", "digest")}
        result["is_equal"] = found["by_rank"] == sent["by_rank"]
    result["seconds"] = round(time.monotonic() - begun, 3)
    print(json.dumps(result))
    return 0 if result.get("is_equal", True) else 1


if __name__ == "__main__":
    sys.exit(main())
