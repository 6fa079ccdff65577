"""A tracker for Accelerate: `Accelerator(log_with=CirronTracker())`.

Accelerate is imported when `CirronTracker` is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .sdk.instrumentation.accelerate.tracker import CirronTracker

__all__ = ["CirronTracker"]

if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from .sdk.instrumentation.accelerate.tracker import CirronTracker  # noqa: PLC0415

        return CirronTracker
