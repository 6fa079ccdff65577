"""The steps of a run and their phases, by the rule of `run/load/phases`.

Most recordings have four levels: sessions, epochs, steps and phases. One join finds the scopes
directly inside steps. The other scopes are few, and are searched level by level for scopes deeper
inside steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import ibis

from ...semconv import MICRO_STEP
from ..analysis.breakdown import OPTIMIZER_STEP, STEP
from .engine import SqlEngine, Table
from .expressions import (
    FALSE,
    TRUE,
    as_number,
    ascending,
    duration,
    ends_closure,
    has_name,
    holds_phases,
    is_phase,
    larger,
    non_negative,
    union_of,
)

_PART: Final = ("no", "name", "start_ns", "ns", "gpu_ns", "step", "rank", "position", "is_phase",
                "phase")  # fmt: skip
MAX_LEVELS: Final = 1000
_FEW_NAMES: Final = 100


@dataclass(frozen=True, slots=True)
class StepRelations:
    """The tables of an engine with the steps."""

    span: Table
    """The spans, each once."""
    step: Table
    """The outermost steps: no, id, parent, rank, pid, idx, start_ns, ns, and `position`, the
    place of the step among those of its rank in order of start; its other columns of `span`; the
    peak of the device's memory, and whether it is a summary."""
    phase: Table
    """The phases of these steps, each without the phases inside it: no, step, name, ns, gpu_ns,
    start_ns; wall_ns, which includes these; the rank and the position of the step."""
    others: Table
    """The spans that are neither steps nor directly inside one."""
    children: Table
    """The spans directly inside a step, also inside a step in another step."""
    around: Table
    """The spans that may have steps inside them: the others, and the children that have some."""
    any_step: Table
    """All steps, with the columns of `step`; the same rows as `step` unless `has_nested`."""
    has_nested: bool
    """Whether there are steps inside other steps."""
    top: Table
    """The children that have others, or steps, inside them: id, no."""
    inner: Table
    """All spans that have others, or steps, inside them: id, no."""


def distinct(engine: SqlEngine, records: Table) -> Table:
    """Return the records, of which the first one counts if several have the same id."""
    hashes = records.aggregate(ids=records.id.count(), hashes=records.id.hash().nunique())
    [(count, different)] = engine.rows(hashes)
    if count == different:  # different hashes are those of different ids
        return records
    ids = records.filter(records.id.notnull())
    counted = ids.group_by("id").agg(first=ids.no.min(), times=ids.count())
    repeated = engine.store(counted.filter(counted.times > 1).select("id", "first"))
    if not engine.count(repeated):
        return records
    joined = records.left_join(repeated, records.id == repeated.id)
    kept = joined.filter(repeated.first.isnull() | (repeated.first == records.no))
    return kept.select(*(records[name] for name in records.columns))


def step_relations(engine: SqlEngine, span: Table) -> StepRelations:
    """Find the steps and their phases among `span`, which has each span once."""
    any_step = engine.store(_any_steps(span))
    scope = engine.store(_scopes(span, any_step))
    children = scope.filter(scope.step.notnull())
    others = engine.store(_others(engine, span, scope))
    deep = _Descent(engine, span, any_step, children, others)
    nested = deep.nested_steps()
    step = any_step
    if nested is not None:
        outermost = any_step.anti_join(nested, "no")
        step = engine.store(outermost.mutate(position=_place(outermost)))
    parts = deep.parts(step, is_reduced=nested is not None)
    phase = _phases(parts)
    if parts[1] is not None:
        phase = engine.store(phase)
    return StepRelations(
        span, step, phase, others, children, deep.around, any_step, nested is not None, deep.top,
        deep.inner,
    )  # fmt: skip


def _is_step(span: Table) -> Any:
    return has_name(span.name, STEP) & span.start_ns.notnull() & span.end_ns.notnull()


def _place(step: Table) -> Any:
    window = ibis.window(group_by=step.rank, order_by=[ascending(step.start_ns), step.no])
    return ibis.row_number().over(window)


def _any_steps(span: Table) -> Table:
    steps = span.filter(_is_step(span))
    return steps.select(
        "no", "id", "parent", "rank", "pid", "idx", "start_ns", "gpu_ns", "error", "memory_peak",
        "device_peak", "reserved_peak", "is_peak_sampled", "phases_are_sums", "training",
        ns=duration(steps), thread=steps.thread_id, end_ns=steps.end_ns, position=_place(steps),
        peak=steps.reserved_peak.coalesce(steps.device_peak), is_summary=steps.origin.notnull(),
    )  # fmt: skip


