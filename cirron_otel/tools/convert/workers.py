"""Encode the batches of a spool in order, in worker processes if that is faster."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import signal
import sqlite3
import sys
import threading
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ... import exactjson
from ...core.placement.batch_outline import read_outline
from ...core.placement.session_index import SessionIndex
from ...core.records.canonical import batch_bytes
from ...core.records.check import check_batch
from ...core.records.problems import ReadingProblem
from ...core.spool.paths import parse_name
from ...core.spool.reader import SpoolReader
from ...core.translator.codec import Encoded, NoBatchError, encode, pushable
from ...core.translator.own.encode import Options, file_name
from ...errors import CirronOtelError, TargetError
from .messages import DEFAULT_LIMITS, MessageTooLongError, SizeLimits, framed
from .select import Selection
from .selecting import Selector
from .sources import size_of

if TYPE_CHECKING:
    from ...core.columns.reading import StoredKeys

CHUNK_BYTES = 2_000_000
"""The approximate size of the batches that a worker encodes at a time, bytes."""
_AHEAD = 2
"""The maximum number of chunks in progress per worker, which limits memory."""
_POOL_FROM_BYTES = 8_000_000

CIRRON, COLUMNS = "cirron", "columns"
OTLP_PROTO, OTLP_JSON, MESSAGE = "otlp-proto", "otlp-json", "message"


@dataclass(frozen=True, slots=True)
class EncodeJob:
    """The conversion of every batch of a spool."""

    spool: str
    index_path: str
    options: Options
    output: str
    """`otlp-proto` (delimited), `otlp-json` (a line), `message` (bare protobuf), `cirron`, or
    `columns` (rows of the tables)."""
    selection: Selection | None = None
    limits: SizeLimits = DEFAULT_LIMITS
    target: str = ""
    """The directory of the tables for `columns`: a batch that these contain has no `data`."""


@dataclass(slots=True)
class Chunk:
    """The results of encoding some files."""

    encoded: list[Encoded]
    findings: list[ReadingProblem]


class Encoder:
    """Encodes files of a spool by name."""

    def __init__(self, job: EncodeJob, index: SessionIndex | None = None) -> None:
        """Open the spool, and also the index if `index` is not given."""
        self._job = job
        self._index = index or SessionIndex(job.index_path)
        self._selector = Selector(job.selection or Selection(), self._index)
        self._findings: list[ReadingProblem] = []
        self._reader = SpoolReader(job.spool, on_finding=self._findings.append)
        self._stored: StoredKeys | None = None

    def chunk(self, names: list[str]) -> Chunk:
        """Encode some files."""
        encoded = [item for name in names if (item := self._file(name)) is not None]
        findings, self._findings[:] = list(self._findings), []
        return Chunk(encoded, findings)

    def _file(self, name: str) -> Encoded | None:
        file = self._reader.read(name, check=False)
        if file is None:
            return None
        try:
            return self._encode(name, file.data)
        except NoBatchError as error:
            self._findings.append(ReadingProblem(name, error.problem.code, error.problem.message))
            return None
        except MessageTooLongError as error:
            self._findings.append(ReadingProblem(name, "too-large", str(error)))
        except (sqlite3.Error, OSError):
            raise  # the index failed; no batch can be translated without it
        except (CirronOtelError, RecursionError) as error:
            self._findings.append(ReadingProblem(name, "untranslatable", str(error)))
        except Exception as error:
            what = f"{type(error).__name__}: {error}".rstrip(": ")
            message = f"cannot be translated, please report it: {what}"
            self._findings.append(ReadingProblem(name, "untranslatable", message))
        return None

    def _encode(self, name: str, data: bytes) -> Encoded | None:
        job, size = self._job, len(data)
        has_batches = job.output in (CIRRON, COLUMNS)
        problem = check_batch(data) if job.selection or has_batches else None
        if problem is not None:
            self._findings.append(ReadingProblem(name, problem.code, problem.message))
            return None
        if job.selection:
            chosen = self._selector.apply(exactjson.loads(data))
            if chosen is None:
                return None
            data = batch_bytes(chosen)
            name = file_name(chosen) or name
        if has_batches:
            outline = read_outline(data)
            counts = len(outline.spans), len(outline.marks), len(outline.snapshots)
            content = data if job.output == CIRRON else self._packed(name, data)
            return Encoded(name, content, *counts, size)
        encoded = encode(name, data, self._index, job.options)
        if job.output == MESSAGE:
            content, derived_ids = pushable(encoded.data)
            return encoded._replace(data=content, derived_ids=derived_ids)
        return self._framed(name, encoded, data)

    def _packed(self, name: str, data: bytes) -> bytes:
        """Return the rows of a batch; b"" if the target contains it.

        Raises InputError if the batch is nested too deep.
        """
        from ...core.columns.batch_rows import key_of, rows_of  # noqa: PLC0415 - pyarrow
        from ...core.columns.packed import arrow_rows, pack  # noqa: PLC0415
        from ...core.columns.reading import StoredKeys  # noqa: PLC0415

        if self._stored is None:
            self._stored = StoredKeys(self._job.target)
        named = parse_name(name)
        if (
            named is not None
            and self._job.target
            and self._stored.has(key_of(name, data), named[0])
        ):
            return b""
        return pack(arrow_rows(rows_of(name, data)))

    def _framed(self, name: str, encoded: Encoded, batch: bytes) -> Encoded:
        limit = self._job.limits.message_bytes
        parts = list(framed(encoded.data, limit, is_json=self._job.output == OTLP_JSON))
        if len(parts) > 1 and read_outline(batch).is_foreign:
            raise MessageTooLongError(limit)  # its parts would become several batches
        losses = {loss for _, part_losses in parts for loss in part_losses}
        for loss in sorted(losses):
            self._findings.append(
                ReadingProblem(name, "json-loss", f"{loss}: write .binpb instead")
            )
        return encoded._replace(data=b"".join(data for data, _ in parts), messages=len(parts))


_encoder: Encoder | None = None


def _start(job: EncodeJob) -> None:
    global _encoder  # noqa: PLW0603 - each worker process has one encoder
    gc.set_threshold(100_000)  # there are many records, but no reference cycles
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # the parent also gets the signal, and ends the workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _encoder = Encoder(job)


def _end_with_parent() -> None:
    """End this process when its parent is killed: it would wait for work without end."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(names: list[str]) -> Chunk:
    if _encoder is None:
        raise RuntimeError("the worker was not started")
    return _encoder.chunk(names)


