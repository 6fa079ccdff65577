"""How far the consumer of the intake journal has come, and what it was about to do."""

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
    """The durable state of the consumer."""

    position: Position | None = None
    """All before it is stored; None where nothing is yet."""
    intent: Any = None
    """What it was about to do from there on, so that it can be done the same way again: an object
    that JSON can say, or None."""


class _StoredPosition(msgspec.Struct, forbid_unknown_fields=True):
    position: Position | None
    intent: dict[str, Any] | None


def read_place(directory: Path, on_damage: Callable[[str], None]) -> ConsumerPosition:
    """The place that was written last; an empty one where there is none.

    One that is damaged is set aside as `consumer.json.damaged`, told to `on_damage`, and counts as
    empty: the journal is read again from its beginning. Raises InputError where it is there and
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
    """The segment in which the consumer stood last; 0 where that cannot be told."""
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
    """Raises InputError where it is no place."""
    if len(data) > _MAX_BYTES:
        raise InputError(f"over {_MAX_BYTES} bytes")
    exact = exactjson.loads(data)
    try:
        told = msgspec.convert(exact, _StoredPosition, strict=True)
    except (msgspec.ValidationError, RecursionError) as error:
        raise InputError(str(error)) from None
    if told.position is not None and min(told.position) < 0:
        raise InputError("a position below 0")
    return ConsumerPosition(told.position, exact["intent"])


def write_place(directory: Path, place: ConsumerPosition) -> None:
    """Replace the place by this one: when this returns it is on disk, and never half of it.

    Raises TargetError where it cannot be written; then the one before holds.
    """
    data = exactjson.dumps({"position": place.position, "intent": place.intent})
    write_synced(directory / _NAME, data)
