"""Opens the wanted run of a spool: its batches are chosen and reduced in the same pass.

The pass reduces the batches of the run that is probably wanted: the newest one so far, or the one
with the wanted name or id. If another run turns out to be the wanted one, its batches are read in a
second pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from ..analysis.run_batch import RUN_ID, RUN_NAME, RunBatchOutline, outline_of_rows
from ..analysis.run_selection import ALL, LAST, ChosenRun, choose, limit_again
from ..analysis.runs import runs_of
from ..analysis.sessions import OutlinedBatch
from ..records.rows import IndexedBatch, rows_of
from ..spool.begun_sessions import begun_sessions
from ..spool.owner import owner_of
from ..spool.reader import BatchFile, SpoolReader
from .accounts import BY_RULE, AccountNames
from .files import RunFiles
from .load.errors import NotReducibleError
from .load.reducer import Reducer
from .opening import open_run
from .relations import Texts
from .run import Run


@contextmanager
def open_chosen_run(
    reader: SpoolReader,
    wanted: str | None,
    *,
    slowest: int = 10,
    unit: str | None = None,
    accounts: AccountNames = BY_RULE,
) -> Iterator[tuple[ChosenRun, Run]]:
    """Open the wanted run of a spool, by the rules of `choose_run`, and limit `reader` to it.

    `unit` is the name of the units in a recording without steps. `accounts` has the accounts of
    scopes by their names.

    Raises UsageError if no run or no unit matches, or several runs do, the errors of reading the
    batches, and TargetError if there is no disk space.
    """
    if wanted == ALL:
        with open_run(reader, reader, slowest=slowest, unit=unit, accounts=accounts) as run:
            yield ChosenRun(None, 0), run
        return
    guess = _Guess(wanted)
    spool = runs_of(_outlined(reader, guess), reader.paths)
    chosen, is_limited = choose(spool, wanted)
    names = frozenset(guess.all_names)
    if is_limited and chosen.run is not None:
        limit_again(reader, chosen.run, spool)
        names = chosen.run.batches
    reducer = guess.finished(names)
    if reducer is not None and unit is None:
        yield chosen, Run(reducer, RunFiles.of(reader), slowest, accounts)
        return
    is_odd = guess.names == names  # reducing it again would fail again
    with open_run(
        reader, reader, slowest=slowest, in_columns=is_odd, unit=unit, accounts=accounts
    ) as run:
        yield chosen, run


def _outlined(reader: SpoolReader, guess: _Guess) -> Iterator[OutlinedBatch]:
    sealed = set()
    for batch in reader:
        sealed.add(owner_of(batch.name) or "")
        yield _outlined_batch(batch, guess)
    for batch, start_ns in begun_sessions(reader.paths, sealed) if reader.only is None else ():
        outlined = _outlined_batch(batch, guess)
        outlined.outline.start_ns = start_ns
        yield outlined


def _outlined_batch(batch: BatchFile, guess: _Guess) -> OutlinedBatch:
    rows = rows_of(batch.data)
    outline = outline_of_rows(rows, batch.data)
    guess.add(batch, rows, outline)
    return OutlinedBatch(batch.name, outline, partial(_same, batch))


def _same(batch: BatchFile) -> BatchFile:
    return batch


class _Guess:
    """The batches of the run that is probably wanted, reduced."""

    def __init__(self, wanted: str | None) -> None:
        self._wanted = None if wanted == LAST else wanted
        self._keys: set[str] = set()
        self._key: str | None = None
        self._begin(None)
        self.all_names: set[str] = set()

    def _begin(self, key: str | None) -> None:
        self._key = key
        self.names: set[str] = set()
        self._reducer: Reducer | None = Reducer(Texts())

    def add(self, batch: BatchFile, rows: IndexedBatch, outline: RunBatchOutline) -> None:
        """Add a batch if it is probably of the wanted run."""
        self.all_names.add(batch.name)
        key = outline.text(RUN_ID) or outline.session_trace_id or outline.session
        if key is not None:
            if self._wanted is not None and not self._is_wanted(key, outline):
                return
            if key not in self._keys:
                self._keys.add(key)
                if self._key is not None:
                    self._begin(key)
                self._key = key
            elif key != self._key:
                return
        self.names.add(batch.name)
        if self._reducer is not None:
            try:
                self._reducer.add_rows(batch.name, rows, batch.data)
            except NotReducibleError:
                self._reducer = None

    def _is_wanted(self, key: str, outline: RunBatchOutline) -> bool:
        wanted = self._wanted or ""
        return key.startswith(wanted) or outline.text(RUN_NAME) == wanted

    def finished(self, names: frozenset[str]) -> Reducer | None:
        """Return the reduced batches if they are those with some names; else None."""
        reducer, self._reducer = self._reducer, None
        if reducer is None or self.names != names:
            return None
        try:
            reducer.finish()
        except NotReducibleError:
            return None
        return reducer
