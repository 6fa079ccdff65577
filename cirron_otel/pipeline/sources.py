"""Open the source of a conversion; a storage or a backend is first copied into files."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from google.protobuf.message import DecodeError
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from ..errors import InputError, TargetError, UsageError
from ..ids import digest
from ..otlp.density import dense_problem
from ..otlp.files import MAX_MESSAGE_BYTES, Message, read_messages
from ..query.address import is_query_address, parse_address
from ..spool.findings import Finding
from ..spool.reader import MAX_BATCH_BYTES, SpoolReader
from ..spool.writer import name_of
from .formats import STANDARD, Kind, Place, source_place
from .report import Report
from .temporary import temporary_folder, writing_temporary_files

Progress = Callable[[int, int | None], None]
"""Receives the bytes that are done, and the total if it is known."""


def open_source(
    source: str,
    told: str | None,
    stack: contextlib.ExitStack,
    report: Report,
    progress: Progress | None = None,
) -> Place:
    """Return the source as files; a storage or a trace backend is copied into temporary ones.

    They exist until `stack` is closed. `report` lists what a backend lacks.
    """
    if is_query_address(source):
        if told is not None:
            raise UsageError("--from is the format of a file: omit it for jaeger: and tempo:")
        return _from_backend(source, stack, report, progress)
    if "://" in source:
        from ..storage.source import copy_to_spool  # noqa: PLC0415 - brings drivers
        from ..storage.url import is_storage_url  # noqa: PLC0415

        if is_storage_url(source):
            folder = stack.enter_context(temporary_folder())
            copy_to_spool(source, folder)
            return Place(str(folder), Kind.SPOOL)
    return source_place(source, told)


def _from_backend(
    source: str, stack: contextlib.ExitStack, report: Report, progress: Progress | None
) -> Place:
    """Copy the traces of Jaeger or Tempo into a temporary OTLP file."""
    from ..query.fetch import fetch  # noqa: PLC0415 - needs an extra

    address = parse_address(source, os.environ)
    path = stack.enter_context(temporary_folder()) / "traces.binpb"
    with writing_temporary_files(), path.open("wb") as file:
        report.backend = fetch(address, file, progress)
    return Place(str(path), Kind.OTLP_PROTO)


def _standard_input() -> BinaryIO:
    if sys.stdin is None:
        raise InputError("standard input is closed: name a file instead of -")
    return sys.stdin.buffer


def as_spool_if_batch(source: Place, stack: contextlib.ExitStack) -> Place:
    """Create a temporary spool with the one batch file of `source`."""
    folder = stack.enter_context(temporary_folder())
    name = "" if source.path == STANDARD else Path(source.path).name
    with _open_source(source) as file:
        try:
            data = file.read(MAX_BATCH_BYTES + 1)
        except OSError as error:
            what = error.strerror or error
            raise InputError(f"{source.path} cannot be read: {what}") from None
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
        found = reader.findings[0].message if reader.findings else "not named *.json"
        raise InputError(f"{source.path} is no batch: {found}")
    return Place(str(folder), Kind.SPOOL)


def size_of(path: Path) -> int:
    """The size of a file in bytes; 0 if it cannot be read."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


@contextlib.contextmanager
def _open_source(place: Place) -> Iterator[BinaryIO]:
    if place.path == STANDARD:
        yield _standard_input()
        return
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(Path(place.path).open("rb"))
        except (OSError, ValueError) as error:
            what = getattr(error, "strerror", None) or error
            raise InputError(f"{place.path} cannot be read: {what}") from None
        yield file


def messages_of(
    source: Place,
    report: Report,
    progress: Progress | None,
    max_bytes: int = MAX_MESSAGE_BYTES,
) -> Iterator[Message]:
    """Yield and count the messages of an OTLP source; report those that are skipped.

    Raises InputError if the rest of the source cannot be read.
    """

    def on_error(position: int, problem: str) -> None:
        report.skip(Finding(source.path, "unreadable", problem, path=str(position)))

    total = None if source.path == STANDARD else size_of(Path(source.path))
    with _open_source(source) as stream:
        try:
            for message in read_messages(
                stream, source.form, max_bytes=max_bytes, on_error=on_error, validate=False
            ):
                report.lose(message.warnings)
                report.messages += 1
                report.bytes_read += len(message.data)
                yield message
                if progress is not None:
                    done = stream.tell() if total is not None else report.bytes_read
                    progress(done, total)
        except InputError as error:
            raise InputError(f"{source.path}: {error}") from None


def parsed(message: Message, report: Report, source: Place) -> TracesData | None:
    """Parse a message. An invalid or too dense message is reported; the result is None."""
    problem: str | None
    try:
        traces = TracesData.FromString(message.data)
        problem = dense_problem(traces, len(message.data))
    except DecodeError:
        problem = "no TracesData in protobuf"
    if problem is None:
        return traces
    report.skip(Finding(source.path, "unreadable", problem, path=str(message.position)))
    return None
