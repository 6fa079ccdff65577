"""The digests of a recorded run: its units, joined with its marks in a pass over the batches.

The rows of marks and steps are in temporary files if they are many; memory holds their orders. The
digests of single tensors stay in the batches.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Any, Final

import numpy as np

from ....errors import InputError
from ....ulp import bits_of_double
from ...records.digest_marks import GRADS, LOSS, MARK_NAMES, WEIGHTS, DigestMark, digest_mark
from ...records.rows import IndexedMark, rows_of
from ...records.trace_marks import TRACE_STEP, trace_numbers, trace_step
from ...run.load.blocks import ranges
from ...run.load.columns import Columns
from ...run.recording import Recording
from ...run.relations import ABSENT, NO_TEXT, Block, Texts, known, rows
from ...spool.reader import SpoolReader
from .numbers import ExactNumber
from .observed_steps import (
    DIGESTS,
    TRACE,
    Numbering,
    Observation,
    ObservedStep,
    StepKey,
    numbers_of,
    sortable,
    sortable_key,
)

_AT_ONCE: Final = 256
Place = tuple[int, int]
"""The number of a batch, and the position of a mark in it."""


class DigestOwners:
    """A fold over marks: the unit, the rank and the time of each by which runs are compared."""

    def __init__(self, texts: Texts) -> None:
        self._names = np.array([texts.token(name) for name in (*MARK_NAMES, TRACE_STEP)])
        self._rows = [np.zeros((0, 4), np.int64)]

    def add(self, block: Block) -> None:
        """Add some marks."""
        chosen = np.isin(block["name"], self._names)
        if chosen.any():
            columns = [block[name][chosen] for name in ("no", "unit", "rank", "ts_ns")]
            self._rows.append(np.stack(columns, axis=1))

    def result(self) -> np.ndarray:
        """Return the number, the unit, the rank and the time of each mark, by number."""
        table = np.concatenate(self._rows)
        return table[np.argsort(table[:, 0])]


class RecordedSteps:
    """The steps of a run with digests, in order of their keys."""

    def __init__(self, texts: Texts, steps: Columns, marks: Columns) -> None:
        self._texts = texts
        self._table, self._marks = steps.table(), marks.table()
        source, rank, _, no, start, epoch, number, turn, _, _, is_digested = self._table.T
        epoch, number = _ordered(epoch, texts), _ordered(number, texts)
        key = source, np.where(rank == ABSENT, 0, rank), epoch, number, turn
        order = np.lexsort((no, start, *reversed(key)))
        is_first = np.ones(len(order), bool)
        is_first[1:] = np.any([each[order][1:] != each[order][:-1] for each in key], axis=0)
        firsts, group = np.flatnonzero(is_first), np.cumsum(is_first) - 1
        attempt = np.arange(len(order)) - firsts[group] + 1
        attempts = np.diff(np.append(firsts, len(order)))[group]
        kept = is_digested[order] == 1
        self._order, self.attempts = order[kept], attempts[kept]
        """`attempts` has the number of the sessions that have each step."""
        self._attempt = attempt[kept]
        self.ranks = rank[self._order]
        """The rank of each step; `ABSENT` for a process without one."""
        self._is_digest = source[self._order] == DIGESTS
        is_last = self._is_digest & (self._attempt == self.attempts)
        across = (each[self._order] for each in (rank, turn, number, epoch))
        by_number = np.lexsort(tuple(across))
        self._across = by_number[is_last[by_number]]
        self._is_last = is_last
        by_unit = np.lexsort((self._marks[:, 1], self._marks[:, 2], self._marks[:, 0]))
        self._mark_order, self._units = by_unit, self._marks[by_unit, 0]

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, place: int) -> ObservedStep:
        if place >= len(self):
            raise IndexError(place)
        return next(self.at(np.array([place])))

    def __iter__(self) -> Iterator[ObservedStep]:
        return self.at(np.arange(len(self)))

    def across_ranks(self) -> Iterator[ObservedStep]:
        """Yield the last attempts by epoch, number and turn, and then by rank."""
        return self.at(self._across)

    def find(self, key: StepKey) -> ObservedStep | None:
        """Return the last attempt of a step; None if the run does not have it, or no digests."""
        wanted = sortable_key(key)
        place = bisect_right(self, wanted, key=lambda each: each.key)
        step = self[place - 1] if place else None
        return step if step is not None and step.key == wanted else None

    def counts(self) -> dict[int | None, int]:
        """Return the number of steps with digests of each rank, without repeated attempts."""
        return Counter(map(known, self.ranks[self._is_last].tolist()))

    def places_of(self, rank: int | None) -> np.ndarray:
        """Return the places of a rank's steps with digests."""
        wanted = ABSENT if rank is None else rank
        return np.flatnonzero(self._is_digest & (self.ranks == wanted))

    def at(self, places: np.ndarray) -> Iterator[ObservedStep]:
        """Yield the steps at some places."""
        for first in range(0, len(places), _AT_ONCE):
            some = places[first : first + _AT_ONCE]
            table = self._table[self._order[some]]
            lows = np.searchsorted(self._units, table[:, 2], "left")
            counts = np.searchsorted(self._units, table[:, 2], "right") - lows
            marks = iter(self._marks[self._mark_order[ranges(lows, counts)]].tolist())
            attempts = zip(self._attempt[some].tolist(), self.attempts[some].tolist(), strict=True)
            for row, count, attempt in zip(table.tolist(), counts.tolist(), attempts, strict=True):
                yield self._step(row, attempt, [self._observation(e) for e in islice(marks, count)])

    def _step(
        self, row: list[int], attempt: tuple[int, int], observations: list[Observation]
    ) -> ObservedStep:
        text = self._texts.text
        source, rank, _, _, _, epoch, number, turn, step, is_cut, _ = row
        if source == TRACE:  # the steps with the same number are turns
            turn, attempt, step = attempt[0], (1, 1), int(text(number) or 0)
        return ObservedStep(
            source, known(rank), text(epoch), text(number), turn, *attempt, step, observations,
            bool(is_cut),
        )  # fmt: skip

    def _observation(self, row: list[int]) -> Observation:
        texts = self._texts
        _, _, _, quantity, high, low, dtype, bits_high, bits_low, is_failed, file, position = row
        name, value, bits = (
            texts.text(quantity) or "", texts.id_of(high, low), texts.id_of(bits_high, bits_low)
        )  # fmt: skip
        if value is None:
            numbers = _of_trace(name, bits or "")
        else:
            numbers = numbers_of(texts.text(dtype), None if bits is None else int(bits, 16))
        return Observation(name, value, file, position, numbers, bool(is_failed))


