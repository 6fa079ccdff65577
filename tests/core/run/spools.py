"""Spools of seeded runs, written to a directory."""

from __future__ import annotations

from pathlib import Path

from cirron_otel.core.spool.reader import SpoolReader

Files = list[tuple[str, bytes]]


def written(folder: Path, files: Files) -> SpoolReader:
    """Write the files of a spool, and return its reader."""
    (folder / "spool").mkdir(parents=True)
    for name, data in files:
        (folder / "spool" / name).write_bytes(data)
    return SpoolReader(folder)
