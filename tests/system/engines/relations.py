"""The relations of a recording, with texts instead of tokens and places instead of numbers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cirron_otel.core.columns.batch_rows import rows_of
from cirron_otel.core.engines.columnar_batches import ColumnarBatches
from cirron_otel.core.engines.source import Connect, opened_tables
from cirron_otel.core.records.rows import IndexedSpan, shown
from cirron_otel.core.run import relations
from cirron_otel.core.run.engines.recording import EngineRecording
from cirron_otel.core.run.load.arranged import ArrangedRecording
from cirron_otel.core.run.load.tree import Extent
from cirron_otel.core.run.opening import reduced
from cirron_otel.core.run.recording import Recording
from cirron_otel.core.run.relations import ABSENT, MARK, PART, UNIT, Block, Texts, rows
from cirron_otel.core.run.step_table import StepTable
from cirron_otel.core.spool.reader import SpoolReader
from cirron_otel.errors import InputError
from tests.kit.spools.recorded import as_own

Files = list[tuple[str, bytes]]
RELATIONS = "relations"
"""The name of the document with the relations."""
FEW = 7
"""The rows of a block: most units, and their parts, are divided between blocks."""


def readable(files: Files) -> Files:
    """The files that both a spool and columnar tables can have."""
    found = []
    for name, data in files:
        with contextlib.suppress(InputError):
            rows_of(name, data)
            if json.loads(data)["schema_version"] == 1:
                found.append((name, data))
    return found


def storable(files: Files) -> Files:
    """These files as those of this SDK: a report of any other needs Python."""
    return as_own(readable(files))


def has_other_units(files: Files) -> bool:
    """Whether the run has no steps, but requests, or scopes around phases of training."""
    names = {span["name"] for _, data in files for span in json.loads(data)["spans"]}
    return "step" not in names and bool(names & {"backward", "optimizer_step", "request"})


def in_columns(files: Files, folder: Path) -> dict[str, Any]:
    """Write the files into a spool, and return its relations, from all records in columns."""
    return document_of(ArrangedRecording(reader_of(files, folder), Texts()))


def in_one_pass(files: Files, folder: Path) -> dict[str, Any] | None:
    """The relations of a spool, read in one pass; None if that is not possible."""
    recording = reduced(reader_of(files, folder))
    return None if recording is None else document_of(recording)


def in_engine(folder: Path, connect: Connect | None = None, size: int = FEW) -> dict[str, Any]:
    """The relations of columnar tables."""
    with engine_recording(folder, connect, size) as recording:
        return document_of(recording)


@contextlib.contextmanager
def engine_recording(
    folder: Path, connect: Connect | None = None, size: int = FEW
) -> Iterator[EngineRecording]:
    """The recording in columnar tables."""
    with (
        opened_tables(ColumnarBatches(folder), connect=connect) as tables,
        tables.run(*tables.choose("all")) as run,
    ):
        yield EngineRecording(run, Texts(), size)


def reader_of(files: Files, folder: Path) -> SpoolReader:
    """A reader of the files, which are written into a spool unless that exists."""
    if not folder.exists():
        (folder / "spool").mkdir(parents=True)
        for name, data in files:
            (folder / "spool" / name).write_bytes(data)
    return SpoolReader(folder)


def document_of(recording: Recording) -> dict[str, Any]:
    """All relations, and the sums, scopes and sessions of a recording."""
    found = _Described(recording)
    units, parts, sessions = found.units()
    table = StepTable(recording, {name: name for name in recording.files()})
    return {
        "units": units,
        "parts": parts,
        "marks": found.marks(),
        "sums": (recording.sums.ranks, recording.sums.names),
        "tree": [found.scope(no, span) for no, span in recording.tree.scopes],
        "noted": [
            (*found.scope(each.no, each.span, each.units), each.units, each.step, each.epoch)
            for each in sorted(recording.noted, key=lambda each: each.no)
        ],
        "extents": {key: _extent(each) for key, each in recording.extents.items()},
        "sessions": [replace(each, marks=0, snapshots=0) for each in recording.sessions()],
        "unit_sessions": sessions,
        "last_steps": [
            recording.last_step(each.id) for each in recording.sessions() if each.id is not None
        ],
        "samples": [
            (_mark(mark), memory, None if span is None else _fields(span))
            for _, mark, memory, span in sorted(recording.samples(), key=lambda each: each[0])
        ],
        "out_of_memory": [_mark(mark) for _, mark in recording.out_of_memory()],
        "summary": sorted(recording.summary_values(), key=repr),
        "files": list(recording.files()),
        "first_forward": found.first_forward(),
        "table": [repr(row) for row in (table.columns, *table.rows())],
    }


def plain(value: Any) -> Any:
    """A document as values of JSON: dictionaries and sets are sorted lists."""
    if is_dataclass(value):
        value = asdict(value)
    if isinstance(value, dict):
        return sorted(([plain(key), plain(each)] for key, each in value.items()), key=repr)
    if isinstance(value, set):
        return sorted((plain(each) for each in value), key=repr)
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


class _Described:
    """The rows of a recording's relations, with texts and places."""

    def __init__(self, recording: Recording) -> None:
        self._recording, self._texts = recording, recording.texts
        self._places: dict[int, Any] = {}

    def units(self) -> tuple[list[Any], list[Any], list[int]]:
        """The units, the parts, and the number of each unit's session by first occurrence."""
        units: list[Any] = []
        parts: list[Any] = []
        sessions: dict[int, int] = {}
        of_units = []
        for block, below in self._recording.unit_blocks():
            self._check(block, UNIT)
            self._check(below, PART)
            numbers = [no for no, count in rows(block, "no", "parts") for _ in range(count)]
            assert below["unit"].tolist() == numbers
            units += [self._unit(row) for row in rows(block, *UNIT)]
            parts += [self._part(row) for row in rows(below, *PART)]
            files = [self._place(no).file for no in block["no"].tolist()]
            assert list(self._recording.unit_files(block)) == files
            for each in self._recording.unit_sessions(block).tolist():
                of_units.append(sessions.setdefault(each, len(sessions)) if each >= 0 else -1)
        return units, parts, of_units

    def _check(self, block: Block, columns: Any) -> None:
        assert set(block) == set(columns)
        assert {array.dtype for array in block.values()} == {np.dtype(np.int64)}
        assert len({len(array) for array in block.values()}) == 1

    def _unit(self, row: tuple[int, ...]) -> tuple[Any, ...]:
        no, high, low, parent, rank, pid, thread, idx, start_ns, ns, gpu_ns, error, *rest = row
        texts = self._texts
        return (
            self._place(no), texts.id_of(high, low), texts.text(parent), rank, pid,
            thread, texts.text(idx), start_ns, ns, gpu_ns, texts.text(error), *rest,
        )  # fmt: skip

    def _part(self, row: tuple[int, ...]) -> tuple[Any, ...]:
        unit, no, name, *times = row
        return self._place(unit), self._place(no), self._texts.text(name), *times

    def _place(self, no: int) -> Any:
        if no not in self._places:
            self._places[no] = None if no == ABSENT else self._recording.place_of(no)
        return self._places[no]

    def first_forward(self) -> Any:
        """The place of the first forward pass."""
        number = self._recording.first_forward()
        return None if number is None else self._place(number)

    def marks(self) -> list[tuple[Any, ...]]:
        """The marks by their numbers, which are left out."""
        found = []
        for block in self._recording.mark_blocks():
            self._check(block, MARK)
            for row in rows(block, *MARK):
                no, unit, rank, name, is_eval, epoch, ts_ns, kind, value, *rest = row
                is_listed, device, *on_scope = rest
                text = self._texts.text
                shown_value = text(value) if kind >= relations.TEXT else value
                found.append((
                    no, self._place(unit), rank, text(name), is_eval, text(epoch), ts_ns, kind,
                    shown_value, is_listed, text(device), *on_scope,
                ))  # fmt: skip
        return [row[1:] for row in sorted(found, key=lambda row: row[0])]

    def scope(self, no: int, span: IndexedSpan, units: Any = None) -> tuple[Any, ...]:
        """A span with its place and the id of its session."""
        return *_fields(span), self._place(no), self._recording.session_of(no, units)


def _fields(span: IndexedSpan) -> tuple[Any, ...]:
    error = shown(span.error) if span.otel is not None else None
    return (
        span.id, span.parent_id, shown(span.name), shown(span.index), span.start_ns, span.end_ns,
        span.pid, span.rank, span.thread_id, span.gpu_ns, span.memory_peak_bytes, error,
        span.device_peaks, span.is_peak_sampled, span.phases_are_sums, span.training,
        span.is_summary,
    )  # fmt: skip


def _extent(each: Extent) -> tuple[Any, ...]:
    last, top = each.last, each.top
    return (
        each.spans, each.first_ns, each.last_ns, each.ranks, each.pids,
        None if last is None else (last[0], shown(last[2])), None if top is None else top[1:],
    )  # fmt: skip


def _mark(mark: Any) -> tuple[Any, ...]:
    value = mark.value if mark.value is not None else mark.value_nonfinite
    return mark.span_id, mark.name, shown(value), mark.ts_ns
