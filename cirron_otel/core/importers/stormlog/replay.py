"""Phases from their boundaries, and the attribution of events to phases.

Boundaries are replayed in the order (session, rank, time, sequence, scope id), with a stack for
each session, rank and thread. An exit that does not match the top of its stack is ignored. A phase
that is still open at the end gets the time of the last event of its session and rank as its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

PHASE_ENTER = "phase_enter"
PHASE_EXIT = "phase_exit"
_ACTIONS = {PHASE_ENTER: "enter", PHASE_EXIT: "exit"}
PATH_SEPARATOR = " / "

_MEMBERS = (
    "name", "path", "scope_id", "parent_scope_id", "thread_id", "thread_name", "sequence",
    "attributes",
)  # fmt: skip
_members_of = itemgetter(*_MEMBERS)
ScopeValues = tuple[str, tuple[str, ...], str, str | None, int, str, int, Mapping[str, Any]]
"""The valid members of a `phase_scope`, in the order of `_MEMBERS`."""

Group = tuple[str, int]
"""A session and a rank."""
Source = Literal["exact", "thread_local", "heuristic"]


class PhaseBoundary(NamedTuple):
    """The enter or exit of a phase; sorted boundaries are in the order of the replay."""

    session_id: str
    rank: int
    timestamp_ns: int
    sequence: int
    scope_id: str
    is_enter: bool
    name: str
    path: tuple[str, ...]
    parent_scope_id: str | None
    thread_id: int
    thread_name: str
    attributes: Mapping[str, Any]

    @property
    def order(self) -> tuple[str, int, int, int, str]:
        """The sort key of the replay; boundaries with equal keys keep the order of the file."""
        return self[:5]


@dataclass(slots=True)
class ReplayedPhase:
    """A phase; `end_ns` is None while it is open. Times in nanoseconds since the epoch."""

    session_id: str
    rank: int
    start_ns: int
    sequence: int
    scope_id: str
    name: str
    path: tuple[str, ...]
    parent_scope_id: str | None
    thread_id: int
    thread_name: str
    attributes: Mapping[str, Any]
    end_ns: int | None = None
    synthetic_end: bool = False
    """Whether no exit was recorded, so that the end is that of the session's last event."""
    parent: ReplayedPhase | None = field(default=None, repr=False, compare=False)
    """The phase of the same thread that was open at the start."""

    @property
    def scope_key(self) -> str:
        """The scope id."""
        return self.scope_id

    @property
    def label(self) -> str:
        """The path as text: `train / forward`."""
        return PATH_SEPARATOR.join(self.path)


def boundary_of(event: Mapping[str, Any]) -> PhaseBoundary | None:
    """Return the boundary that an event in its canonical form records; None if it records none."""
    kind = event["event_type"]
    if kind not in _ACTIONS:
        return None
    scope = scope_of(event["metadata"].get("phase_scope"), kind)
    if scope is None:
        return None
    name, path, scope_id, parent, thread_id, thread_name, sequence, attributes = scope
    return PhaseBoundary(
        event["session_id"], event["rank"], event["timestamp_ns"], sequence, scope_id,
        kind == PHASE_ENTER, name, path, parent, thread_id, thread_name, attributes,
    )  # fmt: skip


def scope_of(scope: Any, event_type: str) -> ScopeValues | None:
    """Return the members of a `phase_scope` of such an event; None if it is not valid."""
    if not isinstance(scope, dict) or scope.get("action") != _ACTIONS[event_type]:
        return None
    try:
        values = _members_of(scope)
    except KeyError:
        values = tuple(map(scope.get, _MEMBERS))
    name, path, scope_id, parent, thread_id, thread_name, sequence, attributes = values
    if not (
        isinstance(name, str) and name.strip()
        and isinstance(scope_id, str)
        and (parent is None or isinstance(parent, str))
        and isinstance(thread_id, int)
        and isinstance(thread_name, str)
        and isinstance(sequence, int)
        and isinstance(path, list) and path
    ):  # fmt: skip
        return None
    labels = tuple([label for label in path if isinstance(label, str) and label.strip()])
    if not labels:
        return None
    if not isinstance(attributes, dict):
        attributes = {}
    return name, labels, scope_id, parent, thread_id, thread_name, sequence, attributes


class OpenPhaseScope(Protocol):
    """A phase on a stack."""

    @property
    def scope_key(self) -> str | bytes:
        """The scope id, which an exit has to match."""


_Open = TypeVar("_Open", bound=OpenPhaseScope)


