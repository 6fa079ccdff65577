"""The open scopes of a running run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ...core.spool.paths import SpoolPaths

_MOST: Final = 100


@dataclass(frozen=True, slots=True)
class OpenScope:
    """A scope of a running process that is open."""

    rank: int | None
    name: str
    index: str | None
    start_ns: int | None
    """Unix ns."""


def open_scopes_of(paths: SpoolPaths, owners: Iterable[str]) -> list[OpenScope]:
    """Return the open scopes of the processes with these owners that are alive, at most 100.

    The outermost scope of each process comes first.
    """
    from ...core.records.rows import shown  # noqa: PLC0415 - only for running processes
    from ...core.spool.journal import read_journal  # noqa: PLC0415
    from ...core.spool.owner import is_alive  # noqa: PLC0415
    from ...errors import InputError  # noqa: PLC0415

    found: list[OpenScope] = []
    for owner in sorted(owners):
        if len(found) >= _MOST or not is_alive(paths, owner):
            continue
        try:
            journal = read_journal(paths, owner)
        except InputError:
            continue
        scopes = journal.exact.get("open") if journal is not None else None
        for each in scopes or []:
            if isinstance(each, dict):
                start, rank = each.get("start_ns"), each.get("rank")
                found.append(
                    OpenScope(
                        rank if isinstance(rank, int) else None,
                        shown(each.get("name")) or "?",
                        shown(each.get("index")),
                        start if isinstance(start, int) else None,
                    )
                )
    return found[:_MOST]
