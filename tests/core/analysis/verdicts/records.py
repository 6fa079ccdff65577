"""Spools made of records, for tests of the window of steps."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.kit.spools.made import OWN_VERSION

START = 1_795_000_000_000_000_000
MS = 1_000_000
Phases = dict[str, int]
"""The phases of a step by name, in ms; a nested dictionary is a scope with phases inside."""


def id_of(*names: object) -> str:
    """Return the id of the record with this key."""
    return hashlib.blake2b("/".join(map(str, names)).encode(), digest_size=16).hexdigest()


def span(
    name: str, key: object, parent: object, start: int, end: int, **more: Any
) -> dict[str, Any]:
    return {
        "id": id_of(key), "name": name, "parent_id": None if parent is None else id_of(parent),
        "index": None, "start_ns": start, "end_ns": end, "cpu_ns": None, "gpu_ns": None,
        "memory_peak_bytes": None, "thread_id": 1, "pid": 1, "rank": 0, "attrs": {},
        "mark_ids": [], **more,
    }  # fmt: skip


def mark(
    name: str, value: Any, key: object, owner: object, at: int, **attrs: Any
) -> dict[str, Any]:
    record = {
        "id": id_of("mark", key), "span_id": id_of(owner), "name": name, "value_type": "float",
        "value": value, "attrs": attrs, "ts_ns": at, "kind": "point",
    }  # fmt: skip
    if isinstance(value, str):
        record |= {"value": None, "value_nonfinite": value}
    return record


class Rank:
    """The records of one rank: a session, epochs and steps, one after the other."""

    def __init__(
        self, rank: int | None = 0, *, pid: int = 1, start: int = START, **resource: Any
    ) -> None:
        """`resource` has attributes of the resource, with `_` instead of `.`."""
        self.resource = {name.replace("_", "."): value for name, value in resource.items()}
        self.rank, self.pid, self.at, self.begun = rank, pid, start, start
        self.spans: list[dict[str, Any]] = []
        self.marks: list[dict[str, Any]] = []
        self.session = f"s{rank}.{pid}"
        self._epoch: tuple[object, int] | None = None

    def _add(self, name: str, key: object, parent: object, start: int, **more: Any) -> None:
        self.spans.append(
            span(name, key, parent, start, self.at, rank=self.rank, pid=self.pid, **more)
        )

    def epoch(self, index: int) -> None:
        """Begin an epoch; the previous one ends."""
        self._end_epoch()
        self._epoch = (f"{self.session}e{index}", self.at)
        self._index = index

    def _end_epoch(self) -> None:
        if self._epoch is not None:
            key, start = self._epoch
            self._add("epoch", key, self.session, start, index=self._index)

    def step(
        self, number: int, phases: dict[str, Any], *, gap: int = 0, gpu: Phases | None = None,
        **attrs: Any,
    ) -> str:  # fmt: skip
        """Add a step of these phases; return its key."""
        self.at += gap * MS
        start, parent = self.at, self.session if self._epoch is None else self._epoch[0]
        key = f"{parent}n{number}t{len(self.spans)}"
        self._inside(key, phases, gpu or {})
        self._add("step", key, parent, start, index=number, attrs=attrs)
        return key

    def scope(self, name: str, ms: float, **attrs: Any) -> str:
        """Add a scope beside the steps; return its key."""
        start, parent = self.at, self.session if self._epoch is None else self._epoch[0]
        self.at += round(ms * MS)
        key = f"{parent}{name}t{len(self.spans)}"
        self._add(name, key, parent, start, attrs=attrs)
        return key

    def _inside(self, parent: str, phases: dict[str, Any], gpu: Phases) -> None:
        for name, ms in phases.items():
            start, key = self.at, f"{parent}.{name}"
            if isinstance(ms, dict):
                self._inside(key, ms, gpu)
            else:
                self.at += round(ms * MS)
            if name:  # "" is time that no scope covers
                gpu_ns = round(gpu[name] * MS) if name in gpu else None
                self._add(name, key, parent, start, gpu_ns=gpu_ns)

    def mark(self, name: str, value: Any, owner: str | None = None, **attrs: Any) -> None:
        """Add a mark to a scope, or to the session."""
        key = f"{self.session}m{len(self.marks)}"
        self.marks.append(mark(name, value, key, owner or self.session, self.at, **attrs))

    def records(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return all spans, the session's included, and all marks."""
        self._end_epoch()
        self._epoch = None
        self._add("cirron.session", self.session, None, self.begun)
        return self.spans, self.marks


def write_spool(folder: Path, ranks: Iterable[Rank], run: str | None = None) -> Path:
    """Write one batch for each rank below `folder`; with `run`, each names its session and run."""
    (folder / "spool").mkdir(parents=True, exist_ok=True)
    for number, rank in enumerate(ranks):
        spans, marks = rank.records()
        name = f"{START + number:020d}-{id_of('b', number)}"
        batch = {
            "schema_version": 1, "sdk_version": OWN_VERSION, "batch_id": id_of("b", number),
            "created_ns": rank.at, "spans": spans, "marks": marks, "snapshots": [],
        }  # fmt: skip
        if run is not None:
            attributes = {"cirron.run.id": run, **rank.resource}
            batch["otel"] = {"session": spans[-1]["id"], "resource": {"attributes": attributes}}
        (folder / "spool" / f"{name}.json").write_text(json.dumps(batch))
    return folder
