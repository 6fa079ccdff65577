"""Opens the run of some batches: in one pass if that is possible, else through a database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ..analysis.index import run_index
from ..analysis.verdicts.diagnosis import Diagnosis, diagnose
from ..analysis.verdicts.thresholds import Thresholds
from ..spool.reader import BatchFile, SpoolReader
from .files import RunFiles
from .load.errors import NeedsIndexError
from .load.indexed import IndexedRecording
from .load.reducer import Reducer
from .recording import Recording
from .relations import Texts
from .run import Run


@contextmanager
def open_run(
    batches: Iterable[BatchFile],
    reader: SpoolReader | None = None,
    *,
    slowest: int = 10,
    needs_index: bool = False,
) -> Iterator[Run]:
    """Open the run of some batches, for example of a SpoolReader, which are read again if need be.

    An iterator is read with a database at once.

    `reader` has the batches and the states of the processes; None if there is no spool. With
    `needs_index`, the recording has an index. Raises the errors of reading the batches, and
    TargetError if there is no disk space.
    """
    is_once = iter(batches) is batches  # a second pass is not possible
    recording = None if needs_index or is_once else reduced(batches)
    if recording is not None:
        yield Run(recording, RunFiles.of(reader), slowest)
        return
    with run_index(batches) as index:
        yield Run(IndexedRecording(index, Texts()), RunFiles.of(reader), slowest)


def reduced(batches: Iterable[BatchFile]) -> Recording | None:
    """Return the recording, read in one pass without a database; None if that is not possible."""
    reducer = Reducer(Texts())
    try:
        for batch in batches:
            reducer.add_batch(batch)
        reducer.finish()
    except NeedsIndexError:
        return None
    return None if reducer.marks.needs_index else reducer


def diagnose_batches(
    batches: Iterable[BatchFile], limits: Thresholds, world_size: int | None = None
) -> Diagnosis:
    """Return the diagnosis of a run's batches, for example of a SpoolReader.

    `world_size` is the number of ranks that the run should have, if it is known. Raises the errors
    of reading the batches, and TargetError if there is no disk space.
    """
    with open_run(batches, batches if isinstance(batches, SpoolReader) else None) as run:
        return diagnose(run.window(limits, world_size), limits)
