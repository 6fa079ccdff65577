"""One session of this process, wired: from the hot path through the spool to the exporters."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from operator import sub
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

from ..config import Config
from ..spool.owner import Owner
from ..spool.paths import SpoolPaths
from ..spool.writer import SpoolWriter
from . import buffers as buf
from . import costs, logs, unwinding
from .clock import now, wall_now
from .collector import Collector, Origin
from .identity import NO_SOURCE, Identity
from .joining import Joined
from .pipeline import Pipeline
from .provider import applications_provider
from .readback import Recent
from .replacement import Forwarding, listener, show_open, unwatch, watch
from .resource import batch_attributes, rank_attributes
from .run_details import LateDetails
from .run_identity import RunIdentity
from .scope import NOWHERE, drops
from .sealer import Sealer
from .session import Entered, sampling
from .snapshots import Snapshots
from .span_processor import ForeignSpanProcessor, Observers, processor_of, processors_of
from .state import state
from .step_places import StepPlaces, is_step
from .thinning import Thinner, note_references

logger = logging.getLogger("cirron_otel")

DROPS = "drops."
"""How the session's attributes begin that count what was dropped, by reason."""
_SEAL_S = 5.0
"""How long a program that sets its provider waits for what is recorded so far to be sealed."""


THINNED = "scopes_thinned"
"""The one reason for drops that the options ask for."""


def _nothing() -> None:
    pass


def dropped() -> tuple[int, int, int]:
    """Return the drops of this process: scopes and marks of full buffers, scopes too deep."""
    return (*buf.dropped(), drops.too_deep)


