"""Start a session: create its parts, connect them, and start the flush thread."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..config import Config
from ..config.exporters import Export
from ..spool.writer import SpoolWriter
from . import buffers as buf
from . import costs, logs
from .beginning import Joining, begin_session, place_of, segments_of
from .collector import Collector, Origin
from .foreign import ForeignSpans
from .identity import Identity
from .pipeline import Pipeline
from .readback import Recent
from .replacement import listener, publish, watch
from .resource import batch_attributes
from .run_details import LateDetails
from .run_identity import run_identity
from .runtime import Runtime
from .sealer import Names, Sealer, Unwritten
from .sending import deliveries_of, exports_of_session, recover_left, start_metrics
from .session import Entered
from .sinks import sinks_of
from .snapshots import snapshots_of
from .span_processor import ForeignSpanProcessor, Observers, processor_of
from .state import state
from .thinning import Thinner


def start_runtime(config: Config, environ: Mapping[str, str], joining: Joining) -> Runtime:
    """Open a session and start its threads. Raises TargetError if its spool cannot be created."""
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
    listener.listen(runtime.take_over, runtime.processor_added)
    runtime.observe()
    runtime.observers.start(runtime.origin.session, None)
    runtime.processor.met = runtime.adopt if joining.processor is not None else None
