"""The stored position and intent of the intake journal's reader."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from .... import exactjson
from ....errors import InputError
from .files import DAMAGED_SUFFIX, Position, write_synced

_NAME = "consumer.json"
_MAX_BYTES = 2**24


class ConsumerPosition(NamedTuple):
    """The durable state of the process that reads the journal."""

    position: Position | None = None
    """All frames up to this position are in the spool; None if the spool has no frame yet."""
    intent: Any = None
    """The next step after this position, recorded so that it can be repeated identically after a
    crash: an object that JSON can represent, or None."""


class _StoredPosition(msgspec.Struct, forbid_unknown_fields=True):
    position: Position | None
    intent: dict[str, Any] | None


def read_position(directory: Path, on_damage: Callable[[str], None]) -> ConsumerPosition:
    """Return the stored position; an empty one if none is stored.

    A damaged file is renamed to `consumer.json.damaged`, reported to `on_damage`, and treated as
    empty: the journal is read again from its beginning. Raises InputError if the file exists but
    cannot be read.
    """
    path = directory / _NAME
    data = _read(path)
    if data is None:
        return ConsumerPosition()
    try:
        return _parse(data)
    except InputError as error:
        aside = path.with_name(_NAME + DAMAGED_SUFFIX)
        with contextlib.suppress(OSError):
            path.replace(aside)
        on_damage(f"{path} is damaged ({error}): kept as {aside}; the journal is read again")
        return ConsumerPosition()


def reached_segment(directory: Path) -> int:
    """Return the segment of the stored position; 0 if it is unknown."""
    try:
        data = _read(directory / _NAME)
        place = _parse(data) if data is not None else ConsumerPosition()
    except InputError:
        return 0
    return place.position.segment if place.position is not None else 0


def _read(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


def _parse(data: bytes) -> ConsumerPosition:
    """Parse a stored position. Raises InputError."""
    if len(data) > _MAX_BYTES:
        raise InputError(f"over {_MAX_BYTES} bytes")
    exact = exactjson.loads(data)
    try:
        stored = msgspec.convert(exact, _StoredPosition, strict=True)
    except (msgspec.ValidationError, RecursionError) as error:
        raise InputError(str(error)) from None
    if stored.position is not None and min(stored.position) < 0:
        raise InputError("a position below 0")
    return ConsumerPosition(stored.position, exact["intent"])


def write_position(directory: Path, place: ConsumerPosition) -> None:
    """Replace the stored position atomically; it is on disk when this returns.

    Raises TargetError if it cannot be written; the previous position is then still stored.
    """
    data = exactjson.dumps({"position": place.position, "intent": place.intent})
    write_synced(directory / _NAME, data)