def _scopes(span: Table, step: Table) -> Table:
    """Return the spans directly inside a step, and, with no `step`, the others that are no step.

    `is_wider` if the step's extent is not theirs.
    """
    joined = span.left_join(step, span.parent == step.id)
    is_inside = (
        span.rank.identical_to(step.rank)
        & span.pid.identical_to(step.pid)
        & (span.start_ns >= step.start_ns).fill_null(TRUE)
        & (span.end_ns <= step.end_ns).fill_null(TRUE)
    )
    # A step may be its own parent. This is a filter because a join with an inequality is slow.
    return joined.filter((step.no != span.no) | ~_is_step(span)).select(
        no=span.no, name=span.name, start_ns=span.start_ns, ns=duration(span),
        gpu_ns=non_negative(span.gpu_ns), step=step.no, rank=step.rank, position=step.position,
        is_wider=~is_inside,
    )  # fmt: skip


def _others(engine: SqlEngine, span: Table, scope: Table) -> Table:
    """Return the spans that are neither steps nor directly inside one.

    The search for their names comes first: an engine skips the other columns of most spans.
    """
    rest = scope.filter(scope.step.isnull())
    names = [name for (name,) in engine.rows(rest.select("name").distinct().limit(_FEW_NAMES + 1))]
    named_so = span
    if len(names) <= _FEW_NAMES and None not in names:
        named_so = span.filter(span.name.isin(sorted(names)))
    return named_so.semi_join(rest, "no")


class _Descent:
    """The levels below the scopes directly inside steps."""

    def __init__(
        self, engine: SqlEngine, span: Table, any_step: Table, children: Table, others: Table
    ) -> None:
        self._engine, self._steps = engine, any_step
        self._children, self._others = children, others
        parents = others.select("parent").union(any_step.select("parent"), distinct=True)
        parents = engine.store(parents.filter(parents.parent.notnull()))
        self._direct = engine.store(children.filter(_is_timed_step(children)).select("no"))
        """The numbers of the steps directly inside steps."""
        of_others = others.semi_join(parents, others.id == parents.parent).select("id", "no")
        of_steps = any_step.semi_join(parents, any_step.id == parents.parent).select("id", "no")
        of_steps = engine.store(of_steps)
        known = engine.store(of_others.union(of_steps))
        unknown = engine.store(parents.anti_join(known, parents.parent == known.id))
        self.top = of_steps.semi_join(self._direct, "no")
        """The spans directly inside steps that have others, or steps, inside them."""
        self.inner = known
        """All spans that have others, or steps, inside them."""
        self.around = others
        """The others, and the spans directly inside steps that have some inside them."""
        if engine.count(unknown):
            found = engine.store(span.semi_join(unknown, span.id == unknown.parent))
            self.around = others.union(found)
            of_children = found.select("id", "no")
            self.top = self.top.union(of_children)
            self.inner = engine.store(known.union(of_children))
        self.top = engine.store(self.top)
        self._has_inner = engine.count(self.top) > 0
        self._far: Table | None = None

    def nested_steps(self) -> Table | None:
        """Return the numbers of the steps inside other steps; None if there are none."""
        engine = self._engine
        nested = self._direct
        steps = self._steps.select("no", "parent")
        around = self.top
        for _ in range(MAX_LEVELS):
            if not engine.count(around):
                break
            below = steps.semi_join(around, steps.parent == around.id).select("no")
            nested = engine.store(nested.union(below, distinct=True))
            inside = self._others.semi_join(around, self._others.parent == around.id)
            around = engine.store(self.inner.semi_join(inside, "no"))
        if not engine.count(nested):
            return None
        self._far = engine.store(nested.anti_join(self._direct, "no"))
        return nested

    def parts(self, step: Table, *, is_reduced: bool) -> tuple[Table, Table | None]:
        """Return the parts of steps directly inside them, and those deeper inside, if any.

        A part is a phase, or a scope that contains phases.
        """
        engine = self._engine
        first = self._children
        if is_reduced:
            first = first.semi_join(step, first.step == step.no)
        no_phase = ibis.null("int64")
        first = first.mutate(is_phase=~has_name(first.name, MICRO_STEP), phase=no_phase)
        first = first.select(*_PART)
        if not self._has_inner:
            return first, None
        below = self._below()
        level, deep = self._holders(first), []
        for _ in range(MAX_LEVELS):
            if not engine.count(level):
                break
            deep.append(engine.store(_inside(level, below)))
            level = self._holders(deep[-1])
        return first, union_of(deep) if deep else None

    def _below(self) -> Table:
        columns = ("no", "parent", "name", "start_ns")
        below = self._others.select(
            *columns, ns=duration(self._others), gpu_ns=non_negative(self._others.gpu_ns)
        )
        if self._far is None:
            return below
        far = self._steps.semi_join(self._far, "no").mutate(name=ibis.literal(STEP))
        far = far.select(*columns, "ns", gpu_ns=non_negative(far.gpu_ns))
        return below.union(far)

    def _holders(self, parts: Table) -> Table:
        """Return the parts whose scopes inside are parts, too, with their ids."""
        is_micro = has_name(parts.name, MICRO_STEP)
        holders = parts.filter((is_micro & ~parts.is_phase) | holds_phases(parts.name))
        joined = holders.inner_join(self.inner, holders.no == self.inner.no)
        return self._engine.store(joined.select(*(holders[name] for name in _PART), self.inner.id))


