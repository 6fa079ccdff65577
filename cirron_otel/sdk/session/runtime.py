"""An open session: the parts that `starting.start_runtime` connects, and its life cycle."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from ...core.config.options import Config
from ...core.spool.owner import Owner
from ...core.spool.paths import SpoolPaths
from ...semconv import RANK, SAMPLE_INTERVAL, WORLD_SIZE
from ..flight_recorder.recorder import FlightRecorder
from ..flight_recorder.report import SessionFacts
from ..flush.export_budget import ExportBudget
from ..flush.flush_result import SessionOrigin
from ..flush.pipeline import Pipeline
from ..flush.remainder import Remainder
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
from .errors import record_error
from .identity import NO_SOURCE, Identity
from .process_number import ProcessNumber
from .provider_link import ProviderLink
from .readback import Recent
from .resource import SessionResource, rank_attributes
from .run_details import LateDetails
from .run_identity import RunIdentity
from .session import Entered

_FILES_S = 30.0
"""Seconds to wait for the files of snapshots and bundles if there is no limit."""


def _nothing() -> None:
    pass


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.0)


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
    remainder: Remainder
    started: float = field(default_factory=time.monotonic)
    is_over: bool = False
    _is_shown: bool = field(default=False, init=False)
    is_left_shown: bool = field(default=False, init=False)
    """Whether the message about unsealed records was written."""
    inherited_identity: Identity | None = None
    """The identity of child processes, or None if they read it from their environment."""
    number: ProcessNumber | None = None
    """The source of the rank if no launcher and no framework sets one; None if it is always 0."""
    _identifying: threading.Lock = field(default_factory=threading.Lock)
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

        Records that are already sealed keep their rank; all later records get the new one.
        """
        with self._identifying:
            identity = self.identity
            if identity.source != NO_SOURCE or identity.rank is None:
                return
            self.identity = replace(identity, rank=rank, world_size=world_size, source=source)
            self.pipeline.collector.set_rank(rank)
            self.resource.add(rank_attributes(self.identity))
            self.inherited_identity = self.identity

    def take_number(self, *, trains: bool = True) -> None:
        """Distinguish this process from others of its run that have no rank either.

        `trains` is whether it has begun an epoch, a step or a request.
        """
        number = self.number
        if number is None or self.identity.source != NO_SOURCE:
            return
        rank = number.take(trains=trains)
        with self._identifying:
            if rank and self.identity.source == NO_SOURCE:
                self.identity = replace(self.identity, rank=rank)
                self.pipeline.collector.set_rank(rank)
                self.resource.add({RANK: rank}, without=WORLD_SIZE)  # the size is not known

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

    def flush(self, timeout: float | None) -> bool:
        """Seal all records made so far; return whether they are in the spool within `timeout` s.

        None waits as long as there is progress.
        """
        deadline = time.monotonic() + (_FILES_S if timeout is None else timeout)
        if self.snapshots is not None:
            self.snapshots.wait(_left(deadline))
        self.flight_recorder.wait(_left(deadline))
        return self.pipeline.flush(None if timeout is None else _left(deadline))

    def shutdown(self, timeout: float | None, *, is_exit: bool = False) -> bool:
        """End the session; return whether everything is sealed and sent within `timeout` s.

        None waits as long as there is progress. If the time is over, the flush thread continues,
        and `finish` must follow before the process ends. With `is_exit`, the process ends now: what
        is not sealed in time is saved in the remainder.
        """
        if self.is_over:
            return True
        self.is_over = True
        deadline = time.monotonic() + (_FILES_S if timeout is None else timeout)
        try:
            try:
                are_ready = self._prepare_end(deadline)
            except BaseException:  # Ctrl-C: the user does not want to wait
                self.pipeline.shutdown(0.0, is_exit=is_exit)
                raise
            limit = None if timeout is None else _left(deadline)
            done = self.pipeline.shutdown(limit, is_exit=is_exit) and are_ready
            self.drops.warn()
        finally:
            self.link.disconnect()
            # Another thread may have opened the next session by now.
            if buf.hooks.wake in (_nothing, self.pipeline.request_flush):
                buf.hooks.wake = buf.hooks.first = _nothing
                costs.configure(cpu_time=False, memory_peak=False)
                logs.restore()
        return done

    def _prepare_end(self, deadline: float) -> bool:
        """Stop recording; return whether all files are written by the `deadline` (monotonic s)."""
        session = self.origin.session
        try:
            self.sampler.stop()
            unwinding.release(now=True)
            self.close_digests()
            self.entered.leave()
            self.link.end()
            snapshots_ready = self.snapshots is None or self.snapshots.finish(_left(deadline))
            bundles_ready = self.flight_recorder.finish(_left(deadline))
            self.drops.record_in(session)
            if self.budget is not None:
                self.budget.record_in(session)
            return snapshots_ready and bundles_ready
        except Exception as error:
            record_error("shutdown", error)
            return False

    def finish(self, limit: float | None) -> None:
        """Complete a session that `shutdown` could not seal in time.

        What is not sealed within `limit` seconds (None: as long as there is progress) is saved in
        the remainder.
        """
        if not self.pipeline.is_sealed:
            self.pipeline.shutdown(limit, is_exit=True)

    def unsealed(self) -> tuple[int, int]:
        """Return the numbers of scopes and marks that are not in the spool yet."""
        scopes, marks, _ = self.pipeline.collector.taken
        waiting = self.pipeline.sealer.waiting_batches
        scopes += sum(len(b.scopes) for b in tuple(buf.registry)) + sum(b.spans for b in waiting)
        marks += sum(len(b.marks) for b in tuple(buf.registry)) + sum(b.marks for b in waiting)
        return scopes, marks

    def sealed(self) -> None:
        """Complete the session: its records are in the spool, or saved, or counted as lost."""
        self.show_session()
        self.owner.release()
        if self.number is not None:
            self.number.release()

    def show_session(self) -> None:
        """Report the end of the session to the other processors, once.

        They receive it as a span; without it, their trace has no root.
        """
        if not self._is_shown:
            self._is_shown = True
            session = self.origin.session
            session._end = session._end or now()
            self.link.observers.end(session)

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
        if self.number is not None:
            self.number.release()

    def seal_late(self) -> None:
        """Seal records made after the end of the session in one more batch, at the process's exit.

        Marks made after `shutdown()` belong to `root` (schemas page, "marks[]").
        """
        if self.is_over and state.session is NO_SESSION and os.getpid() == self.origin.pid:
            self.pipeline.seal_late()

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
        if self.number is not None:
            self.number.abandon()
        state.special = False
