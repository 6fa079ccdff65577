"""The session of a DataLoader's worker, whether that was forked or spawned."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from opentelemetry.trace import SpanContext

from ..config import Config
from ..config.resolve import Resolved
from ..sdk.beginning import Joining
from ..sdk.identity import Identity
from ..sdk.run_identity import RunIdentity
from ..sdk.state import state
from .cirron import get_default
from .handle import Profiler, active
from .opening import open_profiler

END_S = 1.0
"""So long, in seconds, a worker that ends seals and sends what it has. What is not sent stays in
the spool. Torch terminates a worker that is not gone 5 s after it was told to go."""
WORKER = "worker"


@dataclasses.dataclass(frozen=True)
class WorkerOpening:
    """Opens it, in the worker's process; it can be pickled."""

    config: Config
    """The parent's."""
    parent: SpanContext
    """Its session, which the worker's is linked to."""
    identity: Identity | None = None
    """Its place in the job, if that is not in the environment."""
    run: RunIdentity | None = None
    """The run that the parent's session belongs to."""

    def __call__(self, worker: int) -> Callable[[], object]:
        """Open the session of the worker with this id; returns what ends it. Raises nothing."""
        with active.lock:
            profiler = active.profiler
            if profiler is None:
                profiler = active.profiler = self._open()
        if profiler.session is None:
            state.recording = False
        else:
            profiler.session.set_attribute(WORKER, worker)
        return lambda: profiler.shutdown(END_S)

    def _open(self) -> Profiler:
        # Torch has handlers of its own for a worker's signals.
        config = dataclasses.replace(
            self.config, frameworks=("none",), snapshots=None, handle_signals=False,
            exit_timeout=min(self.config.exit_timeout, END_S),
        )  # fmt: skip
        run = self.run and dataclasses.replace(self.run, is_inherited=True)
        joining = Joining(link=self.parent, identity=self.identity, run=run)
        return open_profiler(get_default(), Resolved(config, (), {}), joining)