class ThreadStacks(Generic[_Open]):
    """The open phases of one session and rank: a stack for each thread."""

    def __init__(self) -> None:
        """Begin without an open phase."""
        self._stacks: dict[int, list[_Open]] = {}

    def top(self, thread_id: int) -> _Open | None:
        """Return the innermost open phase of a thread."""
        stack = self._stacks.get(thread_id)
        return stack[-1] if stack else None

    def enter(self, thread_id: int, phase: _Open) -> None:
        """Open a phase in a thread."""
        self._stacks.setdefault(thread_id, []).append(phase)

    def leave(self, thread_id: int, scope_key: str | bytes) -> _Open | None:
        """Close the innermost phase of a thread; return None if the exit does not match it."""
        stack = self._stacks.get(thread_id)
        if stack is None or stack[-1].scope_key != scope_key:
            return None
        phase = stack.pop()
        if not stack:
            del self._stacks[thread_id]
        return phase

    def phases(self) -> list[_Open]:
        """Return the phases that are open, each after its parent."""
        return [phase for stack in self._stacks.values() for phase in stack]


class PhaseReplay:
    """Replays boundaries that are fed in order; memory holds the open phases only.

    A phase also remains a candidate for attribution at the moment of its end, until a later
    boundary of its session and rank is fed.
    """

    def __init__(self) -> None:
        """Begin without an open phase."""
        self._stacks: dict[Group, ThreadStacks[ReplayedPhase]] = {}
        self._ended: dict[Group, list[ReplayedPhase]] = {}

    def feed(self, boundary: PhaseBoundary) -> ReplayedPhase | None:
        """Take the next boundary, and return the phase that it closes, if it closes one."""
        group, thread_id = (boundary.session_id, boundary.rank), boundary.thread_id
        ended = self._ended.setdefault(group, [])
        if ended and ended[-1].end_ns != boundary.timestamp_ns:
            ended.clear()
        stacks = self._stacks.setdefault(group, ThreadStacks())
        if boundary.is_enter:
            phase = ReplayedPhase(
                *group,
                boundary.timestamp_ns,
                boundary.sequence,
                boundary.scope_id,
                boundary.name,
                boundary.path,
                boundary.parent_scope_id,
                thread_id,
                boundary.thread_name,
                boundary.attributes,
                parent=stacks.top(thread_id),
            )
            stacks.enter(thread_id, phase)
            return None
        closed = stacks.leave(thread_id, boundary.scope_id)
        if closed is not None:
            closed.end_ns = boundary.timestamp_ns
            ended.append(closed)
        return closed

    def open_phases(self, session_id: str, rank: int) -> list[ReplayedPhase]:
        """Return the phases that are open, each after its parent."""
        stacks = self._stacks.get((session_id, rank))
        return [] if stacks is None else stacks.phases()

    def active(self, session_id: str, rank: int, at_ns: int) -> list[ReplayedPhase]:
        """Return the phases that contain a time, ends included.

        All boundaries up to and including that time must have been fed, and no later one.
        """
        ended = [
            phase for phase in self._ended.get((session_id, rank), ()) if phase.end_ns == at_ns
        ]
        phases = ended + self.open_phases(session_id, rank)
        return sorted(phases, key=lambda phase: phase.start_ns)

    def attribute(self, event: Mapping[str, Any]) -> PhaseAttribution[ReplayedPhase] | None:
        """Return an event's attribution, under the condition of `active`."""
        phases = self.active(event["session_id"], event["rank"], event["timestamp_ns"])
        return attribute(phases, event["metadata"]) if phases else None

    def finish(self, session_id: str, rank: int, last_ns: int) -> list[ReplayedPhase]:
        """End the open phases of a session and rank at the time of its last event."""
        phases = self.open_phases(session_id, rank)
        self._stacks.pop((session_id, rank), None)
        self._ended.pop((session_id, rank), None)
        for phase in phases:
            phase.end_ns, phase.synthetic_end = max(last_ns, phase.start_ns), True
        return phases


