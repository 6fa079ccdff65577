"""The comparison of a run that is being recorded with a reference."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ....errors import InputError
from ...records.digest_marks import DigestMark, Layouts, TensorDigest
from ...spool.journal import open_scopes
from ...spool.owner import owner_of
from ...spool.paths import SpoolPaths
from ...spool.reader import BatchFile
from .comparing import MAX_RANKS, Divergence, RankComparison, RunComparison
from .live_steps import LiveStep, LiveSteps
from .observed_steps import (
    DIGESTS,
    Observation,
    ObservedStep,
    StepKey,
    numbers_of,
)
from .settling import settle
from .tensors import RunDigests, kept_file

_PATIENCE: Final = 5
"""The polls for which a step waits for quantities that the reference has."""


class LiveComparison:
    """Compares the steps of a reference, A, with those of a run that is being recorded, B."""

    def __init__(self, reference: RunDigests, dropped: int, paths: SpoolPaths) -> None:
        """`dropped` is the number of marks that A's processes dropped; `paths` are those of B."""
        self._reference, self._dropped, self._paths = reference, dropped, paths
        self._steps = LiveSteps()
        self._layouts = Layouts()
        self._owners: set[str] = set()
        self._ranks: dict[int, RankComparison] = {}
        self._marks: dict[int, dict[int, DigestMark]] = {}
        """The marks of each rank that its first difference may depend on."""

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
        for digest in self._steps.add(batch):
            if digest.tensors is not None:
                self._layouts.add(digest.tensors)

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
        rank = self._ranks.setdefault(key.rank, RankComparison(step.rank))
        if reference is None:
            rank.only_b += 1
            return None
        marks = sorted(step.marks, key=lambda each: each[:2])
        rank.observe(reference, _observed(key, step, marks, self._steps.is_cut(step)))
        if rank.first is not None:
            return None
        self._hold(rank, {number: mark for _, number, mark in marks})
        generators = rank.generators
        is_decided = rank.is_lasting and generators is not None and generators.step != rank.start
        return self._settled(rank) if is_decided or rank.results is not None else None

    def _settled(self, rank: RankComparison) -> Divergence | None:
        settle(rank, self._reference, self)
        return rank.first

    def _hold(self, rank: RankComparison, marks: dict[int, DigestMark]) -> None:
        """Hold the marks of a step, and those that `settle` may look up later."""
        pairs = (rank.generators and rank.generators.sides, rank.at_end)
        held = {pair[1].position for pair in pairs if pair and pair[1] is not None}
        known = self._marks.get(rank.rank or 0, {}) | marks
        self._marks[rank.rank or 0] = {
            number: mark for number, mark in known.items() if number in held or number in marks
        }

    def mark(self, observation: Observation) -> DigestMark | None:
        """Return a mark that is held; None for another one."""
        held = (marks.get(observation.position) for marks in self._marks.values())
        return next((mark for mark in held if mark is not None), None)

    def tensors(self, mark: DigestMark) -> list[TensorDigest] | None:
        """Return the digests of a mark's tensors; None if they were not recorded."""
        try:
            return None if mark.tensors is None else self._layouts.unpack(mark.tensors)
        except InputError:
            return None

    def kept_file(self, mark: DigestMark) -> Path | None:
        """Return the file that contains the tensors of a mark; None if none was stored."""
        return kept_file(self._paths, mark)


def _observed(
    key: StepKey, step: LiveStep, marks: list[tuple[int, int, DigestMark]], is_cut: bool
) -> ObservedStep:
    observations = [
        Observation(
            mark.quantity,
            mark.digest,
            0,
            number,
            numbers_of(mark.dtype, mark.bits),
            mark.failed is not None,
        )
        for _, number, mark in marks
    ]
    return ObservedStep(
        DIGESTS,
        step.rank,
        key.epoch,
        key.number,
        key.turn,
        1,
        1,
        marks[0][2].step,
        observations,
        is_cut,
    )
