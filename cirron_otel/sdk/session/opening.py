"""Open a session in this process or in a DataLoader worker, and prepare for exits and forks.

A child opens its session at its first scope or mark, so a child that traces nothing costs nothing.
DataLoader workers trace nothing unless the options request it.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from opentelemetry.trace import SpanContext

from ...core.config.options import Config
from ...core.config.resolve import Resolved
from ..instrumentation.installing import Instrumentation
from ..tracing import buffers as buf
from ..tracing import unwinding
from ..tracing.scope import NO_SESSION, drops
from ..tracing.state import state
from ..tracing.trainings import trainings
from .errors import errors, record_error, report_problem
from .exits import Exits
from .handle import Profiler, active, announce_end, end_session, flush_within, seal_late
from .identity import TORCH_DISTRIBUTED, Identity
from .process_session import ProcessSession
from .provider import is_in_worker
from .run_identity import RunIdentity
from .runtime import Runtime
from .session import clear_scopes
from .starting import Joining, start_runtime


class _Forks:
    def __init__(self) -> None:
        self.is_registered = False
        self.after: Callable[[], None] | None = None


_forks = _Forks()


def watch_forks(after: Callable[[], None]) -> None:
    """Call `after` in every child that is forked from now on."""
    _forks.after = after
    if not _forks.is_registered:
        _forks.is_registered = True
        os.register_at_fork(after_in_child=_in_child)


def _in_child() -> None:
    try:
        buf.reset_after_fork()
        drops.too_deep = 0
        state.session, state.segments, state.special = NO_SESSION, None, False
        buf.hooks.wake = buf.hooks.first = _nothing
        clear_scopes()
        unwinding.forget()
        trainings.restart(tuple)  # their lock may be held by a thread that the child lacks
        if _forks.after is not None:
            _forks.after()
    except Exception as error:
        record_error("fork", error)


def revive_later(revive: Callable[[], None]) -> None:
    """Let the child open its session with its first record."""

    def first() -> None:
        buf.hooks.first = _nothing
        if is_in_worker():
            state.recording = False
            return
        try:
            revive()
        except Exception as error:
            record_error("fork", error)

    buf.hooks.first = first


def finish_with_process(end: Callable[[], object]) -> None:
    """Call `end` when a multiprocessing child ends: it exits without running `atexit` handlers."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None and process.parent_process() is not None:
        from multiprocessing import util  # noqa: PLC0415 - only in such processes

        util.Finalize(None, end, exitpriority=100)


def _nothing() -> None:
    pass


END_S = 1.0
"""Maximum time that an ending worker may take to seal and send its records, seconds.

Unsent records stay in the spool. Torch terminates a worker that is still alive after 5 s.
"""
WORKER = "worker"


def open_profiler(
    resolved: Resolved,
    joining: Joining,
    instrumentation: Instrumentation | None = None,
    cirron: object = None,
) -> Profiler:
    """Return a profiler with an open session, or one that is turned off. Nothing is raised.

    `instrumentation` contains existing hooks: those of the parent of a forked child, or those of a
    waiting session that now opens. `cirron` is the `Cirron` that opens the session; None means the
    default instance.
    """
    config = resolved.config
    waiting, active.waiting = active.waiting, None
    if waiting is not None and waiting.hooks is not instrumentation:
        waiting.give_up()
    errors.reset()
    for problem in resolved.problems:
        report_problem("configuration", problem)
    _finish_previous()
    state.recording = config.enabled
    if not config.enabled:
        return Profiler(None, config, cirron)
    try:
        runtime = start_runtime(config, os.environ, joining)
    except Exception as error:
        record_error("profile", error)
        return Profiler(None, config, cirron)
    profiler = Profiler(runtime, config, cirron)
    is_new = instrumentation is None
    instrumentation = instrumentation or Instrumentation(config)
    instrumentation.process = instrumentation.process or ProcessSession()
    instrumentation.opens_worker = _worker_opening(profiler)
    instrumentation.ask_rank(partial(_rank_found, profiler, runtime, instrumentation))
    if is_new:
        instrumentation.install()
    profiler.instrumentation = instrumentation
    runtime.look_after = instrumentation.on_flush
    hooks = instrumentation.hooks
    runtime.is_torch_hooked = lambda: "torch" in hooks
    runtime.pipeline.announce = partial(announce_end, runtime)
    try:
        runtime.ensure_sampling()
    except Exception as error:
        record_error("sampler", error)
    try:
        _prepare_exits(profiler, resolved, joining)
    except Exception as error:
        record_error("exit", error)
    return profiler


