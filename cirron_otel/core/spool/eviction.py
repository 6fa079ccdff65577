"""Keep a spool below its cap by removing the oldest batches with their snapshot files.

The bundle of an out-of-memory error is removed when all batches older than it are.

Other processes may also write to the spool, so the running total is corrected by a scan of the
directory: after 1/64 of the cap was written, or after 30 s (or 3,000 times the duration of a scan,
if that is longer). Several writers may exceed the cap by the amount that they write between scans.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ...errors import OverCapError, TargetError
from .blobs import BlobKey, blob_keys
from .oom_bundles import bundles_in, remove_bundle
from .paths import BATCH_SUFFIX, SpoolPaths

_KNOWN = 8192
_RESCAN_SECONDS = 30.0
_SCAN_SHARE = 3000.0
"""Periodic scans may use at most 1/3,000 of the elapsed time."""
# A file may get its change time before a scan and its name after it.
_SLACK_NS = 2 * 10**9


@dataclass(slots=True)
class Drops:
    """The amount that eviction has dropped since the writer was created."""

    batches: int = 0
    blobs: int = 0
    """Snapshot files, and bundles of out-of-memory errors."""
    bytes: int = 0
    """The size of all of these together."""


class BundleKey(NamedTuple):
    """The name of a bundle: `oom/<directory>/`."""

    directory: str


class CollectorFiles(NamedTuple):
    """The files of a collector in a spool that are not batches."""

    file_of: Callable[[str, BlobKey], BlobKey] = lambda _, key: key
    """Maps (batch, file that it references) to the file that is stored for the batch's tenant."""
    bytes: Callable[[], int] = lambda: 0
    """Returns the size of other files that count towards the cap, bytes; they are not evicted."""


