"""Changes the scopes of a recording, in columns, to the canonical form."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np

from ...analysis.breakdown import STEP
from ..relations import ABSENT, NO_TEXT
from ..shapes import cirron_sdk, otlp
from ..shapes.hints import Hints
from ..shapes.producers import REQUEST, TRAINING, Producer
from ..shapes.tree import AddedScope, Kind, Tree, kind_of
from .columns import SCHEMAS, Columns

if TYPE_CHECKING:
    from .scopes import Scopes

_CANONICAL: Final = {Kind.STEP: STEP, Kind.EVALUATION: "eval", Kind.LOAD: "data_load"}
_AT: Final = {name: place for place, name in enumerate(SCHEMAS["scope"])}
_AT_ONCE: Final = 1 << 16
_HIGHEST: Final = 2**63 - 1


class Shaping:
    """The shape of the recording, applied to the columns of its scopes."""

    def __init__(self, records: Scopes, hints: Hints, wanted: str | None) -> None:
        """`wanted` is the name of the units of another service; None if it is not chosen."""
        self._records, self._hints, self._wanted = records, hints, wanted
        self._count = len(records.id)
        self._is_shaped = np.zeros(self._count, bool)
        self._like: list[int] = []
        self.unit_name = STEP
        """The recorded name of most units."""
        self.dissolved: list[int] = []
        """The recorded scopes that are not in the canonical form."""

    def recorded_row(self, row: int) -> int:
        """Return a recorded scope, or the one that an added scope was made from."""
        return row if row < self._count else self._like[row - self._count]

    @property
    def added(self) -> list[int]:
        """The rows of the scopes that are not recorded."""
        return list(range(self._count, self._count + len(self._like)))

    @property
    def is_needed(self) -> bool:
        """Whether some scopes need a shape: those of other producers, and of runs without steps."""
        if self._hints.is_needed:
            return True
        records = self._records
        names = records.column("name")[records.rows]
        wanted = [records.texts.token(self._wanted or REQUEST)]
        if self._wanted is None:
            wanted += self._training
        return bool(np.isin(names, wanted).any()) and not (
            (names == records.texts.token(STEP)).any()
        )

    @property
    def _training(self) -> list[int]:
        return [self._records.texts.token(name) for name in sorted(TRAINING)]

    def apply(self) -> None:
        """Change the columns."""
        records = self._records
        sessions, of_scope = records.sessions, records.session
        if not self._hints.is_needed:
            tree = self._tree(None)
            names = np.where(self._is_shaped, records.column("name"), NO_TEXT)
            token = records.texts.token(self._wanted or REQUEST)
            if (names == token).any():
                otlp.shape(tree, names, token)
            else:
                trains = np.isin(names, self._training) & (tree.above >= 0)
                around = np.isin(np.arange(self._count), tree.above[trains])
                otlp.shape(tree, np.where(around, names, NO_TEXT))
        elif self._hints.is_foreign:
            tree = self._tree(Producer.FOREIGN)
            names = np.where(self._is_shaped, records.column("name"), NO_TEXT)
            if self._wanted is None and (names == records.texts.token(STEP)).any():
                return
            wanted = None if self._wanted is None else records.texts.token(self._wanted)
            otlp.shape(tree, names, wanted)
        else:
            tree = self._tree(Producer.CIRRON_SDK)
            cirron_sdk.shape(tree)
        self._name_units(tree)
        self._like = [each.like for each in tree.added]
        self.dissolved = sorted(tree.into)
        records.replace(
            self._table(tree),
            ids=self._ids(tree.new_ids),
            id_=np.r_[records.id, np.array([each.id for each in tree.added], np.int64)],
            parent=np.r_[tree.parent, np.array([each.parent for each in tree.added], np.int64)],
            aliases={int(tree.id[row]): id_ for row, id_ in tree.into.items()},
            rows=np.r_[np.setdiff1d(records.rows, self.dissolved), np.array(self.added, np.int64)],
            found=(sessions, np.r_[of_scope, of_scope[np.array(self._like, np.int64)]]),
        )

    def _tree(self, producer: Producer | None) -> Tree:
        """Return the scopes, of which those of a producer are changed; None for all scopes."""
        records, hints = self._records, self._hints
        is_shaped = self._is_shaped
        if producer is None:
            is_shaped[:] = True
        else:
            for first, end in hints.ranges(producer):
                is_shaped[first:end] = True
        counts = np.zeros(self._count, bool)
        counts[records.rows] = True
        is_shaped &= counts
        tokens, which = np.unique(records.column("name"), return_inverse=True)
        kinds = np.array([kind_of(records.texts.text(each)) for each in tokens.tolist()], np.int8)
        kind = np.where(is_shaped, kinds[which.reshape(-1)], Kind.OTHER)
        columns = ("start_ns", "end_ns", "pid", "thread_id")
        start, end_, pid, thread = (records.column(name).tolist() for name in columns)
        return Tree(
            kind=kind, id=records.id, parent=np.where(counts, records.parent, -1),
            above=records.above, start=start, end=end_, pid=pid,
            lane=list(zip(pid, thread, strict=True)),
            load_ns={row: ns for row, ns in hints.load_ns.items() if is_shaped[row]},
            in_eval_mode=frozenset(
                row for row in hints.in_eval_mode if kind[row] == Kind.FORWARD
            ),
            ids=records.id_count,
        )  # fmt: skip

    def _name_units(self, tree: Tree) -> None:
        names = self._records.column("name")
        units = (row for row, kind in tree.name.items() if kind is Kind.STEP)
        counts = Counter(int(names[row]) for row in units)
        counts[self._records.texts.token("optimizer_step")] += sum(
            each.kind is Kind.STEP for each in tree.added
        )
        [(token, count)] = counts.most_common(1)
        if count:
            self.unit_name = self._records.texts.text(token) or "?"

    def _table(self, tree: Tree) -> np.ndarray:
        """Return the columns of all scopes, changed, in a file if they are large."""
        records = self._records
        columns = {
            "name": records.column("name").copy(),
            "start_ns": np.array(tree.start, np.int64),
            "end_ns": np.array(tree.end, np.int64),
        }
        for row, kind in tree.name.items():
            columns["name"][row] = records.texts.token(_CANONICAL[kind])
        found = Columns("scope")
        for first in range(0, self._count, _AT_ONCE):
            some = records.table[first : first + _AT_ONCE].copy()
            for name, values in columns.items():
                some[:, _AT[name]] = values[first : first + _AT_ONCE]
            found.append(some)
        found.add_all([self._row(each) for each in tree.added])
        table: np.ndarray = found.table()
        return table

    def _row(self, added: AddedScope) -> tuple[int, ...]:
        texts = self._records.texts
        row = dict.fromkeys(_AT, ABSENT) | dict.fromkeys(("idx", "error"), NO_TEXT)
        row |= {"flags": 0, "training": 0}
        like = {name: int(self._records.column(name)[added.like])
                for name in ("rank", "pid", "thread_id")}  # fmt: skip
        row |= like | {"start_ns": added.start_ns, "end_ns": added.end_ns}
        row["name"] = texts.token(_CANONICAL[added.kind])
        if added.index is not None:
            row["idx"] = texts.token_of(added.index)
        return tuple(row.values())

    def _ids(self, count: int) -> np.ndarray:
        """Return new ids, which come after all others in their order."""
        last = self._records.last_id
        first = last[1] + 1 if last[0] == _HIGHEST else 0
        return np.array([(_HIGHEST, first + each) for each in range(count)], np.int64).reshape(
            -1, 2
        )
