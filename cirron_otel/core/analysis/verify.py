"""Verification of a complete spool.

Each file is checked individually, then the references between files, then the snapshot files.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import itertools
import os
import stat
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from ... import exactjson
from ...errors import InputError
from ..records.problems import ReadingProblem, Severity
from ..records.validate import validate_batch
from ..spool.blobs import BlobKey, blob_key, file_path, key_of_span
from ..spool.reader import SpoolReader
from ..targets.objects.tensors import TensorFile
from .index import SpoolIndex, id_of, key_of
from .sessions import assign_sessions

_NAMED = "CREATE TABLE blob (directory BLOB, file BLOB, PRIMARY KEY (directory, file));"
_URIS = """
SELECT blob_uri, span, snapshot.name, file.name
FROM snapshot JOIN file ON file.no = snapshot.file
WHERE blob_uri IS NOT NULL ORDER BY blob_uri, snapshot.no
"""

_DIGESTS = b"digest."
"""The prefix of the files of digests (docs/digests.md, "Kept tensors")."""


def check_blobs(index: SpoolIndex, reader: SpoolReader) -> Iterator[ReadingProblem]:
    """Yield findings on the files that `blob_uri` references, then on unreferenced files.

    A file is searched for at its URI, then next to the spool, which may have been moved. Files that
    were uploaded (`s3://`) are not searched for.
    """
    snapshots = reader.paths.snapshots
    index.script(_NAMED)
    last_uri, header = None, None
    for uri_bytes, span, tensor, name in index.rows(_URIS):
        uri = uri_bytes.decode("utf-8", "surrogatepass")
        key = blob_key(uri, "" if span is None else id_of(span), tensor or "")
        if key is not None:
            pair = tuple(part.encode("utf-8", "surrogatepass") for part in key)
            index.change("INSERT OR IGNORE INTO blob VALUES (?, ?)", [pair])
        if "://" in uri and not uri.startswith("file://"):
            continue
        if uri != last_uri:
            last_uri, header = uri, None
            path, finding = _find(uri, key, snapshots, name)
            if path is not None:
                try:
                    header = _tensors(path)
                except InputError as error:
                    finding = ReadingProblem(name, "blob-broken", f"{uri[:200]!a}: {error}")
            if finding is not None:
                yield finding
        if header is not None and tensor not in header:
            yield _missing_tensor(name, tensor or "", uri, header)
    yield from _extra(index, snapshots)


def _missing_tensor(name: str, tensor: str, uri: str, header: Collection[str]) -> ReadingProblem:
    """Return the finding for a missing tensor.

    cirron-sdk 0.3.0 stores the gradient of `w` as `w`, although the format specifies `w.grad`.
    """
    stored = tensor.removesuffix(".grad")
    if stored in header:
        message = f"{tensor!a} is stored as {stored!a} in {uri[:200]!a}"
        return ReadingProblem(name, "blob-key", message, "note")
    return ReadingProblem(name, "blob-tensor", f"no tensor {tensor!a} in {uri[:200]!a}")


def _find(
    uri: str, key: BlobKey | None, snapshots: Path, name: str
) -> tuple[Path | None, ReadingProblem | None]:
    """Return the file that a URI references, and a finding on its location, if any."""
    recorded = _regular(Path(file_path(uri)))
    if recorded is not None:
        return recorded, None
    moved = None if key is None else _beside(snapshots, key)
    if moved is None:
        message = f"{uri[:200]!a} does not exist: the snapshot's values are lost"
        return None, ReadingProblem(name, "blob-missing", message)
    message = f"{uri[:200]!a} is now next to the spool: blob_uri is its original location"
    return moved, ReadingProblem(name, "blob-moved", message, "note")


def _beside(snapshots: Path, key: BlobKey) -> Path | None:
    """Return the file below `snapshots/`, of any tenant of a collector; None if there is none."""
    file = _regular(snapshots / key.directory / key.file)
    if file is not None or key_of_span(key) != key:
        return file
    with contextlib.suppress(OSError, ValueError):
        for path in sorted(snapshots.glob(f"{glob.escape(key.directory)}~*")):
            if (file := _regular(path / key.file)) is not None:
                return file
    return None


def _regular(path: Path) -> Path | None:
    try:
        return path if stat.S_ISREG(path.stat().st_mode) else None
    except (OSError, ValueError):
        return None


def _tensors(path: Path) -> Collection[str]:
    """Return the names of the tensors in a snapshot file. Raises InputError if it is not valid."""
    try:
        with path.open("rb") as file:
            tensors = TensorFile(file)
            tensors.check_coverage()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}") from None
    return tensors.tensors.keys()


def _extra(index: SpoolIndex, snapshots: Path) -> Iterator[ReadingProblem]:
    """Yield findings on files below snapshots/ that no record references."""
    for root, _, files in os.walk(os.fsencode(snapshots)):
        directory = os.path.basename(root)  # noqa: PTH119 - bytes have no Path
        span = directory.rpartition(b"~")[0] or directory
        for file in sorted(files):
            if file.startswith(_DIGESTS):
                continue  # marks refer to it, and the index does not contain their attributes
            query = "SELECT count(*) FROM blob WHERE directory = ? AND file = ?"
            if not (index.one(query, directory, file) or index.one(query, span, file)):
                name = os.fsdecode(os.path.join(b"snapshots", directory, file))  # noqa: PTH118
                yield ReadingProblem(name, "blob-extra", "no snapshot references this file", "note")


Check = Callable[[SpoolIndex, SpoolReader], Iterator[ReadingProblem]]
_MAX_OF_A_KIND = 1000
_INDEXES = """
CREATE INDEX mark_id ON mark (id);
CREATE INDEX snapshot_id ON snapshot (id);
CREATE INDEX listed_mark ON listed (mark);
CREATE INDEX file_batch ON file (batch_id);
"""


def verify_spool(reader: SpoolReader) -> Iterator[ReadingProblem]:
    """Yield all errors and notes on a spool; docs/spool-format.md lists the codes.

    Memory is bounded for a spool of any size, because data that is compared across files is in an
    index on disk. Of each kind of finding across files, only the first 1,000 are yielded. If the
    reader has an `on_finding` callback, its own findings go there instead.
    """
    with SpoolIndex() as index:
        for name in reader.names():
            batch = reader.read(name)
            if batch is not None:
                yield from validate_batch(batch.data, batch.name)
                index.add(batch)
        yield from sorted(reader.findings, key=lambda finding: finding.name)
        index.ready()
        index.script(_INDEXES)
        assign_sessions(index)
        for check in _CHECKS:
            yield from itertools.islice(check(index, reader), _MAX_OF_A_KIND)
        yield from itertools.islice(check_blobs(index, reader), _MAX_OF_A_KIND)


def _repeated_batches(index: SpoolIndex, reader: SpoolReader) -> Iterator[ReadingProblem]:
    for (batch_id,) in index.rows(
        "SELECT batch_id FROM file WHERE batch_id IS NOT NULL GROUP BY 1 HAVING count(*) > 1"
    ):
        rows = index.rows("SELECT name FROM file WHERE batch_id = ? ORDER BY no", batch_id)
        (first,) = next(rows)
        original = reader.read(first)
        for (name,) in rows:
            batch = reader.read(name)
            if batch is None or original is None:
                continue
            same = batch.data == original.data
            text = "the same batch" if same else "a different batch with the same batch_id"
            yield ReadingProblem(name, "repeated-batch", f"{text} as {first}", _note_if(same))


_RECORDS = ("span", "mark", "snapshot")
_REPEATED = "SELECT id FROM {0} WHERE id IS NOT NULL GROUP BY id HAVING count(*) > 1"
_PLACES = """
SELECT name, position FROM (SELECT no, file, position FROM {0} WHERE id = ?) AS record
JOIN file ON file.no = record.file ORDER BY record.no LIMIT 100
"""


def _repeated_ids(index: SpoolIndex, reader: SpoolReader) -> Iterator[ReadingProblem]:
    """Yield a finding for each repeated id: a note if the records are equal, else an error."""
    parsed = functools.lru_cache(maxsize=4)(lambda name: _parsed(reader, name))
    for noun in _RECORDS:
        key = f"{noun}s"
        for (record_id,) in index.rows(_REPEATED.format(noun)):
            places = index.rows(_PLACES.format(noun), record_id)
            first, position = next(places)
            original = _record(parsed(first), key, position)
            for name, position in places:
                same = exactjson.equal(original, _record(parsed(name), key, position))
                text = f"a {noun} that is also in {first}" if same else f"it differs in {first}"
                message = f"{id_of(record_id)[:40]!a}: {text}"
                path = f"$.{key}[{position}].id"
                yield ReadingProblem(name, "repeated-id", message, _note_if(same), path)


def _parsed(reader: SpoolReader, name: str) -> Any:
    batch = reader.read(name)
    return None if batch is None else exactjson.loads(batch.data)


def _record(batch: Any, key: str, position: int) -> Any:
    records = batch.get(key) if isinstance(batch, dict) else None
    return records[position] if isinstance(records, list) and position < len(records) else None


def _note_if(harmless: bool) -> Severity:
    return "note" if harmless else "error"


_CLASHES = """
SELECT substr(id, 1, 8) FROM (SELECT DISTINCT id FROM span WHERE length(id) = 16)
GROUP BY 1 HAVING count(*) > 1
"""
_CLASHING = """
SELECT session, group_concat(hex(id), ' '), name FROM (
    SELECT DISTINCT member.session, id, file.name FROM span JOIN member ON member.no = span.no
    JOIN file ON file.no = span.file WHERE id >= ?1 AND id <= ?2 AND length(id) = 16
) GROUP BY session HAVING count(DISTINCT id) > 1
"""


def _clashes(index: SpoolIndex, _reader: SpoolReader) -> Iterator[ReadingProblem]:
    """Yield ids of one session with the same first half, which is the span id in OTLP."""
    for (half,) in index.rows(_CLASHES):
        rows = index.rows(_CLASHING, half + bytes(8), half + b"\xff" * 8)
        for _, ids, name in rows:
            both = " and ".join(sorted(set(ids.lower().split()))[:4])
            message = f"{both} have the same first half: they have the same span id in OTLP"
            yield ReadingProblem(name, "id-clash", message)


def _aggregate(code: str, message: str, query: str) -> Check:
    """Return a check that yields a note per row of `query`: (id, count, file number)."""

    def check(index: SpoolIndex, _reader: SpoolReader) -> Iterator[ReadingProblem]:
        for key, count, file in index.rows(query, key_of("root")):
            name = index.one("SELECT name FROM file WHERE no = ?", file)
            text = message.format(id=ascii(id_of(key)[:40]), count=count)
            yield ReadingProblem(name, code, text, "note")

    return check


_CHECKS: tuple[Check, ...] = (
    _repeated_batches,
    _repeated_ids,
    _clashes,
    _aggregate(
        "parent-unknown",
        "{count} spans have the parent {id}, which is in no file: it had not ended, or was dropped",
        """
        SELECT parent, count(*), min(file)
        FROM span AS child WHERE parent IS NOT NULL AND parent != ?
            AND NOT EXISTS (SELECT 1 FROM span WHERE span.id = child.parent)
        GROUP BY parent ORDER BY min(child.no)
        """,
    ),
    *(
        _aggregate(
            "owner-unknown",
            f"{{count}} {record}s belong to {{id}}, which is in no file: it had not ended, or was"
            " dropped",
            f"""
            SELECT span, count(*), min(file)
            FROM {record} AS record WHERE span IS NOT NULL AND span != ?
                AND NOT EXISTS (SELECT 1 FROM span WHERE span.id = record.span)
            GROUP BY span ORDER BY min(record.no)
            """,  # noqa: S608 - a constant
        )
        for record in _RECORDS[1:]
    ),
    _aggregate(
        "mark-missing",
        "mark_ids of {id} lists {count} marks that are in no file: dropped, or not yet written",
        """
        SELECT span, count(*), min(file)
        FROM listed WHERE span IS NOT NULL AND span != ?
            AND NOT EXISTS (SELECT 1 FROM mark WHERE mark.id = listed.mark)
        GROUP BY span ORDER BY min(listed.file), span
        """,
    ),
    _aggregate(
        "mark-unlisted",
        "{count} marks of {id} are not listed in its mark_ids",
        """
        SELECT span, count(*), min(file)
        FROM mark WHERE span != ? AND EXISTS (SELECT 1 FROM span WHERE span.id = mark.span)
            AND NOT EXISTS (SELECT 1 FROM listed WHERE listed.mark = mark.id)
        GROUP BY span ORDER BY min(mark.no)
        """,
    ),
)
