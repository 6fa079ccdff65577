"""The cursor of a target and an owner, of the kind that the owner's batches need."""

from __future__ import annotations

from .cursor import Cursor
from .delivered import Delivered
from .owner import NONE
from .paths import SpoolPaths


def cursor_of(paths: SpoolPaths, target: str, owner: str) -> Cursor | Delivered:
    """Open the cursor of a target, by its key, and an owner (a prefix, or `owner.NONE`).

    Raises InputError if it is damaged; see `reset_cursor`.
    """
    if owner == NONE:
        return Delivered(paths, target)
    return Cursor(paths.state, target, owner)


def reset_cursor(paths: SpoolPaths, target: str, owner: str) -> Cursor | Delivered:
    """Set a damaged cursor aside and return a new one. Raises TargetError."""
    if owner == NONE:
        return Delivered.reset(paths, target)
    return Cursor.reset(paths.state, target, owner)
