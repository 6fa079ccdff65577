"""Files with DGRR traces, read in pieces of constant size."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from ...core.importers.dgrr.layout import HEADER, RECORD
from ...errors import InputError, UsageError

_CHUNK_RECORDS: Final = 910
"""About 64 KiB."""


class UnreadableTraceError(InputError):
    """A file cannot be read at all."""


class TraceFile:
    """An open trace: a `TraceData` of the core."""

    def __init__(self, path: str, file: BinaryIO, size: int) -> None:
        """Read the first 64 bytes, and those after the last complete record."""
        self.path, self.size = path, size
        self._file = file
        self.head = self._read(0, HEADER.size)
        self.records, left = divmod(max(size - HEADER.size, 0), RECORD.size)
        self.tail = self._read(size - left, left)

    def chunks(self) -> Iterator[bytes]:
        """Yield the complete records from the first one, about 64 KiB at a time.

        Raises InputError if the file was cut while it was read.
        """
        position = HEADER.size
        end = position + self.records * RECORD.size
        while position < end:
            length = min(_CHUNK_RECORDS * RECORD.size, end - position)
            yield self._read(position, length)
            position += length

    def _read(self, position: int, length: int) -> bytes:
        try:
            self._file.seek(position)
            data = self._file.read(length)
        except OSError as error:
            raise _unreadable(self.path, error.strerror or str(error)) from None
        if len(data) < min(length, self.size - position):
            raise InputError(f"{self.path} became shorter while it was read: read it again")
        return data


def refuse_terminal() -> None:
    """Raise UsageError if standard output is a terminal, because a trace is binary."""
    if sys.stdout is not None and sys.stdout.isatty():
        raise UsageError(
            "a trace is binary, and standard output is a terminal: redirect it, or name a file"
        )


def _unreadable(path: str, reason: str) -> UnreadableTraceError:
    return UnreadableTraceError(f"{path} cannot be read: {reason}")


@contextlib.contextmanager
def open_trace(path: str, shown: str | None = None) -> Iterator[TraceFile]:
    """Open a file, which is `shown` in messages.

    Raises UnreadableTraceError if it is missing or not a regular file.
    """
    shown = path if shown is None else shown
    with contextlib.ExitStack() as stack:
        try:
            if not stat.S_ISREG(Path(path).stat().st_mode):
                raise _unreadable(shown, "it is neither a file nor a pipe: expected a trace")
            file = stack.enter_context(Path(path).open("rb"))
            size = os.fstat(file.fileno()).st_size
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise _unreadable(shown, reason) from None
        yield TraceFile(shown, file, size)
