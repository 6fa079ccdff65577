"""`export_budget`: which steps of a batch are sent as summaries (docs/scaling.md).

The decision is written into the batch (`otel.summarised`); `core.targets.exported_part` applies it.
It depends on the batches of this process alone, and their creation times are its clock.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import msgspec

from ...core.records.step_summaries import SUMMARISED, is_plain, scopes_inside
from ...semconv import OVERHEAD_NS
from ..tracing.scope import Scope
from ..tracing.slow_steps import SlowSteps
from .batch_text import BatchText

BUDGET: Final = "export_budget"
"""The attribute of a session with its budget, spans per second."""
BURST_S: Final = 5.0
_BURST_FLUSHES: Final = 2
"""The seconds of the budget, or else the flush intervals, that may be saved up.

They are available at the start. A batch contains the spans of a flush interval: a smaller bucket
could never be used up.
"""
DETAIL_EVERY: Final = 100
"""The steps with a number that this divides keep their scopes before other ordinary steps do."""
MAX_GROUP_SIZE: Final = 4500
"""The limit of a step group: its steps, the scopes inside them, and for each mark `_MARK_SIZE`.

So it has fewer marks than an OTLP span may have events, and fewer bytes than a span may have.
"""
_MARK_SIZE: Final = 5
_MAX_PARENTS: Final = 10_000
_SHORT_REST: Final = 1000
"""If the running scopes, the segments and the traces of a batch have more bytes, they are in a span
of their own."""
_SECOND: Final = 1e9


class _Span(msgspec.Struct, gc=False):
    id: Any = None
    name: Any = None
    parent_id: Any = None
    index: Any = None
    start_ns: Any = None
    end_ns: Any = None
    thread_id: Any = None
    rank: Any = None
    otel: Any = None


class _Attached(msgspec.Struct, gc=False):
    span_id: Any = None
    name: Any = None


class _BatchOtel(msgspec.Struct, gc=False):
    running: list[msgspec.Raw] = []
    segments: list[msgspec.Raw] = []
    traces: msgspec.Raw = msgspec.Raw()


class _Outline(msgspec.Struct, gc=False):
    spans: list[_Span] = []
    marks: list[_Attached] = []
    snapshots: list[_Attached] = []
    otel: _BatchOtel = msgspec.field(default_factory=_BatchOtel)


_decoder = msgspec.json.Decoder(_Outline)
_SURROGATES: Final = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_REPLACEMENT: Final = rb"\\ufffd"
"""`is_plain` rejects it in a name, so that no summary loses the original."""


@dataclass(slots=True)
class _Step:
    """An outermost step of a batch that a summary can represent."""

    span: _Span
    inside: int
    """The number of scopes inside it."""
    marks: int
    """The number of marks of it and of the scopes inside it, without those of the SDK."""
    is_slow: bool

    @property
    def size(self) -> int:
        """Its share of `MAX_GROUP_SIZE`."""
        return 1 + self.inside + _MARK_SIZE * self.marks

    @property
    def is_due(self) -> bool:
        """Whether its number is one of those whose detail all ranks send first."""
        return type(self.span.index) is int and self.span.index % DETAIL_EVERY == 0


@dataclass(slots=True)
class BudgetCounts:
    """The effect of a budget so far."""

    spans: int = 0
    """The spans to export, synthetic ones included."""
    left_out: int = 0
    """The spans that summaries replace."""
    summaries: int = 0
    """The steps with a span of their own, but without their scopes."""
    grouped: int = 0
    """The steps in groups."""
    over_budget: int = 0
    """The spans that are exported although the budget did not allow for them."""


class ExportBudget:
    """The token bucket of one process, and its recent steps."""

    def __init__(self, rate: float, slow_factor: float, flush_interval: float = 1.0) -> None:
        """Allow for `rate` spans per second, in batches that are `flush_interval` seconds apart.

        A step is slow if it takes more than `slow_factor` times the median of recent steps.
        """
        self.rate = rate
        self.burst_s = max(BURST_S, _BURST_FLUSHES * flush_interval)
        """The seconds of the budget that may be saved up."""
        self._capacity = rate * self.burst_s
        self._tokens = self._capacity
        self._at_ns: int | None = None
        self._slow_steps = SlowSteps(slow_factor)
        self._outside: dict[Any, None] = {}
        """Scopes with spans, marks or snapshots in earlier batches. A summary of such a scope, or
        of the step around it, would be incomplete."""
        self.counts = BudgetCounts()

    def apply(self, batch: BatchText) -> BatchText:
        """Return the batch with the list of its steps to summarise, if there are any."""
        stated = self.decide(batch.data, batch.created_ns)
        if not stated:
            return batch
        text = b',"%b":%b}}' % (SUMMARISED.encode(), msgspec.json.encode(stated))
        return replace(batch, data=batch.data[:-2] + text)

    def decide(self, data: bytes, created_ns: int) -> dict[str, Any]:
        """Return the value of a batch's `otel.summarised`; {} if all of it is exported.

        Call this once for each batch, in the order of their creation.
        """
        self._refill(created_ns)
        outline = _outline(data)
        if outline is None:
            return {}  # not a text of the SDK: it is exported unchanged
        steps = self._steps(outline)
        total = _size(outline)
        stated, cost = self._choose(steps, total)
        self.counts.spans += cost
        self.counts.left_out += total - cost
        self.counts.over_budget += max(cost - max(int(self._tokens), 0), 0)
        self._tokens -= cost
        return stated

    def stats(self) -> dict[str, float]:
        """Return the budget and its effect for `health()`."""
        return {"spans_per_second": self.rate, **asdict(self.counts)}

    def record_in(self, session: Scope) -> None:
        """Set the session's attribute with its budget."""
        session.set_attribute(BUDGET, self.rate)

    def _refill(self, now_ns: int) -> None:
        if self._at_ns is not None and now_ns > self._at_ns:
            added = (now_ns - self._at_ns) / _SECOND * self.rate
            self._tokens = min(self._tokens + added, self._capacity)
        self._at_ns = max(now_ns, self._at_ns or 0)

    def _steps(self, outline: _Outline) -> list[_Step]:
        """Return the steps that can be summarised, in the order of their ends."""
        spans = outline.spans
        ids = [span.id for span in spans]
        pinned = {each.span_id for each in outline.snapshots}
        marks = Counter(mark.span_id for mark in outline.marks if mark.name != OVERHEAD_NS)
        steps = []
        places = scopes_inside(ids, [s.parent_id for s in spans], [s.name for s in spans])
        for place, inside in sorted(places.items(), key=lambda item: _end(spans[item[0]])):
            span = spans[place]
            is_slow = self._is_slow(span)
            scopes = [span, *(spans[each] for each in inside)]
            if all(map(_is_plain, scopes)) and not any(
                each.id in self._outside or each.id in pinned for each in scopes
            ):
                attached = sum(marks[each.id] for each in scopes)
                steps.append(_Step(span, len(inside), attached, is_slow))
        self._note_outside(outline, set(ids))
        return steps

    def _is_slow(self, step: _Span) -> bool:
        if type(step.start_ns) is not int or type(step.end_ns) is not int:
            return False
        length = step.end_ns - step.start_ns
        is_slow = self._slow_steps.is_slow(length)
        self._slow_steps.add(length)
        return is_slow

    def _note_outside(self, outline: _Outline, ids: set[Any]) -> None:
        """Remember the scopes that records of this batch refer to and that are not in it."""
        records = (*outline.marks, *outline.snapshots)
        references = [each.parent_id for each in outline.spans] + [r.span_id for r in records]
        for reference in references:
            if isinstance(reference, str) and reference not in ids:
                self._outside[reference] = None
        for id_ in list(self._outside)[: max(len(self._outside) - _MAX_PARENTS, 0)]:
            del self._outside[id_]

    def _choose(self, steps: Sequence[_Step], total: int) -> tuple[dict[str, Any], int]:
        """Return what to summarise, and the number of spans that are left.

        Detail is given up in this order: the scopes of ordinary steps, except of those that are
        due; theirs as well; the spans of ordinary steps; the scopes of slow steps.
        """
        if total <= self._tokens:
            return {}, total
        ordinary = [step for step in steps if not step.is_slow]
        cost = total - sum(step.inside for step in ordinary)
        if cost <= self._tokens:
            return self._with_due(ordinary, cost)
        all_groups = _groups(ordinary)
        cost -= sum(len(group) - 1 for group in all_groups)
        groups = [group for group in all_groups if len(group) > 1]
        single = [group[0] for group in all_groups if len(group) == 1 and group[0].inside]
        slow = [step for step in steps if step.is_slow and step.inside]
        if cost > self._tokens:
            cost -= sum(step.inside for step in slow)
        else:
            slow = []
        self.counts.summaries += len(slow) + len(single)
        self.counts.grouped += sum(map(len, groups))
        stated = {
            "steps": [step.span.id for step in (*single, *slow)],
            "groups": [[step.span.id for step in group] for group in groups],
        }
        return {key: ids for key, ids in stated.items() if ids}, cost

    def _with_due(self, ordinary: Sequence[_Step], cost: int) -> tuple[dict[str, Any], int]:
        summarised = []
        for step in sorted(ordinary, key=lambda each: not each.is_due):
            if not step.inside:
                continue
            if step.is_due and cost + step.inside <= self._tokens:
                cost += step.inside
            else:
                summarised.append(step.span.id)
        self.counts.summaries += len(summarised)
        return ({"steps": summarised} if summarised else {}), cost


