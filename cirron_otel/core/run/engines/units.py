"""The units of an engine in order, in blocks, each with its parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from ...engines.engine import SqlEngine
from ...engines.expressions import ascending
from ...engines.steps import StepRelations
from ..relations import PART, SAMPLED, SUMMARY, SUMS, UNIT, Block, Texts
from .columns import halves, integers, tokens

_UNIT: Final = (
    "no", "id", "parent", "rank", "pid", "thread", "idx", "start_ns", "ns", "gpu_ns", "error",
    "memory_peak", "device_peak", "reserved_peak", "is_peak_sampled", "phases_are_sums",
    "training", "is_summary",
)  # fmt: skip
_TEXTS: Final = frozenset({"parent", "idx", "error", "name"})
_FLAGS: Final = {"is_peak_sampled": SAMPLED, "phases_are_sums": SUMS, "is_summary": SUMMARY}


def unit_blocks(
    engine: SqlEngine, relations: StepRelations, texts: Texts, size: int, *, by_rank: bool
) -> Iterator[tuple[Block, Block]]:
    """Yield the units by rank, start and number, or by start, and their parts in order."""
    step, phase = relations.step, relations.phase
    if by_rank:
        units = step.order_by([ascending(step.rank), step.position])
        # The positions of phases count nested steps, too, and have the order of those of units.
        parts = phase.order_by([ascending(phase.rank), phase.position, phase.no])
    else:
        units = step.order_by(["start_ns", "no"])
        starts = step.select(step=step.no, step_start_ns=step.start_ns)
        parts = phase.inner_join(starts, "step").order_by(["step_start_ns", "step", "no"])
    units = units.select(*_UNIT)
    parts = parts.select("no", "name", "ns", "gpu_ns", "start_ns", "wall_ns", unit=parts.step)
    ahead = _PartsAhead(_part_block(batch, texts) for batch in engine.record_batches(parts, size))
    for batch in engine.record_batches(units, size):
        if batch.num_rows:
            block = _unit_block(batch, texts)
            below = ahead.of(block["no"])
            yield {**block, "parts": _counts(block["no"], below["unit"])}, below


class _PartsAhead:
    """Blocks of parts, of which those of some units are taken, in the order of the units."""

    def __init__(self, blocks: Iterator[Block]) -> None:
        self._blocks = blocks
        self._rest: Block | None = None

    def of(self, units: np.ndarray) -> Block:
        """Return the parts of the units with some numbers, which are the next in order."""
        ordered = np.sort(units)
        found: list[Block] = []
        while (block := self._next()) is not None:
            places = np.searchsorted(ordered, block["unit"]).clip(max=len(ordered) - 1)
            is_due = ordered[places] == block["unit"]
            if is_due.all():
                found.append(block)
                continue
            count = int(is_due.argmin())
            found.append({name: values[:count] for name, values in block.items()})
            self._rest = {name: values[count:] for name, values in block.items()}
            break
        return {
            name: np.concatenate([np.zeros(0, np.int64), *(block[name] for block in found)])
            for name in PART
        }

    def _next(self) -> Block | None:
        block, self._rest = self._rest, None
        return block if block is not None else next(self._blocks, None)


def _unit_block(batch: Any, texts: Texts) -> Block:
    columns = {name: batch.column(name) for name in _UNIT}
    flags = np.zeros(batch.num_rows, np.int64)
    for name, flag in _FLAGS.items():
        flags += flag * (integers(columns[name]) == 1)
    high, low = halves(columns["id"], texts)
    known = {"id_high": high, "id_low": low, "flags": flags, "parts": flags}
    return {
        name: known[name] if name in known else _numbers(name, columns[name], texts)
        for name in UNIT
    }


def _part_block(batch: Any, texts: Texts) -> Block:
    return {name: _numbers(name, batch.column(name), texts) for name in PART}


def _numbers(name: str, column: Any, texts: Texts) -> np.ndarray:
    return tokens(column, texts) if name in _TEXTS else integers(column)


def _counts(units: np.ndarray, of_parts: np.ndarray) -> np.ndarray:
    """Return the number of parts of each unit."""
    numbers, counts = np.unique(of_parts, return_counts=True)
    found = np.zeros(len(units), np.int64)
    if len(numbers):
        places = np.searchsorted(numbers, units).clip(max=len(numbers) - 1)
        found = np.where(numbers[places] == units, counts[places], 0)
    return found
