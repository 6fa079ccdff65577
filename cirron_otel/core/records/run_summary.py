"""The figures of a run of which only a summary was imported (docs/traceml.md)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from .rows import IndexedMark, IndexedSpan

SUMMARY_SPAN: Final = "traceml.summary"
_KIND: Final = "summary"
_PREFIX: Final = "traceml."

SummaryValue: TypeAlias = tuple[str, int | None, float]
"""A figure: its name, its rank, and its value."""


def is_summary(mark: IndexedMark) -> bool:
    """Return whether a mark has a figure of a summary."""
    return mark.kind == _KIND and mark.name is not None and mark.name.startswith(_PREFIX)


def values_of_spans(spans: Iterable[IndexedSpan]) -> Iterator[SummaryValue]:
    """Yield the figures of the whole run, which are the attributes of one span."""
    for span in spans:
        if span.name == SUMMARY_SPAN and isinstance(attributes := span.attributes, dict):
            for name, value in attributes.items():
                if type(value) is int or type(value) is float:
                    yield name, None, float(value)


def values_of_marks(marks: Iterable[IndexedMark]) -> Iterator[SummaryValue]:
    """Yield the figures of ranks and of the whole run that are marks."""
    for mark in marks:
        if is_summary(mark) and type(mark.value) in (int, float):
            attributes = mark.attributes
            rank = attributes.get("rank") if isinstance(attributes, dict) else None
            yield str(mark.name), rank if type(rank) is int else None, float(mark.value)
