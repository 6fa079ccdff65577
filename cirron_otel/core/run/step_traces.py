"""Individual steps of a run, each with its subtree.

The steps are those that the user requests, and the slowest and a typical step of every rank.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ...errors import InputError
from .load.scopes import Scopes
from .recording import Recording
from .relations import ABSENT, MOST_LEVELS
from .trees import TreeLimits, TreeNode, Trees, scopes_of

_COLUMNS = ("rank", "ns", "no", "id_high", "id_low")
_HALF = re.compile(r"[0-9a-f]{16}")


@dataclass(slots=True)
class StepTrace:
    """One step as a tree."""

    why: str
    """`slowest` or `typical` of its rank, or `asked` if it was requested."""
    step: TreeNode
    above: list[tuple[str, str | None]]
    """The names and indexes of the scopes around the step, the outermost recorded scope first."""


def step_traces(
    recording: Recording,
    scopes: Scopes,
    ranks: Iterable[int | None],
    asked: Iterable[str],
    limits: TreeLimits,
) -> list[StepTrace]:
    """Return the steps with the `asked` ids, then the slowest and a typical step of each rank.

    `scopes` are those of the recording. Raises InputError if no scope has one of the requested ids.
    """
    traces: dict[str, StepTrace] = {}
    for requested_id in asked:
        span_id = _complete_id(scopes, requested_id)
        if not _add(traces, scopes, span_id, "asked", limits):
            raise InputError(
                f"no scope {requested_id!a} in this run: `report` lists the ids of the slowest"
                " steps, `spool show` lists all ids"
            )
    for why, step_id in _chosen(recording, ranks):
        _add(traces, scopes, step_id, why, limits)
    return list(traces.values())


def _add(
    traces: dict[str, StepTrace], scopes: Scopes, span_id: str, why: str, limits: TreeLimits
) -> bool:
    """Add a scope that has no trace yet; return whether it is recorded."""
    if span_id not in traces:
        trees = Trees(scopes, limits)
        for node in trees.grown(trees.with_id(span_id)):
            traces[span_id] = StepTrace(why, node, _above(scopes, span_id))
    return span_id in traces


def _chosen(recording: Recording, ranks: Iterable[int | None]) -> Iterator[tuple[str, str]]:
    """Yield the ids of the slowest and a typical step of each rank."""
    tables = [np.stack([units[each] for each in _COLUMNS]) for units, _ in recording.unit_blocks()]
    table = np.concatenate([np.zeros((len(_COLUMNS), 0), np.int64), *tables], axis=1)
    missing = recording.texts.halves(None)
    table = table[:, (table[3] != missing[0]) | (table[4] != missing[1])]
    for rank in ranks:
        of_rank = table[:, table[0] == (ABSENT if rank is None else rank)]
        _, ns, no, high, low = of_rank
        order = np.lexsort((no, ns))
        if len(order):
            slowest = order[np.searchsorted(ns[order], ns.max())]
            for why, place in (("slowest", slowest), ("typical", order[len(order) // 2])):
                yield why, recording.texts.id_of(int(high[place]), int(low[place])) or ""


def places_of(scopes: Scopes, trees: Iterable[TreeNode]) -> Iterator[tuple[str, str, int]]:
    """Yield the ids of the scopes of some trees, each with the place of its record."""
    for id_ in {node.id for tree in trees for _, node in scopes_of(tree) if node.id is not None}:
        for row in scopes.with_id(scopes.number_of(id_)):
            place = scopes.places.of(int(row))
            if place is not None:
                yield id_, *place


def _complete_id(scopes: Scopes, text: str) -> str:
    """Return the complete id if `text` is the first half of one (an OTLP span id), else `text`."""
    text = text.strip().lower()
    if not _HALF.fullmatch(text):
        return text
    found = scopes.with_half(scopes.texts.halves(text + "0" * 16)[0])
    return min((each for each in found if each.startswith(text)), default=text)


def _above(scopes: Scopes, span_id: str) -> list[tuple[str, str | None]]:
    ancestors: list[tuple[str, str | None]] = []
    number = scopes.number_of(span_id)
    for _ in range(MOST_LEVELS):
        number = int(scopes.parent[scopes.with_id(number)[0]])
        if not len(scopes.with_id(number)):
            break
        name, index, *_ = scopes.values(scopes.with_id(number)[0])
        ancestors.append((scopes.texts.text(name) or "?", scopes.texts.text(index)))
    return ancestors[::-1]
