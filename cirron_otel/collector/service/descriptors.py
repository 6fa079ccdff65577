"""The limit on file descriptors, and the number of connections that it allows.

A connection beyond the limit is refused and counted. Without the limit, connections could use up
the descriptors that the journal, the health endpoint and a new second process need.
"""

from __future__ import annotations

import contextlib
import resource
from typing import Final, NamedTuple

RESERVED: Final = 256
"""Descriptors reserved for files, the second process and gRPC; at most a quarter of the limit."""

_PER_HTTP: Final = 1
_PER_GRPC: Final = 3
"""Descriptors per gRPC connection: the client's socket, and both ends of the connection to gRPC's
own server (receiver/grpc/front.py)."""
_PER_TRACEML: Final = 2
"""Descriptors per connection of TraceML: to the process, and to TraceML's own aggregator."""
_LARGEST: Final = 1 << 20
"""The highest limit to set: some systems report an infinite limit and refuse to set it."""


class ConnectionLimits(NamedTuple):
    """The number of connections that each receiver may have."""

    grpc: int
    http: int
    traceml: int = 0

    @property
    def descriptors(self) -> int:
        """The number of descriptors that all these connections need."""
        return self.grpc * _PER_GRPC + self.http * _PER_HTTP + self.traceml * _PER_TRACEML


def available() -> int:
    """Return the hard limit of descriptors of this process."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return _LARGEST if hard == resource.RLIM_INFINITY else min(hard, _LARGEST)


def raise_limit() -> int:
    """Raise the soft limit of this process to the hard limit; return the soft limit after that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = available()
    if soft != resource.RLIM_INFINITY and soft < limit:
        # Some systems refuse the value that they report as the hard limit.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _LARGEST if soft == resource.RLIM_INFINITY else soft


def fitting(wanted: ConnectionLimits, limit: int) -> ConnectionLimits:
    """Return `wanted`, reduced in proportion if `limit` descriptors are too few for it."""
    room = limit - min(RESERVED, limit // 4)
    needed = wanted.descriptors
    if needed <= room:
        return wanted
    return ConnectionLimits(*(max(each * room // needed, 1 if each else 0) for each in wanted))


def problem(wanted: ConnectionLimits, limit: int) -> str:
    """Return a warning if `limit` descriptors are too few for `wanted`; else an empty string."""
    fits = fitting(wanted, limit)
    if fits == wanted:
        return ""
    names = ("gRPC", "HTTP", "TraceML") if wanted.traceml else ("gRPC", "HTTP")
    pairs = " and ".join(f"{number} {name}" for number, name in zip(wanted, names, strict=False))
    accepted = " and ".join(str(number) for number, _ in zip(fits, names, strict=False))
    return (
        f"{pairs} connections (max_connections) need"
        f" {wanted.descriptors + RESERVED} file descriptors, and the limit is {limit}: only"
        f" {accepted} are accepted; raise the limit (ulimit -Hn, LimitNOFILE=)"
    )
