"""The folds over a run's units, and those over its marks, each in one pass."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...semconv import CPU_WAIT_NS, DDP_EXPOSED
from ..analysis.breakdown import Breakdown
from ..analysis.divergence.recorded_steps import DigestOwners
from .accounts import AccountNames
from .figures.breakdowns import RankFold
from .figures.durations import sum_of
from .figures.failures import Failures
from .figures.ledger_fold import LedgerFold
from .figures.outside import OutsideScopes
from .figures.places import PlacesFold
from .figures.readings import ReadingsFold
from .figures.series import SeriesFold
from .figures.slowest import SlowestFold
from .figures.timed_marks import TimedFold
from .figures.trainings import TrainingNamesFold
from .recording import Recording
from .relations import ABSENT, SUMMARY, Block, Texts


class UnitFolds:
    """The folds over units and their parts that all reports need."""

    def __init__(
        self,
        recording: Recording,
        failures: Failures,
        slowest: int,
        epoch_of: Callable[[str | None], str | None],
        accounts: AccountNames,
    ) -> None:
        texts = recording.texts
        parents = {parent for parent, _ in recording.extents}
        self.ledger = LedgerFold(
            texts, recording.sums.ranks, OutsideScopes(recording.tree, parents, texts, accounts),
            lambda token: epoch_of(texts.text(token)), accounts,
        )  # fmt: skip
        self.ranks = RankFold(recording.texts)
        self.together: Breakdown
        self.slowest = SlowestFold(recording.texts, slowest)
        self.summarised = 0
        self.device_ns: int | None = None
        self.failures = failures

    def add(self, units: Block, parts: Block) -> None:
        """Add units and their parts."""
        self.ranks.add(units, parts)
        self.ledger.add(units, parts)
        self.slowest.add(units, parts)
        self._add_device_times(units, parts)
        self.summarised += int(np.count_nonzero(units["flags"] & SUMMARY))
        self.failures.units.add(units)

    def _add_device_times(self, units: Block, parts: Block) -> None:
        """Add the device time of the units' parts, or of a unit whose parts have none."""
        of_parts = np.maximum(parts["gpu_ns"][parts["gpu_ns"] != ABSENT], 0)
        timed = np.repeat(np.arange(len(units["ns"])), units["parts"])[parts["gpu_ns"] != ABSENT]
        is_own = units["gpu_ns"] != ABSENT
        is_own[timed] = False
        if len(of_parts) or is_own.any():
            own = np.maximum(units["gpu_ns"][is_own], 0)
            self.device_ns = (self.device_ns or 0) + sum_of(of_parts) + sum_of(own)


class MarkFolds:
    """The folds over marks that all reports need."""

    def __init__(self, texts: Texts, failures: Failures) -> None:
        self.series = SeriesFold(texts)
        self.owners = DigestOwners(texts)
        self.ddp = TimedFold(texts, DDP_EXPOSED)
        """The waits of ranks in backward passes, as DistributedDataParallel measures them."""
        self.cpu_waits = TimedFold(texts, CPU_WAIT_NS)
        self.readings = ReadingsFold(texts)
        self.places = PlacesFold(texts)
        self.names = TrainingNamesFold(texts)
        self._all = (
            self.series, failures.losses, self.owners, self.ddp, self.cpu_waits, self.readings,
            self.places, self.names,
        )  # fmt: skip

    def add(self, block: Block) -> None:
        """Add marks."""
        for each in self._all:
            each.add(block)
