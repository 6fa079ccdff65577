"""The units of a recording as the rows of one table (docs/dataframes.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ..analysis.breakdown import STEP
from ..analysis.session_columns import TableColumn, columns_of
from .figures.unit_marks import UnitMarksFold, integer_of
from .load.phases import duration_of
from .recording import Recording
from .relations import ABSENT, SAMPLED, Block, rows

MAX_NAMES: Final = 1000
"""The maximum number of phases with a column, and of names of marks."""
_INT64: Final = range(-(2**63), 2**63)
FIXED_COLUMNS: Final = columns_of({
    "run_id": "string", "session_id": "string", "rank": "int64", "training": "int64",
    "epoch": "int64", "index": "int64", "span_id": "string", "start_ns": "int64",
    "duration_ns": "int64",
    "unattributed_ns": "int64", "error": "string", "gpu_ns": "int64",
    "memory_peak_bytes": "int64", "device_peak_bytes": "int64",
    "device_reserved_peak_bytes": "int64", "is_peak_sampled": "bool",
})  # fmt: skip
"""The columns that every table of steps has, ahead of those of its phases and marks."""
_COSTS: Final = ("gpu_ns", "memory_peak", "device_peak", "reserved_peak")


class StepTable:
    """The units of a recording, one row each. Memory holds a block of them, and places of marks.

    An integer that has more than 64 bits is None. Times of damaged records are far apart, so their
    differences and sums may not fit.
    """

    def __init__(self, recording: Recording, runs: Mapping[str, str]) -> None:
        """`runs` has the id of the run of each batch by its name."""
        self._recording, self._runs = recording, runs
        self._texts = recording.texts
        self._sessions: dict[int, str | None] = {}
        self._epochs: dict[int, int | None] = {}
        self.count = 0
        firsts: dict[int, int] = {}
        timed: set[int] = set()
        for units, parts in recording.unit_blocks():
            self.count += len(units["no"])
            names = parts["name"]
            distinct, which = np.unique(names, return_inverse=True)
            least = np.full(len(distinct), _INT64[-1])
            np.minimum.at(least, which, parts["no"])
            for name, no in zip(distinct.tolist(), least.tolist(), strict=True):
                firsts[name] = min(firsts.get(name, no), no)
            timed.update(np.unique(names[parts["gpu_ns"] != ABSENT]).tolist())
        phases = sorted(firsts, key=firsts.__getitem__)
        self._phases = phases[:MAX_NAMES]
        self._timed = [name for name in self._phases if name in timed]
        self._marks = UnitMarksFold(self._texts)
        for block in recording.mark_blocks():
            self._marks.add(block)
        types = self._marks.types()
        self._types = dict(list(types.items())[:MAX_NAMES])
        self.left_out = sum(max(len(names) - MAX_NAMES, 0) for names in (phases, types))
        """The number of phases and of names of marks that have no column."""
        self.without_duration = sum(
            span.name == STEP
            and None not in (span.start_ns, span.end_ns)
            and duration_of(span) is None
            for _, span in recording.tree.scopes
        )
        """The number of steps without a row, because their duration has more than 64 bits."""

    @property
    def columns(self) -> tuple[TableColumn, ...]:
        """The columns, in the order of the values of a row."""
        named = self._texts.text
        return (
            *FIXED_COLUMNS,
            *(TableColumn(f"phase_{named(name) or ''}_ns", "int64") for name in self._phases),
            *(TableColumn(f"gpu_{named(name) or ''}_ns", "int64") for name in self._timed),
            *(
                TableColumn(f"{'eval_' if is_eval else ''}mark_{named(name)}", type_)
                for (name, is_eval), type_ in self._types.items()
            ),
        )

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield the values of each unit, in order of start."""
        for units, parts in self._recording.unit_blocks(by_rank=False):
            of_unit = np.repeat(np.arange(len(units["no"])), units["parts"])
            yield from zip(
                *self._fixed(units, parts, of_unit),
                *_sums(self._phases, parts["name"], parts["ns"], of_unit, len(units["no"])),
                *self._device_times(units, parts, of_unit),
                *self._marks.columns(units, self._types),
                strict=True,
            )

    def _fixed(self, units: Block, parts: Block, of_unit: np.ndarray) -> Iterator[Sequence[Any]]:
        texts, runs = self._texts, self._runs
        covered = _zeros(parts["ns"], len(units["no"]))
        np.add.at(covered, of_unit, parts["ns"])
        yield [runs.get(name) for name in self._recording.unit_files(units)]
        yield self._session_ids(units)
        yield _known(units["rank"])
        yield units["training"].tolist()
        yield [self._epoch(parent) for parent in units["parent"].tolist()]
        yield [integer_of(texts.text(index)) for index in units["idx"].tolist()]
        yield [texts.id_of(*halves) for halves in rows(units, "id_high", "id_low")]
        yield units["start_ns"].tolist()
        yield units["ns"].tolist()
        yield [ns if ns in _INT64 else None for ns in (units["ns"] - covered).tolist()]
        yield [texts.text(error) for error in units["error"].tolist()]
        yield from (_known(units[name]) for name in _COSTS)
        yield (units["flags"] & SAMPLED != 0).tolist()

    def _device_times(
        self, units: Block, parts: Block, of_unit: np.ndarray
    ) -> Iterator[Sequence[Any]]:
        is_timed = parts["gpu_ns"] != ABSENT
        names, times = parts["name"][is_timed], parts["gpu_ns"][is_timed]
        return _sums(self._timed, names, times, of_unit[is_timed], len(units["no"]))

    def _session_ids(self, units: Block) -> list[str | None]:
        found, texts = self._recording.unit_sessions(units), self._texts
        for number, place in zip(*map(np.ndarray.tolist, np.unique(found, True)), strict=True):
            if number not in self._sessions:
                no, parent, pid = (int(units[name][place]) for name in ("no", "parent", "pid"))
                key = texts.text(parent), None if pid == ABSENT else pid
                is_known = number >= 0
                self._sessions[number] = self._recording.session_of(no, key) if is_known else None
        return [self._sessions[number] for number in found.tolist()]

    def _epoch(self, parent: int) -> int | None:
        if parent not in self._epochs:
            epoch = self._recording.tree.epoch_of(self._texts.text(parent), {})
            self._epochs[parent] = integer_of(epoch)
        return self._epochs[parent]


def _sums(
    wanted: Sequence[int], names: np.ndarray, times: np.ndarray, of_unit: np.ndarray, count: int
) -> Iterator[list[int | None]]:
    """Yield the sum of the times with each wanted name in each unit; None if it has none."""
    for name in wanted:
        is_one = names == name
        total, has = _zeros(times, count), np.zeros(count, bool)
        np.add.at(total, of_unit[is_one], times[is_one])
        has[of_unit[is_one]] = True
        yield [
            number if is_known and number in _INT64 else None
            for number, is_known in zip(total.tolist(), has.tolist(), strict=True)
        ]


def _zeros(times: np.ndarray, count: int) -> np.ndarray:
    """Return zeros to which all of some times can be added without an overflow."""
    is_small = int(times.max(initial=0)) < 2**62 // max(len(times), 1)
    return np.zeros(count, np.int64 if is_small else object)


def _known(numbers: np.ndarray) -> list[int | None]:
    return [None if number == ABSENT else number for number in numbers.tolist()]
