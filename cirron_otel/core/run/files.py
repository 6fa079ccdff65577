"""The files of a run, beside its relations."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ..analysis.run_traces import BatchLookup
from ..spool.paths import SpoolPaths
from ..spool.reader import SpoolReader


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The files of a run, beside its relations."""

    paths: SpoolPaths | None = None
    """The spool with the states of the processes; None if there is no spool."""
    batches: BatchLookup | None = None
    """The batches of the run; None if they cannot be read again."""
    is_complete: bool = True
    """Whether the run has all batches of the spool."""
    may_have_drops: bool = True
    """Whether a session may state drops. If not, their records need not be read."""
    unreadable: int = 0
    """The number of batches that could not be read, and may be of the run."""

    @classmethod
    def of(cls, reader: SpoolReader | None) -> RunFiles:
        """Return the files of a spool's reader, which has read the batches of the run."""
        if reader is None:
            return cls()
        return cls(reader.paths, reader, reader.only is None, unreadable=unreadable_in(reader))


def unreadable_in(reader: SpoolReader, names: Collection[str] | None = None) -> int:
    """Return the number of batches that a reader could not read; `names` None for all.

    A batch whose writer stopped halfway does not count: its records are recovered.
    """
    return sum(
        each.code != "torn" and (names is None or each.name in names) for each in reader.findings
    )
