"""Open tables by their place."""

from __future__ import annotations

import os
import re
from typing import TypeAlias

from ...errors import UsageError
from .bucket import BucketTables
from .directory import DirectoryTables
from .store import TableStore

Place: TypeAlias = str | os.PathLike[str] | TableStore
"""A directory, `s3://BUCKET/PREFIX`, or opened tables."""

_S3 = "s3://"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def open_tables(place: Place) -> TableStore:
    """Return the tables at a path, or at `s3://BUCKET/PREFIX`, without reading them.

    Raises UsageError for another URL, and MissingExtraError if obstore is not installed.
    """
    if not isinstance(place, str | os.PathLike):
        return place
    path = os.fspath(place)
    if path.startswith(_S3):
        return BucketTables(path)
    if (scheme := _URL.match(path)) is not None:
        raise UsageError(
            f"tables cannot be stored at {scheme[0]}…: name a directory or s3://BUCKET/PREFIX"
        )
    return DirectoryTables(place)
