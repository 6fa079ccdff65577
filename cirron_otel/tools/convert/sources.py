"""Sources of batches: their interface, and the sources that are read as a spool.

The table of all sources is in tables.py. The source for OTLP is in otlp_source.py, and the source
for batches as protobuf in wire_files.py.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from ...core.otlp.files import Message, read_messages
from ...core.records.problems import ReadingProblem
from ...core.spool.reader import MAX_BATCH_BYTES, SpoolReader
from ...core.spool.writer import name_of
from ...core.temporary import temporary_folder, writing_temporary_files
from ...errors import InputError, TargetError
from ...ids import digest
from .formats import SPOOL, PathSpec, source_place
from .input_files import open_input
from .messages import DEFAULT_LIMITS, SizeLimits
from .progress import Progress
from .report import Report
from .tables import SOURCES, STANDARD, SourceRow
from .targets import open_spool


class NamedBatch(NamedTuple):
    """A batch with its file name, and the numbers of its records if they are known."""

    name: str
    data: bytes
    spans: int = 0
    marks: int = 0
    snapshots: int = 0


Recall = Callable[[str], bytes | None]
"""Returns the bytes of the batch that was written under a name; None if there is none."""


@dataclass(frozen=True, slots=True)
class SourceContext:
    """The resources that an opener may use."""

    stack: contextlib.ExitStack
    """Closed when the source is no longer needed."""
    report: Report
    """Lists the problems found before reading begins."""
    progress: Progress | None = None
    limits: SizeLimits = DEFAULT_LIMITS
    join: str | None = None
    """The spool whose scopes the records are attached to; only for rows with `can_join`."""
    rank: int = 0
    """The rank of that spool whose steps are meant; only for rows with `joins_rank`."""
    run: str | None = None
    """The run that is needed, as the user names it; a source may leave out the batches of other
    runs."""


class BatchSource(ABC):
    """An open source.

    A source yields batches, and reports as findings what it cannot read. Reading it again yields
    the same batches, except from a pipe. It never writes to its location.

    Openers and methods raise InputError if the source is missing or is not of the expected kind,
    UsageError if its address is not valid, and EndpointError if a server fails.
    """

    is_streamed: ClassVar[bool] = False
    """Whether the source's batches are valid by construction, and may be written without a check.

    They then go to a target directly, and not through a temporary spool.
    """
    has_messages: ClassVar[bool] = False
    """Whether the source is OTLP: `messages` yields its messages, unchanged."""

    @abstractmethod
    def batches(
        self, report: Report, recall: Recall, progress: Progress | None = None
    ) -> Iterator[NamedBatch]:
        """Yield the batches; add findings to `report`.

        `recall` returns batches that this call has yielded before.
        """

    def messages(
        self, report: Report, progress: Progress | None = None
    ) -> Iterator[tuple[Message, TracesData]]:
        """Yield the OTLP messages, raw and parsed; add findings to `report`.

        Only sources with `has_messages` implement this.
        """
        raise NotImplementedError

    def directory(self, context: SourceContext) -> str:
        """Return the directory of a spool with the batches; by default, a temporary spool.

        It exists until `context.stack` is closed; `context.report` lists what could not be read.
        """
        folder = context.stack.enter_context(temporary_folder())
        passing = Report()
        place = PathSpec(str(folder), SPOOL)
        with open_spool(place, passing, context.limits, is_temporary=True) as target:
            for batch in self.batches(passing, target.read, context.progress):
                target.write(batch.name, batch.data)
        context.report.add_problems(passing)
        with writing_temporary_files():
            (folder / "spool").mkdir(exist_ok=True)
        return str(folder)


def open_source(
    source: str, source_format: str | None, context: SourceContext
) -> tuple[SourceRow, BatchSource]:
    """Open a source; return its row of the table, and the source.

    Raises the errors described at `BatchSource`.
    """
    place = source_place(source, source_format)
    row = SOURCES[place.format]
    opened: BatchSource = row.open(place, context)
    return row, opened


class SpoolSource(BatchSource):
    """A spool directory, which is read without a copy."""

    def __init__(self, place: PathSpec, context: SourceContext) -> None:  # noqa: ARG002 - an opener
        """Store the arguments; the methods read the source."""
        self._path = place.path

    def batches(
        self,
        report: Report,
        recall: Recall,  # noqa: ARG002 - not needed for a spool
        progress: Progress | None = None,  # noqa: ARG002 - the size of a spool is unknown
    ) -> Iterator[NamedBatch]:
        """Yield the batches in the order of their names."""
        reader = SpoolReader(self._path, on_finding=report.skip)
        for file in reader:
            yield NamedBatch(file.name, file.data)

    def directory(self, context: SourceContext) -> str:  # noqa: ARG002 - nothing is copied
        """Return the spool itself."""
        return self._path


class BatchFileSource(SpoolSource):
    """One batch file."""

    def __init__(self, place: PathSpec, context: SourceContext) -> None:
        """Store the arguments; the methods read the source."""
        super().__init__(place, context)
        self._place, self._context = place, context

    def batches(
        self, report: Report, recall: Recall, progress: Progress | None = None
    ) -> Iterator[NamedBatch]:
        """Yield the batch. Raises InputError if the file is not a batch."""
        place = PathSpec(self.directory(self._context), SPOOL)
        yield from SpoolSource(place, self._context).batches(report, recall, progress)

    def directory(self, context: SourceContext) -> str:
        """Copy the file into a temporary spool. Raises InputError if it is not a batch."""
        path = self._path
        folder = context.stack.enter_context(temporary_folder())
        name = "" if path == STANDARD else Path(path).name
        with open_input(path) as file:
            try:
                data = file.read(MAX_BATCH_BYTES + 1)
            except OSError as error:
                raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
        if not name.endswith(".json"):
            try:
                name = name_of(data)
            except TargetError:
                name = f"{digest(data).hex()}.json"
        with writing_temporary_files():
            (folder / "spool").mkdir()
            (folder / "spool" / name).write_bytes(data)
        reader = SpoolReader(folder)
        if reader.read(name) is None:
            problem = reader.findings[0].message if reader.findings else "not named *.json"
            raise InputError(f"{path} is not a batch: {problem}")
        return str(folder)


def open_storage(place: PathSpec, context: SourceContext) -> BatchSource:
    """Copy the batches of a database into a temporary spool."""
    from ...core.targets.sql.source import copy_to_spool  # noqa: PLC0415 - imports a driver

    folder = context.stack.enter_context(temporary_folder())
    copy_to_spool(place.path, folder)
    return SpoolSource(PathSpec(str(folder), SPOOL), context)


def size_of(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it cannot be read."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def messages_of(
    place: PathSpec, report: Report, progress: Progress | None, max_bytes: int
) -> Iterator[Message]:
    """Yield and count the messages of a file; report the skipped messages.

    Raises InputError if the rest of the file cannot be read.
    """

    def on_error(position: int, problem: str) -> None:
        report.skip(ReadingProblem(place.path, "unreadable", problem, path=str(position)))

    # The size of a pipe is 0, and it has no position.
    total = None if place.path == STANDARD else size_of(Path(place.path)) or None
    with open_input(place.path) as stream:
        try:
            for message in read_messages(
                stream, place.form, max_bytes=max_bytes, on_error=on_error, validate=False
            ):
                report.lose(message.warnings)
                report.messages += 1
                report.bytes_read += message.size
                yield message
                if progress is not None:
                    done = stream.tell() if total is not None else report.bytes_read
                    progress(done, total)
        except InputError as error:
            raise InputError(f"{place.path}: {error}") from None
