"""Batches that a target refused permanently, kept until an operator retries or drops them.

`state/dead-letters/<target>/` contains the batch under its name (a hard link if the file system
supports them) and `<name>.why`, a JSON object. A file `<name>.try` requests another attempt from
the process that sends to the target. The entry is complete before the cursor records the refusal:
if the process is killed between these two steps, the batch is sent again, and there is still only
one entry.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from ...errors import InputError, TargetError
from ..atomic_files import replacing_file, sync_directory, write_all
from .directories import make_private
from .paths import BATCH_SUFFIX, SpoolPaths
from .state import unwritable
from .writer import DEFAULT_MAX_BYTES

logger = logging.getLogger(__name__)

SHARE: Final = 10
"""The dead letters of a target take up at most 1/`SHARE` of the spool's cap."""
_DIRECTORY: Final = "dead-letters"
_WHY: Final = ".why"
_TRY: Final = ".try"
_BLOCK: Final = 4096
"""The disk space of a small file, bytes."""
_RESCAN_S = 30.0


class Why(msgspec.Struct):
    """The refusals of a batch: the content of `<name>.why`."""

    batch: str
    target: str
    """The target's address without secrets."""
    reason: str
    """The target's latest answer, without secrets."""
    attempts: int
    first_ns: int
    """The time of the first refusal, Unix ns."""
    last_ns: int
    """The time of the latest refusal, Unix ns."""
    version: int = 1


_decoder = msgspec.json.Decoder(Why)


class DeadLetter(NamedTuple):
    """One dead letter."""

    key: str
    """The target's key."""
    name: str
    why: Why
    size: int
    """The size of the batch, bytes."""
    is_requested: bool
    """Whether another attempt is requested."""


class DeadLetters:
    """The dead letters of one target. Several processes may add to them."""

    def __init__(
        self,
        paths: SpoolPaths,
        key: str,
        shown: str,
        max_bytes: int | None = DEFAULT_MAX_BYTES,
        on_change: Callable[[int, int], None] = lambda _added, _dropped: None,
    ) -> None:
        """Use the dead letters of the target `key`; `shown` is its address without secrets.

        `max_bytes` is the spool's cap. `on_change` is called with the number of batches added, and
        the number of batches dropped to stay within the limit.
        """
        self._paths, self._shown = paths, shown
        self._directory = directory_of(paths, key)
        self._most = (DEFAULT_MAX_BYTES if max_bytes is None else max_bytes) // SHARE
        self._on_change = on_change
        self._sizes: dict[str, int] = {}
        self._read_at = float("-inf")

    def __contains__(self, name: str) -> bool:
        return name in self._known()

    def put(self, name: str, data: bytes, reason: str, attempts: int = 1) -> None:
        """Add a batch, or record another refusal of it. Raises TargetError if that fails."""
        path, now = self._directory / name, time.time_ns()
        before = _why_of(path)
        why = Why(name, self._shown, reason, attempts, now, now)
        if before is not None:
            why.first_ns, why.attempts = before.first_ns, before.attempts + attempts
        try:
            make_private(self._directory)
            self._write(self._directory / f"{name}{_WHY}", msgspec.json.encode(why))
            self._link(path, data)
            (self._directory / f"{name}{_TRY}").unlink(missing_ok=True)
            sync_directory(self._directory)
        except OSError as error:
            raise unwritable(path, error) from None
        self._known()[name] = max(len(data), _BLOCK)
        if before is None:
            logger.warning(
                "%s refuses %s permanently: %s; the batch is kept in %s",
                self._shown,
                name,
                reason,
                self._directory,
                extra={"cause": f"dead letter {name}"},
            )
        dropped = self._make_room(name)
        self._on_change(int(before is None), dropped)

    def remove(self, name: str) -> None:
        """Remove a batch that the target has accepted. Raises TargetError."""
        try:
            _remove(self._directory, name)
        except OSError as error:
            raise unwritable(self._directory, error) from None
        self._sizes.pop(name, None)

    def names(self) -> list[str]:
        """Return the names of all batches, in order."""
        self._read_at = float("-inf")
        return sorted(self._known())

    def requested(self) -> list[str]:
        """Return the names of the batches for which another attempt is requested, in order."""
        with contextlib.suppress(InputError):
            names = _names_in(self._directory)
            return sorted(n.removesuffix(_TRY) for n in names if n.endswith(_TRY))
        return []

    def read(self, name: str) -> bytes:
        """Return the content of a batch. Raises OSError."""
        return (self._directory / name).read_bytes()

    def _known(self) -> dict[str, int]:
        now = time.monotonic()
        if now - self._read_at > _RESCAN_S:
            self._read_at, self._sizes = now, {}
            with contextlib.suppress(OSError), os.scandir(self._directory) as entries:
                for entry in entries:
                    if entry.name.endswith(BATCH_SUFFIX):
                        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                            self._sizes[entry.name] = max(entry.stat().st_size, _BLOCK)
        return self._sizes

    def _make_room(self, new: str) -> int:
        """Drop the oldest batches until the rest fits; return how many were dropped."""
        dropped, total = 0, sum(self._sizes.values())
        for name in sorted(self._sizes) if total > self._most else ():
            if total <= self._most:
                break
            if name == new:
                continue
            size = self._sizes[name]
            try:
                self.remove(name)
            except TargetError:  # the new batch is kept anyway
                continue
            total -= size
            dropped += 1
        if dropped:
            logger.warning(
                "the dead letters of %s reached the limit of %d bytes: the oldest %d were dropped",
                self._shown,
                self._most,
                dropped,
                extra={"cause": f"dead letters dropped {self._shown}"},
            )
        return dropped

    def _link(self, path: Path, data: bytes) -> None:
        if path.exists():
            return
        try:
            path.hardlink_to(self._paths.spool / path.name)
        except OSError:  # the batch left the spool meanwhile, or there are no links
            self._write(path, data)

    def _write(self, path: Path, data: bytes) -> None:
        tmp = self._directory / f".{os.getpid()}-{threading.get_ident()}.tmp"
        with replacing_file(path, tmp, syncs_name=False) as descriptor:
            write_all(descriptor, data)


