"""The format of OTLP files: the suffixes of the name determine encoding and compression."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import PurePath
from typing import NamedTuple


class Encoding(StrEnum):
    """The encoding of the TracesData messages in a file."""

    JSON = "json"
    """OTLP/JSON, one TracesData per line (OTLP File Exporter specification)."""
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
    """Return the compression for the last suffix of `path`: `.gz`, `.zst` (any case), or none."""
    return _COMPRESSIONS.get(PurePath(path).suffix.lower(), Compression.NONE)


def format_of(path: str | os.PathLike[str]) -> Format | None:
    """Return the format for the suffixes of `path`, in any case; None if they are unknown.

    Known suffixes are `.json`, `.jsonl` and `.binpb`, each alone or followed by `.gz` or `.zst`.
    """
    compression = compression_of(path)
    name = PurePath(path)
    if compression is not Compression.NONE:
        name = name.with_suffix("")
    encoding = _ENCODINGS.get(name.suffix.lower())
    return None if encoding is None else Format(encoding, compression)
