"""Pruning of the oldest batches, each with the snapshot files that no later batch references.

The order is that of the spool's eviction (core/spool/eviction.py): by file name, which sorts by
time. A snapshot file that no batch references is ordered by its modification time.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ...core.spool.blobs import BlobKey, blob_keys, key_of_span
from ...core.spool.oom_bundles import bundles_in, remove_bundle
from ...core.spool.paths import SpoolPaths, batch_names, parse_name
from ...errors import InputError, TargetError


@dataclass(slots=True)
class Removal:
    """One step of pruning: a batch and its snapshot files, snapshot files that no batch
    references, or the bundle of an out-of-memory error.
    """

    batch: str | None
    time_ns: int
    """The time at which the batch was sealed, from its name; else the modification time of the
    file."""
    size: int
    blobs: list[BlobKey] = field(default_factory=list)
    bundle: str | None = None
    """The name of the bundle."""

    @property
    def files(self) -> list[str]:
        """The files and bundles to remove, relative to the spool's root."""
        names = [] if self.batch is None else [f"spool/{self.batch}"]
        if self.bundle is not None:
            names.append(f"oom/{self.bundle}/")
        return names + [f"snapshots/{blob.directory}/{blob.file}" for blob in self.blobs]


@dataclass(slots=True)
class PrunePlan:
    """The removals, oldest first, and the remaining batches; sizes are in bytes and include
    snapshots.
    """

    removals: list[Removal]
    kept_batches: int
    kept_bytes: int

    @property
    def batches(self) -> int:
        """The number of batches to remove."""
        return sum(removal.batch is not None for removal in self.removals)

    @property
    def blobs(self) -> int:
        """The number of snapshot files to remove."""
        return sum(len(removal.blobs) for removal in self.removals)

    @property
    def bundles(self) -> int:
        """The number of bundles of out-of-memory errors to remove."""
        return sum(removal.bundle is not None for removal in self.removals)

    @property
    def dropped_bytes(self) -> int:
        """The number of bytes to remove."""
        return sum(removal.size for removal in self.removals)


def plan(paths: SpoolPaths, *, max_bytes: int | None, before_ns: int | None) -> PrunePlan:
    """Choose removals until both limits are met. Raises InputError if the spool cannot be read."""
    try:
        steps = _steps(paths)
    except OSError as error:
        raise InputError(f"{paths.spool} cannot be read: {error.strerror or error}") from None
    total = sum(step.size for step in steps)
    removals = []
    for step in steps:
        too_much = max_bytes is not None and total > max_bytes
        too_old = before_ns is not None and step.time_ns < before_ns
        if not (too_much or too_old):
            break
        total -= step.size
        removals.append(step)
    remaining = sum(step.batch is not None for step in steps[len(removals) :])
    return PrunePlan(removals, remaining, total)


def remove(paths: SpoolPaths, removal: Removal) -> None:
    """Carry out one removal, the batch first, so that no batch references a missing file.

    Raises TargetError if a file cannot be removed.
    """
    files = [] if removal.batch is None else [paths.spool / removal.batch]
    files += [paths.snapshots / blob.directory / blob.file for blob in removal.blobs]
    for file in files:
        try:
            file.unlink(missing_ok=True)
        except OSError as error:
            reason = error.strerror or error
            raise TargetError(f"{file} cannot be removed: {reason}") from None
    if removal.bundle is not None:
        try:
            remove_bundle(paths.oom, removal.bundle)
        except OSError as error:
            path = paths.oom / removal.bundle
            raise TargetError(f"{path} cannot be removed: {error.strerror or error}") from None
    for blob in removal.blobs:
        with contextlib.suppress(OSError):  # the directory still contains another file
            (paths.snapshots / blob.directory).rmdir()


def _steps(paths: SpoolPaths) -> list[Removal]:
    """Return everything that can be removed, oldest first."""
    blobs = dict(_blobs(paths.snapshots))
    steps: list[tuple[str, Removal]] = []
    last_namer: dict[BlobKey, str] = {}
    for name in batch_names(paths.spool):
        path = paths.spool / name
        try:
            status = path.lstat()
            data = path.read_bytes() if blobs and path.is_file() else b""
        except FileNotFoundError:  # evicted meanwhile
            continue
        stated = parse_name(name)
        time_ns = status.st_mtime_ns if stated is None else stated[0]
        steps.append((name, Removal(name, time_ns, status.st_size)))
        for key in blob_keys(data):
            last_namer[key_of_span(key)] = max(name, last_namer.get(key_of_span(key), ""))
    by_name = dict(steps)
    for key, (size, mtime_ns) in blobs.items():
        step = by_name.get(last_namer.get(key_of_span(key), ""))
        if step is None:
            step = Removal(None, mtime_ns, 0)
            steps.append((f"{mtime_ns:020d}", step))
        step.blobs.append(key)
        step.size += size
    for bundle in bundles_in(paths.oom):
        step = Removal(None, bundle.mtime_ns, bundle.size, bundle=bundle.name)
        steps.append((f"{bundle.mtime_ns:020d}", step))
    return [step for _, step in sorted(steps, key=lambda pair: pair[0])]


def _blobs(snapshots: Path) -> Iterator[tuple[BlobKey, tuple[int, int]]]:
    """Yield every snapshot file with its size and modification time."""
    if not snapshots.is_dir():
        return
    for directory in sorted(os.listdir(snapshots)):  # noqa: PTH208 - names are what is needed
        folder = snapshots / directory
        if folder.is_symlink() or not folder.is_dir():
            continue
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    yield BlobKey(directory, entry.name), (status.st_size, status.st_mtime_ns)
