"""`runs()`: the runs of a spool, for programs and notebooks."""

from __future__ import annotations

import os

from ...core.analysis.run_html import HEADS, table
from ...core.analysis.run_selection import LAST, find_run
from ...core.analysis.runs import Run, read_runs
from ...core.config.resolve import resolve
from ...core.spool.reader import SpoolReader


class RunList(tuple[Run, ...]):
    """Runs in order of their start. A notebook shows them as a table."""

    __slots__ = ()

    def named(self, wanted: str) -> Run:
        """The run with this name or id, or whose id begins so; `last` is the last one.

        Raises UsageError if there is none, or more than one.
        """
        return self[-1] if wanted == LAST and self else find_run(self, wanted)

    def _repr_html_(self) -> str:
        return table(HEADS, (run.cells() for run in self))


def runs(directory: str | os.PathLike[str] | None = None) -> RunList:
    """The runs of the spool in `directory`, by default the one that `profile()` would write to.

    Raises InputError if there is no spool.
    """
    where = resolve(None).config.output_dir if directory is None else directory
    return RunList(read_runs(SpoolReader(where)).runs)
