"""Reads the spools of simulated runs from their JSON, without the package's readers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from .records import Files

Span = dict[str, Any]


def spans_of(files: Files) -> list[Span]:
    """Return all spans, in order of their start; a parent precedes its children."""
    spans = [span for _, data in files for span in json.loads(data)["spans"]]
    return sorted(spans, key=lambda each: (each["start_ns"], -each["end_ns"]))


def marks_of(files: Files) -> list[dict[str, Any]]:
    """Return all marks."""
    return [mark for _, data in files for mark in json.loads(data)["marks"]]


def named(spans: Iterable[Span], *names: str, rank: int | None = None) -> list[Span]:
    """Return the spans with one of some names, of one rank or of all."""
    return [
        each for each in spans if each["name"] in names and (rank is None or each["rank"] == rank)
    ]


def total_ns(spans: Iterable[Span]) -> int:
    """Return the sum of the durations."""
    return sum(each["end_ns"] - each["start_ns"] for each in spans)


def run_ns(spans: Iterable[Span]) -> int:
    """Return the number of ranks times the time from the first start to the last end."""
    spans = list(spans)
    ranks = {each["rank"] for each in spans}
    first, last = min(e["start_ns"] for e in spans), max(e["end_ns"] for e in spans)
    return len(ranks) * (last - first)