def chunks(spool: Path, names: Iterable[str]) -> Iterator[list[str]]:
    """Split the names into lists of files with a total size of about CHUNK_BYTES each."""
    part: list[str] = []
    size = 0
    for name in names:
        size += size_of(spool / name)  # 0 for an unreadable file, which the reader reports
        part.append(name)
        if size >= CHUNK_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def encode_all(
    job: EncodeJob,
    spool: Path,
    names: Iterable[str],
    index: SessionIndex,
    jobs: int,
    total_bytes: int,
) -> Generator[Chunk, None, None]:
    """Encode files in the order of `names`, in worker processes if there is enough work.

    If no process can be started, this process does the work. Raises TargetError if a worker is
    killed.
    """
    parts = chunks(spool, names)
    if jobs > 1 and total_bytes >= _POOL_FROM_BYTES:
        unsubmitted = yield from _encode_in_pool(job, parts, jobs)
        parts = itertools.chain(unsubmitted, parts)
    encoder = Encoder(job, index)
    for part in parts:
        yield encoder.chunk(part)


def _encode_in_pool(
    job: EncodeJob, parts: Iterator[list[str]], jobs: int
) -> Generator[Chunk, None, list[list[str]]]:
    """Encode `parts` until a process cannot be started.

    Returns a list with the part that was taken from `parts` but not encoded; the list is empty if
    there is none.
    """
    # Do not fork: the caller may have threads. Workers import this package, but not the user's
    # modules.
    context = multiprocessing.get_context("forkserver" if sys.platform != "win32" else "spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_start, initargs=(job,))
    waiting: deque[Future[Chunk]] = deque()
    unsubmitted: list[list[str]] = []
    try:
        for part in parts:
            try:
                waiting.append(pool.submit(_work, part))
            except OSError:  # no process, descriptor or server socket is available
                unsubmitted.append(part)
                break
            if len(waiting) >= jobs * _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise TargetError(
            "a worker process was killed, probably for lack of memory: use a smaller --jobs"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return unsubmitted


def default_jobs() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