def replay(
    events: Iterable[Mapping[str, Any]], last_ns: Mapping[int, int] | None = None
) -> list[ReplayedPhase]:
    """Return the phases of events in their canonical form, in order of session, rank and start.

    `last_ns` has the time of the last event of each rank, if `events` are a part of one session.
    """
    last: dict[Group, int] = {}
    boundaries: list[PhaseBoundary] = []
    for event in events:
        group = (event["session_id"], event["rank"])
        last[group] = max(last.get(group, 0), event["timestamp_ns"])
        boundary = boundary_of(event)
        if boundary is not None:
            boundaries.append(boundary)
    boundaries.sort(key=lambda boundary: boundary.order)
    state = PhaseReplay()
    phases = [phase for each in boundaries if (phase := state.feed(each)) is not None]
    for group, end in last.items():
        phases += state.finish(*group, max(end, (last_ns or {}).get(group[1], end)))
    phases.sort(key=lambda phase: (phase.session_id, phase.rank, phase.start_ns, phase.end_ns))
    return phases


_Phase = TypeVar("_Phase", bound=ReplayedPhase)


@dataclass(frozen=True, slots=True)
class PhaseAttribution(Generic[_Phase]):
    """The phase of an event, or the phases that are possible."""

    source: Source | None
    """How the phase was found; None if the attribution is ambiguous."""
    phases: tuple[_Phase, ...] = field(repr=False)
    """The only phase, or the deepest one of each thread."""
    likely: _Phase = field(repr=False)
    """The phase that was entered last."""

    @property
    def is_unique(self) -> bool:
        """Whether the event belongs to exactly one phase."""
        return self.source is not None

    def to_json(self) -> dict[str, Any]:
        """Return the page's `phase_attribution` object."""
        if self.source is not None:
            phase = self.phases[0]
            return {
                "phase_resolution": "unique",
                "phase_paths": [phase.label],
                "phase_source": self.source,
                "phase_path": phase.label,
                "scope_id": phase.scope_id,
                "thread_id": phase.thread_id,
                "thread_name": phase.thread_name,
            }
        labels = sorted({phase.label for phase in self.phases})
        result: dict[str, Any] = {"phase_resolution": "ambiguous", "phase_paths": labels}
        if len(labels) > 1:
            result["phase_summary"] = {"phase_path": self.likely.label, "source": "heuristic"}
        return result


def attribute(
    phases: Sequence[_Phase], metadata: Mapping[str, Any]
) -> PhaseAttribution[_Phase] | None:
    """Return the attribution of an event to one of the phases that contain its time."""
    scope_id = metadata.get("origin_phase_scope_id")
    if isinstance(scope_id, str):
        exact = [phase for phase in phases if phase.scope_id == scope_id]
        if len(exact) == 1:
            return PhaseAttribution("exact", tuple(exact), exact[0])
    thread_id = metadata.get("origin_thread_id")
    if isinstance(thread_id, int):
        local = [phase for phase in phases if phase.thread_id == thread_id]
        if local:
            latest = max(local, key=_recency)
            return PhaseAttribution("thread_local", (latest,), latest)
    candidates = _deepest(phases)
    if not candidates:
        return None
    source: Source | None = "heuristic" if len(candidates) == 1 else None
    return PhaseAttribution(source, candidates, max(phases, key=_recency))


def _deepest(phases: Sequence[_Phase]) -> tuple[_Phase, ...]:
    """Return the deepest phase of each thread.

    Only exits that were ignored leave several phases of one thread at the same depth. Those with
    the same path count as one.
    """
    depths: dict[int, int] = {}
    for phase in phases:
        depths[phase.thread_id] = max(depths.get(phase.thread_id, 0), len(phase.path))
    found: dict[tuple[int, tuple[str, ...]], _Phase] = {}
    for phase in phases:
        if len(phase.path) == depths[phase.thread_id]:
            key = (phase.thread_id, phase.path)
            known = found.get(key)
            if known is None or _recency(phase) > _recency(known):
                found[key] = phase
    return tuple(found.values())


def _recency(phase: ReplayedPhase) -> tuple[int, str]:
    return (phase.sequence, phase.scope_id)


def attribute_all(
    events: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[Mapping[str, Any], PhaseAttribution[ReplayedPhase] | None]]:
    """Yield events in their canonical form with their attributions, in the order of the replay."""
    boundaries = sorted(
        (each for event in events if (each := boundary_of(event)) is not None),
        key=lambda boundary: boundary.order,
    )
    state, fed = PhaseReplay(), 0
    ordered = sorted(
        events, key=lambda event: (event["session_id"], event["rank"], event["timestamp_ns"])
    )
    for event in ordered:
        moment = (event["session_id"], event["rank"], event["timestamp_ns"])
        while fed < len(boundaries) and boundaries[fed].order[:3] <= moment:
            state.feed(boundaries[fed])
            fed += 1
        yield event, state.attribute(event)
