"""`runs()`: the runs of a spool, for programs and notebooks."""

from __future__ import annotations

import os

from ...core.analysis.run_selection import LAST, find_run
from ...core.analysis.runs import HEADS, Run, read_runs, table
from ...core.config.resolve import resolve
from ...core.spool.reader import SpoolReader


class RunList(tuple[Run, ...]):
    """Runs in order of their start, which a notebook shows as a table."""

    __slots__ = ()

    def named(self, wanted: str) -> Run:
        """Return the run with this name, id, or prefix of an id; `last` means the last run.

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
