"""The times of rare and long work of the SDK in scopes: digests and snapshots."""

from __future__ import annotations

from collections import deque
from typing import Any

rare_work: deque[tuple[Any, int]] = deque(maxlen=16_384)
"""Scopes, and times inside them that clocks have measured exactly, ns.

Any thread appends; the flush thread removes the entries whose times are in records.
"""