@dataclass(slots=True)
class Runtime:
    """The parts of a session, and what it does; `starting.start_runtime` makes one."""

    config: Config
    environ: Mapping[str, str]
    identity: Identity
    resource: Resource
    provider: TracerProvider | None
    is_own_provider: bool
    processor: ForeignSpanProcessor
    observers: Observers
    collector: Collector
    sealer: Sealer
    pipeline: Pipeline
    owner: Owner
    paths: SpoolPaths
    writer: SpoolWriter
    recent: Recent
    entered: Entered
    thinner: Thinner | None
    origin: Origin
    joined: Joined
    snapshots: Snapshots | None
    run: RunIdentity
    details: LateDetails
    started: float = field(default_factory=time.monotonic)
    dropped_before: tuple[int, int, int] = field(default_factory=dropped)
    """What sessions before this one dropped: the counts are the process's."""
    is_over: bool = False
    otlp: Any = None
    """The OTLP target of `exporters="auto"`; None without one, or when the program exports."""
    inherited_identity: Identity | None = None
    """The identity of child processes; None: the one in the variables, which they inherit."""
    look_after: Callable[[], None] = _nothing
    """Called once a flush, on its thread, for the hooks into frameworks."""
    places: StepPlaces = field(default_factory=StepPlaces)
    """Of the steps that other processors are told of."""
    describing: Any = field(default_factory=threading.Lock)

    def before_flush(self) -> None:
        """What the flush thread looks after, once a flush."""
        self.observe()
        self.origin.segments.look_again()
        unwinding.release()
        self.describe(self.details.found(is_last=self.is_over))
        self.look_after()

    def describe(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes to the resource of all batches from here on."""
        if not attributes:
            return
        with self.describing:
            self.resource = self.resource.merge(Resource(attributes))
            state.resource = self.resource
            self.origin.resource = batch_attributes(self.resource)

    def take_over(self, provider: Any) -> None:
        """Work in a provider that the program has set."""
        before = self.provider
        if self.is_over or provider is before or not isinstance(provider, TracerProvider):
            return
        if processor_of(provider) is None:
            provider.add_span_processor(self.processor)
        if before is not None and self.is_own_provider:
            self.observers.earlier += processors_of(before)
            before.add_span_processor(Forwarding(provider))
        self.provider, self.is_own_provider = provider, False
        watch(provider)
        self.adopt(provider._active_span_processor, provider.resource)
        show_open(self.observers.others())

    def processor_added(self, processor: SpanProcessor) -> None:
        """The program has added a processor to the provider of the session."""
        if processor is not self.processor and not isinstance(processor, Forwarding):
            self.observe()
            show_open((processor,))

    def observe(self) -> None:
        """Tell other processors of scopes from here on, if there are any."""
        has_costs = self.config.cpu_time or self.config.memory_peak
        has_others = bool(self.observers.others())
        state.special = has_costs or self.provider is None or has_others
        if has_others and self.otlp is not None and not self.is_own_provider:
            self._leave_otlp()

    def _leave_otlp(self) -> None:
        """The program's own exporters are shown every scope from here on: ours sends the rest."""
        otlp, self.otlp = self.otlp, None
        if self.pipeline.flush(_SEAL_S):  # else they are sent twice, and none is lost
            otlp.skip_after(wall_now(), self.owner.prefix)

    def on_start(self, scope: Any, context: Any) -> None:
        """A scope begins, and somebody wants to know."""
        if self.provider is None:
            found = applications_provider()
            if found is not None and self.observers.are_of(found):
                self.provider = found
                self.adopt(found._active_span_processor, found.resource, found.sampler)
        costs.begin(scope)
        self.observers.start(scope, context)

    def adopt(self, processors: Any, resource: Resource, sampler: Any = None) -> None:
        """Work in the provider that our processor turns out to be in."""
        self.observers.processors = processors
        self.resource = self.resource.merge(resource)
        state.resource = self.resource
        self.origin.resource = batch_attributes(self.resource)
        if sampler is not None:
            session = self.origin.session
            session._trace.flags = sampling(sampler, session._trace.trace_id, self.joined)[0]
            session.more.context = None
        self.observe()

    def identify(self, rank: int, world_size: int, source: str) -> None:
        """Take the rank that a framework knows, unless a launcher stated one.

        Records that are sealed by then keep rank 0; all others get the new one.
        """
        identity = self.identity
        if identity.source != NO_SOURCE or identity.rank is None:
            return
        self.identity = replace(identity, rank=rank, world_size=world_size, source=source)
        self.collector.set_rank(rank)
        self.describe(rank_attributes(self.identity))
        self.inherited_identity = self.identity

    def on_end(self, scope: Any, end: int) -> None:
        """A scope ends."""
        costs.end(scope)
        if self.thinner is not None:
            note_references(scope)
        if not scope._end:
            scope._end = end
        index = scope._index
        if type(index) is int and is_step(scope):
            for name, value in self.places.place(scope, index).items():
                scope.attrs.setdefault(name, value)
        self.observers.end(scope)

    def flush(self, timeout: float) -> bool:
        """Seal what was recorded until now; whether it is in the spool within `timeout` seconds."""
        deadline = time.monotonic() + timeout
        if self.snapshots is not None:
            self.snapshots.wait(timeout)
        return self.pipeline.flush(max(deadline - time.monotonic(), 0.0))

    def shutdown(self, timeout: float) -> bool:
        """End the session: everything sealed, and sent within `timeout` seconds where it can be."""
        if self.is_over:
            return True
        self.is_over = True
        deadline = time.monotonic() + timeout
        try:
            unwinding.release(now=True)
            self.entered.leave()
            self.processor.is_on = False
            is_whole = self.snapshots is None or self.snapshots.finish(timeout)
            self._note_drops()
            done = self.pipeline.shutdown(max(deadline - time.monotonic(), 0.0)) and is_whole
            self._tell_end()
            self._warn_of_drops()
        finally:
            state.special = False
            listener.rest()
            unwatch(self.provider)
            buf.pressure.wake = buf.pressure.first = _nothing
            costs.configure(cpu_time=False, memory_peak=False)
            logs.restore()
            self.owner.release()
        return done

    def _note_drops(self) -> None:
        """The session states what was dropped: a report of it is incomplete."""
        session = self.origin.session
        for reason, dropped_count in self._losses():
            session.set_attribute(DROPS + reason, dropped_count)

    def _warn_of_drops(self) -> None:
        found = ", ".join(f"{number:,} {reason}" for reason, number in self._losses())
        if found:
            logger.warning(
                "cirron-otel: dropped while recording: %s; what the spool holds is incomplete",
                found,
            )

    def drops(self) -> dict[str, int]:
        """Return how many records the session has dropped so far, by reason."""
        sealer, collector, taken = self.sealer, self.collector, self.snapshots
        scopes, marks, deep = map(sub, dropped(), self.dropped_before)
        return {
            "scopes_buffer_full": scopes,
            "scopes_too_deep": deep,
            "scopes_without_record": collector.spans_lost,
            "foreign_spans": collector.foreign_dropped,
            "marks_buffer_full": marks,
            "marks_without_value_or_scope": collector.marks_lost,
            "spans_spool_unwritable": sealer.dropped_spans,
            "marks_spool_unwritable": sealer.dropped_marks,
            "snapshots_without_record": collector.snapshots_lost + (taken.lost if taken else 0),
            "snapshots_spool_unwritable": sealer.dropped_snapshots,
            "snapshot_files": taken.files_dropped if taken is not None else 0,
            "batches_evicted": self.writer.drops.batches,
            THINNED: self.thinner.thinned if self.thinner is not None else 0,
        }

    def _losses(self) -> list[tuple[str, int]]:
        """The drops that no option asks for."""
        drops = self.drops().items()
        return [(reason, number) for reason, number in drops if number and reason != THINNED]

    def _tell_end(self) -> None:
        """The session is a span like any: without it the application's backend lacks the root."""
        session = self.origin.session
        session._end = session._end or now()
        self.observers.end(session)

    def undo(self) -> None:
        """The start failed half-way: leave nothing behind."""
        self.is_over = True
        self.processor.is_on = False
        self.entered.leave()
        if self.snapshots is not None:
            self.snapshots.close()
        state.special = False
        for exporter in self.pipeline.exporters:
            exporter.finish(0.0)
        if self.pipeline.metrics is not None:
            self.pipeline.metrics.finish(0.0)
        costs.configure(cpu_time=False, memory_peak=False)
        logs.restore()
        self.owner.release()

    def seal_late(self) -> None:
        """At the process's end: what was recorded after the session goes into one more batch.

        Marks made after `shutdown()` hang on `root` (schemas page, "marks[]").
        """
        if self.is_over and state.session is NOWHERE and os.getpid() == self.origin.pid:
            self.sealer.seal_late(self.collector.collect(is_last=True))

    def abandon(self) -> None:
        """In a forked child: let go of everything that is the parent's."""
        self.is_over = True
        self.processor.is_on = False
        self.pipeline.abandon()
        if self.snapshots is not None:
            self.snapshots.abandon()
        self.owner.abandon()
        state.special = False
