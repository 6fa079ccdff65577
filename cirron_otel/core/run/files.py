"""The files of a run, beside its relations."""

from __future__ import annotations

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
    reader: SpoolReader | None = None
    """The reader that has read the spool; None if there is no spool."""

    @property
    def unreadable(self) -> int:
        """The number of batches that could not be read.

        A batch whose writer stopped halfway does not count: its records are recovered.
        """
        findings = () if self.reader is None else self.reader.findings
        return sum(each.code != "torn" for each in findings)

    @classmethod
    def of(cls, reader: SpoolReader | None) -> RunFiles:
        """Return the files of a spool's reader."""
        if reader is None:
            return cls()
        return cls(reader.paths, reader, reader.only is None, reader=reader)