class Eviction:
    """The disk usage of one spool, kept below `max_bytes` by dropping the oldest batches."""

    def __init__(
        self,
        paths: SpoolPaths,
        max_bytes: int,
        is_wanted: Callable[[str], bool] | None = None,
        beside: CollectorFiles | None = None,
    ) -> None:
        """Prepare without reading anything. SpoolWriter describes the last two arguments."""
        self._is_wanted = is_wanted
        self._beside = beside or CollectorFiles()
        self.drops = Drops()
        self.total = 0
        self.scans = 0
        self._paths = paths
        self._max_bytes = max_bytes
        self._oldest: list[tuple[str, int]] = []
        """A heap of (name, size) of all batches or, if `_limit` is set, of those below it."""
        self._limit: str | None = None
        self._blobs: dict[BlobKey, int] = {}
        self._last_namer: dict[BlobKey, str] = {}
        self._bundles: dict[str, int] = {}
        self._blob_ends: list[tuple[str, BlobKey | BundleKey]] = []
        """A heap of (the last batch that names the blob, blob); outdated entries stay in it. The
        entry of a bundle has the bundle's time, in the form of a batch's name."""
        self._indexed_ns = 0
        self._scanned_at: float | None = None
        self._scan_took = 0.0
        self._since_scan = 0

    def make_room(self, name: str, data: bytes, *, has_snapshots: bool = True) -> None:
        """Evict until the batch fits. Raises TargetError if it can never fit or eviction fails.

        Without `has_snapshots`, the batch is known to reference no files. Files that must not be
        evicted (other kinds of files, a snapshot newer than every batch) may bring the total above
        the cap.
        """
        if len(data) > self._max_bytes:
            raise OverCapError(
                f"batch of {len(data)} bytes is over the spool's cap of {self._max_bytes}:"
                " raise the cap or flush more often"
            )
        try:
            if self._is_stale():
                self._scan()
            if has_snapshots:
                self._name_blobs(name, data)
            while self.total + len(data) > self._max_bytes:
                if not self._evict_one(name):
                    return
        except OSError as error:
            raise TargetError(
                f"{self._paths.spool} cannot be kept below its cap: {error.strerror or error}"
            ) from None

    def added(self, name: str, size: int) -> None:
        """Count a batch that was written."""
        self.total += size
        self._since_scan += size
        if self._limit is None or name < self._limit:
            heapq.heappush(self._oldest, (name, size))
        if len(self._oldest) > 4 * _KNOWN:
            self._keep_oldest(sorted(self._oldest))

    def _is_stale(self) -> bool:
        if self._scanned_at is None or self._since_scan > self._max_bytes // 64:
            return True
        least = max(_RESCAN_SECONDS, self._scan_took * _SCAN_SHARE)
        return time.monotonic() - self._scanned_at > least

    def _keep_oldest(self, ordered: list[tuple[str, int]]) -> None:
        """Keep only the oldest entries of `ordered`, up to a limit."""
        if len(ordered) > _KNOWN:
            self._limit = ordered[_KNOWN][0]
            del ordered[_KNOWN:]
        self._oldest = ordered

    def _scan(self) -> None:
        self.scans += 1
        self._since_scan = 0
        started_ns = time.time_ns()
        if self._is_set_back(started_ns):
            self._indexed_ns = 0
        self._scanned_at = time.monotonic()
        orphan_ends = self._scan_blobs()
        bundle_ends = self._scan_bundles()
        self.total = sum(self._blobs.values()) + sum(self._bundles.values()) + self._beside.bytes()
        self._limit = None
        known: list[tuple[str, int]] = []
        for name, status in _files(self._paths.spool):
            self.total += status.st_size
            if not name.endswith(BATCH_SUFFIX):
                continue
            if self._limit is None or name < self._limit:
                known.append((name, status.st_size))
            if len(known) > 4 * _KNOWN:
                known.sort()
                self._keep_oldest(known)
            if self._blobs and status.st_ctime_ns >= self._indexed_ns - _SLACK_NS:
                self._index(name)
        known.sort()
        self._keep_oldest(known)
        if self._blobs:
            self._indexed_ns = started_ns
        ends = orphan_ends | self._last_namer
        self._blob_ends = [*bundle_ends, *((end, key) for key, end in ends.items())]
        heapq.heapify(self._blob_ends)
        self._scan_took = time.monotonic() - self._scanned_at

    def _is_set_back(self, now_ns: int) -> bool:
        """Return whether the clock was set back since the last scan, so that new files seem old."""
        if self._scanned_at is None:
            return False
        passed_ns = int((time.monotonic() - self._scanned_at) * 1e9)
        return now_ns - self._indexed_ns < passed_ns - _SLACK_NS // 2

    def _scan_blobs(self) -> dict[BlobKey, str]:
        """List the snapshot files; return their times by file, as 20 digits like batch names."""
        self._blobs = {}
        ends: dict[BlobKey, str] = {}
        for directory in _directories(self._paths.snapshots):
            for file, status in _files(self._paths.snapshots / directory):
                key = BlobKey(directory, file)
                self._blobs[key] = status.st_size
                ends[key] = f"{status.st_mtime_ns:020d}"
        self._last_namer = {k: v for k, v in self._last_namer.items() if k in self._blobs}
        return ends

    def _scan_bundles(self) -> list[tuple[str, BlobKey | BundleKey]]:
        """List the bundles; return their times, as 20 digits like batch names."""
        bundles = list(bundles_in(self._paths.oom))
        self._bundles = {each.name: each.size for each in bundles}
        return [(f"{each.mtime_ns:020d}", BundleKey(each.name)) for each in bundles]

    def _index(self, name: str) -> None:
        """Record which snapshot files an existing batch references."""
        try:
            data = (self._paths.spool / name).read_bytes()
        except FileNotFoundError:
            return
        for key in self._keys(name, data):
            if key in self._blobs:
                self._last_namer[key] = max(name, self._last_namer.get(key, ""))

    def _name_blobs(self, name: str, data: bytes) -> None:
        """Count the snapshot files that a new batch references, and keep them while it exists."""
        for key in self._keys(name, data):
            if key not in self._blobs:
                size = _size(self._paths.snapshots / key.directory, key.file)
                if size is None:
                    continue
                self._blobs[key] = size
                self.total += size
            if name > self._last_namer.get(key, ""):
                self._last_namer[key] = name
                heapq.heappush(self._blob_ends, (name, key))

    def _keys(self, name: str, data: bytes) -> set[BlobKey]:
        """Return the snapshot files that a batch references, under their stored keys."""
        return {self._beside.file_of(name, key) for key in blob_keys(data)}

    def _evict_one(self, new: str) -> bool:
        """Drop the oldest file, or return False if there is none. `new` is not written yet."""
        if not self._oldest and self._limit is not None:
            self._scan()
        oldest = self._oldest[0][0] if self._oldest else new
        if self._evict_blob(before=oldest):
            return True
        if not self._oldest:
            return False
        if self._is_wanted is not None and self._is_wanted(oldest):
            raise TargetError(
                f"{self._paths.spool} is at its cap of {self._max_bytes} bytes, and {oldest} is not"
                " delivered yet: nothing is evicted; check that its targets can be reached, or"
                " raise the cap"
            )
        name, size = heapq.heappop(self._oldest)
        if _unlink(self._paths.spool / name):
            self.drops.batches += 1
            self.drops.bytes += size
        self.total -= size
        while self._evict_blob(before=name + "\0"):
            pass
        return True

    def _evict_blob(self, before: str) -> bool:
        """Drop a snapshot file if the last batch that references it sorts below `before`.

        Returns False if there is no such file.
        """
        while self._blob_ends and self._blob_ends[0][0] < before:
            end, key = heapq.heappop(self._blob_ends)
            if isinstance(key, BundleKey):
                self._evict_bundle(key)
                return True
            if end < self._last_namer.get(key, "") or key not in self._blobs:
                continue
            size = self._blobs.pop(key)
            self._last_namer.pop(key, None)
            directory = self._paths.snapshots / key.directory
            if _unlink(directory / key.file):
                self.drops.blobs += 1
                self.drops.bytes += size
            self.total -= size
            _remove_empty(directory)
            return True
        return False

    def _evict_bundle(self, key: BundleKey) -> None:
        size = self._bundles.pop(key.directory, 0)
        if remove_bundle(self._paths.oom, key.directory):
            self.drops.blobs += 1
            self.drops.bytes += size
        self.total -= size


def _files(directory: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the regular files in `directory` with their status; a missing directory is empty."""
    try:
        entries = os.scandir(directory)
    except FileNotFoundError:
        return
    with entries:
        for entry in entries:
            try:
                if entry.is_file(follow_symlinks=False):
                    yield entry.name, entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # evicted by another process meanwhile
                continue


def _directories(directory: Path) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def _size(directory: Path, file: str) -> int | None:
    """Return the size of a regular file, bytes; None if it is missing or reached through a link."""
    try:
        if directory.is_symlink():
            return None
        status = (directory / file).lstat()
    except (OSError, ValueError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _unlink(path: Path) -> bool:
    """Remove a file; return False if another process already has."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def _remove_empty(directory: Path) -> None:
    with contextlib.suppress(OSError):  # the directory is not empty
        directory.rmdir()
