"""Open any source that `convert` can read as a spool, for commands that analyse a run."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..convert.progress import BYTES
from . import output
from .progress import progress

if TYPE_CHECKING:
    from ...core.records.problems import ReadingProblem
    from ...core.spool.reader import SpoolReader
    from ..convert.report import Report


@dataclass(frozen=True, slots=True)
class OpenedSource:
    """A spool: the source itself, or a temporary spool converted from the source."""

    directory: str
    converted: Report | None = None
    """The report of the conversion; None if none was necessary."""

    @property
    def unconverted(self) -> int:
        """The number of parts of the source that were skipped by the conversion."""
        return 0 if self.converted is None else self.converted.skipped_count

    def findings(self, *readers: SpoolReader) -> list[ReadingProblem]:
        """Return the skipped items; call it after the `readers` have read the spool."""
        return [*(self.converted.skipped if self.converted is not None else ()), *_each(readers)]

    def shortfalls(self) -> list[str]:
        """Return descriptions of the data that the conversion could not complete or represent."""
        if self.converted is None:
            return []
        lost = (f"not kept: {text}" for text in self.converted.losses)
        return [*(f"incomplete: {text}" for text in self.converted.incomplete), *lost]

    def report_problems(self, *readers: SpoolReader) -> int:
        """Report the skipped items on stderr; return the exit code, 0 or 1."""
        if self.converted is not None:
            output.shortfalls(self.converted)
        findings = _each(readers)
        skipped = max(len(findings), *(reader.skipped for reader in readers))
        output.skipped(findings, skipped)
        return 1 if skipped or (self.converted is not None and self.converted.exit_code) else 0


def _each(readers: Iterable[SpoolReader]) -> list[ReadingProblem]:
    """Return the findings of readers of one spool, each once."""
    return list(dict.fromkeys(each for reader in readers for each in reader.findings))


def shown_source(source: str) -> str:
    """Return a source for display; in a database URL, user and password are omitted."""
    from ..convert.tables import location_of

    return location_of(source).shown


@contextlib.contextmanager
def as_spool(
    source: str, source_format: str | None, run: str | None = None, stage: str = "reading"
) -> Iterator[OpenedSource]:
    """Yield `source` if it is a spool, or else a temporary spool converted from it.

    If `run` is given, batches of other runs may be missing. `stage` names the conversion for the
    display of progress. Raises the errors of `convert`: UsageError, InputError, TargetError.
    """
    from ..convert.formats import is_spool

    with contextlib.ExitStack() as stack:
        stack.callback(gc.set_threshold, *gc.get_threshold())
        gc.set_threshold(100_000)  # there are many records, but no reference cycles
        if is_spool(source, source_format):
            yield OpenedSource(source)
            return
        from ..convert.as_spool import opened_as_spool

        with progress(stage, BYTES) as shown:
            opened = opened_as_spool(source, source_format, shown, run)
            directory, conversion = stack.enter_context(opened)
        yield OpenedSource(directory, conversion)
