"""File descriptors: the limit is raised as far as it goes, and connections are kept below it.

A connection too many is refused and counted. A descriptor too many would hit whatever needs one
next: the journal, the health endpoint, a new second process.
"""

from __future__ import annotations

import contextlib
import resource
from typing import Final, NamedTuple

RESERVED: Final = 256
"""Descriptors for files, the second process and gRPC itself; with a small limit a quarter of it."""

_PER_HTTP: Final = 1
_PER_GRPC: Final = 3
"""The client's socket, and both ends of the one to gRPC's own server (receiver/grpc_front.py)."""
_LARGEST: Final = 1 << 20
"""More are never asked for: some systems call the limit infinite, and refuse that number."""


class Connections(NamedTuple):
    """How many connections each receiver may have."""

    grpc: int
    http: int

    @property
    def descriptors(self) -> int:
        """What they take together."""
        return self.grpc * _PER_GRPC + self.http * _PER_HTTP


def available() -> int:
    """Return how many descriptors this process may have at most."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return _LARGEST if hard == resource.RLIM_INFINITY else min(hard, _LARGEST)


def raise_limit() -> int:
    """Raise the soft limit of this process to the hard one; return how many it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = available()
    if soft != resource.RLIM_INFINITY and soft < wanted:
        # Systems may refuse what they state as the hard limit.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _LARGEST if soft == resource.RLIM_INFINITY else soft


def fitting(wanted: Connections, limit: int) -> Connections:
    """Return `wanted`, or as much of it as `limit` descriptors leave room for."""
    room = limit - min(RESERVED, limit // 4)
    needed = wanted.descriptors
    if needed <= room:
        return wanted
    return Connections(*(max(each * room // needed, 1 if each else 0) for each in wanted))


def problem(wanted: Connections, limit: int) -> str:
    """Return why fewer connections than `wanted` are taken; empty if all are."""
    fits = fitting(wanted, limit)
    if fits == wanted:
        return ""
    return (
        f"{wanted.grpc} connections of gRPC and {wanted.http} of HTTP (max_connections) take"
        f" {wanted.descriptors + RESERVED} file descriptors, and there are {limit}: {fits.grpc} and"
        f" {fits.http} are taken; allow more (ulimit -Hn, LimitNOFILE=)"
    )
