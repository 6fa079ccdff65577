"""The location of a spool and the names of its files (docs/spool-format.md, "Directory layout")."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ...errors import InputError, RefusedNameError, TargetError, UsageError

BATCH_SUFFIX = ".json"
TMP_SUFFIX = ".json.tmp"

_NAME = re.compile(r"(\d{20})-(.+)\.json", re.DOTALL | re.ASCII)
_BATCH_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,127}")
# POSIX file systems allow 255 bytes; the temporary name is four bytes longer.
_MAX_NAME_BYTES = 251


@dataclass(frozen=True, slots=True)
class SpoolPaths:
    """The directories of one spool; any of them may not exist yet."""

    root: Path
    """The parent of the other directories; `./.cirron` by default."""
    spool: Path
    """Batches only."""
    snapshots: Path
    """One directory per span with its safetensors files."""
    state: Path
    """Cursors, leases, journals and locks of this project; no batches."""

    @property
    def oom(self) -> Path:
        """One directory per span with the bundle of its out-of-memory error."""
        return self.snapshots.parent / "oom"

    @classmethod
    def under(cls, root: Path) -> SpoolPaths:
        """Return the usual layout below `root`."""
        return cls(root, root / "spool", root / "snapshots", root / "state")

    @classmethod
    def bare(cls, directory: Path) -> SpoolPaths:
        """Return the layout for a directory of batches that is not named `spool`.

        The other directories are inside it.
        """
        return cls(directory, directory, directory / "snapshots", directory / "state")


def find_spool(path: str | os.PathLike[str]) -> SpoolPaths:
    """Return the spool at `path` or inside it.

    The checks, in this order: the directory contains `spool/`, it contains `.cirron/spool/`, it is
    named `spool`, it contains a file with a batch's name. Raises InputError if all of them fail.
    """
    directory = Path(path)
    try:
        if not directory.is_dir():
            problem = "is not a directory" if directory.exists() else "does not exist"
            raise InputError(
                f"{directory} {problem}: expected a spool, or a directory that contains spool/"
            )
        for root in (directory, directory / ".cirron"):
            if (root / "spool").is_dir():
                return SpoolPaths.under(root)
        if _is_named_spool(directory):
            return SpoolPaths.under(directory.resolve().parent)
        if _holds_batches(directory):
            return SpoolPaths.bare(directory)
    except OSError as error:
        raise InputError(f"{directory} cannot be read: {_reason(error)}") from None
    raise InputError(
        f"{directory} contains no spool: expected a directory with spool/ or .cirron/spool/, or"
        f" with batch files named <created_ns>-<batch_id>.json"
    )


def spools_below(directory: Path, on_error: Callable[[InputError], None]) -> Iterator[Path]:
    """Yield the spools in a directory that is not a spool itself, in the order of their paths.

    A spool is `.cirron` with `spool/`, a directory in which `spool/` contains a batch, or one that
    contains batches itself. Links are not followed, and other hidden directories are left out.
    A directory that cannot be read is reported to `on_error`.
    """
    try:
        with os.scandir(directory) as entries:
            names = sorted(each.name for each in entries if each.is_dir(follow_symlinks=False))
        spools = {name for name in names if _is_spool(directory / name)}
    except OSError as error:
        place = error.filename or directory
        on_error(InputError(f"{place} cannot be read: {_reason(error)}"))
        return
    for name in names:
        if name in spools:
            yield directory / name
        elif not name.startswith("."):
            yield from spools_below(directory / name, on_error)


def _is_spool(directory: Path) -> bool:
    if directory.name.startswith("."):
        return directory.name == ".cirron" and (directory / "spool").is_dir()
    spool = directory / "spool"
    return (spool.is_dir() and _holds_batches(spool)) or _holds_batches(directory)


def target_spool(path: str | os.PathLike[str]) -> SpoolPaths:
    """Return the spool to write to for `path`: `path/spool/`, or `path` itself if it is a spool.

    The spool need not exist. Raises TargetError if `path` is not a directory.
    """
    directory = Path(path)
    try:
        if directory.exists() and not directory.is_dir():
            raise TargetError(f"{directory} is not a directory: name a directory for the spool")
        if (directory / "spool").is_dir():
            return SpoolPaths.under(directory)
        if _is_named_spool(directory):
            return SpoolPaths.under(directory.resolve().parent)
        if directory.is_dir() and _holds_batches(directory):
            return SpoolPaths.bare(directory)
    except OSError as error:
        raise TargetError(f"{directory} cannot be written: {_reason(error)}") from None
    return SpoolPaths.under(directory)


def file_name(created_ns: int, batch_id: str) -> str:
    """Return the name of a batch's file: its time has 20 digits, so that names sort by time.

    Raises UsageError if `created_ns` or `batch_id` cannot be used in a name.
    """
    if not 0 <= created_ns < 10**20:
        raise UsageError(f"created_ns {created_ns} does not fit into 20 digits: give a file name")
    if not _BATCH_ID.fullmatch(batch_id):
        raise UsageError(f"batch_id {batch_id[:80]!r} cannot be used in a file name: give a name")
    return f"{created_ns:020d}-{batch_id}{BATCH_SUFFIX}"


def parse_name(name: str) -> tuple[int, str] | None:
    """Return created_ns and batch_id from a batch file's name; None for any other name."""
    match = _NAME.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def checked_name(name: str) -> str:
    """Return `name` if a batch may be written under it. Raises TargetError otherwise.

    Names come from input (a converted batch contains the name of its file), so a name must not
    refer to a file outside the spool.
    """
    try:
        size = len(os.fsencode(name))
    except UnicodeEncodeError:
        raise RefusedNameError(
            f"file name {name!r} cannot be encoded: choose another name"
        ) from None
    if "/" in name or "\\" in name or "\0" in name:
        raise RefusedNameError(f"file name {name!r} contains a path separator: give a plain name")
    if not name.endswith(BATCH_SUFFIX):
        raise RefusedNameError(
            f"file name {name!r} does not end in .json: readers would not see it"
        )
    if size > _MAX_NAME_BYTES:
        raise RefusedNameError(
            f"file name of {size} bytes: at most {_MAX_NAME_BYTES} bytes are possible"
        )
    return name


def batch_names(directory: Path) -> Iterator[str]:
    """Yield the names of the batch files in `directory`, in the order of the file system."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith(BATCH_SUFFIX):
                yield entry.name


def _is_named_spool(path: Path) -> bool:
    return path.resolve().name == "spool"


def _holds_batches(directory: Path) -> bool:
    return any(parse_name(name) for name in batch_names(directory))


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
