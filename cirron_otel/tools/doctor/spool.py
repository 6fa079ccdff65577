"""Check that the spool's directory is usable, and look for open scopes and unsent batches."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from ...core.atomic_files import publish, sync_file
from ...core.config.options import Config
from ...core.delivery.follow import unsent
from ...core.spool.owner import dead_owners, owners
from ...core.spool.paths import SpoolPaths, batch_names
from ...core.spool.reader import SpoolReader
from ...core.spool.recovery import find_recoverable
from ...errors import CirronOtelError
from .check import Check, failed, ok, warning, within

_SPARE_BYTES = 50_000_000
"""With less free space than this, in bytes, recording soon stops."""
_SLOW_FSYNC_S = 1.0
_REMOTE = (
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "9p",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "afs",
    "glusterfs",
)
_IN_MEMORY = ("tmpfs", "ramfs")
_PROBE = ".cirron-otel-doctor-"


def examine_spool(config: Config, targets: Mapping[str, str], timeout: float) -> Iterator[Check]:
    """Check the directory, its file system, and its batches.

    `targets` contains the ledger key of each target, by the target's name in messages.
    """
    directory = config.output_dir
    try:
        yield within(timeout, lambda: _check_writing(directory))
        yield within(timeout, lambda: _check_room(directory, config.spool_max_bytes))
    except TimeoutError as error:
        yield failed(
            "spool",
            f"{directory}: writing hangs ({error})",
            "set CIRRON_OUTPUT_DIR to a directory on a local disk",
        )
        return
    except OSError as error:
        yield failed(
            "spool",
            f"{error.filename or directory} cannot be written: {error.strerror or error}",
            "set CIRRON_OUTPUT_DIR to a writable directory, or correct its owner and mode",
        )
        return
    with contextlib.suppress(CirronOtelError, OSError):
        yield from _check_leftovers(find_recoverable(directory), directory, targets)


def nearest_existing(directory: Path) -> Path:
    """Return the directory if it exists, else its nearest existing ancestor."""
    for each in (directory, *directory.parents):
        if each.is_dir():
            return each
        if each.exists() or each.is_symlink():
            raise NotADirectoryError(20, os.strerror(20), str(each))
    return Path("/")


def _check_writing(directory: Path) -> Check:
    """Write, sync, lock, rename and remove a file, as the spool does. Raises OSError."""
    place = nearest_existing(directory)
    begun = time.monotonic()
    descriptor, name = tempfile.mkstemp(prefix=_PROBE, dir=place)
    path = Path(name)
    try:
        os.write(descriptor, b"cirron-otel doctor\n")
        sync_file(descriptor)
        has_locks = _lock(descriptor)
        renamed = path.with_name(path.name + ".json")
        publish(path, renamed, syncs_name=False)
        path = renamed
    finally:
        os.close(descriptor)
        path.unlink(missing_ok=True)
    took = time.monotonic() - begun
    shown = directory if place == directory else f"{directory} (does not exist yet, can be created)"
    finding = f"{shown} can be written, fsync in {1000 * took:.0f} ms"
    if not has_locks:
        return warning(
            "spool",
            f"{finding}; its file system has no locks",
            "use a directory on a local disk: without locks, dead processes are not detected",
        )
    if place == directory and (open_to := _readers(directory)):
        return warning("spool", f"{finding}; {open_to}", f"chmod 700 {shlex.quote(str(directory))}")
    if took > _SLOW_FSYNC_S:
        return warning("spool", f"{finding}, which is slow", "use a local disk")
    return ok("spool", finding, directory=str(directory), fsync_ms=round(1000 * took, 1))


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _readers(directory: Path) -> str:
    """Describe which other users can read the recording; "" if no other user can."""
    spool = directory / "spool"
    status = (spool if spool.is_dir() else directory).stat()
    if status.st_uid != os.geteuid() and os.geteuid() != 0:
        return f"it belongs to the user {status.st_uid}"
    if spool.is_dir() and directory.stat().st_mode & 0o077 and status.st_mode & stat.S_IROTH:
        return "other users of this machine can read the recordings"
    return ""


def _check_room(directory: Path, cap: int) -> Check:
    """Check the free space and the type of file system. Raises OSError."""
    place = nearest_existing(directory)
    free = shutil.disk_usage(place).free
    kind = filesystem_of(place)
    shown = f"{free / 1e9:.1f} GB free" if free >= 1e9 else f"{free / 1e6:.0f} MB free"
    finding = f"{shown} on {kind or 'a file system of unknown kind'}, cap {cap / 1e9:.3g} GB"
    details = {"free_bytes": free, "filesystem": kind, "cap_bytes": cap}
    if free < _SPARE_BYTES:
        return failed("spool disk", finding, "free some space, or set CIRRON_OUTPUT_DIR", **details)
    if kind in _REMOTE or kind.startswith("fuse."):
        return warning(
            "spool disk",
            f"{finding}: a network file system",
            "set CIRRON_OUTPUT_DIR to a local disk: fsync and locks are slow or missing there",
            **details,
        )
    if kind in _IN_MEMORY:
        return warning(
            "spool disk",
            f"{finding}: it is in memory, and lost when the machine stops",
            "set CIRRON_OUTPUT_DIR to keep the recordings",
            **details,
        )
    if free < cap:
        return warning(
            "spool disk", finding, "free some space, or lower CIRRON_SPOOL_MAX_BYTES", **details
        )
    return ok("spool disk", finding, **details)


def filesystem_of(place: Path) -> str:
    """Return the type of a file system as named by Linux; "" if it cannot be determined."""
    # proc(5), /proc/pid/mountinfo: the fifth field is the mount point, and the type follows " - ".
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
        real = place.resolve()
    except OSError:
        return ""
    best, kind = -1, ""
    for line in lines:
        before, _, behind = line.partition(" - ")
        fields = before.split()
        if len(fields) < 5 or not behind:
            continue
        mount = Path(fields[4].replace("\\040", " "))
        if (real == mount or mount in real.parents) and len(mount.parts) >= best:
            best, kind = len(mount.parts), behind.split()[0]
    return kind


def _check_leftovers(
    paths: SpoolPaths, directory: Path, targets: Mapping[str, str]
) -> Iterator[Check]:
    """Check for the open scopes and unsealed records of dead processes, and for unsent batches."""
    shown = shlex.quote(str(directory))
    alive = set(owners(paths))
    dead = dead_owners(paths)
    alive -= set(dead)
    if dead:
        yield warning(
            "spool left open",
            f"{len(dead)} process{'es' if len(dead) > 1 else ''} ended with open scopes or unsealed"
            " records",
            f"cirron-otel spool recover {shown}",
            owners=dead,
        )
    count = sum(1 for _ in batch_names(paths.spool)) if paths.spool.is_dir() else 0
    recording = f"; processes recording now: {len(alive)}" if alive else ""
    if not count:
        return
    if not targets:
        yield ok("spool batches", f"{count:,} batches{recording}", batches=count)
        return
    for name, key in targets.items():
        left = unsent(SpoolReader(paths.root), key, ())
        finding = f"{count:,} batches, {left:,} of them not sent to {name}{recording}"
        details = {"batches": count, "unsent": left, "target": name}
        if left and not alive:
            yield warning("spool batches", finding, f"cirron-otel spool flush {shown}", **details)
        else:
            yield ok("spool batches", finding, **details)
