"""The attributes of Lightning's checkpoints."""

from __future__ import annotations

import os
from typing import Any

SAVE, LOAD = "save", "load"


def attributes_of(operation: str, path: object) -> dict[str, Any]:
    """Return the attributes of a `checkpoint` scope: the operation, and the path if known."""
    attrs: dict[str, Any] = {"operation": operation}
    if isinstance(path, (str, os.PathLike)):
        attrs["path"] = os.fspath(path)
    return attrs
