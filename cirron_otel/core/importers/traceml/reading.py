"""Recordings of TraceML's as batches: frames, table logs, histories and summaries."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from .... import exactjson
from ....errors import InputError
from ...records.problems import ReadingProblem
from ...temporary import temporary_folder
from ..sealing import ImportedBatch
from .batch_parts import FrameText, batches_of
from .discovery import (
    DOCUMENT,
    FRAMES,
    HISTORY,
    MAX_DOCUMENT_BYTES,
    SUMMARY,
    TABLE_LOG,
    UNREADABLE,
    RecordedFile,
    RunFiles,
    find_runs,
    read_document,
)
from .envelopes import Row, envelopes_of
from .framing import FrameDecoder, OversizedFrame
from .history import read_history
from .payloads import read_payload
from .row_store import RowStore, rank_of
from .stream import OnFinding, TraceMLStream
from .summary import check_version, document_parts, summary_batches

_CHUNK: Final = 2**18

Progress = Callable[[int], None]


class TraceMLImport:
    """The batches of a recording; ids are digests, so that importing again gives the same."""

    def __init__(self, path: str | os.PathLike[str], *, on_finding: OnFinding) -> None:
        """Find the recording. Raises InputError if `path` contains no recording."""
        self._on_finding = on_finding
        self._runs = find_runs(Path(path))
        self._progress: Progress = lambda _: None
        self._session, self._end_ns = "", 0
        self.bytes_read = 0
        """The size of everything that was read."""
        self.duplicates = 0
        """The number of rows that were found in more than one file, and count once."""

    def batches(self, progress: Progress = lambda _: None) -> Iterator[ImportedBatch]:
        """Read the recording, and yield its batches. Raises InputError, and sqlite3.Error if the
        temporary database fails.
        """
        self._progress = progress
        for run in self._runs:
            yield from self._run(run)

    def _run(self, run: RunFiles) -> Iterator[ImportedBatch]:
        for file in run.of_kind(UNREADABLE):
            self._skip(file, UNREADABLE, "it cannot be read")
        frames, others = run.of_kind(FRAMES), run.of_kind(TABLE_LOG, HISTORY)
        if not frames and not others:
            for file in run.of_kind(SUMMARY):
                yield from self._summary(file, is_alone=len(self._runs) == len(run.files) == 1)
            return
        self._session, self._end_ns = "", 0
        if others:
            with temporary_folder() as folder:
                rows = RowStore(folder)
                try:
                    for file in frames:
                        yield from self._frames(file, rows)
                    yield from self._rows(run, others, rows, folder)
                    documents = document_parts(self._documents(run))
                    yield from self._beside([*documents, *_notes(rows)])
                finally:
                    self.duplicates += rows.duplicates
                    rows.close()
        else:
            for file in frames:
                yield from self._frames(file, None)
            yield from self._beside(document_parts(self._documents(run)))

    def _beside(self, parts: list[FrameText]) -> Iterator[ImportedBatch]:
        """Yield the batches with what a run has beside its rows, without records."""
        otel = {"session": self._session} if self._session else {}
        if parts:
            yield from batches_of([], [], parts, otel, {}, {}, self._end_ns)

    def _payloads(self, file: RecordedFile) -> Iterator[bytes | OversizedFrame | bytearray]:
        """Yield the payloads of a file, and its torn end as a bytearray. Raises InputError."""
        decoder = FrameDecoder()
        try:
            with file.path.open("rb") as stream:
                while data := stream.read(_CHUNK):
                    self._count(len(data))
                    yield from decoder.feed(data)
        except OSError as error:
            raise InputError(f"{file.path} cannot be read: {error.strerror or error}") from None
        yield bytearray(decoder.rest)

    def _count(self, size: int) -> None:
        self.bytes_read += size
        self._progress(self.bytes_read)

    def _frames(self, file: RecordedFile, rows: RowStore | None) -> Iterator[ImportedBatch]:
        """Yield the batches of a file of frames; note its rows in `rows`."""
        importer = TraceMLStream(file.name, self._on_finding)
        if rows is not None:
            rows.begin_file()
        for payload in self._payloads(file):
            if isinstance(payload, bytearray):
                yield from importer.finish(bytes(payload))
                break
            if rows is not None and isinstance(payload, bytes):
                for envelope in envelopes_of(read_payload(payload).value):
                    for row in envelope.rows:
                        rows.is_new(rank_of(envelope.meta), row)
            yield from importer.feed(payload)
        self._note_session(importer)

    def _note_session(self, importer: TraceMLStream) -> None:
        self._end_ns = max(self._end_ns, importer.end_ns)
        if not self._session and importer.identity is not None:
            self._session = importer.identity.session

    def _rows(
        self, run: RunFiles, files: list[RecordedFile], rows: RowStore, folder: Path
    ) -> Iterator[ImportedBatch]:
        """Yield the batches of rows that no frames contain, a stream for each rank."""
        for file in files:
            if file.kind == TABLE_LOG:
                self._table_log(file, rows)
            else:
                self._history(file, rows, folder, is_alone=len(run.files) == 1)
        for rank in rows.ranks():
            name = files[0].name if len(files) == 1 else f"{run.root.name} rank {rank}"
            importer = TraceMLStream(name, self._on_finding)
            for payload in rows.payloads(rank):
                yield from importer.feed(payload)
            yield from importer.finish()
            self._note_session(importer)

    def _table_log(self, file: RecordedFile, rows: RowStore) -> None:
        rows.begin_file()
        meta = {"rank": file.rank, "global_rank": file.rank}
        for payload in self._payloads(file):
            if isinstance(payload, bytearray):
                if payload:
                    self._skip(file, "torn", f"the last row is incomplete: {len(payload)} bytes")
            elif isinstance(payload, OversizedFrame):
                self._skip(file, "too-long", f"a row of {payload.size} bytes is not read")
            else:
                value = read_payload(payload).value
                if isinstance(value, dict):
                    rows.add(meta, Row(file.table, value))
                else:
                    self._skip(file, "not-a-row", "a row is not a map: skipped")

    def _history(self, file: RecordedFile, rows: RowStore, folder: Path, *, is_alone: bool) -> None:
        try:
            read_history(file.path, folder, rows, lambda code, text: self._skip(file, code, text))
            self._count(file.path.stat().st_size)
        except (InputError, OSError) as error:
            if is_alone:
                raise InputError(str(error)) from None
            self._skip(file, "unreadable", str(error))

    def _summary(self, file: RecordedFile, *, is_alone: bool) -> Iterator[ImportedBatch]:
        try:
            data, document = file.path.read_bytes(), read_document(file.path)
            if not isinstance(document, dict):
                raise InputError(f"{file.path} is not JSON: expected a final summary")
            check_version(document)
        except (InputError, OSError) as error:
            if is_alone:
                raise InputError(f"{file.path}: {error}") from None
            self._skip(file, "unreadable", str(error))
            return
        self._count(len(data))
        yield from summary_batches(file.path.name, data, document)

    def _documents(self, run: RunFiles) -> list[tuple[str, bytes]]:
        """Return the names and contents of a run's manifests and summaries."""
        documents = []
        for file in run.of_kind(DOCUMENT, SUMMARY):
            try:
                if file.path.stat().st_size > MAX_DOCUMENT_BYTES:
                    self._skip(file, "too-long", f"more than {MAX_DOCUMENT_BYTES} bytes: not kept")
                    continue
                documents.append((file.name, file.path.read_bytes()))
            except OSError as error:
                self._skip(file, "unreadable", f"cannot be read: {error.strerror or error}")
                continue
            self._count(len(documents[-1][1]))
        return documents

    def _skip(self, file: RecordedFile, code: str, message: str) -> None:
        self._on_finding(ReadingProblem(file.name, code, message))


def _notes(rows: RowStore) -> Iterator[FrameText]:
    """Yield a history's columns beside its rows, for rows that frames contain."""
    for notes in rows.notes_alone():
        yield FrameText(0, exactjson.dumps({"name": "history", "rows": notes}))
