"""Start a session: create its parts, connect them, and start the flush thread."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from ...core.config.exporters import Export
from ...core.config.options import Config
from ...core.spool.directories import make_private
from ...core.spool.oom_kills import read_counter
from ...core.spool.owner import Owner
from ...core.spool.paths import SpoolPaths, target_spool
from ...core.spool.writer import SpoolWriter
from ...errors import CirronOtelError
from ..flight_recorder.recorder import FlightRecorder
from ..flush.export_budget import ExportBudget
from ..flush.flush_result import SessionOrigin
from ..flush.pipeline import Pipeline
from ..flush.remainder import Remainder
from ..flush.rest_builder import RestBuilder
from ..flush.sealer import BatchNames, Sealer, Unwritten
from ..flush.sinks import sinks_of
from ..sampling.sampler import Sampler
from ..snapshots.digests import digests_of
from ..snapshots.recorder import snapshots_of
from ..tracing import buffers as buf
from ..tracing import costs
from ..tracing.buffers import recorded
from ..tracing.detail_sampling import DetailSampler
from ..tracing.foreign_spans import ForeignSpans
from ..tracing.scope import Scope
from ..tracing.span_processor import ForeignSpanProcessor, processor_of
from ..tracing.state import state
from ..tracing.traces import Segments
from ..tracing.trainings import trainings
from . import logs
from .drop_counts import DropCounts
from .errors import record_error, report_problem
from .identity import Identity
from .joining import Joined, join
from .process_number import ProcessNumber, is_started_below_job
from .provider import applications_provider, make_provider, sampler_of
from .provider_link import ProviderLink
from .readback import Recent
from .resource import SessionResource, batch_attributes, resource_of
from .run_details import LateDetails
from .run_identity import RUN_ID_VARIABLE, RunIdentity, run_identity
from .runtime import Runtime
from .sending import Deliveries, exports_of_session, recover_left, start_metrics
from .session import Entered, open_session, sampling

_UNLIMITED = 1 << 62


@dataclass(slots=True)
class Joining:
    """The caller's choices for a session: the traces to join, the provider, and the run."""

    parent: object = None
    link: object = None
    provider: TracerProvider | None = None
    """The provider to work in; None means the application's, or else a new one that becomes global.
    """
    processor: ForeignSpanProcessor | None = None
    """Cirron's span processor, if the application has added it to a provider itself."""
    identity: Identity | None = None
    """The position in the job, or None to read it from the launcher's variables."""
    begun: int | None = None
    """Start of the session by `clock.now`, or None for the current time."""
    environment_first: bool = False
    """Whether the trace in the environment takes precedence over the current span."""
    run: RunIdentity | None = None
    """The run that the session belongs to, or None if `run_identity` determines it."""
    hyperparameters: Mapping[str, Any] | None = None
    """Values from the user that describe the run."""


class SessionStart(NamedTuple):
    """A session that has begun, and the provider it works in."""

    session: Scope
    joined: Joined
    resource: Resource
    provider: TracerProvider | None
    """None if the application adds Cirron's span processor to a provider that is not known yet."""
    is_own: bool
    """Whether the SDK created the provider."""


def begin_session(
    config: Config,
    environ: Mapping[str, str],
    identity: Identity,
    joining: Joining,
    run: RunIdentity,
) -> SessionStart:
    """Begin the session; create a provider if the application has none."""
    provider = _given(joining.provider) or applications_provider()
    # If the application adds Cirron's span processor, its provider may become known later.
    is_own = joining.processor is None and (
        provider is None or getattr(provider, "_is_cirrons", False)
    )
    joined = join(
        config.join, environ, joining.parent, joining.link,
        environment_first=joining.environment_first,
    )  # fmt: skip
    session = open_session(joined, sampler_of(provider) if provider is not None else None)
    session._start = joining.begun or session._start
    resource = resource_of(config, identity, session.id, run, joining.hyperparameters)
    if provider is None and is_own:
        provider = make_provider(resource, environ)
        provider._is_cirrons = True  # type: ignore[attr-defined]
        _sample(provider, joined, session)
    elif provider is not None and not is_own:
        resource = resource.merge(provider.resource)
    return SessionStart(session, joined, resource, provider, is_own)


