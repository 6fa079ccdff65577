"""The kinds of sources and targets: spool, batch file, OTLP, batches as protobuf."""

from __future__ import annotations

import stat
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from ..errors import InputError, UsageError
from ..otlp.formats import Compression, Encoding, Format, compression_of, format_of
from ..spool.check import check_batch

STANDARD = "-"
_SNIFFED_BYTES = 256 * 2**20
_STREAMED = "batch, otlp-json, otlp-proto or cirron-proto"
_SUFFIXES = ".json, .jsonl or .binpb, each with .gz or .zst behind it if compressed"


class Kind(StrEnum):
    """What stands at a path."""

    SPOOL = "spool"
    BATCH = "batch"
    OTLP_JSON = "otlp-json"
    OTLP_PROTO = "otlp-proto"
    CIRRON_PROTO = "cirron-proto"
    """`cirron.v1.Batch` messages."""


class Place(NamedTuple):
    """A source or a target."""

    path: str
    kind: Kind
    compression: Compression = Compression.NONE

    @property
    def is_otlp(self) -> bool:
        """Whether it holds OTLP."""
        return self.kind in (Kind.OTLP_JSON, Kind.OTLP_PROTO)

    @property
    def form(self) -> Format:
        """The format of a file with messages."""
        is_json = self.kind is Kind.OTLP_JSON
        return Format(Encoding.JSON if is_json else Encoding.PROTO, self.compression)


def _kind(name: str | None) -> Kind | None:
    if name is None:
        return None
    try:
        return Kind(name)
    except ValueError:
        known = ", ".join(Kind)
        raise UsageError(f"unknown format {name!r}: expected one of {known}") from None


def source_place(path: str, told: str | None) -> Place:
    """What to read. Raises UsageError and InputError."""
    kind = _kind(told)
    if path == STANDARD:
        if kind is None or kind is Kind.SPOOL:
            raise UsageError(f"standard input needs --from {_STREAMED}")
        return Place(path, kind)
    if kind is not None:
        return Place(path, kind, compression_of(path))
    mode = _mode(path)
    if mode is None:
        raise InputError(f"{path} does not exist: name a spool, a batch file or an OTLP file")
    if stat.S_ISDIR(mode):
        return Place(path, Kind.SPOOL)
    form = format_of(path)
    if form is None:
        raise UsageError(f"{path} has no known suffix: expected {_SUFFIXES}, or say --from")
    if form.encoding is Encoding.PROTO:
        return Place(path, Kind.OTLP_PROTO, form.compression)
    # A pipe can be read only once, so its content cannot be inspected in advance.
    may_be_batch = path.lower().endswith(".json") and not stat.S_ISFIFO(mode)
    if may_be_batch and _is_batch(Path(path)):
        return Place(path, Kind.BATCH)
    return Place(path, Kind.OTLP_JSON, form.compression)


def target_place(path: str, told: str | None, source: Place) -> Place:
    """Where to write. Raises UsageError."""
    kind = _kind(told)
    if path == STANDARD:
        if kind is None and not source.is_otlp:
            kind = Kind.OTLP_JSON
        if kind is None or kind is Kind.SPOOL:
            raise UsageError(f"standard output needs --to {_STREAMED}")
        return Place(path, kind)
    if kind is not None:
        return Place(path, kind, compression_of(path))
    mode = _mode(path)
    if (mode is not None and stat.S_ISDIR(mode)) or path.endswith("/"):
        return Place(path, Kind.SPOOL)
    form = format_of(path)
    if form is not None:
        is_json = form.encoding is Encoding.JSON
        return Place(path, Kind.OTLP_JSON if is_json else Kind.OTLP_PROTO, form.compression)
    if not Path(path).suffix:
        return Place(path, Kind.SPOOL)
    raise UsageError(
        f"{path} has no known suffix: expected {_SUFFIXES}, no suffix for a spool, or say --to"
    )


def _mode(path: str) -> int | None:
    try:
        return Path(path).stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None  # opening it raises the precise error
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or error
        raise InputError(f"{path} cannot be read: {what}") from None


def _is_batch(path: Path) -> bool:
    """Whether a `.json` file holds a Cirron batch rather than OTLP: its top-level keys tell."""
    try:
        with path.open("rb") as file:
            head = file.read(4096)
            if b'"resourceSpans"' in head and b'"schema_version"' not in head:
                return False
            data = head + file.read(_SNIFFED_BYTES)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
    problem = check_batch(data)
    if problem is None:
        return True
    return b'"schema_version"' in head and b'"resourceSpans"' not in head
