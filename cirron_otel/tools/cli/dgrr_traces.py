"""Opening, checking, searching and writing traces for the commands of `dgrr`."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from ...errors import InputError, UsageError
from ..convert.tables import STANDARD
from . import output

if TYPE_CHECKING:
    from ...core.importers.dgrr.comparing import FieldDifference
    from ...core.importers.dgrr.layout import TraceFinding, TraceHeader, TraceRecord
    from ..convert.trace_files import TraceFile

_PIECE: Final = 2**16
_MAX_LISTED: Final = 10_000
_MAX_SHOWN: Final = 20


class CheckedTrace:
    """The findings on a trace: the first ones, and their number."""

    def __init__(self, trace: TraceFile, record: int | None = None) -> None:
        """Check the trace; keep the findings on `record` apart as well."""
        from ...core.importers.dgrr.checking import check_trace

        self.listed: list[TraceFinding] = []
        self.of_record: list[TraceFinding] = []
        self._notes: list[TraceFinding] = []
        self.count = 0
        for each in check_trace(trace):
            if each.is_note:
                self._notes.append(each)
                continue
            self.count += 1
            if record is not None and each.record == record:
                self.of_record.append(each)
            if len(self.listed) < _MAX_LISTED:
                self.listed.append(each)

    @property
    def is_valid(self) -> bool:
        """Whether no check failed."""
        return not self.count

    def report(self, path: str, *, beside: int) -> None:
        """Write the first findings to stderr, except for those on the record `beside`."""
        others = [each for each in self.listed if each.record != beside]
        for each in others[:_MAX_SHOWN]:
            output.message(_sentence(path, each))
        more = self.count - len(self.of_record) - len(others[:_MAX_SHOWN])
        if more > 0:
            output.message(f"{path}: {more:,} more findings: see `cirron-otel dgrr verify`")
        self.report_notes(path)

    def report_notes(self, path: str) -> None:
        """Write the notes to stderr."""
        for each in self._notes:
            output.message(f"note: {_sentence(path, each)}")


def _sentence(path: str, finding: TraceFinding) -> str:
    where = "" if finding.record is None else f" record {finding.record}"
    return f"{path}{where}: {finding.message} [{finding.check}]"


@contextlib.contextmanager
def opened_trace(path: str) -> Iterator[TraceFile]:
    """Open a file, or a copy of standard input or of a pipe.

    Raises UnreadableTraceError, and UsageError for an empty path.
    """
    from ..convert.input_files import repeatable_path
    from ..convert.trace_files import UnreadableTraceError, open_trace

    if not path:
        raise UsageError("the path of the trace is empty: name a file, or - for standard input")
    with contextlib.ExitStack() as stack:
        try:
            local = stack.enter_context(repeatable_path(path))
        except InputError as error:
            raise UnreadableTraceError(str(error)) from None
        yield stack.enter_context(open_trace(local, path))


@contextlib.contextmanager
def valid_trace(path: str) -> Iterator[TraceFile]:
    """Open a trace. Raises InputError at the first check that fails."""
    with opened_trace(path) as trace:
        require_valid(trace)
        yield trace


def require_valid(trace: TraceFile) -> None:
    """Raise InputError at the first check that fails; write notes to stderr."""
    from ...core.importers.dgrr.checking import check_trace

    for finding in check_trace(trace):
        sentence = _sentence(trace.path, finding)
        if not finding.is_note:
            raise InputError(f"{sentence}; `cirron-otel dgrr verify` lists every finding")
        output.message(f"note: {sentence}")


def records_of_step(trace: TraceFile, step: int | str) -> Iterator[TraceRecord]:
    """Yield the record of a step, or all records."""
    from ...core.importers.dgrr.comparing import records_of

    if isinstance(step, str):
        yield from records_of(trace)
    else:
        yield find_step(trace, step)[1]


def find_step(trace: TraceFile, step: int) -> tuple[int, TraceRecord]:
    """Return the position and the record of a step. Raises UsageError if the trace lacks it."""
    from ...core.importers.dgrr.comparing import records_of

    last: int | None = None
    first = None
    for position, record in enumerate(records_of(trace)):
        if record.step_id == step:
            return position, record
        first = record.step_id if first is None else first
        last = record.step_id
    steps = "it has no steps" if first is None else f"it has the steps {first} to {last}"
    raise UsageError(f"{trace.path} has no step {step}: {steps}")


def differences_json(differences: list[FieldDifference], a: str, b: str) -> dict[str, Any]:
    """Return the fields as JSON; `a` and `b` are the keys of their values."""
    from ...core.importers.dgrr.layout import json_number

    return {
        each.name: {a: json_number(each.a), b: json_number(each.b), "ulp": each.ulp}
        for each in differences
    }


def show_differences(differences: list[FieldDifference], a: str, b: str) -> None:
    """Write the fields with their values, bits and distances; `a` and `b` name the values."""
    from ...core.importers.dgrr.layout import bits_of

    for each in differences:
        distance = "no distance" if each.ulp is None else f"{each.ulp} ULP"
        output.result(f"  {each.name}: {distance}")
        for name, value in ((a, each.a), (b, each.b)):
            output.result(f"    {name:<9} {value!r:<25} {bits_of(value)}")


def check_output(path: str | None, *, as_json: bool) -> None:
    """Raise UsageError if a trace cannot be written to this path, of `--out`, beside the result."""
    from ..convert.trace_files import refuse_terminal

    if path == "":
        raise UsageError("--out is empty: name a file, or - for standard output")
    if path != STANDARD:
        return
    if as_json:
        raise UsageError("--out - and --json both write to standard output: name a file")
    refuse_terminal()


def write_trace(path: str, header: TraceHeader, blocks: Iterator[bytes]) -> None:
    """Write a trace completely or not at all; `-` is standard output. Raises TargetError."""
    import shutil
    import zlib

    from ...core.importers.dgrr.layout import header_bytes
    from ...core.otlp.replacing import replacing
    from ...core.temporary import temporary_folder, writing_temporary_files

    with temporary_folder() as folder:
        crc = 0
        with writing_temporary_files(), (folder / "records").open("w+b") as records:
            for block in blocks:
                crc = zlib.crc32(block, crc)
                records.write(block)
            records.seek(0)
            head = header_bytes(header, crc)
            if path == STANDARD:
                output.data(chain((head,), iter(lambda: records.read(_PIECE), b"")))
                return
            with replacing(path) as file:
                file.write(head)
                shutil.copyfileobj(records, file)
