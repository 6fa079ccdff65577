"""Files that a command writes beside its output."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from ...errors import UsageError
from . import output


def check_files(files: Mapping[str, str | None], *sources: str) -> None:
    """Raise UsageError if a file would overwrite a source or another file."""
    paths = {option: path for option, path in files.items() if path is not None}
    for option, path in paths.items():
        for source in sources:
            _check_file(option, path, source)
    if len({os.path.realpath(path) for path in paths.values()}) < len(paths):
        raise UsageError(f"{' and '.join(paths)} name the same file: expected one for each")


def _check_file(option: str, path: str, source: str) -> None:
    """Raise UsageError if the file would overwrite the source, or be in the directory of its
    batches.
    """
    if path in ("", "-"):
        raise UsageError(f"{option} {path!r}: expected the name of a file")
    file, read = Path(path), _file_of(source)
    if file.exists() and read.exists() and file.samefile(read):
        raise UsageError(f"{option} {path} is SRC itself: name another file")
    spools = (read, read / "spool", read / ".cirron" / "spool", read.parent)
    folder = file.resolve().parent
    if any(each.is_dir() and each.name == "spool" and folder == each.resolve() for each in spools):
        raise UsageError(f"{option} {path} would be among the batches: name a file elsewhere")


def _file_of(source: str) -> Path:
    """Return the path of a source; for a database in a file, the path in its URL."""
    from ..convert.tables import location_of

    return location_of(source).path or Path(source)


def write_page(path: str, pieces: Iterable[str]) -> None:
    """Write the text of a page to a file, which a failure leaves as it was. Raises TargetError."""
    from ...core.otlp.replacing import replacing

    with replacing(path) as file:
        for piece in pieces:
            file.write(piece.encode())
    output.message(f"{path} is written: open it in a browser")
