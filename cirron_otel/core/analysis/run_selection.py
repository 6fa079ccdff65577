"""The selection of a run by `--run NAME|ID|last|all`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...errors import UsageError
from ..spool.owner import owner_of
from ..spool.reader import SpoolReader
from .runs import MOST_LISTED, Run, SpoolRuns, read_runs

LAST, ALL = "last", "all"
_MOST_LISTED = 10


@dataclass(frozen=True, slots=True)
class ChosenRun:
    """A run of a spool, and the number of runs in the spool."""

    run: Run | None
    """None if the spool has no run, or if all runs were requested."""
    count: int
    others: tuple[str, ...] = ()
    """The names of the other runs, oldest first; at most 1,000."""
    is_named: bool = False
    """Whether the user named it; `count` and `others` may then lack runs that were not read."""

    @property
    def world_size(self) -> int | None:
        """The number of ranks that the run should have; None if it is unknown."""
        return None if self.run is None else self.run.world_size

    @property
    def name(self) -> str | None:
        """The name of the chosen run if the user named it, or if there are others; else None."""
        is_one_of_several = self.is_named or self.count > 1
        return self.run.name if self.run is not None and is_one_of_several else None


def choose_run(reader: SpoolReader, wanted: str | None) -> ChosenRun:
    """Limit `reader` to the batches of the wanted run; None selects the last run.

    cirron-sdk does not record which sessions form a run. If the spool contains only its recordings,
    None selects all of them.

    Raises UsageError if no run matches, or several do.
    """
    if wanted == ALL:
        return ChosenRun(None, 0)
    spool = read_runs(reader)
    chosen, is_limited = choose(spool, wanted)
    if is_limited and chosen.run is not None:
        _limit(reader, chosen.run, spool)
    return chosen


def choose(spool: SpoolRuns, wanted: str | None) -> tuple[ChosenRun, bool]:
    """Return the wanted run, by the rules of `choose_run`, and whether others are left out.

    Raises UsageError if no run matches, or several do.
    """
    if wanted is None and len(spool.runs) <= 1:
        return ChosenRun(spool.runs[0] if spool.runs else None, len(spool.runs)), False
    if wanted is None and not any(run.is_recorded for run in spool.runs):
        return ChosenRun(None, len(spool.runs)), False
    chosen = _chosen(_wanted(spool, wanted or LAST), spool)
    return replace(chosen, is_named=wanted not in (None, LAST)), True


def select_runs(reader: SpoolReader, wanted: str | None) -> SpoolRuns:
    """Return the runs of a spool; None and `all` select all of them.

    If only one run is wanted, `reader` is limited to its batches. Raises UsageError if no run
    matches, or several do.
    """
    spool = read_runs(reader)
    if wanted in (None, ALL):
        return spool
    run = _wanted(spool, wanted)
    _limit(reader, run, spool)
    return replace(spool, runs=[run], unassigned=frozenset())


def _wanted(spool: SpoolRuns, wanted: str) -> Run:
    return _last(spool) if wanted == LAST else find_run(spool.runs, wanted)


def _limit(reader: SpoolReader, run: Run, spool: SpoolRuns) -> None:
    reader.only = run.batches | unreadable_of(reader, run, spool.runs)


def limit_again(reader: SpoolReader, run: Run, spool: SpoolRuns) -> None:
    """Limit `reader`, which has read all batches, to a run.

    Of the unreadable files, it then has only those that may belong to the run.
    """
    unread = frozenset(reader.unread)
    _limit(reader, run, spool)
    for name in reader.names():
        if name in unread:
            reader.read(name)


def all_runs(reader: SpoolReader) -> list[tuple[ChosenRun, SpoolReader]]:
    """Return each run of a spool with a reader of its batches, oldest first.

    If no run is recorded, as in a recording of cirron-sdk, all batches count as one run.
    """
    spool = read_runs(reader)
    found = []
    for chosen, batches in each_run(spool):
        of_run = reader
        if batches is not None and chosen.run is not None:
            unreadable = unreadable_of(reader, chosen.run, spool.runs)
            of_run = SpoolReader(reader.paths.root, only=batches | unreadable)
        found.append((chosen, of_run))
    return found


def each_run(spool: SpoolRuns) -> list[tuple[ChosenRun, frozenset[str] | None]]:
    """Return each run with the names of its batches, None for all, by the rules of `all_runs`."""
    if not any(run.is_recorded for run in spool.runs):
        return [(ChosenRun(spool.runs[0] if len(spool.runs) == 1 else None, 1), None)]
    return [(_chosen(run, spool), run.batches) for run in spool.runs]


def _chosen(run: Run, spool: SpoolRuns) -> ChosenRun:
    others = tuple(each.name for each in spool.runs if each is not run)
    return ChosenRun(run, len(spool.runs), others[:MOST_LISTED])


def unreadable_of(reader: SpoolReader, run: Run, runs: Sequence[Run]) -> set[str]:
    """Return the unreadable files that may belong to the run, so that they are reported.

    Files of processes that belong only to other runs are excluded.
    """
    run_owners = {owner_of(name) for name in run.batches}
    others = {owner_of(name) for each in runs for name in each.batches} - run_owners - {None}
    return {name for name in reader.unread if owner_of(name) not in others}


def find_run(runs: Sequence[Run], wanted: str) -> Run:
    """Return the run with this id, name or id prefix. Raises UsageError."""
    by_id = [run for run in runs if run.id == wanted]
    by_name = [run for run in runs if run.name == wanted]
    by_prefix = [run for run in runs if wanted and run.id.startswith(wanted)]
    matches = by_id or by_name or by_prefix
    if len(matches) == 1:
        return matches[0]
    if not matches:
        names = names_text([run.name for run in runs]) if runs else "none"
        raise UsageError(f"no run has the name or id {wanted!a}: the runs are {names}")
    ids = names_text([run.id for run in matches])
    raise UsageError(f"{wanted!a} matches {len(matches)} runs: name one by its id, of {ids}")


def names_text(names: Sequence[str], total: int | None = None) -> str:
    """Return the last names for a message, and the number of the others if there are `total`."""
    last = names[-_MOST_LISTED:]
    listed = ", ".join(name if name.isprintable() else ascii(name)[1:-1] for name in last)
    more = (len(names) if total is None else total) - len(last)
    return f"{listed} and {more:,} more" if more else listed


def _last(spool: SpoolRuns) -> Run:
    if not spool.runs:
        raise UsageError("the spool has no run")
    return spool.runs[-1]
