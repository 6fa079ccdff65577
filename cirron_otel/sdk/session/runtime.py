"""An open session: the parts that `starting.start_runtime` connects, and its life cycle."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ...core.config.options import Config
from ...core.spool.owner import Owner
from ...core.spool.paths import SpoolPaths
from ...semconv import SAMPLE_INTERVAL
from ..flight_recorder.recorder import FlightRecorder
from ..flight_recorder.report import SessionFacts
from ..flush.export_budget import ExportBudget
from ..flush.flush_result import SessionOrigin
from ..flush.pipeline import Pipeline
from ..sampling.sampler import Sampler
from ..snapshots.digests import Digests
from ..snapshots.recorder import Snapshots
from ..tracing import buffers as buf
from ..tracing import costs, unwinding
from ..tracing.clock import now
from ..tracing.scope import NO_SESSION
from ..tracing.state import state
from . import logs
from .drop_counts import DropCounts
from .identity import NO_SOURCE, Identity
from .provider_link import ProviderLink
from .readback import Recent
from .resource import SessionResource, rank_attributes
from .run_details import LateDetails
from .run_identity import RunIdentity
from .session import Entered


def _nothing() -> None:
    pass


@dataclass(slots=True)
class Runtime:
    """A session of this process."""

    config: Config
    environ: Mapping[str, str]
    identity: Identity
    run: RunIdentity
    resource: SessionResource
    origin: SessionOrigin
    entered: Entered
    link: ProviderLink
    pipeline: Pipeline
    paths: SpoolPaths
    owner: Owner
    snapshots: Snapshots | None
    digests: Digests | None
    flight_recorder: FlightRecorder
    recent: Recent
    drops: DropCounts
    budget: ExportBudget | None
    details: LateDetails
    sampler: Sampler
    started: float = field(default_factory=time.monotonic)
    is_over: bool = False
    inherited_identity: Identity | None = None
    """The identity of child processes, or None if they read it from their environment."""
    look_after: Callable[[], None] = _nothing
    """Called on the flush thread before each flush; the framework hooks set it."""
    is_torch_hooked: Callable[[], bool] = bool
    """Returns whether torch is hooked; the framework hooks set it."""

    def before_flush(self) -> None:
        """Do the flush thread's periodic work; called before each flush."""
        self.link.observe()
        self.origin.segments.request_count()
        unwinding.release()
        self.resource.add(self.details.found(is_last=self.is_over))
        self.look_after()
        self.ensure_sampling()

    def ensure_sampling(self) -> None:
        """Start the sampler if it is wanted and not running."""
        if not self.is_over:
            is_new = self.sampler.ensure_running(is_torch_hooked=self.is_torch_hooked())
            if is_new and self.sampler.interval is not None:
                self.origin.session.set_attribute(SAMPLE_INTERVAL, self.sampler.interval)

    def identify(self, rank: int, world_size: int, source: str) -> None:
        """Use the rank that a framework reports, unless a launcher has set a rank.

        Records that are already sealed keep rank 0; all later records get the new rank.
        """
        identity = self.identity
        if identity.source != NO_SOURCE or identity.rank is None:
            return
        self.identity = replace(identity, rank=rank, world_size=world_size, source=source)
        self.pipeline.collector.set_rank(rank)
        self.resource.add(rank_attributes(self.identity))
        self.inherited_identity = self.identity

    def facts(self) -> SessionFacts:
        """Return the facts about the session that the bundle of an out-of-memory error contains."""
        identity, session = self.identity, self.origin.session
        return SessionFacts(
            self.origin.session_id,
            session.start_ns,
            str(self.resource.value.attributes.get("host.name") or "unknown"),
            self.origin.pid,
            identity.rank or 0,
            identity.local_rank or 0,
            identity.world_size,
            identity.job_id,
            self.sampler.interval,
        )

    def flush(self, timeout: float) -> bool:
        """Seal all records made so far; return whether they are in the spool within `timeout` s."""
        deadline = time.monotonic() + timeout
        if self.snapshots is not None:
            self.snapshots.wait(timeout)
        self.flight_recorder.wait(max(deadline - time.monotonic(), 0.0))
        return self.pipeline.flush(max(deadline - time.monotonic(), 0.0))

    def shutdown(self, timeout: float) -> bool:
        """End the session; return whether everything is sealed and sent within `timeout` s."""
        if self.is_over:
            return True
        self.is_over = True
        deadline = time.monotonic() + timeout
        session = self.origin.session
        try:
            self.sampler.stop()
            unwinding.release(now=True)
            self.close_digests()
            self.entered.leave()
            self.link.end()
            snapshots_ready = self.snapshots is None or self.snapshots.finish(timeout)
            bundles_ready = self.flight_recorder.finish(max(deadline - time.monotonic(), 0.0))
            self.drops.record_in(session)
            if self.budget is not None:
                self.budget.record_in(session)
            done = self.pipeline.shutdown(max(deadline - time.monotonic(), 0.0))
            done = done and snapshots_ready and bundles_ready
            # Other processors receive the session as a span; without it, their trace has no root.
            session._end = session._end or now()
            self.link.observers.end(session)
            self.drops.warn()
        finally:
            self.link.disconnect()
            buf.hooks.wake = buf.hooks.first = _nothing
            costs.configure(cpu_time=False, memory_peak=False)
            logs.restore()
            self.owner.release()
        return done

    def close_digests(self) -> None:
        """Digest nothing more; digests already taken still become marks."""
        if self.digests is not None:
            self.digests.close()

    def undo(self) -> None:
        """Release all resources after the start of the session has failed."""
        self.is_over = True
        self.sampler.stop()
        self.close_digests()
        self.link.end()
        self.entered.leave()
        if self.snapshots is not None:
            self.snapshots.close()
        self.flight_recorder.close()
        state.special = False
        for exporter in self.pipeline.exporters:
            exporter.finish(0.0)
        if self.pipeline.metrics is not None:
            self.pipeline.metrics.finish(0.0)
        costs.configure(cpu_time=False, memory_peak=False)
        logs.restore()
        self.owner.release()

    def seal_late(self) -> None:
        """Seal records made after the end of the session in one more batch, at the process's exit.

        Marks made after `shutdown()` belong to `root` (schemas page, "marks[]").
        """
        if self.is_over and state.session is NO_SESSION and os.getpid() == self.origin.pid:
            pipeline = self.pipeline
            pipeline.sealer.seal_late(pipeline.collector.collect(is_last=True))

    def abandon(self) -> None:
        """In a forked child: release everything that belongs to the parent."""
        self.is_over = True
        self.sampler.abandon()
        self.link.end()
        self.pipeline.abandon()
        if self.snapshots is not None:
            self.snapshots.abandon()
        self.close_digests()
        self.flight_recorder.abandon()
        self.owner.abandon()
        state.special = False
