"""Read the batches of a spool in order of time, in bounded memory, whatever else is in it."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ...errors import InputError, RefusedNameError
from ..records.check import BatchProblem, check_batch
from ..records.problems import ReadingProblem
from .paths import BATCH_SUFFIX, TMP_SUFFIX, SpoolPaths, checked_name, find_spool

MAX_BATCH_BYTES = 256 * 2**20
_PAGE = 100_000
_MAX_COLLECTED = 10_000
_LOCKED_WITHIN_SECONDS = 2.0

OnProgress = Callable[[int, int | None], None]
"""Called with the number of batches that a pass is done with, and the total if it is known."""


@dataclass(frozen=True, slots=True)
class BatchFile:
    """One readable batch: its file and its contents."""

    name: str
    path: Path
    data: bytes


class SpoolReader:
    """Streams the batches of a spool in the order of their file names.

    A file that is torn, unreadable or not a batch is skipped and reported: to `on_finding` if
    given, otherwise in `findings` (the first 10,000; `skipped` counts all). Each pass resets both.
    A file that disappears meanwhile was evicted and is not a finding. A directory of any size is
    read with at most 300,000 names in memory.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        on_finding: Callable[[ReadingProblem], None] | None = None,
        on_progress: OnProgress | None = None,
        max_batch_bytes: int = MAX_BATCH_BYTES,
        only: frozenset[str] | None = None,
    ) -> None:
        """Find the spool at `path`. Raises InputError if there is none."""
        self.on_progress = on_progress
        """Called in each pass, after the caller is done with a batch; it must not raise."""
        self.only = only
        """The names of the batches to read; None for all."""
        self.unread: set[str] = set()
        """The names of the files that were skipped; at most 10,000."""
        self.paths: SpoolPaths = find_spool(path)
        self.findings: list[ReadingProblem] = []
        self.skipped = 0
        self.max_batch_bytes = max_batch_bytes
        self._on_finding = on_finding

    def __iter__(self) -> Iterator[BatchFile]:
        for name in self.names():
            batch = self.read(name)
            if batch is not None:
                yield batch

    def names(self) -> Iterator[str]:
        """Yield the names of the batch files in order; report each torn `.json.tmp`.

        Raises InputError if the directory cannot be read.
        """
        self.findings.clear()
        self.unread.clear()
        self.skipped = 0
        last: str | None = None
        done = 0
        while True:
            page = self._page_after(last)
            only = self.only
            names = page if only is None else [name for name in page if name in only]
            is_last = len(page) < _PAGE
            total = done + len(names) if is_last else None
            for name in names:
                yield name
                done += 1
                if self.on_progress is not None:
                    self.on_progress(done, total)
            if is_last:
                if not names and self.on_progress is not None:
                    self.on_progress(done, done)
                return
            last = page[-1]

    def read(self, name: str, *, check: bool = True) -> BatchFile | None:
        """Return the batch in the file `name`; None if it disappeared or was reported as unusable.

        With `check=False`, the caller checks whether the file is a batch.
        """
        path = self.paths.spool / name
        try:
            data = read_limited(path, self.max_batch_bytes)
        except FileNotFoundError:
            if path.is_symlink():
                problem = BatchProblem(
                    "unreadable", "cannot be read: it is a link to a missing file"
                )
                self._report(name, problem)
            return None
        except _RefusedError as error:
            self._report(name, error.problem)
            return None
        if check and (invalid := check_batch(data)) is not None:
            self._report(name, invalid)
            return None
        return BatchFile(name, path, data)

    def read_all(self, names: Iterable[str]) -> Iterator[BatchFile]:
        """Yield the batches in the files with some names that can be read, without a check."""
        for name in names:
            if (batch := self.read(name, check=False)) is not None:
                yield batch

    def _page_after(self, last: str | None) -> list[str]:
        """Return the next page of names in order, for a directory of any size."""
        names: list[str] = []
        try:
            with os.scandir(self.paths.spool) as entries:
                for entry in entries:
                    name = entry.name
                    if name.endswith(BATCH_SUFFIX):
                        if last is None or name > last:
                            names.append(name)
                            if len(names) >= 2 * _PAGE:
                                names.sort()
                                del names[_PAGE:]
                    elif last is None and name.endswith(TMP_SUFFIX):
                        self._report_tmp(name)
        except OSError as error:
            raise InputError(
                f"{self.paths.spool} cannot be read: {error.strerror or error}"
            ) from None
        names.sort()
        return names[:_PAGE]

    def _report_tmp(self, name: str) -> None:
        path = self.paths.spool / name
        if not _is_being_written(path):
            self._report(name, BatchProblem("torn", "never finished: its writer stopped halfway"))

    def _report(self, name: str, problem: BatchProblem) -> None:
        self.skipped += 1
        if len(self.unread) < _MAX_COLLECTED:
            self.unread.add(name)
        finding = ReadingProblem(name, problem.code, problem.message)
        if self._on_finding is not None:
            self._on_finding(finding)
        elif len(self.findings) < _MAX_COLLECTED:
            self.findings.append(finding)


