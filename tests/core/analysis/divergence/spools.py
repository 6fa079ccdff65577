"""Spools of runs with digests, by the definition of docs/digests.md; no training is needed."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.core.analysis.verdicts.records import (
    START,
    Rank,
    id_of,
    write_spool,
)

QUANTITIES = ("rng", "batch", "loss", "grads", "weights", "optimizer")
TENSORS = {
    "rng": ["python", "torch"],
    "batch": ["inputs", "targets"],
    "loss": ["loss"],
    "grads": ["fc.weight", "fc.bias"],
    "weights": ["fc.weight", "fc.bias", "norm.mean"],
    "optimizer": ["fc.weight.momentum", "group0.lr"],
}
Values = dict[str, list[float]]
"""The tensors of a quantity by name."""


@dataclass
class Quantity:
    """A quantity of a step; its tensors have the dtype float32."""

    name: str
    tensors: Values
    occurrence: int = 0
    failed: str | None = None
    """The reason why tensors are missing."""


@dataclass
class Step:
    """A step with its quantities, in causal order."""

    number: int
    epoch: int | None
    index: int | None
    quantities: list[Quantity] = field(default_factory=list)
    shape: str = ""
    """A description of the shape of the loss; it is part of its digest."""
    error: str | None = None
    """The message of the exception that ended the step."""

    def tensors(self, quantity: str) -> Values:
        """The tensors of the first digest of a quantity."""
        return next(each.tensors for each in self.quantities if each.name == quantity)

    def tensor(self, quantity: str, name: str, occurrence: int = 0) -> list[float]:
        return next(
            each.tensors[name]
            for each in self.quantities
            if each.name == quantity and each.occurrence == occurrence
        )


@dataclass
class Session:
    """The steps of a process."""

    rank: int | None = 0
    steps: list[Step] = field(default_factory=list)
    pid: int = 1
    is_sharded: bool = False
    """Whether the digests are those of parts of sharded tensors."""


def values(*names: object) -> list[float]:
    """Five numbers that follow from the names."""
    text = hashlib.sha256("/".join(map(str, names)).encode()).digest()
    return [each / 2**16 for each in struct.unpack("<5i", text[:20])]


def session(
    rank: int | None = 0, *, count: int = 30, epochs: int = 3, first: int = 0, shared: bool = True,
    pid: int = 1,
) -> Session:  # fmt: skip
    """A run of `count` steps, from the step `first` on; each step has all quantities.

    With `shared`, gradients and weights are the same in all ranks, as with DDP.
    """
    recorded = Session(rank, pid=pid)
    length = -(-count // epochs)
    for number in range(first, count):
        step = Step(number - first, number // length, number % length)
        for name in QUANTITIES:
            is_common = shared and name in ("grads", "weights", "optimizer")
            of_rank = "all" if is_common else rank
            tensors = {each: values(name, each, number, of_rank) for each in TENSORS[name]}
            if name == "loss":
                tensors = {"loss": tensors["loss"][:1]}
            step.quantities.append(Quantity(name, tensors))
        recorded.steps.append(step)
    return recorded


def changed(recorded: Session, *changes: Callable[[Session], None]) -> Session:
    """A copy with changes."""
    result = copy.deepcopy(recorded)
    for change in changes:
        change(result)
    return result


def bits(value: float) -> int:
    found: int = struct.unpack("<I", struct.pack("<f", value))[0]
    return found


def moved(value: float, ulps: int = 1) -> float:
    """The float32 that is some ULPs farther from zero."""
    result: float = struct.unpack("<f", struct.pack("<I", bits(value) + ulps))[0]
    return result


def from_step(
    number: int, quantity: str, tensor: str, *, ulps: int = 1, element: int = 0, later: bool = True
) -> Callable[[Session], None]:
    """Change an element of a tensor at a step, and everything after it in that and later steps."""

    def change(recorded: Session) -> None:
        for step in recorded.steps[number:]:
            reached = step.number > recorded.steps[number].number
            for each in step.quantities:
                for name, numbers in each.tensors.items():
                    is_place = not reached and (each.name, name) == (quantity, tensor)
                    if is_place or (reached and each.name not in ("rng", "batch")):
                        numbers[element if is_place else 0] = moved(
                            numbers[element if is_place else 0], ulps if is_place else 7
                        )
                    reached = reached or is_place
            if not later:
                return

    return change


def record(
    folder: Path, *sessions: Session, tensors: bool = True, every: int = 1, run: str = "r"
) -> Path:
    """Write a spool in which each of the sessions has its digests."""
    return write_spool(folder, map(_ranks(tensors, every), sessions), run)


def _ranks(tensors: bool, every: int) -> Callable[[Session], Rank]:
    def rank_of(recorded: Session) -> Rank:
        rank = Rank(recorded.rank, pid=recorded.pid, start=START + recorded.pid * 10**12)
        named: set[str] = set()
        epoch = None
        for step in recorded.steps:
            if step.epoch is not None and step.epoch != epoch:
                rank.epoch(step.epoch)
                epoch = step.epoch
            key = rank.step(step.number if step.index is None else step.index, {"forward": 1})
            if step.error is not None:
                rank.spans[-1]["otel"] = {"status": {"code": 2, "message": step.error}}
            if step.index is None:
                rank.spans[-1]["index"] = None
            if step.number % every == 0:
                rank.marks += list(_marks(recorded, step, key, rank.at, tensors, named))
        return rank

    return rank_of


def _marks(
    recorded: Session, step: Step, owner: str, at: int, tensors: bool, named: set[str]
) -> Iterator[dict[str, Any]]:
    for place, each in enumerate(step.quantities):
        records = b"".join(
            hashlib.sha256(_bytes(numbers)).digest()[:16]
            + b"".join(_bytes([numbers[place]]) for place in _positions(len(numbers)))
            for numbers in each.tensors.values()
        )
        attrs: dict[str, Any] = {"step": step.number, "occurrence": each.occurrence}
        if each.name == "loss" and each.tensors:
            attrs |= {"bits": f"{bits(each.tensors['loss'][0]):08x}", "dtype": "float32"}
        if each.failed is not None:
            attrs["failed"] = each.failed
        if recorded.is_sharded:
            attrs["sharded"] = True
        if tensors:
            attrs["tensors"] = _tensors(each.tensors, records, named)
        joined = step.shape.encode() if each.name == "loss" else b""
        joined += b"".join(
            name.encode() + b"\0" + hashlib.sha256(_bytes(numbers)).digest()[:16]
            for name, numbers in each.tensors.items()
        )
        key = (recorded.rank, recorded.pid, step.number, place, "digest")
        yield {
            "id": id_of(*key), "span_id": id_of(owner), "name": f"digest.{each.name}",
            "value_type": "string", "value": hashlib.sha256(joined).hexdigest()[:32],
            "attrs": attrs, "ts_ns": at - 1000 + place, "kind": "point",
        }  # fmt: skip


def _positions(count: int) -> list[int]:
    apart = max((count - 1) // 3, 1)
    return [min(each * apart, count - 1) for each in range(4)]


def _tensors(tensors: Values, records: bytes, named: set[str]) -> dict[str, Any]:
    lists = [list(tensors), ["float32"] * len(tensors), [[len(e)] for e in tensors.values()]]
    layout = hashlib.sha256(json.dumps(lists, separators=(",", ":")).encode()).hexdigest()[:16]
    packed = {"layout": layout, "packed": base64.b64encode(records).decode()}
    if layout in named:
        return packed
    named.add(layout)
    return packed | dict(zip(("names", "dtypes", "shapes"), lists, strict=True))


def _bytes(numbers: list[float]) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


def fail(number: int, quantity: str) -> Callable[[Session], None]:
    """A digest that could not be taken completely, and so has another value."""

    def change(recorded: Session) -> None:
        step = recorded.steps[number]
        for each in step.quantities:
            if each.name == quantity:
                each.tensors.popitem()
                each.failed = "targets: RuntimeError: no"

    return change


def cut(recorded: Session, number: int, count: int, *, error: str | None = "out") -> None:
    """End a run within a step, of which `count` quantities have been digested."""
    del recorded.steps[number + 1 :]
    del recorded.steps[number].quantities[count:]
    recorded.steps[number].error = error


def drop(path: Path, count: int) -> None:
    """Let the session of a recorded run have dropped marks."""
    (file,) = (path / "spool").iterdir()
    batch = json.loads(file.read_text())
    (root,) = (each for each in batch["spans"] if each["name"] == "cirron.session")
    root["attrs"]["drops.marks_buffer_full"] = count
    file.write_text(json.dumps(batch))


def leave_open(path: Path, *names: str) -> None:
    """Let the process of a recorded run be killed: its open scopes are in its journal only."""
    (file,) = (path / "spool").iterdir()
    batch = json.loads(file.read_text())
    spans = batch["spans"]
    scopes = [each for each in spans if each["name"] in names]
    del scopes[: -len(names)]
    batch["spans"] = [each for each in spans if each not in scopes]
    file.write_text(json.dumps(batch))
    owner = batch["batch_id"][:12]
    journal = {
        "version": 1, "owner": owner, "session": batch["otel"]["session"], "pid": 1, "rank": 0,
        "written_ns": 1, "sdk_version": "0", "otel": {}, "next_batch": None, "closed": [],
        "open": [each | {"end_ns": 0} for each in scopes],
    }  # fmt: skip
    (path / "state").mkdir()
    (path / "state" / f"journal-{owner}.json").write_text(json.dumps(journal))
