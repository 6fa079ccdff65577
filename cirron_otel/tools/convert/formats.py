"""Determine which row of the source or target table handles a path."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ...core.otlp.formats import Compression, Encoding, Format, compression_of, format_of
from ...core.records.check import check_batch
from ...core.spool.paths import find_spool
from ...errors import InputError, UsageError
from .tables import (
    SOURCES,
    STANDARD,
    TARGETS,
    SourceRow,
    check_from,
    hint_for,
    joined,
    source_formats,
    source_with_prefix,
    target_with_prefix,
    target_with_suffix,
)

_SNIFFED_BYTES = 256 * 2**20
_SUFFIXES = ".json, .jsonl or .binpb, each also with .gz or .zst"
_STEPS = ".csv or .parquet for its steps"

SPOOL, BATCH, OTLP_JSON, OTLP_PROTO = "spool", "batch", "otlp-json", "otlp-proto"


class PathSpec(NamedTuple):
    """The path or address of a source or target, and its format."""

    path: str
    format: str
    """The name of a row of the tables (tables.py)."""
    compression: Compression = Compression.NONE

    @property
    def form(self) -> Format:
        """The format of a file that consists of messages."""
        encoding = Encoding.JSON if self.format == OTLP_JSON else Encoding.PROTO
        return Format(encoding, self.compression)


def source_place(path: str, source_format: str | None) -> PathSpec:
    """Return the path and format to read. Raises UsageError and InputError."""
    if match := source_with_prefix(path):
        name, prefix = match
        check_from(source_format, name)
        if not SOURCES[name].is_format:
            return PathSpec(path, name)
        place = PathSpec(path.removeprefix(prefix), name)
        _check_not_empty("source", path, place.path)
        if place.path == STANDARD and not SOURCES[name].reads_stdin:
            raise UsageError(f"{path}: standard input cannot be read as {name}: name a path")
        return place
    _check_not_empty("source", path, path)
    _check_format(source_format, source_formats())
    if path == STANDARD:
        if source_format is None or not SOURCES[source_format].reads_stdin:
            names = [name for name, row in SOURCES.items() if row.reads_stdin]
            raise UsageError(f"standard input needs --from {joined(names, 'or')}")
        return PathSpec(path, source_format)
    if source_format is not None:
        return PathSpec(path, source_format, compression_of(path))
    mode = _mode(path)
    if mode is None:
        raise InputError(f"{path} does not exist: name a spool, a batch file or an OTLP file")
    if stat.S_ISDIR(mode):
        _check_no_hint(Path(path))
        return PathSpec(path, SPOOL)
    form = format_of(path)
    if form is None:
        hint = hint_for(Path(path))
        raise UsageError(hint or f"{path} has no known suffix: expected {_SUFFIXES}, or use --from")
    if form.encoding is Encoding.PROTO:
        return PathSpec(path, OTLP_PROTO, form.compression)
    # A pipe can be read only once, so its content cannot be inspected in advance.
    may_be_batch = path.lower().endswith(".json") and not stat.S_ISFIFO(mode)
    if may_be_batch and _is_batch(Path(path)):
        return PathSpec(path, BATCH)
    return PathSpec(path, OTLP_JSON, form.compression)


def is_spool(source: str, source_format: str | None) -> bool:
    """Return whether a source is a spool. Raises UsageError, and InputError if it is missing."""
    return SOURCES[source_place(source, source_format).format].is_spool


def target_place(path: str, target_format: str | None, source: SourceRow) -> PathSpec:
    """Return the path and format to write. Raises UsageError."""
    _check_format(target_format, TARGETS)
    if match := target_with_prefix(path):
        name, prefix = match
        if target_format not in (None, name):
            raise UsageError(f"--to is the format of a file: omit it for {prefix}")
        place = PathSpec(path.removeprefix(prefix), name)
        _check_not_empty("target", path, place.path)
        return place
    _check_not_empty("target", path, path)
    if path == STANDARD:
        name = target_format or source.stdout_format or ""
        if not name or not TARGETS[name].writes_stdout:
            names = [name for name, row in TARGETS.items() if row.writes_stdout]
            raise UsageError(f"standard output needs --to {joined(names, 'or')}")
        return PathSpec(path, name)
    if target_format is not None:
        return PathSpec(path, target_format, compression_of(path))
    mode = _mode(path)
    if (mode is not None and stat.S_ISDIR(mode)) or path.endswith("/"):
        return PathSpec(path, SPOOL)
    if (suffixed := target_with_suffix(path)) is not None:
        return PathSpec(path, suffixed)
    form = format_of(path)
    if form is not None:
        is_json = form.encoding is Encoding.JSON
        return PathSpec(path, OTLP_JSON if is_json else OTLP_PROTO, form.compression)
    if not Path(path).suffix:
        return PathSpec(path, SPOOL)
    raise UsageError(
        f"{path} has no known suffix: expected {_SUFFIXES}, {_STEPS}, no suffix for a spool,"
        " or use --to"
    )


def _check_no_hint(directory: Path) -> None:
    """Raise InputError for a directory that is not a spool, but another kind of source."""
    try:
        find_spool(directory)
    except InputError:
        hint = hint_for(directory)
        if hint is not None:
            raise InputError(hint) from None


def _check_not_empty(what: str, argument: str, path: str) -> None:
    """Raise UsageError for an empty path, which would be the current directory."""
    if not path:
        raise UsageError(
            f"the {what} {argument!r} has an empty path: name a file or a directory; the current"
            f" directory is {argument}."
        )


def _check_format(name: str | None, known: Iterable[str]) -> None:
    names = list(known)
    if name is not None and name not in names:
        raise UsageError(f"unknown format {name!r}: expected one of {', '.join(names)}")


def _mode(path: str) -> int | None:
    try:
        return Path(path).stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None  # opening the path raises a precise error
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or error
        raise InputError(f"{path} cannot be read: {what}") from None


def _is_batch(path: Path) -> bool:
    """Return whether a `.json` file contains a Cirron batch rather than OTLP, by its top-level
    keys.
    """
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
