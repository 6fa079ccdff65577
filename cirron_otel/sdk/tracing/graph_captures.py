"""The CUDA graphs that are being captured; other threads must not call the CUDA runtime then."""

from __future__ import annotations

from typing import Any

captures: dict[int, Any] = {}
"""Weak references to the graphs being captured, on any thread and stream, by their ids. The
references are weak, because `capture_end` may never be called for a capture that failed."""


def is_capturing() -> bool:
    """Return whether a graph is being captured."""
    return bool(captures)
