"""Advice for paths of Parquet files that are named without the prefix of their format."""

from __future__ import annotations

import contextlib
from pathlib import Path

from ...core.columns.layout import RUN_PREFIX, SUFFIX
from ...core.columns.schema import BATCHES


def hint_for(path: Path) -> str | None:
    """Return the advice for a directory of tables, or for a Parquet file, without the prefix."""
    if path.suffix.lower() == SUFFIX:
        return (
            f"{path} is a single Parquet file, which is not a recording: name the directory of"
            " columnar tables, as parquet:DIR"
        )
    with contextlib.suppress(OSError):
        if any((path / BATCHES).glob(f"{RUN_PREFIX}*")):
            return f"{path} contains columnar tables: name them parquet:{path}"
    return None