def read_batch(path: str | os.PathLike[str], max_bytes: int = MAX_BATCH_BYTES) -> BatchFile:
    """Return a batch file at any path. Raises InputError if it is unreadable or not a batch."""
    file = Path(path)
    try:
        data = read_limited(file, max_bytes)
    except FileNotFoundError:
        raise InputError(f"{file} does not exist: expected a batch file") from None
    except _RefusedError as error:
        raise InputError(f"{file}: {error.problem.message}") from None
    problem = check_batch(data)
    if problem is not None:
        raise InputError(f"{file} is not a batch: {problem.message}")
    return BatchFile(file.name, file, data)


def stored_batch(spool: Path, name: str, max_bytes: int = MAX_BATCH_BYTES) -> bytes | None:
    """Return the content of a batch's file in the directory `spool`; None if it cannot be read.

    `name` may be untrusted: only regular files in the directory are read.
    """
    try:
        return read_limited(spool / checked_name(name), max_bytes)
    except (FileNotFoundError, RefusedNameError, _RefusedError):
        return None


class _RefusedError(Exception):
    def __init__(self, problem: BatchProblem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def read_limited(path: Path, max_bytes: int) -> bytes:
    """Return the content of a regular file of at most `max_bytes`.

    Raises FileNotFoundError if the file is missing, and _RefusedError if it is unreadable, too
    large, or not a regular file.
    """
    try:
        # A FIFO in the directory must not block the reader.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return _read_regular(descriptor, max_bytes)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise _RefusedError(BatchProblem("unreadable", f"cannot be read: {reason}")) from None
    except ValueError:
        raise _RefusedError(BatchProblem("unreadable", "its name is not valid")) from None


def _read_regular(descriptor: int, max_bytes: int) -> bytes:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise _RefusedError(BatchProblem("unreadable", "not a regular file"))
    if status.st_size <= max_bytes:
        data = _read_all(descriptor, status.st_size, max_bytes)
        if len(data) <= max_bytes:
            return data
    raise _RefusedError(
        BatchProblem("too-large", f"larger than {max_bytes} bytes, the limit for a batch; not read")
    )


def _read_all(descriptor: int, size: int, max_bytes: int) -> bytes:
    data = os.read(descriptor, size + 1)
    if len(data) == size:
        return data
    pieces = [data]
    total = len(data)
    while data and total <= max_bytes:
        data = os.read(descriptor, 1 << 20)
        pieces.append(data)
        total += len(data)
    return b"".join(pieces)


def _is_being_written(path: Path) -> bool:
    """Return whether a `.json.tmp` has already disappeared, or a live process is writing it.

    A writer locks the file just after it has created it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        status = os.fstat(descriptor)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    is_just_made = status.st_size == 0 and time.time() - status.st_mtime < _LOCKED_WITHIN_SECONDS
    return is_just_made or not path.exists()
