"""The runs of several spools, in bounded memory: a run with parts in several spools is one run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ...ids import is_id
from ..records.problems import ReadingProblem
from ..spool.reader import BatchFile, OnProgress, SpoolReader
from .run_batch import OPEN, UNFINISHED, worse
from .run_keys import Values, values_of
from .run_losses import only_settings
from .runs import MOST_LISTED, Run, read_runs

_MOST_FINDINGS: Final = 10_000
_NOT_ENDED: Final = (OPEN, UNFINISHED)


@dataclass(slots=True)
class CataloguedRun:
    """A run, its parts, and the values of the requested keys; a lookup of its batches."""

    run: Run
    """Without the names of its batches, and of its resource only the settings."""
    parts: list[tuple[str, frozenset[str]]]
    """The spools that have batches of the run, and the names of these batches."""
    values: dict[str, Values]
    """The values of each key in the resources of the run's sessions."""

    def read(self, name: str, *, check: bool = True) -> BatchFile | None:
        """Return a batch of the run; None if it cannot be read."""
        places = (place for place, names in self.parts if name in names)
        place = next(places, None)
        return None if place is None else SpoolReader(place).read(name, check=check)

    @property
    def reader(self) -> SpoolReader | None:
        """A reader of the run's batches; None if they are in several spools."""
        if len(self.parts) != 1:
            return None
        [(place, names)] = self.parts
        return SpoolReader(place, only=names)

    def __iter__(self) -> Iterator[BatchFile]:
        """Yield the batches of all parts, without listing the directories again.

        A batch that disappeared is left out.
        """
        for place, names in self.parts:
            batches = map(SpoolReader(place).read, sorted(names))
            yield from (batch for batch in batches if batch is not None)


@dataclass(slots=True)
class RunCatalogue:
    """The runs of several spools, without their records."""

    keys: Sequence[str]
    """The keys by which the runs are grouped."""
    since_ns: int | None = None
    until_ns: int | None = None
    """The runs that began before `since_ns`, or at `until_ns` or later, are left out."""
    outside: int = 0
    """The number of runs that are left out."""
    unassigned: int = 0
    """The number of batches that belong to no run."""
    skipped: int = 0
    findings: list[ReadingProblem] = field(default_factory=list)
    """The batches that cannot be read; the first 10,000."""
    _runs: dict[str, CataloguedRun] = field(default_factory=dict)

    def add(self, directory: str, shown: str, on_progress: OnProgress | None = None) -> None:
        """Add the runs of the spool at `directory`. Raises InputError if it cannot be read.

        `shown` is the name of the source in findings; `on_progress` is called for each batch.
        """
        reader = SpoolReader(directory, on_progress=on_progress)
        spool = read_runs(reader)
        self.unassigned += len(spool.unassigned)
        self.skipped += reader.skipped
        for each in reader.findings[: _MOST_FINDINGS - len(self.findings)]:
            self.findings.append(replace(each, name=f"{shown}: {each.name}"))
        for run in spool.runs:
            resources = [spool.resources.get(session, {}) for session in run.sessions]
            values = {key: values_of(key, resources) for key in self.keys}
            outlined = replace(run, batches=frozenset(), resource=only_settings(run.resource))
            is_mergeable = run.is_recorded or is_id(run.id)
            key = run.id if is_mergeable else f"{len(self._runs)} {run.id}"
            added = CataloguedRun(outlined, [(directory, run.batches)], values)
            known = self._runs.setdefault(key, added)
            if known is added:
                continue
            known.parts += added.parts
            known.run = _merged(known.run, outlined)
            for name, found in values.items():
                new = (value for value in found if value not in known.values[name])
                known.values[name] = (*known.values[name], *new)

    def runs(self) -> Iterator[CataloguedRun]:
        """Yield the runs in the range of time, in order of their start.

        A run without a start is in every range.
        """
        self.outside = 0
        since, until = self.since_ns, self.until_ns
        for each in sorted(self._runs.values(), key=lambda each: each.run.order):
            start_ns = each.run.start_ns
            if start_ns is not None and (
                (since is not None and start_ns < since)
                or (until is not None and start_ns >= until)
            ):
                self.outside += 1
            else:
                yield each


def _merged(one: Run, other: Run) -> Run:
    """Return a run of which two spools contain parts, or copies."""
    ranks = sorted({*one.ranks, *other.ranks})
    starts = [each.start_ns for each in (one, other) if each.start_ns is not None]
    ends = [each.end_ns for each in (one, other) if each.end_ns is not None]
    start_ns, end_ns = min(starts, default=None), max(ends, default=None)
    return replace(
        one,
        status=_status(one, other),
        cause=one.cause or other.cause,
        script=one.script or other.script,
        start_ns=start_ns,
        end_ns=end_ns,
        duration_ns=None if start_ns is None or end_ns is None else end_ns - start_ns,
        ranks=ranks[:MOST_LISTED],
        rank_count=max(len(ranks), one.rank_count, other.rank_count),
        sessions=list(dict.fromkeys([*one.sessions, *other.sessions]))[:MOST_LISTED],
        world_size=max((size for size in (one.world_size, other.world_size) if size), default=None),
    )


def _status(one: Run, other: Run) -> str:
    """Return the more serious state, or, of an older and a newer copy, that of the newer one."""
    status = worse(one.status, other.status) or one.status
    ended = [each.status for each in (one, other) if each.status not in _NOT_ENDED]
    is_copy = set(one.sessions) == set(other.sessions)
    return ended[0] if is_copy and len(ended) == 1 else status


def merged_value(values: Values) -> Any:
    """Return the only value, a list of several values, or None."""
    if len(values) > 1:
        return list(values)
    return values[0] if values else None
