"""A logger for Lightning: `Trainer(logger=CirronLogger())`, and for Fabric.

`CirronLogger` is a `Logger` of each of the packages `lightning.pytorch` and `pytorch_lightning`
that is imported when the program first uses it. If none is, the package that is installed is
imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .sdk.instrumentation.lightning.logger import MarkingLogger as CirronLogger

__all__ = ["CirronLogger"]


if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name: str) -> Any:
        if name != "CirronLogger":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from .sdk.instrumentation.lightning.logger import logger_class  # noqa: PLC0415

        value = globals()[name] = logger_class(name, __name__)
        return value
