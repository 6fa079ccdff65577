"""Open tables by their place."""

from __future__ import annotations

import os
from typing import TypeAlias

from .bucket import BucketTables
from .directory import DirectoryTables
from .store import TableStore

Place: TypeAlias = str | os.PathLike[str] | TableStore
"""A directory, `s3://BUCKET/PREFIX`, or opened tables."""

_S3 = "s3://"


def open_tables(place: Place) -> TableStore:
    """Return the tables at a path, or at `s3://BUCKET/PREFIX`, without reading them.

    Raises UsageError for another URL, and MissingExtraError if obstore is not installed.
    """
    if not isinstance(place, str | os.PathLike):
        return place
    if os.fspath(place).startswith(_S3):
        return BucketTables(os.fspath(place))
    return DirectoryTables(place)
