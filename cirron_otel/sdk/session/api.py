"""The public classes and functions of the SDK. A process has at most one session at a time."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span

from ...core.analysis.run_selection import LAST, find_run
from ...core.analysis.runs import HEADS, Run, read_runs, table
from ...core.config.resolve import resolve
from ...core.spool.reader import SpoolReader
from ..snapshots.recorder import watch
from ..tracing.foreign_spans import ForeignSpans
from ..tracing.inference import inference
from ..tracing.loops import batches, epochs
from ..tracing.mark import mark
from ..tracing.span_processor import ForeignSpanProcessor
from ..tracing.trainings import training
from .cirron import Cirron, flush, get_default, health, profile, shutdown, trace
from .errors import record_error
from .handle import Profiler, active
from .joining import inject
from .opening import open_profiler
from .starting import Joining

if TYPE_CHECKING:
    from ...core.run.findings.flat import FlatSummary


class RunList(tuple[Run, ...]):
    """Runs in order of their start, which a notebook shows as a table."""

    __slots__ = ()

    def named(self, wanted: str) -> Run:
        """Return the run with this name, id, or id prefix; `last` means the last run.

        Raises UsageError if no run matches, or more than one.
        """
        return self[-1] if wanted == LAST and self else find_run(self, wanted)

    def _repr_html_(self) -> str:
        return table(HEADS, (run.cells() for run in self))


def runs(directory: str | os.PathLike[str] | None = None) -> RunList:
    """Return the runs of the spool in `directory`; the default is the spool that `profile()` uses.

    Raises InputError if there is no spool.
    """
    where = resolve(None).config.output_dir if directory is None else directory
    return RunList(read_runs(SpoolReader(where)).runs)


def summary(directory: str | os.PathLike[str] | None = None, run: str | None = None) -> FlatSummary:
    """Return the conclusion on a run as a flat dictionary, for an experiment tracker.

    By default that is the run of the open session, whose records so far are sealed first, or else
    the last run of the spool that `profile()` uses. Returns an empty dictionary if there is no run,
    or no such run. Raises nothing.
    """
    try:
        return _summary(directory, run)
    except Exception as error:
        record_error("summary", error)
        return {}


def _summary(directory: str | os.PathLike[str] | None, wanted: str | None) -> FlatSummary:
    # Imported here, because training programs rarely need the analysis.
    from ...core.analysis.run_selection import choose_run  # noqa: PLC0415
    from ...core.run.findings.flat import flat_summary  # noqa: PLC0415
    from ...core.run.opening import open_run  # noqa: PLC0415

    profiler = active.profiler or active.last
    if directory is None and profiler is not None and profiler.run is not None:
        flush()
        directory, wanted = profiler.config.output_dir, wanted or profiler.run.id
    where = resolve(None).config.output_dir if directory is None else directory
    reader = SpoolReader(where)
    chosen = choose_run(reader, LAST if wanted is None else wanted)
    with open_run(reader, reader) as opened:
        return flat_summary(opened, chosen.world_size)


class CirronSpanProcessor(ForeignSpanProcessor):
    """Writes a provider's spans to the spool: `provider.add_span_processor(CirronSpanProcessor())`.

    It opens the session of the process if none is open. Every span of the provider is written to
    the spool, as a child of the scope it ran in. The options are those of `profile()`. Without
    `exporters=`, it exports nothing: the provider's exporters see scopes like any other span.
    """

    def __init__(self, **options: Any) -> None:
        """Open the session. Raises nothing."""
        super().__init__(ForeignSpans())
        options.setdefault("exporters", "none")
        parent, link = options.pop("parent", None), options.pop("link", None)
        self._profiler: Profiler | None = None
        with active.lock:
            running = active.profiler
            if running is not None:
                # A profiler that is off means that nothing must be recorded.
                self.is_on = running.runtime is not None
                if running.runtime is not None:
                    self.foreign = running.runtime.link.processor.foreign
                return
            try:
                resolved = resolve(options)
                joining = Joining(parent, link, None, self)
                self._profiler = open_profiler(resolved, joining)
                active.profiler = self._profiler
            except Exception as error:
                record_error("profile", error)
            # Without a session, no flush thread would remove the spans that this processor retains.
            self.is_on = self._profiler is not None and self._profiler.enabled

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Record that a span begins."""
        super().on_start(span, parent_context)

    def on_end(self, span: ReadableSpan) -> None:
        """Record that a span has ended."""
        super().on_end(span)

    def shutdown(self) -> None:
        """Close the session that this processor opened."""
        if self._profiler is not None:
            self._profiler.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Seal all records made so far; return True also if no session is open.

        If the result is False, a provider does not flush the processors after this one.
        """
        try:
            profiler = active.profiler
            if profiler is None or not profiler.enabled:
                return True
            return profiler.flush(timeout_millis / 1000)
        except Exception as error:
            record_error("flush", error)
            return False


__all__ = [
    "Cirron",
    "CirronSpanProcessor",
    "Profiler",
    "batches",
    "epochs",
    "flush",
    "get_default",
    "health",
    "inference",
    "inject",
    "mark",
    "profile",
    "runs",
    "shutdown",
    "trace",
    "training",
    "watch",
]
