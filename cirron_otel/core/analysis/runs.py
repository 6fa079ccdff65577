"""The runs of a spool: the batches that belong to each, and a summary of each.

A batch of this project's SDK names its run in its resource. Batches of its older versions are
grouped by their trace (the processes started by one `cirron-otel run` share it), and by their job's
id if their times overlap. Sessions of other software that have no id of their run form one if they
are distinct ranks of one world size whose times overlap. Batches of cirron-sdk do not name their
session: sessions of different ranks whose times overlap by half of the shorter one form one run.
Batches from other services
belong to the run whose trace they are part of, if any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from html import escape
from typing import Any

from ...ids import SHORT_ID_DIGITS
from ...semconv import DISTRO_NAME, JOB_ID, WORLD_SIZE
from ..durations import SECOND_NS
from ..moments import local_moment
from ..spool.owner import is_alive, owner_of, owners
from ..spool.paths import SpoolPaths
from ..spool.reader import BatchFile, SpoolReader
from .run_batch import (
    KILLED,
    OPEN,
    RUN_ID,
    RUN_NAME,
    SCRIPT,
    UNFINISHED,
    RunBatchOutline,
    outline_of,
)
from .run_losses import only_settings
from .sessions import OutlinedBatch, SessionSearch

HEADS = ("run", "name", "status", "start", "duration", "ranks", "steps", "script")


def table(heads: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """Return an HTML table of escaped strings; `heads` are the column titles."""
    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


MOST_LISTED = 1000
_MOST_RANKS_SHOWN = 32
_LATER = float("inf")


@dataclass(slots=True)
class Run:
    """One run: all processes that one command started."""

    id: str
    """The recorded id; for an older recording, its trace or session id."""
    name: str
    status: str
    """`failed`: the job or a session ended with an error. `killed`: a process died. `open`: a
    process is running. `unfinished`: an end was not recorded. `closed`: all ended normally."""
    cause: str | None
    """The cause of a failure, if a known one is recorded: `out of memory`."""
    script: str | None
    start_ns: int | None
    end_ns: int | None
    """The end of the last span so far."""
    duration_ns: int | None
    ranks: list[int]
    """The first 1,000 ranks."""
    rank_count: int
    steps: int
    """The number of steps of the rank with the most steps."""
    spans: int
    sessions: list[str]
    """The ids of its sessions, in order of their start; the first 1,000."""
    resource: dict[str, Any]
    """The attributes of its first session's resource, and the settings of the training, which may
    be those of a later session: the first one of `cirron-otel run` is that of the launcher."""
    is_recorded: bool
    """Whether the run's batches name their session; batches of cirron-sdk do not."""
    batches: frozenset[str]
    """The names of the run's batch files."""
    world_size: int | None = None
    """The number of ranks that the run should have; None if it is not recorded."""

    def to_json(self) -> dict[str, Any]:
        """Return the run as a JSON object, without the names of its batch files."""
        document = asdict(self)
        del document["batches"], document["is_recorded"], document["world_size"]
        return document

    @property
    def order(self) -> tuple[int, str]:
        """The key of the order by start."""
        return self.start_ns or 0, self.id

    @property
    def outcome(self) -> str:
        """The status, with the cause of a failure if it is known."""
        return self.status if self.cause is None else f"{self.status} ({self.cause})"

    def cells(self) -> tuple[str, ...]:
        """Return the fields of `HEADS` as strings."""
        ranks = ", ".join(map(str, self.ranks[:_MOST_RANKS_SHOWN]))
        more = self.rank_count - _MOST_RANKS_SHOWN
        return (
            self.id[:SHORT_ID_DIGITS], self.name, self.outcome,
            "" if self.start_ns is None else local_moment(self.start_ns),
            "" if self.duration_ns is None else f"{self.duration_ns / SECOND_NS:.3f} s",
            ranks + (f" and {more:,} more" if more > 0 else ""),
            str(self.steps), self.script or "",
        )  # fmt: skip

    def _repr_html_(self) -> str:
        rows = [*zip(HEADS, self.cells(), strict=True)]
        return table(("", ""), [*rows, *((k, str(v)) for k, v in sorted(self.resource.items()))])


