"""One session of this process, wired: from the hot path through the spool to the exporters."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from ..config import Config
from ..config.exporters import Export
from ..spool.owner import Owner
from ..spool.paths import SpoolPaths
from ..spool.writer import SpoolWriter
from . import buffers as buf
from . import costs, logs, unwinding
from .beginning import Joining, begin_session, place_of, segments_of
from .clock import now, wall_now
from .collector import Collector, Origin
from .foreign import ForeignSpans
from .health import THINNED, dropped, drops_of
from .identity import NO_SOURCE, Identity
from .joining import Joined
from .pipeline import Pipeline
from .provider import applications_provider
from .readback import Recent
from .replacement import listener, processor_added, publish, take_over, unwatch, watch
from .resource import batch_attributes, rank_attributes
from .run_details import LateDetails
from .run_identity import RunIdentity, run_identity
from .scope import NOWHERE
from .sealer import Names, Sealer, Unwritten
from .sending import deliveries_of, exports_of_session, recover_left, start_metrics
from .session import Entered, sampling
from .sinks import sinks_of
from .snapshots import Snapshots, snapshots_of
from .span_processor import ForeignSpanProcessor, Observers, processor_of
from .state import state
from .step_places import StepPlaces, is_step
from .thinning import Thinner, note_references

logger = logging.getLogger("cirron_otel")

DROPS = "drops."
"""How the session's attributes begin that count what was dropped, by reason."""
_SEAL_S = 5.0
"""How long a program that sets its provider waits for what is recorded so far to be sealed."""


def _nothing() -> None:
    pass


@dataclass(slots=True)
class Runtime:
    """What `start_runtime` makes."""

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
        for reason, dropped_count in self._drops():
            session.set_attribute(DROPS + reason, dropped_count)

    def _warn_of_drops(self) -> None:
        found = ", ".join(f"{number:,} {reason}" for reason, number in self._drops())
        if found:
            logger.warning(
                "cirron-otel: dropped while recording: %s; what the spool holds is incomplete",
                found,
            )

    def _drops(self) -> list[tuple[str, int]]:
        return [
            (reason, number)
            for reason, number in drops_of(self).items()
            if number and reason != THINNED
        ]

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


def start_runtime(config: Config, environ: Mapping[str, str], joining: Joining) -> Runtime:
    """Open a session and start what belongs to it. Raises TargetError where there is no place."""
    identity = joining.identity or Identity.from_environment(environ)
    buf.limits.set(config.scope_capacity, config.mark_capacity)
    run = joining.run or run_identity(config, environ, identity)
    begun = begin_session(config, environ, identity, joining, run)
    session, joined, resource, provider, is_own = begun
    segments = segments_of(config, identity, session, is_shared=joined.parent is not None)
    origin = Origin(os.getpid(), identity.rank, session, segments, batch_attributes(resource))
    foreign = ForeignSpans()
    processor = joining.processor or processor_of(provider) or ForeignSpanProcessor(foreign)
    processor.foreign, processor.is_on = foreign, True
    thinner = None
    if config.detail_every:
        thinner = Thinner(config.detail_every, config.detail_slow_factor)
    recent = Recent(config.trace_buffer_max_spans)
    exports = exports_of_session(config, environ, provider if not is_own else None)
    is_spooled = "spool" in config.output or bool(exports)
    paths, owner = place_of(config, is_spooled)
    snapshots = None
    if is_spooled:
        snapshots = snapshots_of(config.snapshots, config.sample_rate, paths.snapshots)
    collector = Collector(
        origin, foreign, overhead_every=config.overhead_marks, thinner=thinner, recent=recent,
        naming=Names(owner), snapshots=snapshots, announces_open=bool(exports),
    )  # fmt: skip
    writer = SpoolWriter(paths.root, config.spool_max_bytes)
    sealer = (Sealer if is_spooled else Unwritten)(
        owner,
        writer,
        origin,
        lambda name: pipeline.written(name),  # noqa: PLW0108 - made below
    )
    pipeline = Pipeline(collector, sealer, config.flush_interval, sinks_of(config.output))
    entered = Entered(session, segments, joined)
    runtime = Runtime(
        config, environ, identity, resource, provider, is_own, processor,
        Observers(provider, processor), collector, sealer, pipeline, owner, paths, writer,
        recent, entered, thinner, origin, joined, snapshots, run,
        LateDetails(config, identity, run),
    )  # fmt: skip
    try:
        _attach(runtime, joining)
        _start(runtime, exports, is_spooled=is_spooled)
    except BaseException:
        runtime.undo()
        raise
    return runtime


def _start(runtime: Runtime, exports: list[Export], *, is_spooled: bool) -> None:
    pipeline = runtime.pipeline
    if runtime.snapshots is not None:
        runtime.snapshots.open()
    pipeline.exporters = deliveries_of(exports, runtime)
    pipeline.metrics = start_metrics(runtime)
    if is_spooled:
        pipeline.before_first = lambda: _prepare_spool(runtime)
    pipeline.before_each = runtime.before_flush
    pipeline.start()


def _prepare_spool(runtime: Runtime) -> None:
    runtime.describe(runtime.details.begin())
    recover_left(runtime.paths, runtime.pipeline.exporters)


def _attach(runtime: Runtime, joining: Joining) -> None:
    config, provider = runtime.config, runtime.provider
    state.resource = runtime.resource
    state.observe_start, state.observe_end = runtime.on_start, runtime.on_end
    costs.configure(cpu_time=config.cpu_time, memory_peak=config.memory_peak)
    if config.log_correlation:
        logs.correlate()
    is_added = processor_of(provider) is runtime.processor
    if provider is not None and joining.processor is None and not is_added:
        provider.add_span_processor(runtime.processor)
    if provider and runtime.is_own_provider:
        publish(provider)
    elif provider:
        watch(provider)
    listener.listen(partial(take_over, runtime), partial(processor_added, runtime))
    runtime.observe()
    runtime.observers.start(runtime.origin.session, None)
    runtime.processor.met = runtime.adopt if joining.processor is not None else None
