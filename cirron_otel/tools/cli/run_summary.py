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

from . import output
from .tables import breakdown_table
from .text import count, duration, printable

if TYPE_CHECKING:
    from ...core.analysis.run_report import RunReport
    from ...core.analysis.run_time import RankReport
    from ...core.spool.paths import SpoolPaths
    from ...core.spool.reader import BatchFile
    from ...core.spool.recovery import Recovered
    from ..convert.flush import TargetReport

_WORLD_SIZE = re.compile(rb'"cirron\.world_size":([0-9]{1,9})\b')
_LOOKED_AT = 64
"""The maximum number of batches that are searched for a world size."""
_MOST_RANKS = 4
"""The maximum number of ranks whose tables are shown."""
_WIDTH = 100


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


def report_of(batches: RunBatches) -> RunReport:
    """Return a report of how the program's processes spent their time.

    Raises the errors of reading a spool.
    """
    from ...core.run.opening import open_run
    from ...core.run.report import report_of
    from ...core.spool.reader import SpoolReader

    with open_run(batches, SpoolReader(batches.paths.root), slowest=0) as run:
        return report_of(run)


def show_report(found: RunReport) -> None:
    """Write the failures, the resource that bounds the run, and the steps of each rank by phase."""
    from .report_text import conclusions

    lines = list(conclusions(found))
    if lines:
        output.message_block("\n" + "\n".join(lines))
    ranks = [each for each in found.ranks if each.spans]
    shown = [each for each in ranks if each.steps.steps.times]
    for each in shown[:_MOST_RANKS]:
        output.message_block(f"\n{_heading(each)}\n")
        _draw(each)
    if len(shown) > _MOST_RANKS:
        output.message_block(f"\nand {count(len(shown) - _MOST_RANKS, 'more rank')}")
    if shown:
        output.message_block("")


def _heading(rank: RankReport) -> str:
    steps = rank.steps.steps
    who = "" if rank.rank is None else f"rank {rank.rank}: "
    share = f" ({100 * steps.total_ns / rank.run_ns:.1f} %)" if rank.run_ns else ""
    took = f"{count(steps.times, 'step')} took {duration(steps.total_ns)}{share}"
    return f"{who}{duration(rank.run_ns)}, of which {took}"


def _draw(rank: RankReport) -> None:
    from rich.console import Console

    is_terminal = sys.stderr is not None and sys.stderr.isatty()
    console = Console(
        stderr=True,
        highlight=False,
        markup=False,
        emoji=False,
        width=None if is_terminal else _WIDTH,
    )
    with console.capture() as drawn:
        console.print(breakdown_table(rank.steps))
    lines = drawn.get().splitlines()
    output.message_block("\n".join(line.rstrip() for line in lines))


def places(
    spool: Path, trace_id: str, found: RunReport | None, targets: Sequence[TargetReport]
) -> list[str]:
    """Return one line each for the spool, the trace and each target; the line for the spool is
    omitted if `found` is None.
    """
    lines = [f"trace  {trace_id}"]
    if found is not None:
        held = count(found.spans, "span")
        lines.insert(0, f"spool  {printable(str(spool))}  ({held} of this run)")
    for target in targets:
        if target.failure or target.left:
            left = count(target.left, "batch", "batches") if target.left else "something"
            lines.append(f"       {printable(target.target)} has not received {left} yet")
        else:
            lines.append(f"       sent to {printable(target.target)}")
    return lines
