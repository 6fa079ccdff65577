"""The digests of a quantity of all ranks of a run, step by step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from typing import Any, Final, NamedTuple

from .observed_steps import Observation
from .tensors import RunDigests

MAX_RANKS: Final = 1000
"""The most ranks that are compared."""
# A step that a restarted job repeated counts in its last attempt.
_STATES: Final = """
SELECT length(epoch), epoch, length(idx), idx, turn, rank, step, is_failed, mark.value, mark.file,
    mark.position
FROM digest_step CROSS JOIN mark ON mark.span = digest_step.span
CROSS JOIN digest USING (file, position)
WHERE source = 0 AND attempt = attempts AND quantity = ?
ORDER BY 1, 2, 3, 4, 5, rank, mark.ts_ns, mark.no
"""
Rank = int | None
Values = tuple[str | None, ...]
"""The digests of a quantity in a step as text, in order."""


class RankState(NamedTuple):
    """The digests of a quantity of one rank in one step."""

    rank: Rank
    step: int
    observations: tuple[Observation, ...]

    @property
    def values(self) -> Values:
        """The digests as text."""
        return tuple(each.value for each in self.observations)


class StepState(NamedTuple):
    """The digests of a quantity of all ranks in one step."""

    epoch: str | None
    number: str | None
    ranks: list[RankState]


def step_states(digests: RunDigests, quantity: str) -> Iterator[StepState]:
    """Yield the steps in which several ranks have complete digests of a quantity, in order."""
    rows = digests.index.rows(_STATES, quantity)
    for key, group in groupby(rows, key=lambda row: row[:5]):
        states = (
            _rank_state(rank, quantity, list(some))
            for rank, some in groupby(group, key=lambda row: row[5])
        )
        ranks = list(islice((each for each in states if each is not None), MAX_RANKS))
        if len(ranks) > 1:
            yield StepState(key[1], key[3], ranks)


def _rank_state(rank: Rank, quantity: str, rows: list[tuple[Any, ...]]) -> RankState | None:
    """Return the digests of a rank; None if one of them could not be taken completely."""
    if any(row[7] for row in rows):
        return None
    observations = [Observation(quantity, value, file, place) for *_, value, file, place in rows]
    return RankState(rank, rows[0][6], tuple(observations))


def equal_ranks(values: Iterable[tuple[Rank, object]]) -> list[set[Rank]]:
    """Return the sets of several ranks that have equal values."""
    by_value: dict[object, set[Rank]] = {}
    for rank, value in values:
        by_value.setdefault(value, set()).add(rank)
    return [ranks for ranks in by_value.values() if len(ranks) > 1]


def rank_order(rank: Rank) -> int:
    """Return a key that puts ranks in order; a process without a rank comes first."""
    return -1 if rank is None else rank
