"""The diagnosis of the batches of a run."""

from __future__ import annotations

from collections.abc import Iterable

from ..analysis.verdicts.diagnosis import Diagnosis, diagnose
from ..analysis.verdicts.thresholds import Thresholds
from ..spool.reader import BatchFile, SpoolReader
from .opening import open_run


def diagnose_batches(
    batches: Iterable[BatchFile], limits: Thresholds, world_size: int | None = None
) -> Diagnosis:
    """Return the diagnosis of a run's batches, for example of a SpoolReader.

    `world_size` is the number of ranks that the run should have, if it is known. Raises the errors
    of reading the batches, and TargetError if there is no disk space.
    """
    with open_run(batches, batches if isinstance(batches, SpoolReader) else None) as run:
        return diagnose(run.window(limits, world_size), limits)
