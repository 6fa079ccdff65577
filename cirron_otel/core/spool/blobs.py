"""The local snapshot files that a batch references, and their locations."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from ... import exactjson
from ...errors import InputError

WEIGHTS = "weights.safetensors"
GRADIENTS = "gradients.safetensors"


class BlobKey(NamedTuple):
    """The location of a snapshot file: `snapshots/<directory>/<file>`."""

    directory: str
    file: str


_TENANT = "~"
"""Separates the span's id from the tenant in a directory's name; uploaded ids cannot contain it."""


def tenant_key(key: BlobKey, tenant: str) -> BlobKey:
    """Return the key under which a collector stores a tenant's file; "" means no tenant.

    The result never names a file of another tenant, whatever directory `key` has.
    """
    if not tenant and _TENANT not in key.directory:
        return key
    return BlobKey(f"{key.directory}{_TENANT}{tenant}", key.file)


def tenant_of_directory(directory: str) -> str:
    """Return the tenant in a directory's name; "" if it has none."""
    return directory.rpartition(_TENANT)[2] if _TENANT in directory else ""


def key_of_span(key: BlobKey) -> BlobKey:
    """Return the key that records use for the file, which contains no tenant."""
    return BlobKey(key.directory.rpartition(_TENANT)[0] or key.directory, key.file)


class _Reference(msgspec.Struct):
    blob_uri: str | None = None
    span_id: str = ""
    tensor_name: str = ""


class _Mark(msgspec.Struct):
    attrs: _Reference


class _Batch(msgspec.Struct):
    snapshots: list[_Reference] = []
    marks: list[_Mark] = []
    """Marks of digests refer to files, too (docs/digests.md)."""


_decoder = msgspec.json.Decoder(_Batch)


def blob_keys(data: bytes) -> set[BlobKey]:
    """Return the local files that snapshots and marks of a batch reference by `blob_uri`."""
    if b"blob_uri" not in data:
        return set()
    try:
        batch = _decoder.decode(data)
        references = batch.snapshots + [mark.attrs for mark in batch.marks]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        references = _tolerantly(data)
    keys = (
        blob_key(each.blob_uri, each.span_id, each.tensor_name)
        for each in references
        if each.blob_uri is not None
    )
    return {key for key in keys if key is not None}


def blob_key(uri: str, span_id: str, tensor_name: str) -> BlobKey | None:
    """Return the local file that a snapshot's `blob_uri` refers to, or None if there is none.

    Only the last two parts of a `file://` URI (or a bare path) count, because a complete spool may
    be moved. Any other URI is the location of an upload; the local file is that of the span.
    """
    if uri.startswith("file://") or "://" not in uri:
        parts = file_path(uri).rsplit("/", 3)
        if len(parts) < 3 or parts[-3] != "snapshots":
            return None
        return _checked(parts[-2], parts[-1])
    return _checked(span_id, GRADIENTS if tensor_name.endswith(".grad") else WEIGHTS)


def file_path(uri: str) -> str:
    """Return the path in a `file://` URI: the text after the prefix, verbatim, as specified."""
    return uri.removeprefix("file://")


def _checked(directory: str, file: str) -> BlobKey | None:
    for part in (directory, file):
        if part in ("", ".", "..") or "/" in part or "\0" in part:
            return None
    return BlobKey(directory, file)


def _tolerantly(data: bytes) -> list[_Reference]:
    try:
        batch = exactjson.loads(data)
    except InputError:
        return []
    batch = batch if isinstance(batch, dict) else {}
    records = _objects_in(batch.get("snapshots"))
    records += [each.get("attrs") for each in _objects_in(batch.get("marks"))]
    references = []
    for record in _objects_in(records):
        if isinstance(record.get("blob_uri"), str):
            text = {key: _text(record.get(key)) for key in ("span_id", "tensor_name")}
            references.append(_Reference(blob_uri=record["blob_uri"], **text))
    return references


def _objects_in(value: Any) -> list[Any]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