def _is_timed_step(scope: Table) -> Any:
    return has_name(scope.name, STEP) & scope.ns.notnull()


def _inside(level: Table, below: Table) -> Table:
    joined = below.inner_join(level, below.parent == level.id)
    return joined.select(
        no=below.no, name=below.name, start_ns=below.start_ns, ns=below.ns, gpu_ns=below.gpu_ns,
        step=level.step, rank=level.rank, position=level.position,
        is_phase=has_name(level.name, MICRO_STEP) | is_phase(below.name),
        phase=ibis.ifelse(level.is_phase, level.no, level.phase),
    )  # fmt: skip


def _phases(parts: tuple[Table, Table | None]) -> Table:
    first, deep = parts
    if deep is None:
        phase = first.filter(first.is_phase & first.ns.notnull())
        return phase.select(
            "no", "step", "rank", "position", "ns", "gpu_ns", "start_ns", wall_ns=phase.ns,
            name=phase.name.nullif(""),
        )  # fmt: skip
    part = first.union(deep)
    inner = deep.filter(deep.is_phase & deep.phase.notnull())
    window = ibis.window(group_by=inner.phase, order_by=[ascending(inner.start_ns), inner.no])
    ordered = inner.mutate(
        next=inner.name.lead().over(window), next_ns=inner.start_ns.lead().over(window)
    )
    is_gap = ends_closure(ordered.name) & ordered.next.notnull() & ~ends_closure(ordered.next)
    gap = ibis.ifelse(is_gap, non_negative(ordered.next_ns - ordered.start_ns - ordered.ns), 0)
    nested = ordered.group_by("phase").agg(
        taken=ordered.ns.sum().cast("int64"),
        gpu_taken=ordered.gpu_ns.sum().cast("int64"),
        has_closure=as_number(has_name(ordered.name, "backward")).max(),
        ended=(ordered.start_ns + ordered.ns).max(),
        gaps=gap.sum().cast("int64"),
    )
    phase = part.filter(part.is_phase & part.ns.notnull())
    joined = phase.left_join(nested, phase.no == nested.phase)
    end_ns = phase.start_ns + phase.ns
    is_closure = (
        has_name(phase.name, OPTIMIZER_STEP)
        & (nested.has_closure == 1).fill_null(FALSE)
        & phase.start_ns.notnull()
    )
    closure_ns = nested.gaps + non_negative(end_ns - larger(phase.start_ns, nested.ended))
    own_ns = non_negative(phase.ns - nested.taken.fill_null(0))
    return joined.select(
        no=phase.no, step=phase.step, rank=phase.rank, position=phase.position,
        ns=ibis.ifelse(is_closure, closure_ns, own_ns),
        gpu_ns=non_negative(phase.gpu_ns - nested.gpu_taken.fill_null(0)),
        start_ns=phase.start_ns, wall_ns=phase.ns, name=phase.name.nullif(""),
    )  # fmt: skip
