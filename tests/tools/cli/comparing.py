"""Small spools for comparisons of two runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.core.analysis.verdicts.records import Rank, write_spool

RUN = 32 * "a"
"""The id of the run of a job with a resource."""


def job(
    folder: Path,
    forward: float = 5,
    *,
    units: int = 60,
    ranks: int = 1,
    more: Mapping[int, Mapping[str, float]] | None = None,
    resource: Mapping[str, Any] | None = None,
    fetches: int = 1,
) -> Path:
    """Write a spool of steps of 1 ms of input, `forward` ms, and 4 ms of backward.

    `more` has further scopes of single steps by number, in ms. `resource` has attributes of the
    run's resource, and a step has 1 or 2 `fetches` of 1 ms. Returns the folder.
    """
    added = more or {}
    written = []
    for number in range(ranks):
        rank = Rank(number, pid=number + 1)
        rank.resource.update(resource or {})
        for unit in range(units):
            phases: dict[str, Any] = {"data_load": 1, "forward": forward, "backward": 4}
            if fetches == 2:
                phases = {"data_load": 1, "micro_step": phases}
            rank.step(unit, {**phases, **added.get(unit, {})})
        written.append(rank)
    return write_spool(folder, written, run=None if resource is None else RUN)
