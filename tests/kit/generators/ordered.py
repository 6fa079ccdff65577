"""Spools in which a scope follows what is inside it, as recorders write them."""

from __future__ import annotations

import random
from typing import Any

from tests.kit.spools.made import EPOCH_NS, encoded, made, mark, snapshot, span

_BELOW = {
    "cirron.session": ("epoch", "request", "step", "mine"),
    "epoch": ("step", "batch", "cirron.session"),
    "request": ("forward", "request"),
    "step": ("data_load", "forward", "micro_step"),
    "micro_step": ("forward", "backward"),
}


def ordered_spool(seed: int) -> list[tuple[str, bytes]]:
    """The batch files of random sessions, some of which are open, in batches cut anywhere."""
    return _Ordered(random.Random(seed)).files()


class _Ordered:
    """Writes the records of several processes one after the other."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._number = 0
        self._records: list[tuple[str, dict[str, Any]]] = []

    def files(self) -> list[tuple[str, bytes]]:
        chance = self._chance
        processes = [self._process(rank) for rank in range(chance.randint(1, 4))]
        if chance.random() < 0.5:  # batches of several processes
            places = [rank for rank, some in enumerate(processes) for _ in some]
            chance.shuffle(places)
            turns = [iter(some) for some in processes]
            records = [next(turns[place]) for place in places]
        else:
            records = [each for some in processes for each in some]
        count = chance.randint(1, 9)
        cuts = sorted(chance.randint(0, len(records)) for _ in range(count - 1))
        files = []
        for number, (first, end) in enumerate(
            zip([0, *cuts], [*cuts, len(records)], strict=True)
        ):  # fmt: skip
            batch = made(number)
            for kind, record in records[first:end]:
                batch[kind].append(record)
            if chance.random() < 0.5:
                chance.shuffle(batch["spans"])
            files.append((f"{batch['created_ns']:020d}-{batch['batch_id']}.json", encoded(batch)))
        return files

    def _process(self, rank: int) -> list[tuple[str, dict[str, Any]]]:
        self._records = []
        same = {"rank": rank, "pid": self._chance.choice([1, 100 + rank])}
        for _ in range(self._chance.randint(1, 3)):
            self._tree(None, self._chance.choice(["cirron.session"] * 3 + ["step", "epoch"]), same)
        return self._records

    def _tree(self, parent: int | None, name: str, same: dict[str, Any], depth: int = 0) -> None:
        chance, number = self._chance, self._number
        self._number += 1
        start = EPOCH_NS + chance.randint(0, 10**6)
        for _ in range(chance.randint(0, 4 if depth < 4 else 0)):
            self._tree(number, chance.choice(_BELOW.get(name, ("mine",))), same, depth + 1)
            if chance.random() < 0.2:
                self._number += 1
                self._records.append(("marks", mark(self._number, chance.choice([number, "root"]))))
        if depth < 2 and chance.random() < 0.3:
            return  # the scope is open, or was killed
        changes: dict[str, Any] = {"name": name, "start_ns": start, "end_ns": start + 10, **same}
        if chance.random() < 0.05:
            changes |= {"start_ns": None}
        if chance.random() < 0.1:
            message = chance.choice(["ValueError: no", "killed: SIGTERM"])
            changes["otel"] = {"status": {"code": 2, "message": message}}
        self._records.append(("spans", span(number, parent, **changes)))
        if chance.random() < 0.1:
            self._number += 1
            self._records.append(("snapshots", snapshot(self._number, number)))
