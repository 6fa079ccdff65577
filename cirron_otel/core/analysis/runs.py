"""The runs of a spool: the batches that belong to each, and a summary of each.

A batch of this project's SDK names its run in its resource. Batches of its older versions are
grouped by their trace (the processes started by one `cirron-otel run` share it), and by their job's
id if their times overlap. Sessions of other software that have no id of their run form one if they
are distinct ranks of one world size whose times overlap. Batches of cirron-sdk do not name their
session: sessions of different ranks whose times overlap form one run. Batches from other services
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
from .index import id_of
from .run_batch import (
    CLOSED,
    FAILED,
    KILLED,
    OPEN,
    RUN_ID,
    RUN_NAME,
    SCRIPT,
    UNFINISHED,
    RunBatchOutline,
    outline_of,
    worse,
)
from .sessions import OutlinedBatch, SessionSearch

HEADS = ("run", "name", "status", "start", "duration", "ranks", "steps", "script")


def moment(time_ns: int | None) -> str:
    """Format wall-clock nanoseconds as local time with the zone, and None as an empty string."""
    return "" if time_ns is None else local_moment(time_ns)


def seconds(duration_ns: int | None) -> str:
    """Format nanoseconds as seconds, and None as an empty string."""
    return "" if duration_ns is None else f"{duration_ns / SECOND_NS:.3f} s"


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
    """The attributes of its first session's resource."""
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
    def outcome(self) -> str:
        """The status, with the cause of a failure if it is known."""
        return self.status if self.cause is None else f"{self.status} ({self.cause})"

    def cells(self) -> tuple[str, ...]:
        """Return the fields of `HEADS` as strings."""
        ranks = ", ".join(map(str, self.ranks[:_MOST_RANKS_SHOWN]))
        more = self.rank_count - _MOST_RANKS_SHOWN
        return (
            self.id[:SHORT_ID_DIGITS], self.name, self.outcome, moment(self.start_ns),
            seconds(self.duration_ns), ranks + (f" and {more:,} more" if more > 0 else ""),
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
class _Session:
    """The batches of one session."""

    id: str
    names: set[str] = field(default_factory=set)
    trace_id: str | None = None
    resource: dict[str, Any] = field(default_factory=dict)
    start_ns: int | None = None
    end_ns: int | None = None
    ranks: set[int] = field(default_factory=set)
    steps: dict[int | None, int] = field(default_factory=dict)
    spans: int = 0
    status: str | None = None
    cause: str | None = None
    is_sdk: bool = False
    """Whether cirron-sdk recorded the session."""

    def add(self, outline: RunBatchOutline, name: str) -> None:
        """Add a batch."""
        self.names.add(name)
        self.trace_id = self.trace_id or outline.session_trace_id
        self.resource.update(outline.resource)
        self.spans += outline.spans
        self.start_ns = _either(min, self.start_ns, outline.start_ns)
        self.end_ns = _either(max, self.end_ns, outline.end_ns)
        self.ranks |= outline.ranks
        for rank, steps in outline.steps.items():
            self.steps[rank] = self.steps.get(rank, 0) + steps
        self.status = worse(self.status, outline.status)
        self.cause = self.cause or outline.cause

    def text(self, attribute: str) -> str | None:
        """Return an attribute of its resource if it is a non-empty string."""
        value = self.resource.get(attribute)
        return value if isinstance(value, str) and value else None

    @property
    def world_size(self) -> int | None:
        """The number of ranks according to its resource."""
        value = self.resource.get(WORLD_SIZE)
        return value if type(value) is int and value > 0 else None

    @property
    def is_unstamped(self) -> bool:
        """Whether other software recorded it without an id of the run that it was part of."""
        return DISTRO_NAME not in self.resource and self.trace_id in (None, self.id)

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
    with new_search() as search:
        sdk_names: list[str] = []
        for batch in batches:
            outline = batch.outline
            if outline.session is not None:
                key = outline.session
                sessions.setdefault(key, _Session(key)).add(outline, batch.name)
            elif outline.is_foreign:
                outline.resource = {}
                foreign.append((batch.name, outline))
            else:
                search.add(batch)
                sdk_names.append(batch.name)
        without = frozenset(sdk_names)
        if sdk_names:
            search.search()
            without -= _add_sdk_sessions(search, sessions)
    _settle(sessions.values(), paths)
    runs = _grouped(sessions.values())
    without |= _add_foreign(foreign, runs)
    summaries = [_run(each) for each in runs]
    return SpoolRuns(
        sorted(summaries, key=lambda run: (run.start_ns or 0, run.id)),
        without,
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


# --- cirron-sdk ---------------------------------------------------------------------------------


def _add_sdk_sessions(search: SessionSearch, sessions: dict[str, _Session]) -> frozenset[str]:
    """Add the sessions of cirron-sdk's batches; return the names of batches that belong to one."""
    placed: set[str] = set()
    ids: dict[int, str] = {}
    for part in search.of_spans():
        rank, steps = part.rank, part.steps
        session_id = id_of(part.key) if part.key is not None else f"process-{part.session}"
        session = sessions.setdefault(session_id, _Session(session_id, is_sdk=True))
        outline = RunBatchOutline(
            start_ns=part.start_ns, end_ns=part.end_ns, spans=part.spans,
            steps={rank: steps} if steps else {}, ranks=set() if rank is None else {rank},
            status=_SDK_STATES.get(part.state),
        )  # fmt: skip
        session.add(outline, part.batch)
        placed.add(part.batch)
        ids[part.session] = session_id
    for number, name in search.of_marks():
        if number in ids:
            sessions[ids[number]].names.add(name)
            placed.add(name)
    return frozenset(placed)


_SDK_STATES = {"closed": CLOSED, "incomplete": KILLED, "killed": KILLED, "failed": FAILED}
"""The state of a run, keyed by the state of its session in the index."""


# --- grouping -----------------------------------------------------------------------------------


def _grouped(sessions: Iterable[_Session]) -> list[list[_Session]]:
    """Return the sessions of each run, in order of their start."""
    groups: dict[tuple[str, str], list[_Session]] = {}
    for session in sorted(sessions, key=lambda each: (each.began, each.id)):
        run_id = session.text(RUN_ID)
        if run_id is not None:
            key = "run", run_id
        elif not session.is_sdk:
            key = "trace", session.trace_id or session.id
        else:
            key = "session", session.id
        groups.setdefault(key, []).append(session)
    named = [group for key, group in groups.items() if key[0] == "run"]
    traces = [group for key, group in groups.items() if key[0] == "trace"]
    loose = [group for key, group in groups.items() if key[0] == "session"]
    return [*named, *_joined(traces, _is_one_run), *_joined(loose, _are_ranks)]


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


def _add_foreign(
    foreign: list[tuple[str, RunBatchOutline]], runs: list[list[_Session]]
) -> frozenset[str]:
    """Add batches of other services to the runs with their traces; return the unassigned names."""
    halves = {
        (each.trace_id or each.id)[16:]: group for group in runs for each in group if each.spans
    }
    without = set()
    for name, outline in foreign:
        group = next((halves[half] for half in outline.trace_halves if half in halves), None)
        if group is None:
            without.add(name)
        else:
            group[0].names.add(name)
            group[0].spans += outline.spans
    return frozenset(without)


def _run(group: list[_Session]) -> Run:
    first = group[0]
    ranks = sorted(set().union(*(each.ranks for each in group)))
    run_id = first.text(RUN_ID) or first.trace_id or first.id
    status = None
    steps: dict[int | None, int] = {}
    for each in group:
        status = worse(status, each.status)
        for rank, count in each.steps.items():
            steps[rank] = steps.get(rank, 0) + count
    start_ns = min((each.start_ns for each in group if each.start_ns is not None), default=None)
    end_ns = max((each.end_ns for each in group if each.end_ns is not None), default=None)
    scripts = [script for each in group if (script := each.text(SCRIPT)) is not None]
    return Run(
        id=run_id,
        name=_name(group, run_id),
        status=status or UNFINISHED,
        cause=next((each.cause for each in group if each.cause is not None), None),
        script=scripts[0] if scripts else None,
        start_ns=start_ns,
        end_ns=end_ns,
        duration_ns=None if start_ns is None or end_ns is None else end_ns - start_ns,
        ranks=ranks[:MOST_LISTED],
        rank_count=len(ranks),
        steps=max(steps.values(), default=0),
        spans=sum(each.spans for each in group),
        sessions=[each.id for each in group[:MOST_LISTED]],
        resource=first.resource,
        is_recorded=any(not each.is_sdk for each in group),
        batches=frozenset().union(*(each.names for each in group)),
        world_size=max((each.world_size for each in group if each.world_size), default=None),
    )


def _name(group: list[_Session], run_id: str) -> str:
    """Return the name that the user chose, or else the name derived from the script's name."""
    names = [name for each in group if (name := each.text(RUN_NAME)) is not None]
    suffix = f"-{run_id[:SHORT_ID_DIGITS]}"
    chosen = (name for name in names if not name.endswith(suffix))
    return next(chosen, names[0] if names else run_id[:SHORT_ID_DIGITS])


def _either(choose: Callable[[int, int], int], one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return choose(one, other)
