"""A recording that was read: the relations of a run, and what belongs to no unit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from ..analysis.summary import SessionSummary
from ..records.memory_marks import MemoryMark
from ..records.rows import IndexedMark, IndexedSpan
from ..records.run_summary import SummaryValue
from .load.lanes import LaneSums
from .load.places import Place
from .load.tree import Extent, LastStep, ScopeTree, UnitsKey
from .load.unit_builder import NotedSpan
from .relations import Block, Texts


class Recording(Protocol):
    """The relations of a run, read in blocks as often as needed.

    The reducer, `load.arranged`, and each engine provide one, and all are equal.
    """

    texts: Texts

    @property
    def unit_name(self) -> str:
        """The recorded name of most units, such as `step`, `batch` or `request`."""

    @property
    def sums(self) -> LaneSums:
        """Sums over all spans of each rank."""

    @property
    def tree(self) -> ScopeTree:
        """The scopes outside of units."""

    @property
    def noted(self) -> list[NotedSpan]:
        """The spans inside units that figures need."""

    @property
    def extents(self) -> Mapping[UnitsKey, Extent]:
        """The extents of the units, with what is inside them, by parent and process."""

    def unit_blocks(self, *, by_rank: bool = True) -> Iterator[tuple[Block, Block]]:
        """Yield the units by rank, start and number, and the parts of these units in order.

        Without `by_rank`, they are ordered by start and number. Figures release what they keep of
        a rank when a higher rank follows.
        """

    def mark_blocks(self) -> Iterator[Block]:
        """Yield the marks, in any order."""

    def sessions(self) -> list[SessionSummary]:
        """Return all sessions in order of their start; those without an id come last.

        They have no numbers of marks and snapshots.
        """

    def session_of(self, number: int, units: UnitsKey | None) -> str | None:
        """Return the id of the session of a span with a number.

        `units` are the units among which it is, or which it is inside of; None for other scopes.
        """

    def last_step(self, session: str) -> LastStep | None:
        """Return the step of a session that started last."""

    def unit_sessions(self, units: Block) -> np.ndarray:
        """Return the number of the session of each unit; -1 for one without a session."""

    def unit_files(self, units: Block) -> Sequence[str]:
        """Return the name of the batch of each unit."""

    def unit_tokens(self) -> int | None:
        """Return the sum of the tokens of requests; None if there are none."""

    def samples(self) -> Iterable[tuple[int, IndexedMark, MemoryMark, IndexedSpan | None]]:
        """Return the marks about memory, each with the scope that it is on."""

    def out_of_memory(self) -> Iterable[tuple[int, IndexedMark]]:
        """Return the out-of-memory marks, each with its number."""

    def summary_values(self) -> Iterable[SummaryValue]:
        """Return the figures of a run of which only a summary was imported."""

    def place_of(self, number: int) -> Place | None:
        """Return the place of the record of the span with a number."""

    def first_forward(self) -> int | None:
        """Return the number of the first forward pass with an id."""

    def files(self) -> Iterable[str]:
        """Return the names of the batches."""