def _of_trace(quantity: str, bits: str) -> tuple[ExactNumber, ...]:
    one, other = int(bits[:16], 16), int(bits[16:], 16)
    if quantity == LOSS:
        return (ExactNumber(None, "float64", one),)
    return ExactNumber("w", "float64", one), ExactNumber("b", "float64", other)


def _ordered(tokens: np.ndarray, texts: Texts) -> np.ndarray:
    """Return numbers that are in the order of the texts of some tokens."""
    if not len(tokens) or tokens.min() >= NO_TEXT:
        return tokens  # they are the numbers
    distinct, which = np.unique(tokens, return_inverse=True)
    keys = [sortable(texts.text(token)) for token in distinct.tolist()]
    places = np.empty(len(keys), np.int64)
    places[sorted(range(len(keys)), key=keys.__getitem__)] = np.arange(len(keys))
    return places[which]


def read_steps(
    recording: Recording,
    owners: np.ndarray,
    reader: SpoolReader,
    epoch_of: Callable[[str | None], str | None],
) -> tuple[RecordedSteps, Mapping[str, Place]]:
    """Return the steps of a recording, and the places of the marks that have names of tensors.

    `owners` is the result of `DigestOwners`, and `epoch_of` returns the number of the epoch around
    a scope. Raises InputError if a batch has been removed.
    """
    steps, marks = Columns("digested_step"), Columns("digest")
    layouts: dict[str, Place] = {}
    at = before = 0
    for file, name in enumerate(recording.files()):
        if at == len(owners):
            break
        batch = reader.read(name, check=False)
        if batch is None:
            raise InputError(f"the batch {name} was removed while its run was read")
        in_batch = rows_of(batch.data).marks
        end = int(np.searchsorted(owners[:, 0], before + len(in_batch), "right"))
        for no, unit, rank, ts_ns in owners[at:end].tolist():
            place = file, no - before - 1
            mark = in_batch[place[1]]
            if mark.name == TRACE_STEP:
                _add_trace(steps, marks, recording.texts, mark, no, rank, place)
            elif unit != ABSENT:
                order = unit, no, 0 if ts_ns == ABSENT else ts_ns
                _add_digest(marks, layouts, recording.texts, mark, order, place)
        at, before = end, before + len(in_batch)
    _add_units(steps, recording, np.unique(marks.table()[:, 0]), epoch_of)
    return RecordedSteps(recording.texts, steps, marks), layouts


