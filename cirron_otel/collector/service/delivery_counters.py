"""The counters of delivered and stored batches."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ...core.delivery.batch_target import Receipt, SealedBatch
from ...core.delivery.errors import MisconfiguredError, RefusedError, StoppedError, UnreachableError
from ...core.records.check import Records, records_of
from ...core.spool.dead_letters import DeadLetters
from ...core.spool.eviction import Drops
from ...core.spool.paths import SpoolPaths
from . import metrics as m
from .metrics import Registry

DATABASE = "database"
"""The name of the storage in metrics."""
SPOOL = "spool"

_LOOK_S = 5.0
_LOOK_SHARE = 3000.0
"""The pause after measuring the spool, as a multiple of its duration: measuring takes at most
1/3,000 of the time."""


class Counting:
    """A wrapper around a target that counts accepted and refused batches.

    All attributes except `send` and `prepared` are those of the target.
    """

    def __init__(self, target: Any, registry: Registry, name: str) -> None:
        """`name` is the target's label in metrics; DATABASE for the storage."""
        self._target, self._registry, self._name = target, registry, name
        self._since: dict[object, float] = {}
        """The start of each request in progress, monotonic seconds."""
        # Create the counters now, so that a rate can be computed from the first increase.
        registry.add(m.DROPPED_BATCHES, 0, name, "refused")
        self._took(Records(), 0, 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def send(self, batches: Sequence[SealedBatch]) -> Receipt:
        """Send batches to the target, and count the result. Raises the target's errors."""
        return self._counted(partial(self._target.send, batches), batches)

    def prepared(self, batches: Sequence[SealedBatch]) -> Callable[[], Receipt]:
        """Return a function that sends batches from any thread, and counts the result."""
        with self._failures(batches):
            send = self._target.prepared(batches)
        return partial(self._counted, send, batches)

    def _counted(self, send: Callable[[], Receipt], batches: Sequence[SealedBatch]) -> Receipt:
        request = object()
        self._since[request] = time.monotonic()
        try:
            with self._failures(batches):
                receipt = send()
        finally:
            del self._since[request]
        for batch in batches:
            self._took(records_of(batch.data), 1, len(batch.data))
        return receipt

    @contextlib.contextmanager
    def _failures(self, batches: Sequence[SealedBatch]) -> Iterator[None]:
        """Count the failure of an attempt to send batches."""
        try:
            yield
        except StoppedError:
            raise
        except Exception as error:
            self._registry.add(m.EXPORT_FAILURES, 1, self._name, _reason(error))
            # If a group is refused, the delivery sends its batches again one by one.
            if isinstance(error, RefusedError) and len(batches) == 1:
                self._registry.add(m.DROPPED_BATCHES, 1, self._name, "refused")
            raise

    def unanswered_s(self) -> float:
        """Return how long the oldest request has been in progress, seconds; from any thread."""
        since = min(list(self._since.values()), default=None)
        return 0.0 if since is None else time.monotonic() - since

    def _took(self, records: Records, batches: int, size: int) -> None:
        if self._name == DATABASE:
            count_stored(self._registry, DATABASE, records, batches, size)
            return
        self._registry.add(m.EXPORTED_BATCHES, batches, self._name)
        self._registry.add(m.EXPORTED_RECORDS, sum(records), self._name)
        self._registry.add(m.EXPORTED_BYTES, size, self._name)


def rejected_counter(registry: Registry, name: str) -> Callable[[int], None]:
    """Return a function that counts the spans that a target rejected; `name` is its label."""
    registry.add(m.EXPORT_REJECTED_SPANS, 0, name)
    return lambda spans: registry.add(m.EXPORT_REJECTED_SPANS, spans, name)


def counted_letters(
    paths: SpoolPaths,
    target: tuple[str, str],
    max_bytes: int | None,
    registry: Registry,
    name: str,
) -> DeadLetters:
    """Return the store of a target's dead letters, which counts them in `registry`.

    `target` is the target's key and its address without secrets. `max_bytes` is the spool's cap,
    `name` the label of the counters.
    """

    def count(added: int, dropped: int) -> None:
        registry.add(m.DEAD_LETTERS, added, name)
        registry.add(m.DROPPED_BATCHES, dropped, name, "dead_letter")

    count(0, 0)  # create the counters now, so that a rate can be computed from the first increase
    return DeadLetters(paths, *target, max_bytes, count)


class SpoolCounts:
    """The counters of the spool."""

    def __init__(self, registry: Registry, paths: SpoolPaths, parts: Path) -> None:
        """`parts` is the directory of unfinished uploads."""
        self._registry, self._paths = registry, paths
        self._folders = (paths.spool, paths.snapshots, parts)
        self._look_at = 0.0
        self._size = self._added = self._evicted = 0
        """The size of the spool when it was last measured, the bytes stored since then, and the
        total bytes evicted by then."""

    def stored(self, names: Sequence[str]) -> None:
        """Count the bytes of batches that were stored in the spool."""
        for name in names:
            with contextlib.suppress(OSError):  # evicted meanwhile
                size = (self._paths.spool / name).stat().st_size
                self._registry.add(m.STORED_BYTES, size, SPOOL)
                self._added += size

    def count(self, counts: Mapping[str, int], drops: Drops) -> None:
        """Add the translation's new counts; `drops` are all evictions since the translation
        started.
        """
        increments, registry = Counter(counts), self._registry
        records = Records(increments["spans"], increments["marks"], increments["snapshots"])
        count_stored(registry, SPOOL, records, increments["batches"], 0)
        registry.add(m.DUPLICATES, increments["duplicates"])
        registry.add(m.SET_ASIDE, increments["set_aside"], "untranslatable")
        registry.add(m.SET_ASIDE, increments["damaged"], "damaged")
        registry.add(m.MISSING_STEPS, increments["missing_steps"])
        registry.set(m.DROPPED_BATCHES, drops.batches, SPOOL, "evicted")
        begun = time.monotonic()
        if begun >= self._look_at:
            self._size = sum(map(folder_bytes, self._folders))
            self._added, self._evicted = 0, drops.bytes
            now = time.monotonic()
            self._look_at = now + max(_LOOK_S, (now - begun) * _LOOK_SHARE)
        size = self._size + self._added - (drops.bytes - self._evicted)
        registry.set(m.SPOOL_BYTES, max(size, 0))


def folder_bytes(folder: Path) -> int:
    """Return the size of all files in a folder and below it, bytes."""
    size, folders = 0, [os.fspath(folder)]
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        size += entry.stat(follow_symlinks=False).st_size
    return size


def count_stored(registry: Registry, store: str, records: Records, batches: int, size: int) -> None:
    """Count stored batches, their records and their bytes."""
    registry.add(m.STORED_BATCHES, batches, store)
    registry.add(m.STORED_BYTES, size, store)
    for kind, number in records._asdict().items():
        registry.add(m.STORED_RECORDS, number, store, kind)


def _reason(error: Exception) -> str:
    if isinstance(error, MisconfiguredError):
        return "misconfigured"
    if isinstance(error, RefusedError):
        return "refused"
    return "unreachable" if isinstance(error, UnreachableError | OSError) else "error"
