"""The names of OTLP files: encoding and compression by suffix."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import PurePath
from typing import NamedTuple


class Encoding(StrEnum):
    """How TracesData messages follow each other in a file."""

    JSON = "json"
    """OTLP/JSON, one TracesData a line (OTLP File Exporter specification)."""
    PROTO = "proto"
    """Binary protobuf, each TracesData preceded by its length as a varint."""


class Compression(StrEnum):
    """The compression of a complete file."""

    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"


class Format(NamedTuple):
    """Encoding and compression of one OTLP file."""

    encoding: Encoding
    compression: Compression = Compression.NONE


_ENCODINGS = {".json": Encoding.JSON, ".jsonl": Encoding.JSON, ".binpb": Encoding.PROTO}
_COMPRESSIONS = {".gz": Compression.GZIP, ".zst": Compression.ZSTD}


def compression_of(path: str | os.PathLike[str]) -> Compression:
    """Return the compression by the last suffix of `path`: `.gz`, `.zst` (in any case), or none."""
    return _COMPRESSIONS.get(PurePath(path).suffix.lower(), Compression.NONE)


def format_of(path: str | os.PathLike[str]) -> Format | None:
    """Return the format of the suffixes of `path`, in any case.

    `.json`, `.jsonl` and `.binpb`, each alone or followed by `.gz` or `.zst`; None for others.
    """
    compression = compression_of(path)
    name = PurePath(path)
    if compression is not Compression.NONE:
        name = name.with_suffix("")
    encoding = _ENCODINGS.get(name.suffix.lower())
    return None if encoding is None else Format(encoding, compression)