def _given(provider: object) -> TracerProvider | None:
    """Return the caller's provider if it is valid."""
    if provider is None or isinstance(provider, TracerProvider):
        return provider
    report_problem(
        "provider",
        f"provider= is a {type(provider).__name__}: expected a TracerProvider of"
        " the OpenTelemetry SDK; it is not used",
    )
    return None


def _sample(provider: TracerProvider, joined: Any, session: Any) -> None:
    """Apply the decision of the new provider's sampler to the session."""
    session_trace = session._trace
    session_trace.flags, session_trace.state = sampling(
        sampler_of(provider), session_trace.trace_id, joined
    )


def segments_of(config: Config, identity: Identity, session: Any, *, is_shared: bool) -> Segments:
    """Create the segments; ranks that share a trace divide its record limit equally."""
    if config.trace_layout == "session":
        return Segments(session.id, session._trace, _UNLIMITED, _UNLIMITED, recorded)
    ranks = max(identity.world_size, 1) if is_shared else 1
    records = max(config.segment_records // ranks, 1)
    age_ns = int(config.segment_seconds * 1e9)
    return Segments(session.id, session._trace, records, age_ns, recorded)


def place_of(config: Config, is_spooled: bool) -> tuple[SpoolPaths, Owner]:
    """Return the paths of the spool, and this process as one of its owners."""
    paths = target_spool(config.output_dir)
    try:
        if is_spooled:
            return paths, Owner.acquire(paths)
    except CirronOtelError as error:
        # The disk may be full only temporarily: every flush tries again.
        record_error("spool", error)
    return paths, Owner(paths, os.urandom(6).hex())


def start_runtime(config: Config, environ: Mapping[str, str], joining: Joining) -> Runtime:
    """Open a session and start its threads. Raises TargetError if its spool cannot be created."""
    identity = joining.identity or Identity.from_environment(environ)
    buf.limits.set(config.scope_capacity, config.mark_capacity)
    run = joining.run or run_identity(config, environ, identity)
    begun = begin_session(config, environ, identity, joining, run)
    session, joined, resource, provider, is_own = begun
    segments = segments_of(config, identity, session, is_shared=joined.parent is not None)
    origin = SessionOrigin(
        os.getpid(), identity.rank, session, segments, batch_attributes(resource), read_counter()
    )
    foreign = ForeignSpans()
    processor = joining.processor or processor_of(provider) or ForeignSpanProcessor(foreign)
    processor.foreign, processor.is_on = foreign, True
    recent = Recent(config.trace_buffer_max_spans)
    exports = exports_of_session(config, environ, provider if not is_own else None)
    budget, thinner = _thinning(config, exports)
    is_spooled = "spool" in config.output or bool(exports)
    paths, owner = place_of(config, is_spooled)
    snapshots = None
    if is_spooled:
        snapshots = snapshots_of(config.snapshots, config.sample_rate, paths.snapshots)
    collector = RestBuilder(
        origin, foreign, overhead_every=config.overhead_marks, thinner=thinner, budget=budget,
        recent=recent, naming=BatchNames(owner), snapshots=snapshots, announces_open=bool(exports),
    )  # fmt: skip
    trainings.restart(collector.waiting_steps)
    writer = SpoolWriter(paths.root, config.spool_max_bytes)
    sealer = (Sealer if is_spooled else Unwritten)(
        owner,
        writer,
        origin,
        lambda name: pipeline.written(name),  # noqa: PLW0108 - made below
        collector.ownership,
    )
    pipeline = Pipeline(collector, sealer, config.flush_interval, sinks_of(config.output))
    remainder = Remainder(
        owner, collector, sealer,
        lambda: runtime.drops.record_in(session),
    )  # fmt: skip
    flight_recorder = FlightRecorder(
        paths if is_spooled else None, owner.prefix, config.spool_max_bytes,
        lambda: runtime.facts(),  # noqa: PLW0108 - made below
        lambda: runtime.sampler.recent_samples(),  # noqa: PLW0108 - made below
    )  # fmt: skip
    entered = Entered(session, segments, joined)
    session_resource = SessionResource(resource, origin.set_resource)
    link = ProviderLink(
        provider, processor, session_resource, joined, session, is_own=is_own,
        has_costs=config.cpu_time or config.memory_peak, is_thinned=bool(config.detail_every),
    )  # fmt: skip
    runtime = Runtime(
        config, environ, identity, run, session_resource, origin, entered, link, pipeline, paths,
        owner, snapshots, digests_of(config, paths.snapshots if is_spooled else None),
        flight_recorder, recent,
        DropCounts(collector, sealer, writer, snapshots, thinner), budget,
        LateDetails(config, identity, run), Sampler(config, environ, RUN_ID_VARIABLE), remainder,
    )  # fmt: skip
    _connect(runtime, joining, exports, is_spooled=is_spooled)
    return runtime


def _thinning(
    config: Config, exports: list[Export]
) -> tuple[ExportBudget | None, DetailSampler | None]:
    """Return the choice of steps whose export is a summary, and of those without detail."""
    budget = thinner = None
    if config.export_budget and exports:
        budget = ExportBudget(
            config.export_budget, config.detail_slow_factor, config.flush_interval
        )
    if config.detail_every or budget is not None:
        thinner = DetailSampler(config.detail_every or 1, config.detail_slow_factor)
    return budget, thinner


def _connect(
    runtime: Runtime, joining: Joining, exports: list[Export], *, is_spooled: bool
) -> None:
    """Connect the parts with the process, and start their threads."""
    config = runtime.config
    if joining.identity is None and is_spooled:
        runtime.number = ProcessNumber(runtime.paths, runtime.run.id)
        runtime.pipeline.collector.before_loop = runtime.take_number
    try:
        state.resource = runtime.resource.value
        costs.configure(cpu_time=config.cpu_time, memory_peak=config.memory_peak)
        if config.log_correlation:
            logs.correlate()
        runtime.link.connect(is_added=joining.processor is not None)
        _start(runtime, exports, is_spooled=is_spooled)
    except BaseException:
        runtime.undo()
        raise


def _start(runtime: Runtime, exports: list[Export], *, is_spooled: bool) -> None:
    config, pipeline = runtime.config, runtime.pipeline
    if runtime.snapshots is not None:
        runtime.snapshots.open()
    if runtime.digests is not None:
        runtime.digests.open()
    runtime.flight_recorder.open()
    deliveries = Deliveries(config, runtime.environ, runtime.paths, runtime.owner)
    pipeline.exporters = deliveries.start(exports, runtime.resource.value)
    if deliveries.automatic_otlp is not None:
        runtime.link.on_application_exporters = lambda: deliveries.leave_otlp(pipeline.flush)
    metrics = start_metrics(
        config, runtime.environ, lambda: runtime.resource.value, runtime.drops.by_reason
    )
    pipeline.metrics = metrics
    if metrics is not None:
        pipeline.collector.retains_records = True
        pipeline.sinks += (metrics.measures,)
    if is_spooled:
        pipeline.before_first = lambda: _prepare_spool(runtime)
    if config.workers or is_started_below_job(runtime.environ):
        runtime.take_number(trains=False)  # for its workers, and for a process that soon ends
    pipeline.remainder = runtime.remainder
    pipeline.after_last = runtime.sealed
    pipeline.before_each = runtime.before_flush
    pipeline.start()


def _prepare_spool(runtime: Runtime) -> None:
    runtime.resource.add(runtime.details.begin())
    with contextlib.suppress(OSError):
        make_private(runtime.paths.spool)
    runtime.pipeline.request_flush()  # the journal shows at once that the session has begun
    recover_left(runtime.paths, runtime.pipeline.exporters)
