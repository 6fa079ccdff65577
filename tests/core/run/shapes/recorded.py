"""The recordings of cirron-sdk, and the units in what is read of a recording."""

from __future__ import annotations

import json
import lzma
import random
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from cirron_otel.core.run.opening import open_run
from cirron_otel.core.run.relations import rows
from cirron_otel.core.run.run import Run
from cirron_otel.core.spool.reader import SpoolReader

FOLDER = Path(__file__).parents[3] / "testdata" / "cirron_sdk"
NAMES = sorted(path.name.partition(".")[0] for path in FOLDER.glob("*.xz"))
Batches = dict[str, dict[str, Any]]


def recording(name: str) -> Batches:
    """The batches of a recording by the names of their files."""
    found: Batches = json.loads(lzma.decompress((FOLDER / f"{name}.json.xz").read_bytes()))
    return found


def written(folder: Path, batches: Batches) -> SpoolReader:
    (folder / "spool").mkdir(parents=True)
    for name, batch in batches.items():
        (folder / "spool" / name).write_text(json.dumps(batch, separators=(",", ":")))
    return SpoolReader(folder)


def divided(batches: Batches, chance: random.Random) -> Batches:
    """The records in other batches, in any order."""
    spans = [span for batch in batches.values() for span in batch["spans"]]
    marks = [mark for batch in batches.values() for mark in batch["marks"]]
    chance.shuffle(spans)
    chance.shuffle(marks)
    some = next(iter(batches.values()))
    count = chance.randint(1, 7)
    found = {}
    for number in range(count):
        batch_id = f"{chance.getrandbits(128):032x}"
        batch = some | {
            "batch_id": batch_id, "spans": spans[number::count], "marks": marks[number::count],
        }  # fmt: skip
        found[f"{some['created_ns'] + chance.randrange(9):020d}-{batch_id}.json"] = batch
    return found


class Unit(NamedTuple):
    """A unit, with the parts by name: how many there are, and their time."""

    rank: int
    epoch: str | None
    index: str | None
    start_ns: int
    ns: int
    parts: dict[str, tuple[int, int]]


def units_of(run: Run) -> list[Unit]:
    """The units in order of their ranks and starts."""
    text, tree = run.recording.texts.text, run.recording.tree
    found = []
    for block, below in run.recording.unit_blocks():
        inside = rows(below, "name", "ns")
        names = ("rank", "parent", "idx", "start_ns", "ns", "parts")
        for rank, parent, index, start_ns, ns, count in rows(block, *names):
            parts: dict[str, tuple[int, int]] = {}
            for _ in range(count):
                name, part_ns = next(inside)
                times, total = parts.get(text(name) or "?", (0, 0))
                parts[text(name) or "?"] = times + 1, total + part_ns
            epoch = tree.epoch_of(text(parent), {})
            found.append(Unit(rank, epoch, text(index), start_ns, ns, parts))
    return found


class Reading(NamedTuple):
    """The units, the evaluations (start and duration) and the epochs of a recording."""

    name: str
    units: list[Unit]
    evaluations: list[tuple[int, int]]
    epochs: list[str | None]
    outside: dict[str | None, int]
    spans: int
    ranks: list[Any]

    @property
    def phases(self) -> dict[str, tuple[int, int]]:
        """The times and the total of each phase, ns."""
        found: dict[str, tuple[int, int]] = {}
        for unit in self.units:
            for name, (times, ns) in unit.parts.items():
                before = found.get(name, (0, 0))
                found[name] = before[0] + times, before[1] + ns
        return found

    @property
    def per_epoch(self) -> dict[str | None, int]:
        """The number of units of each epoch."""
        return dict(Counter(unit.epoch for unit in self.units))


def reading(reader: SpoolReader) -> Reading:
    with open_run(reader, reader) as run:
        tree = run.recording.tree
        scopes = [span for _, span in tree.scopes]
        evaluations = sorted(
            (span.start_ns or 0, (span.end_ns or 0) - (span.start_ns or 0))
            for span in scopes
            if span.name == "eval"
        )
        epochs = sorted(tree.epoch_of(span.id, {}) or "" for span in scopes if span.name == "epoch")
        return Reading(
            run.recording.unit_name, units_of(run), evaluations, list(epochs),
            dict(Counter(span.name for span in scopes)), run.spans,
            [_by_name(each.to_json()) for each in run.ranks],
        )  # fmt: skip


def _by_name(rank: dict[str, Any]) -> dict[str, Any]:
    """The figures of a rank, whose phases have the order of the recording."""
    phases = sorted(rank["phases"], key=lambda phase: str(phase["name"]))
    return rank | {"phases": phases}
