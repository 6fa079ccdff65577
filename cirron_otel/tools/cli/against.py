"""`cirron-otel run --against`: compare the digests of a job with those of a reference meanwhile."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from ...errors import UsageError
from ..present.divergence_text import comparison_lines, divergence_lines
from ..present.formatting import printable
from . import output
from .sources import as_spool, shown_source

if TYPE_CHECKING:
    from ...core.analysis.divergence.live import LiveComparison
    from ...core.analysis.divergence.tensors import RunDigests
    from .run_summary import RunBatches

_POLL_S: Final = 1.0
"""The seconds between two looks at the spool, as between the flushes of a session."""


class Watcher:
    """Compares a job with a reference, on a thread that owns the reference.

    Differences are reported on stderr at once. An error ends the comparison, never the job.
    """

    def __init__(self, source: str) -> None:
        """`source` is the reference: any source that `diff` takes, of which the last run counts."""
        self._source, self._shown = source, printable(shown_source(source))
        self._batches: RunBatches | None = None
        self._is_loaded, self._has_job, self._stop = (threading.Event() for _ in range(3))
        self._problem: Exception | None = None
        self._lines: list[str] = []
        """The result at the end."""
        self._thread = threading.Thread(target=self._run, name="cirron-against", daemon=True)

    def load(self) -> None:
        """Read the reference. Raises the errors of reading it, and UsageError without digests."""
        self._thread.start()
        self._is_loaded.wait()
        if self._problem is not None:
            raise self._problem

    def follow(self, batches: RunBatches) -> None:
        """Compare the batches of a job from now on."""
        self._batches = batches
        self._has_job.set()

    def finish(self, *, is_quiet: bool) -> None:
        """Compare the last batches; report the result unless `is_quiet`."""
        self.close()
        if self._lines and not is_quiet:
            _report([f"compared with {self._shown}:", *self._lines])

    def close(self) -> None:
        """End the thread, after it has compared the last batches, if it follows a job."""
        self._stop.set()
        self._has_job.set()
        self._thread.join()

    def _run(self) -> None:
        with contextlib.ExitStack() as stack:
            try:
                reference = _reference(stack, self._source)
            except Exception as error:  # raised again by `load`
                self._problem = error
                return
            finally:
                self._is_loaded.set()
            self._has_job.wait()
            if self._batches is None:
                return
            try:
                self._watch(*reference, self._batches)
            except Exception as error:
                output.message(f"the comparison with {self._shown} has ended: {error}")

    def _watch(self, reference: RunDigests, dropped: int, batches: RunBatches) -> None:
        from ...core.analysis.divergence.live import LiveComparison

        live = LiveComparison(reference, dropped, batches.paths)
        seen: set[str] = set()
        while not self._stop.wait(_POLL_S):
            self._look(live, batches, seen)
        self._look(live, batches, seen, is_last=True)
        self._lines = list(comparison_lines(live.comparison))

    def _look(
        self, live: LiveComparison, batches: RunBatches, seen: set[str], *, is_last: bool = False
    ) -> None:
        for batch in batches.unread(seen):
            live.add(batch)
        for divergence in live.poll(is_last=is_last):
            _report([f"the run differs from {self._shown} (A):", *divergence_lines(divergence)])


def _reference(stack: contextlib.ExitStack, source: str) -> tuple[RunDigests, int]:
    """Return the digests of a source's last run, and the number of marks that it dropped."""
    from ...core.run.choosing import open_chosen_run
    from ...core.spool.reader import SpoolReader

    place = stack.enter_context(as_spool(source, None))
    _, run = stack.enter_context(open_chosen_run(SpoolReader(place.directory), None))
    if run.digests is None or not run.digests.steps.counts():
        raise UsageError(
            f"--against {printable(shown_source(source))}: its last run has no digests: record it"
            " with `run --digest step`"
        )
    return run.digests, run.dropped_marks


def _report(lines: Iterable[str]) -> None:
    first, *rest = lines
    output.message(first)
    output.message_block("\n".join(rest))
