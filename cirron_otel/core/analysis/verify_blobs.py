"""Verification of the snapshot files that a spool's records reference, and of their contents."""

from __future__ import annotations

import contextlib
import glob
import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

from ..records.findings import Finding
from ..spool.blobs import BlobKey, blob_key, file_path, key_of_span
from ..spool.reader import SpoolReader
from .index import SpoolIndex, id_of

_MAX_HEADER = 100_000_000
"""The size limit of the safetensors format, bytes."""

_NAMED = "CREATE TABLE blob (directory BLOB, file BLOB, PRIMARY KEY (directory, file));"
_URIS = """
SELECT blob_uri, span, snapshot.name, file.name
FROM snapshot JOIN file ON file.no = snapshot.file
WHERE blob_uri IS NOT NULL ORDER BY blob_uri, snapshot.no
"""

_header_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def check_blobs(index: SpoolIndex, reader: SpoolReader) -> Iterator[Finding]:
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
                header = _header(path)
                if header is None:
                    finding = Finding(name, "blob-broken", f"{uri[:200]!a} is no safetensors file")
            if finding is not None:
                yield finding
        if header is not None and tensor not in header:
            yield _missing_tensor(name, tensor or "", uri, header)
    yield from _extra(index, snapshots)


def _missing_tensor(name: str, tensor: str, uri: str, header: Collection[str]) -> Finding:
    """Return the finding for a missing tensor.

    cirron-sdk 0.3.0 stores the gradient of `w` as `w`, although the format specifies `w.grad`.
    """
    stored = tensor.removesuffix(".grad")
    if stored in header:
        message = f"{tensor!a} is stored as {stored!a} in {uri[:200]!a}"
        return Finding(name, "blob-key", message, "note")
    return Finding(name, "blob-tensor", f"no tensor {tensor!a} in {uri[:200]!a}")


def _find(
    uri: str, key: BlobKey | None, snapshots: Path, name: str
) -> tuple[Path | None, Finding | None]:
    """Return the file that a URI references, and a finding on its location, if any."""
    recorded = _regular(Path(file_path(uri)))
    if recorded is not None:
        return recorded, None
    moved = None if key is None else _beside(snapshots, key)
    if moved is None:
        message = f"{uri[:200]!a} does not exist: the snapshot's values are gone"
        return None, Finding(name, "blob-missing", message)
    message = f"{uri[:200]!a} lies beside the spool now: blob_uri is where it was recorded"
    return moved, Finding(name, "blob-moved", message, "note")


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


def _header(path: Path) -> dict[str, msgspec.Raw] | None:
    """Return the header of a safetensors file by tensor name; None if it is not one."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if not 2 <= size <= min(_MAX_HEADER, os.fstat(file.fileno()).st_size - 8):
                return None
            return _header_decoder.decode(file.read(size))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _extra(index: SpoolIndex, snapshots: Path) -> Iterator[Finding]:
    """Yield findings on files below snapshots/ that no record references."""
    for root, _, files in os.walk(os.fsencode(snapshots)):
        directory = os.path.basename(root)  # noqa: PTH119 - bytes have no Path
        span = directory.rpartition(b"~")[0] or directory
        for file in sorted(files):
            query = "SELECT count(*) FROM blob WHERE directory = ? AND file = ?"
            if not (index.one(query, directory, file) or index.one(query, span, file)):
                name = os.fsdecode(os.path.join(b"snapshots", directory, file))  # noqa: PTH118
                yield Finding(name, "blob-extra", "a file that no snapshot names", "note")
