"""The flight recorder: a mark on the scope that an out-of-memory error leaves first, and a bundle.

Until then it costs nothing: the only hook is called with the exceptions that leave a scope. The
training thread makes the mark; another thread reads the allocators and writes the bundle. Neither
keeps a reference to the exception, to its traceback, or to a tensor (docs/adr/0029).
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from queue import SimpleQueue
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ...core.spool.oom_bundles import write_bundle
from ...core.spool.paths import SpoolPaths
from ...semconv import FAILURE_CAUSE, OOM, OOM_BUNDLE, OUT_OF_MEMORY
from ..flush.json_attributes import text_of
from ..session.errors import record_error
from ..tracing.buffers import limits, local
from ..tracing.clock import now, wall
from ..tracing.hidden_frames import is_hidden
from ..tracing.mark import POINT, check_room
from ..tracing.phase import record_folded
from ..tracing.scope import MAX_DEPTH, NO_SESSION
from ..tracing.state import ignore_failure, state
from .report import OomReport, Sample, SessionFacts

if TYPE_CHECKING:
    from .recognition import OutOfMemory

MOST_BUNDLES: Final = 5
"""Maximum number of bundles in a session."""
UNKNOWN: Final = "unknown"
"""The value of the mark if the error does not state how many bytes were requested."""
_MOST_SEEN = 16
_PAUSE_S = 0.005
_SHARE: Final = 20
"""A bundle may use 1/20 of the spool's cap: the bundles of a session never fill more than 1/4."""


class _Seen(NamedTuple):
    """An out-of-memory error that has a mark, without a reference to it or to its frames."""

    error: int
    """The identity of the exception, which a later one may have again."""
    trace: tuple[tuple[int, int], ...]
    """(identity of the code, instruction) of its traceback when it left the scope, outermost first.
    An exception that passes the same instructions leaves another scope there first."""
    around: tuple[weakref.ref[Any], ...]
    """The scope with the mark, and the scopes around it."""
    thread: int

    def is_in(self, error: BaseException, scope: Any, trace: tuple[tuple[int, int], ...]) -> bool:
        """Return whether this exception now leaves `scope` with the traceback `trace`."""
        length = len(self.trace)
        if id(error) != self.error or trace[len(trace) - length :] != self.trace:
            return False
        if self.thread != get_ident():
            return len(trace) > length  # a future has raised it again in another thread
        return any(each() is scope for each in self.around)


@dataclass(slots=True)
class OomCounts:
    """The numbers for `health()`."""

    count: int = 0
    """Out-of-memory errors that have a mark."""
    bundles: int = 0
    """Bundles that were written."""
    bundle_bytes: int = 0
    """The size of these bundles."""

    def stats(self) -> dict[str, int]:
        """Return the numbers for `health()`."""
        return asdict(self)


