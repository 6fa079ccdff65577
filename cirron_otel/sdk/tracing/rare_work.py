"""The times of rare and long work of the SDK in scopes: digests and snapshots."""

from __future__ import annotations

import os
from collections import deque
from typing import Any, Final

rare_work: deque[tuple[Any, int]] = deque()
"""Scopes, and times inside them, ns. The flush thread removes the entries that are in records."""
_MOST: Final = 16_384


def add_rare(scope: Any, ns: int) -> None:
    """Add a time inside `scope`. Any thread may call this; above 16,384 times, it adds nothing."""
    if len(rare_work) < _MOST:
        rare_work.append((scope, ns))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=rare_work.clear)
