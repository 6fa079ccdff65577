"""The remainder of a session: the records that its process had no time to seal.

A process whose time to exit is over appends its last batches to `state/remainder-<owner>.jsonl`,
one batch in each line, without waiting for the disk. Recovery moves them into the spool. A line can
also be an object with the single key `left`, which counts the records that were lost even so.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from ...errors import InputError, RefusedNameError, TargetError
from ..atomic_files import write_all
from .paths import SpoolPaths
from .state import make_state, set_aside, unwritable
from .writer import SpoolWriter, name_of

_Count = Annotated[int, Meta(ge=0)]
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class Left(Struct, frozen=True):
    """Numbers of records that were lost when their process ended."""

    spans: _Count = 0
    marks: _Count = 0
    snapshots: _Count = 0

    def by_kind(self) -> tuple[tuple[str, int], ...]:
        """Return the numbers with their kinds, as `health()["drops"]` names them."""
        return ("scopes", self.spans), ("marks", self.marks), ("snapshots", self.snapshots)

    def __add__(self, other: Left) -> Left:
        """Return the sums."""
        return Left(
            self.spans + other.spans,
            self.marks + other.marks,
            self.snapshots + other.snapshots,
        )


class _LeftLine(Struct, forbid_unknown_fields=True):
    left: Left


_left_decoder = msgspec.json.Decoder(_LeftLine)


def remainder_path(paths: SpoolPaths, prefix: str) -> Path:
    """Return the path of an owner's remainder."""
    return paths.state / f"remainder-{prefix}.jsonl"


class RemainderFile:
    """Appends to the remainder of a live owner, until it is closed."""

    def __init__(self, paths: SpoolPaths, prefix: str) -> None:
        """Prepare the file; the first line creates it."""
        self.path = remainder_path(paths, prefix)
        self._descriptor: int | None = None

    def add(self, line: bytes) -> None:
        """Append a batch, or the result of `left_line`.

        Raises TargetError if that fails; then the file ends with the previous line.
        """
        descriptor = self._descriptor
        try:
            if descriptor is None:
                make_state(self.path.parent)
                descriptor = self._descriptor = os.open(self.path, _APPEND, 0o600)
            end = os.fstat(descriptor).st_size
            try:
                write_all(descriptor, line + b"\n")
            except OSError:
                os.ftruncate(descriptor, end)
                raise
        except OSError as error:
            raise unwritable(self.path, error) from None

    def close(self) -> None:
        """Close the file. Raises TargetError if its content could not be written."""
        descriptor, self._descriptor = self._descriptor, None
        try:
            if descriptor is not None:
                os.close(descriptor)
        except OSError as error:
            raise unwritable(self.path, error) from None


def left_line(left: Left) -> bytes:
    """Return the line that counts lost records."""
    return msgspec.json.encode(_LeftLine(left))


@dataclass(slots=True)
class SealedRemainder:
    """The result of moving a remainder into the spool."""

    names: list[str] = field(default_factory=list)
    """The batches that were written, or were in the spool already."""
    left: Left = field(default_factory=Left)
    """Records that the owner counted as lost."""
    problem: str = ""
    """The damage to the remainder, which was renamed to `.bad` after the rest was written."""


def seal_remainder(paths: SpoolPaths, prefix: str, writer: SpoolWriter) -> SealedRemainder:
    """Write the batches of a dead owner's remainder to the spool; the file stays.

    A second call writes the same batches again, which changes nothing. Raises TargetError if the
    file cannot be read, or the spool cannot be written.
    """
    sealed = SealedRemainder()
    path = remainder_path(paths, prefix)
    problems: list[str] = []
    for number, line in enumerate(_lines(path), 1):
        try:
            sealed.left += _left_decoder.decode(line).left
            continue
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            pass
        try:
            sealed.names.append(_written(line, writer))
        except InputError as error:
            problems.append(f"line {number} is {error}")
    if problems:
        sealed.problem = f"remainder {path} is damaged: {'; '.join(problems[:3])}"
        set_aside(path)
    return sealed


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            for line in file:
                yield line.removesuffix(b"\n")
    except FileNotFoundError:
        return
    except OSError as error:
        raise TargetError(f"{path} cannot be read: {error.strerror or error}") from None


def _written(line: bytes, writer: SpoolWriter) -> str:
    """Write a line as a batch and return its name. Raises InputError if it is not a batch."""
    try:
        name = name_of(line)
    except TargetError as error:
        raise InputError(f"not a batch: {error}") from None
    try:
        return writer.write(line, name).name
    except RefusedNameError as error:
        raise InputError(f"a batch that cannot be written: {error}") from None
