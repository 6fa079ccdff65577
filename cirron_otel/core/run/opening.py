"""Opens the run of some batches: as they are read, or from all records in columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ...errors import UsageError
from ..spool.reader import BatchFile, SpoolReader
from .accounts import BY_RULE, AccountNames
from .files import RunFiles
from .load.arranged import ArrangedRecording
from .load.errors import NotReducibleError
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
    in_columns: bool = False,
    unit: str | None = None,
    accounts: AccountNames = BY_RULE,
) -> Iterator[Run]:
    """Open the run of some batches, for example of a SpoolReader, which are read again if need be.

    `reader` has the batches and the states of the processes; None if there is no spool. With
    `in_columns`, all records are read into columns first. `unit` is the name of the units;
    without one, they are found by a rule (docs/report.md). `accounts` has the accounts of scopes by
    their names. Raises the errors of reading the
    batches, UsageError if the units have another name, and TargetError if there is no disk space.
    """
    is_once = iter(batches) is batches  # a second pass is not possible
    recording = None if in_columns or is_once or unit is not None else reduced(batches)
    if recording is None:
        recording = ArrangedRecording(batches, Texts(), unit)
    if unit is not None and recording.unit_name != unit:
        raise UsageError(
            f"--unit {unit!a}: the units of this recording are named {recording.unit_name!a}"
        )
    yield Run(recording, RunFiles.of(reader), slowest, accounts)


def reduced(batches: Iterable[BatchFile]) -> Recording | None:
    """Return the recording, reduced as it is read; None if that is not possible."""
    reducer = Reducer(Texts())
    try:
        for batch in batches:
            reducer.add_batch(batch)
        reducer.finish()
    except NotReducibleError:
        return None
    return reducer
