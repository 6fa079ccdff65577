"""Reports of the requests and connections that a server refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

NO_SIGNAL: Final = "-"
"""The signal of a request to an unknown path or method, and of a connection."""


@dataclass(frozen=True, slots=True)
class Refused:
    """One refused request or connection."""

    signal: str
    """`traces`, `metrics`, `logs`, `cirron`, `blobs` or NO_SIGNAL."""
    reason: str
    """A value of `Reason`, or a reason that only one transport has."""
    status: str
    """The status that the client receives: an HTTP status number or the name of a gRPC code."""
    message: str
    """The text that the client receives."""


Observer = Callable[[Refused], None]
"""Called in the server's event loop for every refusal; it must not raise."""


def ignore(refused: Refused) -> None:
    """Ignore the refusal: the default observer."""
    del refused