def note_layout(layouts: dict[str, Place], digest: DigestMark, place: Place) -> None:
    """Add the place of a mark if it has the names of tensors."""
    if digest.tensors is not None and "names" in digest.tensors:
        layouts.setdefault(str(digest.tensors.get("layout")), place)


def _add_digest(
    marks: Columns, layouts: dict[str, Place], texts: Texts, mark: IndexedMark,
    order: tuple[int, int, int], place: Place,
) -> None:  # fmt: skip
    digest = digest_mark(mark.name, mark.value, mark.attributes)
    if digest is None:
        return
    note_layout(layouts, digest, place)
    bits = None if digest.bits is None else f"{digest.bits:032x}"
    marks.add((
        *order, texts.token(digest.quantity), *texts.halves(digest.digest),
        texts.token(digest.dtype), *texts.halves(bits), int(digest.failed is not None), *place,
    ))  # fmt: skip


def _add_trace(
    steps: Columns, marks: Columns, texts: Texts, mark: IndexedMark, no: int, rank: int,
    place: Place,
) -> None:  # fmt: skip
    """Add a step of a trace, with its quantities in causal order."""
    loss: Any = mark.value if mark.value is not None else mark.value_nonfinite
    step = trace_step(loss, mark.attributes)
    if step is None:
        return
    number = texts.token(str(step.step_id))
    steps.add((TRACE, rank, -no, no, 0, NO_TEXT, number, 0, 0, 0, 1))
    bits = [bits_of_double(each) for each in (float(loss), 0.0, *trace_numbers(step.numbers))]
    for at, quantity in enumerate((LOSS, GRADS, WEIGHTS)):
        halves = texts.halves("".join(f"{each:016x}" for each in bits[2 * at : 2 * at + 2]))
        nothing = ABSENT, NO_TEXT
        marks.add((-no, no, 0, texts.token(quantity), *nothing, NO_TEXT, *halves, 0, *place))


def _add_units(
    steps: Columns,
    recording: Recording,
    digested: np.ndarray,
    epoch_of: Callable[[str | None], str | None],
) -> None:
    """Add the units, of a session with digests from the first one with digests on.

    The ones before are batches that a resumed training has skipped.
    """
    texts = recording.texts
    epoch_token = cache(lambda parent: texts.token(epoch_of(texts.text(parent))))
    with_digests: set[tuple[int, int]] = set()
    for units, _ in recording.unit_blocks():
        chosen = np.isin(units["no"], digested)
        sessions = recording.unit_sessions(units)
        keys = units["rank"][chosen].tolist(), sessions[chosen].tolist()
        with_digests |= set(zip(*keys, strict=True))
    numberings: dict[tuple[int, int], Numbering] = {}
    last: dict[tuple[int, int], tuple[int, ...]] = {}
    counts: Counter[int] = Counter()
    for units, _ in recording.unit_blocks():
        of_session = recording.unit_sessions(units).tolist()
        have = np.isin(units["no"], digested).tolist()
        fields = rows(units, "rank", "no", "start_ns", "parent", "idx", "error")
        for row, session, is_digested in zip(fields, of_session, have, strict=True):
            rank, no, start, parent, idx, error = row
            key = rank, session
            if not is_digested and key in with_digests and key not in last:
                continue
            if key in last:
                steps.add((*last[key][:9], 0, last[key][10]))
            epoch = epoch_token(parent)
            numbering = numberings.setdefault(key, Numbering())
            turn = numbering.take(texts.text(epoch), texts.text(idx))
            owner = 0 if rank == ABSENT else rank
            last[key] = (
                DIGESTS, rank, no, no, start, epoch, idx, turn, counts[owner],
                int(error != NO_TEXT), int(is_digested),
            )  # fmt: skip
            counts[owner] += 1
    steps.add_all(list(last.values()))