@dataclass(slots=True)
class SpoolRuns:
    """The runs of a spool, in order of their start."""

    runs: list[Run]
    unassigned: frozenset[str]
    """The names of the batches that belong to no run."""
    resources: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The attributes of each session's resource, by its id; empty for cirron-sdk."""


@dataclass(slots=True)
class _Session(RunBatchOutline):
    """The batches of one session."""

    id: str = ""
    names: set[str] = field(default_factory=set)
    is_sdk: bool = False
    """Whether cirron-sdk recorded the session."""

    def add(self, outline: RunBatchOutline, name: str) -> None:
        """Add a batch."""
        self.names.add(name)
        self.join(outline)

    @property
    def world_size(self) -> int | None:
        """The number of ranks according to its resource."""
        value = self.resource.get(WORLD_SIZE)
        return value if type(value) is int and value > 0 else None

    @property
    def is_unstamped(self) -> bool:
        """Whether other software recorded it without an id of the run that it was part of."""
        return DISTRO_NAME not in self.resource and self.session_trace_id in (None, self.id)

    @property
    def began(self) -> float:
        """The start as a sort key."""
        return _LATER if self.start_ns is None else self.start_ns


def read_runs(reader: SpoolReader) -> SpoolRuns:
    """Return the runs of a spool. Memory grows with the number of its batches and sessions."""
    batches = (OutlinedBatch(b.name, outline_of(b.data), partial(_same, b)) for b in reader)
    return runs_of(batches, reader.paths)


def _same(batch: BatchFile) -> BatchFile:
    return batch


def runs_of(
    batches: Iterable[OutlinedBatch],
    paths: SpoolPaths | None,
    new_search: Callable[[], SessionSearch] = SessionSearch,
) -> SpoolRuns:
    """Return the runs of batches in the order of their names.

    `paths` is the spool with the states of the processes, if there is one. `new_search` returns the
    search for the sessions of batches that name none.
    """
    sessions: dict[str, _Session] = {}
    foreign: list[tuple[str, RunBatchOutline]] = []
    without: set[str] = set()
    with new_search() as search:
        for batch in batches:
            outline = batch.outline
            if outline.session is not None:
                key = outline.session
                sessions.setdefault(key, _Session(id=key)).add(outline, batch.name)
            elif outline.is_foreign:
                outline.resource = {}
                foreign.append((batch.name, outline))
            else:
                search.add(batch)
                without.add(batch.name)
        if without:
            search.search()
            for id_, name, outline in search.outlines():
                sessions.setdefault(id_, _Session(id=id_, is_sdk=True)).add(outline, name)
                without.discard(name)
    _settle(sessions.values(), paths)
    runs = _grouped(sessions.values())
    without |= _add_foreign(foreign, runs)
    summaries = [_run(each) for each in runs]
    return SpoolRuns(
        sorted(summaries, key=lambda run: run.order),
        frozenset(without),
        {each.id: each.resource for each in sessions.values()},
    )


def _settle(sessions: Iterable[_Session], paths: SpoolPaths | None) -> None:
    """Set the state of sessions whose end was not recorded: the process may be alive or dead."""
    known: set[str] | None = None
    for session in sessions:
        if session.status is None:
            if known is None:
                known = set() if paths is None else set(owners(paths))
            prefix = owner_of(min(session.names)) or ""
            if paths is not None and prefix in known:
                session.status = OPEN if is_alive(paths, prefix) else KILLED
            else:
                session.status = UNFINISHED


def _grouped(sessions: Iterable[_Session]) -> list[list[_Session]]:
    """Return the sessions of each run, in order of their start."""
    groups: dict[tuple[str, str], list[_Session]] = {}
    for session in sorted(sessions, key=lambda each: (each.began, each.id)):
        run_id = session.text(RUN_ID)
        if run_id is not None:
            key = "run", run_id
        elif not session.is_sdk:
            key = "trace", session.session_trace_id or session.id
        else:
            key = "session", session.id
        groups.setdefault(key, []).append(session)
    named = [group for key, group in groups.items() if key[0] == "run"]
    traces = [group for key, group in groups.items() if key[0] == "trace"]
    loose = [group for key, group in groups.items() if key[0] == "session"]
    return [*named, *_joined(traces, _is_one_run), *_joined(loose, _are_ranks_at_once)]