def _finish_previous() -> None:
    """Wait until the previous session is sealed: both sessions use the same buffers."""
    last = active.last
    if last is not None:
        end_session(last, None)


def _rank_found(
    profiler: Profiler, runtime: Runtime, instrumentation: Instrumentation, rank: int, size: int
) -> None:
    runtime.identify(rank, size, TORCH_DISTRIBUTED)
    instrumentation.opens_worker = _worker_opening(profiler)


def _worker_opening(profiler: Profiler) -> object:
    runtime = profiler.runtime
    if runtime is None or profiler.session is None:
        return None
    context = profiler.session.get_span_context()
    return WorkerOpening(profiler.config, context, runtime.identity, runtime.run)


@dataclass(frozen=True)
class WorkerOpening:
    """Opens the session of a forked or spawned worker, in the worker; it can be pickled."""

    config: Config
    """The configuration of the parent process."""
    parent: SpanContext
    """The parent's session, to which the worker's session is linked."""
    identity: Identity | None = None
    """The parent's position in the job."""
    run: RunIdentity | None = None
    """The run that the parent's session belongs to."""

    def __call__(self, worker: int) -> Callable[[], object]:
        """Open the session of a worker; return the function that ends it. Raises nothing."""
        with active.lock:
            profiler = active.profiler
            if profiler is None:
                profiler = active.profiler = self._open()
        if profiler.session is None:
            state.recording = False
        else:
            profiler.session.set_attribute(WORKER, worker)
        return lambda: end_session(profiler, END_S)

    def _open(self) -> Profiler:
        # Torch installs its own handlers for a worker's signals.
        limit = self.config.exit_timeout
        config = replace(
            self.config, frameworks=("none",), capture=(), snapshots=None, handle_signals=False,
            digest=None, sample_interval=None,
            exit_timeout=END_S if limit is None else min(limit, END_S),
        )  # fmt: skip
        run = self.run and replace(self.run, is_inherited=True)
        joining = Joining(link=self.parent, identity=self.identity, run=run)
        return open_profiler(Resolved(config, (), {}), joining)


def _prepare_exits(profiler: Profiler, resolved: Resolved, joining: Joining) -> None:
    limit = resolved.config.exit_timeout
    atexit.unregister(seal_late)
    atexit.register(seal_late)  # registered before the session's own handler, so it runs after that
    exits = Exits(
        lambda: flush_within(profiler, limit), lambda: end_session(profiler, limit), profiler.fail,
        profiler.terminate,
    )  # fmt: skip
    profiler.exits = exits
    exits.install(signals=resolved.config.handle_signals)
    finish_with_process(lambda: end_session(profiler, limit))
    watch_forks(lambda: _after_fork(profiler, resolved, joining))


def _after_fork(parent: Profiler, resolved: Resolved, before: Joining) -> None:
    """In a forked child: release the parent's session; the first scope opens a new one."""
    active.lock = threading.RLock()  # a thread that the child lacks may have held the parent's lock
    runtime = parent.runtime
    if runtime is None or (runtime.is_over and runtime.pipeline.is_sealed):
        return
    if parent.exits is not None:
        parent.exits.remove()
    if runtime.is_over:  # the parent still seals it
        runtime.pipeline.abandon()
        runtime.owner.abandon()
        active.last = None
        return
    context = runtime.origin.session.get_span_context()
    runtime.abandon()
    hooks = parent.instrumentation
    if hooks is not None:
        hooks.after_fork()
    active.profiler, active.last = None, None
    # Under `cirron-otel run`, the child is one of the job's processes, like its parent.
    joining = Joining(
        link=context,
        identity=runtime.inherited_identity,
        environment_first=before.environment_first,
        run=replace(runtime.run, is_inherited=True),
        hyperparameters=before.hyperparameters,
    )

    def revive() -> None:
        with active.lock:
            if active.profiler is None:
                active.profiler = open_profiler(resolved, joining, hooks, parent.cirron)

    revive_later(revive)