def directory_of(paths: SpoolPaths, key: str) -> Path:
    """Return the directory for the dead letters of the target with this key."""
    return paths.state / _DIRECTORY / key


def dead_letters(paths: SpoolPaths) -> Iterator[DeadLetter]:
    """Yield all dead letters of a spool, by target and name.

    Raises InputError if a directory cannot be read.
    """
    for key, names in _names_by_target(paths):
        directory = directory_of(paths, key)
        for name in sorted(each for each in names if each.endswith(BATCH_SUFFIX)):
            path = directory / name
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                status = path.stat()
                changed = status.st_ctime_ns
                why = _why_of(path) or Why(name, key, "", 0, changed, changed)
                is_requested = f"{name}{_TRY}" in names
                yield DeadLetter(key, name, why, status.st_size, is_requested)


def dead_letter_names(paths: SpoolPaths) -> set[str]:
    """Return the names of all batches that are dead letters. No file is read.

    Raises InputError if a directory cannot be read.
    """
    every = (name for _, names in _names_by_target(paths) for name in names)
    return {name for name in every if name.endswith(BATCH_SUFFIX)}


def _names_by_target(paths: SpoolPaths) -> Iterator[tuple[str, set[str]]]:
    """Yield each target's key, and the names of all files in its directory."""
    root = paths.state / _DIRECTORY
    for key in sorted(_names_in(root)):
        if (root / key).is_dir():
            yield key, _names_in(root / key)


def _names_in(directory: Path) -> set[str]:
    try:
        with os.scandir(directory) as entries:
            return {entry.name for entry in entries}
    except FileNotFoundError:
        return set()
    except OSError as error:
        raise InputError(f"{directory} cannot be read: {error.strerror}") from None


def request(paths: SpoolPaths, letter: DeadLetter) -> None:
    """Request another attempt to send a dead letter. Raises TargetError."""
    path = directory_of(paths, letter.key) / f"{letter.name}{_TRY}"
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise unwritable(path, error) from None


def drop(paths: SpoolPaths, letter: DeadLetter) -> None:
    """Remove a dead letter, but not its batch in the spool. Raises TargetError."""
    directory = directory_of(paths, letter.key)
    try:
        _remove(directory, letter.name)
    except OSError as error:
        raise unwritable(directory, error) from None


def _remove(directory: Path, name: str) -> None:
    # The batch is removed first: the other files have no effect without it.
    for suffix in ("", _TRY, _WHY):
        (directory / f"{name}{suffix}").unlink(missing_ok=True)


def _why_of(path: Path) -> Why | None:
    with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
        if path.exists():
            return _decoder.decode(path.with_name(path.name + _WHY).read_bytes())
    return None