def _joined(
    groups: list[list[_Session]], are_one: Callable[[list[_Session], list[_Session]], bool]
) -> list[list[_Session]]:
    """Join groups that overlap in time and that form one run according to `are_one`."""
    joined: list[list[_Session]] = []
    for group in groups:
        begun = min(each.began for each in group)
        for other in reversed(joined[-MOST_LISTED:]):
            ended = max(each.end_ns or 0 for each in other)
            if begun <= ended and are_one(other, group):
                other.extend(group)
                break
        else:
            joined.append(group)
    return joined


def _is_one_run(one: list[_Session], other: list[_Session]) -> bool:
    return _is_same_job(one, other) or _is_same_world(one, other)


def _is_same_world(one: list[_Session], other: list[_Session]) -> bool:
    """Return whether these are ranks of one world size, recorded without an id of their run."""
    sessions = [*one, *other]
    sizes = {each.world_size for each in sessions}
    size = min((size for size in sizes if size is not None), default=1)
    ranks = {rank for each in sessions for rank in each.ranks}
    is_world = len(sizes) == 1 and size > 1 and all(0 <= rank < size for rank in ranks)
    return is_world and all(each.is_unstamped for each in sessions) and _are_ranks(one, other)


def _is_same_job(one: list[_Session], other: list[_Session]) -> bool:
    job = one[0].text(JOB_ID)
    return job is not None and job == other[0].text(JOB_ID) and _are_ranks(one, other)


def _are_ranks(one: list[_Session], other: list[_Session]) -> bool:
    ranks = set().union(*(each.ranks for each in one))
    return not ranks & set().union(*(each.ranks for each in other))


def _are_ranks_at_once(one: list[_Session], other: list[_Session]) -> bool:
    """Return whether these are different ranks, and ran together for half of the shorter time."""
    (start, end), (other_start, other_end) = (
        (min(each.start_ns or 0 for each in group), max(each.end_ns or 0 for each in group))
        for group in (one, other)
    )
    shorter = min(end - start, other_end - other_start)
    together = min(end, other_end) - max(start, other_start)
    return 2 * together >= shorter and _are_ranks(one, other)


def _add_foreign(
    foreign: list[tuple[str, RunBatchOutline]], runs: list[list[_Session]]
) -> set[str]:
    """Add batches of other services to the runs with their traces; return the unassigned names."""
    halves = {
        (each.session_trace_id or each.id)[16:]: group
        for group in runs
        for each in group
        if each.spans
    }
    without = set()
    for name, outline in foreign:
        group = next((halves[half] for half in outline.trace_halves if half in halves), None)
        if group is None:
            without.add(name)
        else:
            group[0].names.add(name)
            group[0].spans += outline.spans
    return without


def _run(group: list[_Session]) -> Run:
    first, outline = group[0], RunBatchOutline()
    for each in group:
        outline.join(each)
    ranks = sorted(outline.ranks)
    run_id = first.text(RUN_ID) or first.session_trace_id or first.id
    start_ns, end_ns = outline.start_ns, outline.end_ns
    scripts = [script for each in group if (script := each.text(SCRIPT)) is not None]
    return Run(
        id=run_id,
        name=_name(group, run_id),
        status=outline.status or UNFINISHED,
        cause=outline.cause,
        script=scripts[0] if scripts else None,
        start_ns=start_ns,
        end_ns=end_ns,
        duration_ns=None if start_ns is None or end_ns is None else end_ns - start_ns,
        ranks=ranks[:MOST_LISTED],
        rank_count=len(ranks),
        steps=max(outline.steps.values(), default=0),
        spans=outline.spans,
        sessions=[each.id for each in group[:MOST_LISTED]],
        resource=_resource(group),
        is_recorded=any(not each.is_sdk for each in group),
        batches=frozenset().union(*(each.names for each in group)),
        world_size=max((each.world_size for each in group if each.world_size), default=None),
    )


def _resource(group: Sequence[_Session]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for each in reversed(group):
        settings |= only_settings(each.resource)
    return settings | group[0].resource


def _name(group: list[_Session], run_id: str) -> str:
    """Return the name that the user chose, or else the name derived from the script's name."""
    names = [name for each in group if (name := each.text(RUN_NAME)) is not None]
    suffix = f"-{run_id[:SHORT_ID_DIGITS]}"
    chosen = (name for name in names if not name.endswith(suffix))
    return next(chosen, names[0] if names else run_id[:SHORT_ID_DIGITS])
