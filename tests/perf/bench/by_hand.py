"""A session without a flush thread: what is recorded waits until the benchmark takes it."""

from __future__ import annotations

import os

from cirron_otel import semconv as sc
from cirron_otel.sdk.flush.flush_builder import FlushBuilder
from cirron_otel.sdk.flush.flush_result import SessionOrigin
from cirron_otel.sdk.session.joining import Joined
from cirron_otel.sdk.session.session import Entered, open_session
from cirron_otel.sdk.tracing import buffers as buf
from cirron_otel.sdk.tracing.foreign_spans import ForeignSpans
from cirron_otel.sdk.tracing.mark import mark
from cirron_otel.sdk.tracing.scope import Scope
from cirron_otel.sdk.tracing.traces import Segments

SEGMENT_RECORDS = 4000
SEGMENT_NS = 600_000_000_000


class ByHand:
    """An open session and the collector of its records."""

    def __init__(self) -> None:
        joined = Joined()
        self.session = open_session(joined, None)
        segments = Segments(
            self.session.id or "", self.session._trace, SEGMENT_RECORDS, SEGMENT_NS, buf.recorded
        )
        resource = {"service.name": "bench", sc.RANK: 0}
        origin = SessionOrigin(os.getpid(), 0, self.session, segments, resource)
        self.collector = FlushBuilder(origin, ForeignSpans())
        assert self.collector.ownership.take()
        self._entered = Entered(self.session, segments, joined)

    def flush(self) -> list[bytes]:
        """The batches that a flush writes, less the writing."""
        return [batch.data for batch in self.collector.collect().batches]

    def close(self) -> None:
        """End the session; nothing is written anywhere."""
        self._entered.leave()
        self.collector.collect(is_last=True)


def dropped() -> int:
    """Scopes and marks that this process's buffers gave up."""
    return sum(each.dropped_scopes + each.dropped_marks for each in tuple(buf.registry))


def training(scopes: int) -> None:
    """Steps of five scopes; attributes on one scope in ten, a mark on one in four."""
    made = 0
    for step in range(scopes // 5):
        with Scope("step", index=step):
            for phase in ("data_load", "forward", "backward", "optimizer_step"):
                made += 1
                if made % 8 == 0:
                    with Scope(phase, lr=0.001, stage="warm-up"):
                        mark("loss", 0.5 + made)
                elif made % 16 < 4:
                    with Scope(phase):
                        mark("grad_norm", 1.25 * made)
                else:
                    with Scope(phase):
                        pass


def marks_on_one(number: int) -> None:
    """One scope with that many marks."""
    with Scope("epoch"):
        for _ in range(number):
            mark("loss", 0.5)
