"""The summary that `cirron-otel run` prints at the end, on stderr, because stdout belongs to the
program.
"""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..present.formatting import WIDTH, count, printable
from . import output

if TYPE_CHECKING:
    from ...core.run.run import Run
    from ...core.spool.paths import SpoolPaths
    from ...core.spool.reader import BatchFile, SpoolReader
    from ...core.spool.recovery import Recovered
    from ..convert.flush import TargetReport
    from ..present.closing import Course
    from ..present.document import Document

_WORLD_SIZE = re.compile(rb'"cirron\.world_size":([0-9]{1,9})\b')
_LOOKED_AT = 64
"""The maximum number of batches that are searched for a world size."""


@dataclass(frozen=True, slots=True)
class RunBatches:
    """The batches of one run, in a spool that may also contain batches of other runs.

    A batch belongs to the run if it did not exist when the run started, and if its ids end in the
    lower half of the run's trace id. Times are not compared, because the clocks of other nodes
    differ, and clocks may be adjusted.
    """

    paths: SpoolPaths
    held: frozenset[str]
    """The names of the batches that existed before the run."""
    trace_id: str
    owner: str
    """The owner of the batches with the job's own span, which contain no record of the program."""
    run_id: str | None = None
    run_name: str | None = None
    """The id and the name of the run; None if they are unknown."""

    def own(self) -> list[BatchFile]:
        """Return the batches with the job's own span."""
        from ...core.spool.owner import owner_of
        from ...core.spool.reader import SpoolReader

        reader = SpoolReader(self.paths.root)
        names = [
            name
            for name in list(reader.names())
            if name not in self.held and owner_of(name) == self.owner
        ]
        batches = [reader.read(name) for name in names]
        return [batch for batch in batches if batch is not None]

    def __iter__(self) -> Iterator[BatchFile]:
        """Yield the batches of the run in order, except those that contain the job's own span."""
        yield from self.unread(set())

    def unread(self, seen: set[str], *, check: bool = True) -> Iterator[BatchFile]:
        """Yield the batches of the run that are not in `seen`, and add all that are read to it.

        With `check=False`, a file may be something other than a batch.
        """
        from ...core.spool.owner import owner_of
        from ...core.spool.reader import SpoolReader

        if not self.paths.spool.is_dir():
            return
        reader = SpoolReader(self.paths.root)
        for name in list(reader.names()):
            if name not in seen and name not in self.held and owner_of(name) != self.owner:
                batch = reader.read(name, check=check)
                if batch is None:  # it may be readable later
                    continue
                seen.add(name)
                if self.has(batch):
                    yield batch

    def has(self, batch: BatchFile) -> bool:
        """Return whether the batch belongs to the run's trace."""
        return self.trace_id[16:].encode() in batch.data

    def died(self, recovered: Iterable[Recovered]) -> list[Recovered]:
        """Return those of the recovered processes that belong to the run."""
        from ...core.spool.reader import SpoolReader

        written = [each for each in recovered if each.name is not None]
        if not written:
            return []
        reader = SpoolReader(self.paths.root)
        batches = [reader.read(each.name or "") for each in written]
        return [
            each
            for each, batch in zip(written, batches, strict=True)
            if batch is not None and self.has(batch)
        ]

    def world_size(self) -> int | None:
        """Return the world size that the ranks recorded; None if none of them recorded it."""
        sizes = [
            int(size)
            for batch in itertools.islice(self.unread(set(), check=False), _LOOKED_AT)
            for size in _WORLD_SIZE.findall(batch.data)
        ]
        return max(sizes, default=None)


@dataclass(frozen=True, slots=True)
class ConcludedRun:
    """The document of a run, and the series that its closing words draw."""

    document: Document
    courses: list[Course]
    batches: frozenset[str]
    """The names of the run's batches."""
    spans: int
    """The number of spans, without those of the job itself."""

    def write(self, paths: SpoolPaths) -> None:
        """Write the conclusion beside the recording; errors are ignored."""
        from ..present.conclusion_file import write_conclusion

        write_conclusion(paths, self.document, self.batches)


@dataclass(frozen=True, slots=True)
class _Complete:
    """The batches of a run with those of the job itself, which can be read several times."""

    batches: RunBatches
    own: list[BatchFile]

    def __iter__(self) -> Iterator[BatchFile]:
        yield from self.batches
        yield from self.own


def conclusion_of(batches: RunBatches) -> ConcludedRun:
    """Return the conclusion on the program's processes. Raises the errors of reading a spool."""
    from ...core.run.opening import open_run
    from ...core.spool.reader import SpoolReader

    reader, own = SpoolReader(batches.paths.root), batches.own()
    with open_run(_Complete(batches, own), reader, slowest=0) as run:
        return conclusion_of_run(batches, run, reader, own)


def conclusion_of_run(
    batches: RunBatches, run: Run, reader: SpoolReader, own: list[BatchFile]
) -> ConcludedRun:
    """Return the conclusion on the opened run of some batches, `own` included.

    Raises TargetError if there is no disk space.
    """
    from ...core.records.rows import rows_of
    from ..present.closing import courses_of
    from ..present.conclude import add_skipped, document_of_run

    document = document_of_run(
        str(batches.paths.root), run, reader=reader, world_size=batches.world_size()
    )
    document.run.id, document.run.name = batches.run_id, batches.run_name
    add_skipped(document, ())
    own_spans = sum(len(rows_of(batch.data).spans) for batch in own)
    return ConcludedRun(
        document,
        courses_of(run, document),
        frozenset(run.recording.files()),
        run.spans - own_spans,
    )


def show_conclusion(found: ConcludedRun) -> None:
    """Write the closing words of a run."""
    from ..present.closing import closing_parts

    encoding = getattr(sys.stderr, "encoding", None)
    parts = closing_parts(found.document, found.courses, encoding)
    output.message_parts(["", *parts, ""], WIDTH)


def places(
    spool: Path, trace_id: str, spans: int | None, targets: Sequence[TargetReport]
) -> list[str]:
    """Return one line each for the spool, the trace and each target; the line for the spool is
    omitted if `spans` is None.
    """
    lines = [f"trace  {trace_id}"]
    if spans is not None:
        held = count(spans, "span")
        lines.insert(0, f"spool  {printable(str(spool))}  ({held} of this run)")
    for target in targets:
        if target.failure or target.left:
            left = count(target.left, "batch", "batches") if target.left else "something"
            lines.append(f"       {printable(target.target)} has not received {left} yet")
        else:
            lines.append(f"       sent to {printable(target.target)}")
    return lines
