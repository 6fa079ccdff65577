"""The marks of a recording, each with the scopes around it.

The series of a mark depends on the scope that the mark is on, and on the two scopes around that. A
mark waits until its scope has arrived; if that scope is in a unit, the scopes around the unit are
looked up after the last batch.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from ....semconv import CPU_WAIT_NS, OOM, OVERHEAD_NS, PLACE
from ...records.digest_marks import MARK_NAMES, has_digest
from ...records.memory_marks import STORMLOG, STORMLOG_ERROR, MemoryMark, kind_of, memory_mark
from ...records.rows import IndexedMark, IndexedSpan, detach, device_of, shown
from ...records.run_summary import is_summary
from ..relations import (
    ABSENT,
    DOUBLE,
    INT64,
    INTEGER,
    MARK,
    NO_TEXT,
    NOTHING,
    STRING,
    TEXT,
    Block,
    Texts,
)
from .columns import Columns
from .errors import NotReducibleError
from .hashes import IdHashes
from .lanes import check
from .phases import Numbered
from .tree import ScopeTree

EVAL: Final = "eval"
EPOCH: Final = "epoch"
_MOST_LEVELS: Final = 4
"""More than the levels around a unit in which an evaluation and an epoch are searched."""
_DIGEST: Final = "a digest"
"""The kind of a mark with a digest; no text that is read is this object."""
_to_bits, _of_double = struct.Struct("<q").unpack, struct.Struct("<d").pack
MOST_WAITING: Final = 500_000
"""The maximum number of marks that wait for their scopes."""


MOST_OVERHEAD_NS: Final = 10**15
"""A mark with a longer time of tracing, eleven days, is not valid."""


def has_series(name: str | None) -> bool:
    """Return whether the marks with a name have a series, but for samples of memory and digests.

    Values of imported events of Stormlog are memory, too. Places and waits for a CPU are findings.
    """
    is_foreign = name is not None and name.startswith(STORMLOG) and name != STORMLOG_ERROR
    return name not in (OVERHEAD_NS, PLACE, CPU_WAIT_NS) and not is_foreign


def overhead_of(mark: IndexedMark) -> int:
    """Return the time of tracing that a mark records, ns; 0 for other marks."""
    value = mark.value if mark.name == OVERHEAD_NS else None
    return value if type(value) is int and 0 < value <= MOST_OVERHEAD_NS else 0


def forget_digest(mark: IndexedMark) -> None:
    """Remove the digest of a mark, which is read again if it is compared.

    The digests of tensors take much memory.
    """
    if has_digest(mark):
        mark.kind, mark.value, mark.attrs = _DIGEST, None, msgspec.Raw()


class Marks:
    """The marks of a recording, which are added ahead of the spans of their batch."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self.rows = Columns("waiting_mark")
        self._waiting: dict[str | None, list[tuple[int, IndexedMark]]] = {}
        self.samples: list[tuple[int, IndexedMark, MemoryMark, IndexedSpan | None]] = []
        """The samples of memory, each with the scope that it is on."""
        self.out_of_memory: list[tuple[int, IndexedMark]] = []
        """The out-of-memory marks."""
        self.of_summary: list[IndexedMark] = []
        """The figures of a run of which only a summary was imported."""
        self._number = 0
        self._count = 0
        """The number of marks that wait."""
        self._ids = IdHashes()
        self._plain: dict[str | None, bool] = {}
        """Whether the marks with a name have a series, if that is so for all of them."""

    def add(self, marks: Iterable[IndexedMark]) -> dict[str | None, int]:
        """Add the marks of a batch; return the times of tracing that they record, ns, by scope."""
        waiting, number, count = self._waiting, self._number, self._count
        overhead: dict[str | None, int] = {}
        ids: list[str | None] = []
        for mark in marks:
            number += 1
            ids.append(mark.id)
            check(mark.ts_ns)
            if mark.name == OVERHEAD_NS and mark.value is not None:
                ns = overhead_of(mark)
                if ns:
                    overhead[mark.span_id] = overhead.get(mark.span_id, 0) + ns
                continue  # on every scope, and figures need only the sum
            forget_digest(mark)
            detach(mark)
            count += 1
            if mark.name == OOM:
                self.out_of_memory.append((number, mark))
            elif is_summary(mark):
                self.of_summary.append(mark)
            beside = waiting.get(mark.span_id)
            if beside is None:
                waiting[mark.span_id] = [(number, mark)]
            else:
                beside.append((number, mark))
        self._number = number
        self._ids.add(ids)
        self._count = count
        if count > MOST_WAITING:
            raise NotReducibleError("too many marks wait for their scopes")
        return overhead

    def place(self, unit: int, span: IndexedSpan, inside: Sequence[Numbered]) -> None:
        """Place the marks on a unit, and on the scopes directly inside it."""
        waiting = self._waiting
        found = None if span.id is None else waiting.pop(span.id, None)
        if found is not None:
            self._count -= len(found)
            self._put(found, unit, span.rank, span.parent_id, 2, (span,))
        for _, each in inside:
            found = None if each.id is None else waiting.pop(each.id, None)
            if found is not None:
                self._count -= len(found)
                self._put(
                    found, unit, each.rank, span.parent_id, 1, (each, span),
                    is_inner=each.name == EVAL,
                )  # fmt: skip

    def place_below(
        self, unit: int, span: IndexedSpan, below: dict[str | None, list[Numbered]]
    ) -> None:
        """Place the marks on the scopes deeper inside a unit; `below` has them by their parents."""
        by_id = {each.id: each for spans in below.values() for _, each in spans}
        for parent, spans in below.items():
            around = by_id.get(parent)
            for _, each in spans:
                found = None if each.id is None else self._waiting.pop(each.id, None)
                if found is None:
                    continue
                chain = [each, around, None if around is None else by_id.get(around.parent_id)]
                self._count -= len(found)
                if chain[2] is None:
                    chain[2] = span
                is_inner, inner = False, by_id.get(each.id)
                while inner is not None:
                    is_inner |= inner.name == EVAL
                    inner = by_id.get(inner.parent_id)
                self._put(found, unit, each.rank, None, 0, chain, is_inner=is_inner)

    def _put(
        self,
        marks: Iterable[tuple[int, IndexedMark]],
        unit: int,
        rank: int | None,
        outside: str | None,
        levels: int,
        chain: Sequence[IndexedSpan | None],
        *,
        is_inner: bool = False,
    ) -> None:
        is_eval = has_epoch = False
        epoch = NO_TEXT
        for each in chain:
            if each is None:
                continue
            if each.name == EVAL:
                is_eval = True
            elif each.name == EPOCH and not has_epoch:
                epoch, has_epoch = self._texts.token_of(each.index), True
        around = self._texts.token(outside)
        for number, mark in marks:
            name = mark.name
            is_listed = self._plain.get(name)
            if is_listed is None:
                is_listed = self.is_listed(number, mark, chain)
            self.rows.add((
                number, unit, ABSENT if rank is None else rank, *self._value(mark), int(is_eval),
                epoch, int(has_epoch), around, levels, int(is_listed), self.device(mark),
                int(bool(chain)), int(is_inner),
            ))  # fmt: skip

    def is_listed(
        self, number: int, mark: IndexedMark, chain: Sequence[IndexedSpan | None]
    ) -> bool:
        """Return whether a mark has a series, and collect it if it is about memory."""
        name = mark.name
        is_listed = has_series(name)
        if kind_of(name) is not None:
            memory = memory_mark(name, mark.value, mark.attributes)
            if memory is None:
                return is_listed
            self.samples.append((number, mark, memory, chain[0] if chain else None))
            return False
        if name in MARK_NAMES:
            return mark.kind is not _DIGEST
        if name != OVERHEAD_NS:
            self._plain[name] = is_listed
        return is_listed

    def device(self, mark: IndexedMark) -> int:
        """Return the token of the device that a reading is of, or of the name of a training."""
        return self._texts.token(device_of(mark))

    def _value(self, mark: IndexedMark) -> tuple[int, int, int, int]:
        """Return the name, the time, the type and the value of a mark."""
        ts_ns = ABSENT if mark.ts_ns is None else mark.ts_ns
        return self._texts.token_of(mark.name), ts_ns, *typed_value(self._texts, mark)

    def finish(self, tree: ScopeTree, is_recorded: Callable[[str], bool]) -> None:
        """Place the marks on scopes outside of units, and those without a recorded scope.

        Raises NotReducibleError for a mark that came after its unit, or that occurs twice.
        """
        self._ids.ordered()
        for id_, marks in self._waiting.items():
            found = tree.numbered(id_)
            if found is None:
                if id_ is not None and is_recorded(id_):
                    raise NotReducibleError("a mark came after the unit that it is in")
                self._put(marks, ABSENT, None, None, 0, ())
                continue
            chain: list[IndexedSpan | None] = [found[1]]
            for _ in range(2):
                last = chain[-1]
                above = None if last is None else tree.numbered(last.parent_id)
                chain.append(None if above is None else above[1])
            self._put(marks, ABSENT, found[1].rank, None, 0, chain)
        self._waiting.clear()
        self.rows.seal()

    def blocks(self, tree: ScopeTree) -> Iterator[Block]:
        """Yield the relation `mark`, in any order, after `finish`."""
        outside: dict[int, tuple[int, int, int]] = {}
        for block in self.rows.blocks():
            keys = block["around"] * _MOST_LEVELS + block["levels"]
            distinct, which = np.unique(keys, return_inverse=True)
            for key in distinct.tolist():
                if key not in outside:
                    outside[key] = self._outside(tree, *divmod(key, _MOST_LEVELS))
            found = np.array([outside[key] for key in distinct.tolist()])
            is_eval, epoch, has_epoch = found.reshape(-1, 3)[which.reshape(-1)].T
            is_known = block["has_epoch"] == 1
            yield {
                **{name: block[name] for name in MARK if name in block},
                "is_eval": block["is_eval"] | is_eval,
                "epoch": np.where(is_known, block["epoch"], np.where(has_epoch, epoch, NO_TEXT)),
            }

    def _outside(self, tree: ScopeTree, around: int, levels: int) -> tuple[int, int, int]:
        """Return whether the scopes around a unit are an evaluation, and their epoch."""
        is_eval, epoch, has_epoch = 0, NO_TEXT, 0
        id_ = self._texts.text(around)
        for _ in range(levels):
            found = tree.numbered(id_)
            if found is None:
                break
            span = found[1]
            is_eval |= span.name == EVAL
            if span.name == EPOCH and not has_epoch:
                epoch, has_epoch = self._texts.token(shown(span.index)), 1
            id_ = span.parent_id
        return int(is_eval), epoch, has_epoch


def typed_value(texts: Texts, mark: IndexedMark) -> tuple[int, int]:
    """Return the columns `type` and `value` of a mark."""
    value: Any = mark.value if mark.value is not None else mark.value_nonfinite
    if type(value) is float and math.isfinite(value):
        return DOUBLE, _to_bits(_of_double(value))[0]
    if type(value) is int and value in INT64:
        return INTEGER, value
    if value is None:
        return NOTHING, ABSENT
    if type(value) is str:
        return STRING if mark.value is not None else TEXT, texts.token_of(value)
    return TEXT, texts.token(shown(value))