def _outline(data: bytes) -> _Outline | None:
    """Return the outline of a batch; None if it cannot be decoded.

    msgspec rejects halves of surrogate pairs, which may be in any text of a program.
    """
    for text in (data, _SURROGATES.sub(_REPLACEMENT, data)):
        with contextlib.suppress(msgspec.DecodeError, UnicodeError, RecursionError):
            return _decoder.decode(text)
    return None


def _size(outline: _Outline) -> int:
    """Return the number of OTLP spans of a batch, synthetic ones included, at most."""
    ids = {span.id for span in outline.spans if isinstance(span.id, str)}
    records = (*outline.marks, *outline.snapshots)
    carriers = {each.span_id for each in records if each.span_id not in ids}
    otel = outline.otel
    texts = (*otel.running, *otel.segments, otel.traces)
    is_long = sum(len(bytes(text)) for text in texts) > _SHORT_REST
    size = len(outline.spans) + len(carriers) + len(otel.running) + 2 * len(otel.segments)
    return max(size + is_long, 1)


def _groups(steps: Sequence[_Step]) -> list[list[_Step]]:
    """Return the steps by parent, thread, rank and trace, in groups of a limited size."""
    groups: dict[Any, list[list[_Step]]] = {}
    sizes: dict[Any, int] = {}
    for step in steps:
        span = step.span
        otel = span.otel or {}
        key = (span.parent_id, span.thread_id, span.rank, otel.get("trace_id"))
        size = sizes.get(key, 0) + step.size
        if key not in groups or size > MAX_GROUP_SIZE:
            groups.setdefault(key, []).append([])
            size = step.size
        sizes[key] = size
        groups[key][-1].append(step)
    return [group for some in groups.values() for group in some]


def _is_plain(span: _Span) -> bool:
    return is_plain(span.id, span.name, span.start_ns, span.end_ns, span.otel)


def _end(span: _Span) -> int:
    return span.end_ns if type(span.end_ns) is int else 0
