"""Units and their parts, from steps and the spans inside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from ....semconv import MICRO_STEP, SESSION
from ...analysis.breakdown import STEP, is_checkpoint
from ...records.rows import IndexedSpan, detach, shown
from ..relations import ABSENT, MOST_LEVELS, NO_TEXT, SAMPLED, SUMMARY, SUMS, Texts, integer_of
from .columns import Columns
from .phases import Numbered, duration_of, own_times, parts_of
from .tree import Extent, UnitsKey

_NOTED: Final = frozenset({"eval", SESSION, STEP})
_EPOCH: Final = "epoch"


class NotedSpan(NamedTuple):
    """A span inside a unit that figures need."""

    no: int
    span: IndexedSpan
    units: UnitsKey
    """The units among which its unit is."""
    step: str | None
    epoch: str | None
    """The indexes of the innermost step and epoch around it, up to its unit."""


class UnitBuilder:
    """Collects the units of a recording."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self.units, self.parts = Columns("unit"), Columns("part")
        self.extents: dict[UnitsKey, Extent] = {}
        """The extents of the units, with what is inside them, by parent and process."""
        self.noted: list[NotedSpan] = []
        """The spans inside units that figures need: evaluations, checkpoints, and failed ones."""
        self._names: dict[str | None, bool] = {}
        """Whether spans with a name are noted."""

    def add(
        self,
        number: int,
        span: IndexedSpan,
        inside: Sequence[Numbered],
        below: Mapping[str | None, Sequence[Numbered]],
    ) -> None:
        """Add a unit with the spans directly inside it, and those below them by their parents.

        Raises NotReducibleError if a number has more than 64 bits.
        """
        key = span.parent_id, span.pid
        extent = self.extents.get(key)
        if extent is None:
            extent = self.extents[key] = Extent()
        extent.add(number, span, inside)
        extent.add_step(number, span)
        noted = self._to_note(inside)
        for spans in below.values():
            extent.add_all(spans)
            noted += self._to_note(spans)
        if noted:
            around = {span.id: span} | {s.id: s for spans in (inside, *below.values())
                                        for _, s in spans}  # fmt: skip
            for no, each in noted:
                detach(each)
                step, epoch = indexes_around(each, around)
                self.noted.append(NotedSpan(no, each, key, step, epoch))
                if each.name == STEP:
                    extent.add_step(no, each)
        count = self._add_parts(number, inside, below)
        flags = training = 0
        device_peak: int | None = None
        reserved_peak: int | None = None
        if span.has_attributes:
            device_peak, reserved_peak = span.device_peaks
            flags = SAMPLED * span.is_peak_sampled + SUMS * span.phases_are_sums
            training = span.training
        if span.is_summary:
            flags |= SUMMARY
        texts = self._texts
        self.units.add((
            number, *texts.halves(span.id), texts.token(span.parent_id), integer_of(span.rank),
            integer_of(span.pid), integer_of(span.thread_id), texts.token_of(span.index),
            span.start_ns, duration_of(span), integer_of(span.gpu_ns),
            NO_TEXT if span.otel is None else texts.token_of(span.error),
            integer_of(span.memory_peak_bytes), integer_of(device_peak), integer_of(reserved_peak),
            flags, training, count,
        ))  # fmt: skip

    def _add_parts(
        self, unit: int, inside: Sequence[Numbered], below: Mapping[str | None, Sequence[Numbered]]
    ) -> int:
        token = self._texts.token_of
        if not below:
            rows = [
                (
                    unit,
                    no,
                    token(each.name or None),
                    ns,
                    ABSENT if each.gpu_ns is None else max(each.gpu_ns, 0),
                    each.start_ns,
                    ns,
                )
                for no, each in inside
                if each.name != MICRO_STEP and (ns := duration_of(each)) is not None
            ]
        else:
            rows = []
            for part in parts_of(inside, lambda parent: below.get(parent, ())):
                if part.is_phase and part.ns is not None:
                    (ns, gpu_ns), span = own_times(part), part.span
                    rows.append((
                        unit, part.no, token(span.name or None), ns, _device(gpu_ns),
                        span.start_ns, part.ns,
                    ))  # fmt: skip
        self.parts.add_all(rows)
        return len(rows)

    def _to_note(self, spans: Iterable[Numbered]) -> list[Numbered]:
        names, found = self._names, []
        for each in spans:
            span = each[1]
            name = span.name
            is_noted = names.get(name)
            if is_noted is None:
                is_noted = names[name] = name in _NOTED or is_checkpoint(name)
            if is_noted or (span.otel is not None and span.error is not None):
                found.append(each)
        return found


def indexes_around(
    span: IndexedSpan, around: Mapping[str | None, IndexedSpan]
) -> tuple[str | None, str | None]:
    """Return the indexes of the innermost step and epoch around a span, itself included."""
    step = epoch = None
    at: IndexedSpan | None = span
    for _ in range(MOST_LEVELS):
        if at is None:
            break
        if at.name == STEP and step is None:
            step = shown(at.index)
        elif at.name == _EPOCH and epoch is None:
            epoch = shown(at.index)
        at = None if at.parent_id is None else around.get(at.parent_id)
    return step, epoch


def _device(gpu_ns: int | None) -> int:
    return ABSENT if gpu_ns is None else max(gpu_ns, 0)