class FlightRecorder:
    """The flight recorder of one session."""

    def __init__(
        self,
        paths: SpoolPaths | None,
        owner: str,
        max_bytes: int | None,
        facts: Callable[[], SessionFacts],
        recent_samples: Callable[[], list[Sample]] = list,
    ) -> None:
        """Bundles go below `paths.oom`; None: only marks are made.

        `owner` is the owner's prefix, `max_bytes` the cap of the spool. `facts` describes the
        session, and `recent_samples` returns the last samples of its memory, oldest first.
        """
        self._paths, self._owner, self._max_bytes = paths, owner, max_bytes
        self._facts, self.recent_samples = facts, recent_samples
        # A signal handler may interrupt its own thread while that holds the lock.
        self._lock = threading.RLock()
        self._seen: deque[_Seen] = deque(maxlen=_MOST_SEEN)
        self._pending: deque[OomReport] = deque()
        # `put` is safe in a signal handler that interrupted another `put`.
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._left = MOST_BUNDLES
        self._is_over = False
        self._oom_in: Any = None
        self._files_of: Any = None
        self.counts = OomCounts()

    def open(self) -> None:
        """Examine the exceptions that leave scopes from now on.

        The modules for that are imported now, because there may be no memory for it later.
        """
        from .bundle import files_of  # noqa: PLC0415 - see above
        from .recognition import oom_in  # noqa: PLC0415 - see above

        self._files_of, self._oom_in = files_of, oom_in
        state.failed = self.failed

    def close(self) -> None:
        """Stop examining exceptions; bundles that wait are still written."""
        if state.failed == self.failed:
            state.failed = ignore_failure

    # --- on the thread that the exception is raised in --------------------------------------------

    def failed(self, scope: Any, error: BaseException, at: int) -> None:
        """Record each out-of-memory error that leaves `scope`. The hook for `state.failed`.

        Only the innermost scope that an error leaves gets a mark. Nothing is raised.
        """
        try:
            for each, oom in self._oom_in(error):
                self._record(scope, each, oom, at)
                if not scope._depth:
                    scope.set_attribute(FAILURE_CAUSE, OUT_OF_MEMORY)
        except Exception as problem:
            record_error("out of memory", problem)

    def _record(self, scope: Any, error: BaseException, oom: OutOfMemory, at: int) -> None:
        trace = _trace_of(error)
        with self._lock:
            if any(seen.is_in(error, scope, trace) for seen in self._seen):
                return
            if not state.recording or scope is NO_SESSION or not record_folded(scope):
                return  # without a record of this scope, the next one that the error leaves counts
            chain = _chain_of(scope)
            around = tuple(map(weakref.ref, chain))
            self._seen.append(_Seen(id(error), trace, around, get_ident()))
            self.counts.count += 1
            # The errors of a group that leaves the scope share its bundle.
            is_first = OOM_BUNDLE not in (scope._attrs or ())
            has_bundle = self._paths is not None and self._left > 0 and is_first
            self._left -= has_bundle
        at = at or getattr(scope, "_until", 0) or now()
        self._mark(scope, oom, at)
        if not has_bundle or self._paths is None:
            return
        span_id = scope.id or ""
        scope.set_attribute(OOM_BUNDLE, f"{self._paths.oom.name}/{span_id}")
        kind = type(error)
        self._put(
            OomReport(
                span_id, scope._trace.trace_id.hex(), _path_of(chain), wall(at), oom,
                kind.__name__, kind.__module__, text_of(error),
            )
        )  # fmt: skip

    def _mark(self, scope: Any, oom: OutOfMemory, at: int) -> None:
        buffers = local.b
        if len(buffers.marks) >= limits.marks_checked:
            check_room(buffers, len(buffers.marks))
        value = UNKNOWN if oom.requested_bytes is None else oom.requested_bytes
        buffers.marks.append((scope, OOM, value, at, POINT, _attributes(oom)))

    def _put(self, report: OomReport) -> None:
        self._pending.append(report)
        self._wake.put(None)
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return
            try:
                thread = threading.Thread(target=self._run, name="cirron-otel-oom", daemon=True)
                thread.start()
                self._thread = thread
            except (RuntimeError, MemoryError) as error:  # no memory for a stack
                record_error("out-of-memory thread", error)  # `finish` writes the bundle

    # --- on the recorder's thread -----------------------------------------------------------------

    def _run(self) -> None:
        while not self._is_over:
            self._wake.get()
            self._write_pending()

    def _write_pending(self) -> None:
        while self._pending:
            try:
                self._write(self._pending[0])
            except BaseException as error:
                # Including SystemExit: only the end of the session ends this thread.
                record_error("out-of-memory bundle", error)
            self._pending.popleft()

    def _write(self, report: OomReport) -> None:
        if self._paths is None:
            return
        most = None if self._max_bytes is None else max(self._max_bytes // _SHARE, 1)
        files = self._files_of(report, self._facts(), self.recent_samples(), most)
        if files is None:
            record_error(
                "out-of-memory bundle",
                f"the bundle of {report.span_id} is larger than {most} bytes, a"
                f" {_SHARE}th of the spool's cap: it is not written; raise spool_max_bytes",
            )
            return
        size = write_bundle(self._paths.oom, report.span_id, self._owner, files)
        self.counts.bundles += 1
        self.counts.bundle_bytes += size

    # --- at the end -------------------------------------------------------------------------------

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds until all bundles are written; return whether they are.

        It takes no lock, so it may be called from a signal handler.
        """
        deadline = time.monotonic() + timeout
        while self._pending and self._thread is not None and self._thread.is_alive():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(_PAUSE_S, left))
        return not self._pending

    def finish(self, timeout: float) -> bool:
        """Stop recording, and `wait`; write the bundles for which no thread could be started."""
        self.close()
        is_done = self.wait(timeout)
        thread = self._thread
        if thread is None or not thread.is_alive():
            self._write_pending()
            is_done = True
        self._is_over = True
        self._wake.put(None)
        return is_done

    def abandon(self) -> None:
        """In a forked child: the parent writes its bundles."""
        self.close()
        self._is_over = True
        self._pending.clear()


def _trace_of(error: BaseException) -> tuple[tuple[int, int], ...]:
    places = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not is_hidden(code):  # a hook removes its entry after the phase has ended
            places.append((id(code), trace.tb_lasti))
        trace = trace.tb_next
    return tuple(places)


def _chain_of(scope: Any) -> list[Any]:
    """Return a scope and the scopes around it, innermost first."""
    chain: list[Any] = []
    while scope is not NO_SESSION and len(chain) <= MAX_DEPTH:
        chain.append(scope)
        # A span of another library refers to the scope around it.
        scope = getattr(scope._above, "scope", scope._above)
    return chain


def _path_of(chain: list[Any]) -> str:
    """Return the names and numbers of scopes, outermost first."""
    names = [
        text_of(each._name) if each._index is None else f"{text_of(each._name)} {each._index}"
        for each in reversed(chain)
    ]
    return " / ".join(names)


def _attributes(oom: OutOfMemory) -> dict[str, Any]:
    values = {
        "reason": oom.reason,
        "backend": oom.backend,
        "device_id": oom.device_id,
        "requested": oom.requested,
    }
    return {name: value for name, value in values.items() if value is not None}
