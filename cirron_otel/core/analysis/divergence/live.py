"""The comparison of a run that is being recorded with a reference."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Final

from ...spool.journal import open_scopes
from ...spool.owner import owner_of
from ...spool.paths import SpoolPaths
from ...spool.reader import BatchFile, SpoolReader
from .comparing import MAX_RANKS, Divergence, RankComparison, RunComparison
from .live_steps import LiveStep, LiveSteps
from .observed_steps import DIGESTS, ObservedStep, StepKey
from .settling import settle
from .tensors import DigestMarks, RunDigests

_PATIENCE: Final = 5
"""The polls for which a step waits for quantities that the reference has."""


class LiveComparison:
    """Compares the steps of a reference, A, with those of a run that is being recorded, B."""

    def __init__(self, reference: RunDigests, dropped: int, paths: SpoolPaths) -> None:
        """`dropped` is the number of marks that A's processes dropped; `paths` are those of B."""
        self._reference, self._dropped, self._paths = reference, dropped, paths
        self._steps = LiveSteps()
        self._owners: set[str] = set()
        self._ranks: dict[int, RankComparison] = {}

    @cached_property
    def _marks(self) -> DigestMarks:
        """The digests of B with their tensors. B has no spool before its first batch."""
        reader = SpoolReader(self._paths.root)
        return DigestMarks(reader, self._steps.names, self._steps.layouts)

    @property
    def comparison(self) -> RunComparison:
        """The comparison so far; the steps that B does not have yet count as those of A only."""
        for recorded_rank, steps in self._reference.steps.counts().items():
            rank = self._ranks.setdefault(recorded_rank or 0, RankComparison(recorded_rank))
            rank.only_a = max(steps - rank.compared, 0)
        dropped = self._dropped, self._steps.dropped
        ranks = [self._ranks[rank] for rank in sorted(self._ranks)]
        return RunComparison(ranks[:MAX_RANKS], dropped, len(ranks[MAX_RANKS:]))

    def add(self, batch: BatchFile) -> None:
        """Add a batch of B; batches are in the order in which they were sealed."""
        if (owner := owner_of(batch.name)) is not None:
            self._owners.add(owner)
        self._steps.add(batch)

    def poll(self, *, is_last: bool = False) -> Iterator[Divergence]:
        """Compare the steps that have ended; yield the first difference of each rank.

        With `is_last`, no more batches follow.
        """
        if self._steps.lacks_epoch:
            for owner in self._owners:
                self._steps.add_open(open_scopes(self._paths, owner))
        for key, step in self._steps.ended(is_last=is_last):
            reference = self._reference.steps.find(key)
            # The last step of a session may lack digests, which shows only at the end.
            is_final = is_last or (step.looks > _PATIENCE and not self._steps.is_cut(step))
            if reference is None or is_final or len(step.marks) >= len(reference.observations):
                self._steps.take(key, step)
                divergence = self._compare(key, reference, step)
                if divergence is not None:
                    yield divergence
        if is_last:
            undecided = [each for each in self._ranks.values() if each.first is None]
            yield from (each for each in map(self._settled, undecided) if each is not None)

    def _compare(
        self, key: StepKey, reference: ObservedStep | None, step: LiveStep
    ) -> Divergence | None:
        """Compare a step; return its difference if it is the first one of its rank."""
        rank = self._ranks.setdefault(key.rank, RankComparison(step.span.rank))
        if reference is None:
            rank.only_b += 1
            return None
        marks = sorted(step.marks, key=lambda each: each[:2])
        observed = ObservedStep(
            DIGESTS, step.span.rank, key.epoch, key.number, key.turn, 1, 1, marks[0][2],
            [each for *_, each in marks], self._steps.is_cut(step),
        )  # fmt: skip
        rank.observe(reference, observed)
        if rank.first is not None:
            return None
        generators = rank.generators
        is_decided = rank.is_lasting and generators is not None and generators.step != rank.start
        return self._settled(rank) if is_decided or rank.results is not None else None

    def _settled(self, rank: RankComparison) -> Divergence | None:
        settle(rank, self._reference, self._marks)
        return rank.first
