"""The recording of a run that an engine has opened."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Final

import numpy as np

from ...analysis.breakdown import FORWARD, STEP
from ...analysis.summary import SessionSummary
from ...engines.engine import PLACES, SPAN
from ...engines.expressions import FALSE, has_name
from ...engines.source import OpenedRun
from ...records.memory_marks import MemoryMark
from ...records.rows import IndexedMark, IndexedSpan, shown
from ...records.run_summary import SummaryValue
from ..load.lanes import LaneSums
from ..load.phases import Numbered
from ..load.places import Place
from ..load.tree import Extent, LastStep, ScopeTree, UnitsKey
from ..load.unit_builder import NotedSpan
from ..relations import Block, Texts
from .inside import UnitScopes
from .marks import EngineMarks
from .noted import PlacedSpan, noted_spans
from .sessions import EngineMembers
from .spans import read_spans
from .sums import lane_sums, unit_extents
from .units import unit_blocks

_AT_ONCE: Final = 1 << 13
_POSITION: Final = """
SELECT span.position FROM file
JOIN span ON span.no = file.first_span + ? AND span.file = file.no
WHERE file.no = ?
"""


class EngineRecording:
    """The relations of a run, which an engine reduces with SQL.

    Methods and properties raise the errors of SqlEngine. Relations are computed when they are first
    read. The engine computes units, parts and marks again for each call.
    """

    def __init__(self, run: OpenedRun, texts: Texts, block_rows: int = _AT_ONCE) -> None:
        """`block_rows` is the number of rows that the engine returns at once."""
        self.texts, self._run, self._block_rows = texts, run, block_rows
        self._engine, self._relations = run.engine, run.relations
        self._scopes = UnitScopes(run.engine, run.relations)
        self._marks = EngineMarks(run, self._scopes, texts)

    @property
    def unit_name(self) -> str:
        """The recorded name of the units."""
        return STEP

    @cached_property
    def sums(self) -> LaneSums:
        """The sums over all spans of each rank."""
        sums = lane_sums(self._engine, self._relations, self._run.mark)
        for ranks, details in self._run.details:
            sums.add_details(ranks, details)
        return sums

    @cached_property
    def tree(self) -> ScopeTree:
        """The scopes outside of units."""
        waiting: dict[str | None, list[Numbered]] = {}
        for no, span, _ in read_spans(self._engine, self._scopes.outside.select(*SPAN)):
            waiting.setdefault(span.parent_id, []).append((no, span))
        return ScopeTree(waiting)

    @cached_property
    def _placed(self) -> list[PlacedSpan]:
        return noted_spans(self._engine, self._relations, self._scopes)

    @property
    def noted(self) -> list[NotedSpan]:
        """The spans inside units that figures need, in the order of the recording."""
        return [each.noted for each in self._placed]

    @cached_property
    def extents(self) -> dict[UnitsKey, Extent]:
        """The extents of the units, with what is inside them, by parent and process."""
        extents = unit_extents(self._engine, self._relations, self._scopes)
        for each in self.noted:
            if each.span.name == STEP:
                extents[each.units].add_step(each.no, each.span)
        return extents

    @cached_property
    def _members(self) -> EngineMembers:
        noted = {each.noted.no: each for each in self._placed}
        return EngineMembers(
            self._engine, self._relations, self._scopes, self.tree, self.extents, noted,
            self._contains_units,
        )  # fmt: skip

    def _contains_units(self, id_: str) -> bool:
        """Return whether a span around scopes or units is recorded.

        A recorded span around scopes outside of units is outside of units, too. A unit may be its
        own parent.
        """
        return self.tree.numbered(id_) is not None or id_ in self._own_parents

    @cached_property
    def _own_parents(self) -> set[str]:
        step = self._relations.step
        own = step.filter((step.id == step.parent).fill_null(FALSE))
        return {id_ for (id_,) in self._engine.rows(own.select("id"))}

    def unit_blocks(self, *, by_rank: bool = True) -> Iterator[tuple[Block, Block]]:
        """Yield the units by rank, start and number, or by start, and their parts in order."""
        return unit_blocks(
            self._engine, self._relations, self.texts, self._block_rows, by_rank=by_rank
        )

    def unit_tokens(self) -> None:
        """Return None: the tokens of requests are read by `ArrangedRecording`."""

    def unit_files(self, units: Block) -> list[str]:
        """Return the name of the batch of each unit."""
        batches = self._run.batches.batches
        return [shown(batches[no // PLACES].name) or "" for no in units["no"].tolist()]

    def mark_blocks(self) -> Iterator[Block]:
        """Yield the marks in the order of the recording."""
        return self._marks.blocks(self._block_rows)

    def samples(self) -> Iterator[tuple[int, IndexedMark, MemoryMark, IndexedSpan | None]]:
        """Yield the marks about memory, each with the scope that it is on."""
        return self._marks.samples()

    def out_of_memory(self) -> Iterable[tuple[int, IndexedMark]]:
        """Yield the out-of-memory marks, each with its number."""
        return self._marks.out_of_memory()

    def sessions(self) -> list[SessionSummary]:
        """Return all sessions in order of their start; those without an id come last.

        They have no numbers of marks and snapshots.
        """
        return self._members.summaries()

    def session_of(self, number: int, units: UnitsKey | None) -> str | None:
        """Return the id of the session of a span; `units` are those that it belongs to."""
        return self._members.id_of(number, units)

    def last_step(self, session: str) -> LastStep | None:
        """Return the step of a session that started last."""
        return self._members.last_step(session)

    def unit_sessions(self, units: Block) -> np.ndarray:
        """Return the number of the session of each unit; -1 for one without a session."""
        return self._members.of_block(self.texts, units)

    def summary_values(self) -> Iterator[SummaryValue]:
        """Yield the figures of a run of which only a summary was imported."""
        rows = self._run.index.rows("SELECT name, rank, value FROM summary")
        yield from ((name, rank, value) for name, rank, value in rows)

    def place_of(self, number: int) -> Place | None:
        """Return the place of the record of the span with a number."""
        file, position = divmod(number, PLACES)
        batches = self._run.batches.batches
        if not 0 <= file < len(batches):
            return None
        of_odd = self._run.index.one(_POSITION, position, file)
        name = shown(batches[file].name) or ""
        return Place(name, position if of_odd is None else of_odd)

    def first_forward(self) -> int | None:
        """Return the number of the first forward pass with an id."""
        span = self._relations.span
        forward = span.filter(has_name(span.name, FORWARD) & span.id.notnull())
        [(number,)] = self._engine.rows(forward.aggregate(first=forward.no.min()))
        return None if number is None else int(number)

    def files(self) -> Iterator[str]:
        """Yield the names of the batches."""
        run = None if self._run.is_complete else self._run.chosen.run
        for batch in self._run.batches.batches:
            if run is None or run.batches is None or batch.name in run.batches:
                yield shown(batch.name) or ""
