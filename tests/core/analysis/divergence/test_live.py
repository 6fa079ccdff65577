"""A comparison with a run that is being recorded gives what `diff` gives afterwards."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.analysis.divergence.comparing import Divergence
from cirron_otel.core.analysis.divergence.live import LiveComparison
from cirron_otel.core.analysis.divergence.live_steps import LiveSteps
from cirron_otel.core.run.opening import open_run
from cirron_otel.core.spool.reader import BatchFile, SpoolReader

from .spools import (
    Session,
    changed,
    cut,
    drop,
    fail,
    from_step,
    record,
    session,
)
from .test_diff import diff, idle


@contextlib.contextmanager
def comparison(a: Path, b: Path) -> Iterator[LiveComparison]:
    reader = SpoolReader(a)
    with open_run(reader, reader) as run:
        assert run.digests is not None
        yield LiveComparison(run.digests, run.dropped_marks, SpoolReader(b).paths)


def live_folder(path: Path) -> Path:
    """A spool beside another one, with its journals, for the pieces of its batches."""
    folder = path.with_name(f"{path.name}-live")
    (folder / "spool").mkdir(parents=True, exist_ok=True)
    if (path / "state").exists() and not (folder / "state").exists():
        (folder / "state").symlink_to(path / "state")
    return folder


def pieces(path: Path, count: int) -> Iterator[BatchFile]:
    """The batches of a spool, each divided into several: first the marks of a piece, then spans."""
    for file in SpoolReader(path):
        batch = json.loads(file.data)
        size = -(-len(batch["marks"]) // count)
        steps = [each for each in batch["spans"] if each["name"] == "step"]
        sent = 0
        for part in range(count):
            marks = batch["marks"][part * size : (part + 1) * size]
            done = {each["span_id"] for each in batch["marks"][: (part + 1) * size]}
            done -= {each["span_id"] for each in batch["marks"][(part + 1) * size :]}
            # Steps without digests are sent with those around them.
            last = max((at for at, each in enumerate(steps, 1) if each["id"] in done), default=0)
            last = len(steps) if part == count - 1 else max(last, sent)
            spans, sent = steps[sent:last], last
            if part == count - 1:
                spans += [each for each in batch["spans"] if each["name"] != "step"]
            otel = batch["otel"] | {"running": [
                {"id": each["id"], "name": "epoch", "index": each["index"],
                 "parent_id": each["parent_id"]}
                for each in batch["spans"] if each["name"] == "epoch"
            ]}  # fmt: skip
            data = json.dumps(batch | {"spans": spans, "marks": marks, "otel": otel}).encode()
            time, _, rest = file.name.partition("-")
            name = f"{int(time) + part:0{len(time)}}-{rest}"
            written = live_folder(path) / "spool" / name
            written.write_bytes(data)
            yield BatchFile(name, written, data)


def followed(a: Path, b: Path, count: int = 20) -> tuple[list[Divergence], Any]:
    with comparison(a, live_folder(b)) as live:
        found = []
        for batch in pieces(b, count):
            live.add(batch)
            found += live.poll()
        found += live.poll(is_last=True)
        return found, live.comparison.to_json()


@pytest.mark.parametrize(
    "changes",
    [
        (),
        (from_step(0, "rng", "python"),),
        (from_step(7, "batch", "targets"),),
        (from_step(12, "grads", "fc.bias", ulps=3),),
        (from_step(29, "weights", "norm.mean"),),
        (idle,),
        (idle, from_step(21, "weights", "fc.bias")),
        (idle, from_step(17, "rng", "torch")),
        (fail(7, "batch"), fail(8, "grads"), from_step(12, "loss", "loss")),
    ],
)
def test_it_agrees_with_diff(
    tmp_path: Path, changes: tuple[Callable[[Session], None], ...]
) -> None:
    is_idle = idle in changes
    first = changed(session(), idle) if is_idle else session()
    second = changed(session(pid=2) if is_idle else first, *changes)
    sides = record(tmp_path / "a", first), record(tmp_path / "b", second)
    expected = diff(*sides)[1]
    found, document = followed(*sides)
    assert document == expected["digests"]
    first_of = [each.to_json() for each in found]
    assert first_of == ([] if expected["divergence"] is None else [expected["divergence"]])


def test_difference_is_detected_during_the_epoch(tmp_path: Path) -> None:
    first = session(epochs=1)
    second = changed(first, from_step(12, "grads", "fc.bias"))
    sides = record(tmp_path / "a", first), record(tmp_path / "b", second)
    with comparison(sides[0], live_folder(sides[1])) as live:
        found = []
        for batch in pieces(sides[1], 30):
            live.add(batch)
            found.append(len(list(live.poll())))
    assert found.index(1) == 12


def test_each_rank_has_a_first_difference(tmp_path: Path) -> None:
    ranks = [session(rank, pid=rank + 1) for rank in range(3)]
    wrong = [
        changed(ranks[0], from_step(9, "weights", "fc.bias")),
        changed(ranks[1], from_step(4, "batch", "inputs")),
        ranks[2],
    ]
    sides = record(tmp_path / "a", *ranks), record(tmp_path / "b", *wrong)
    found, document = followed(*sides)
    assert {(each.rank, each.step) for each in found} == {(0, 9), (1, 4)}
    assert document == diff(*sides)[1]["digests"]


def test_a_run_that_is_longer_or_shorter(tmp_path: Path) -> None:
    complete, resumed = session(), session(first=15)
    a, b = record(tmp_path / "a", complete), record(tmp_path / "b", resumed)
    for sides in ((a, b), (b, a)):
        found, document = followed(*sides)
        assert found == []
        assert document == diff(*sides)[1]["digests"]


def test_marks_that_were_dropped(tmp_path: Path) -> None:
    sides = record(tmp_path / "a", session()), record(tmp_path / "b", session(), every=3)
    for path, count in zip(sides, (5, 7), strict=True):
        drop(path, count)
    found, document = followed(*sides)
    assert found == []
    assert document == diff(*sides)[1]["digests"]


@pytest.mark.parametrize("is_last", [True, False])
def test_a_step_that_failed(tmp_path: Path, is_last: bool) -> None:
    second = changed(session(), lambda each: cut(each, 13, 4))
    if not is_last:
        second.steps += session().steps[14:]
    sides = record(tmp_path / "a", session()), record(tmp_path / "b", second)
    expected = diff(*sides)[1]
    found, document = followed(*sides, 60)
    assert document == expected["digests"]
    first_of = [each.to_json() for each in found]
    assert first_of == ([] if is_last else [expected["divergence"]])


def test_numbers_that_begin_again(tmp_path: Path) -> None:
    def repeat(recorded: Session) -> None:
        for step in recorded.steps[15:]:
            step.epoch, step.index = step.epoch - 1, step.index  # type: ignore[operator]

    first = session(count=30, epochs=2)
    again = changed(first, repeat)
    wrong = changed(again, from_step(20, "grads", "fc.bias"))
    sides = record(tmp_path / "a", again), record(tmp_path / "b", wrong)
    (found,), document = followed(*sides)
    assert (found.step, found.epoch, found.index) == (20, "0", "5")
    assert document == diff(*sides)[1]["digests"]


def unnumbered(recorded: Session) -> None:
    """Steps without a number of their own, in epochs."""
    for step in recorded.steps:
        step.index = None


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("changes", [(), (from_step(12, "grads", "fc.bias", ulps=3),)])
def test_steps_without_numbers_in_epochs(
    tmp_path: Path, changes: tuple[Callable[[Session], None], ...], every: int
) -> None:
    first = changed(session(), unnumbered)
    second = changed(first, *changes)
    sides = (
        record(tmp_path / "a", first),
        record(tmp_path / "b", second, every=every),
    )
    expected = diff(*sides)[1]
    assert expected["digests"]["compared"] == 30 // every
    for count in (1, 20):
        found, document = followed(*sides, count)
        assert document == expected["digests"]
        steps = [] if expected["divergence"] is None else [expected["divergence"]]
        assert [each.to_json() for each in found] == steps


def test_a_resumed_run_without_numbers_of_steps(tmp_path: Path) -> None:
    first, resumed = changed(session(), unnumbered), changed(session(first=10), unnumbered)
    sides = record(tmp_path / "a", first), record(tmp_path / "b", resumed)
    found, document = followed(*sides)
    assert found == []
    assert document == diff(*sides)[1]["digests"]
    assert document["compared"] == 20


def test_open_scopes_are_forgotten_when_they_end(tmp_path: Path) -> None:
    path = record(tmp_path, session(count=12))
    steps = LiveSteps()
    for file in SpoolReader(path):
        batch = json.loads(file.data)
        running = [
            {name: each[name] for name in ("id", "name", "index", "parent_id")}
            for each in batch["spans"]
        ]
        batch["otel"]["running"] = running
        steps.add(dataclasses.replace(file, data=json.dumps(batch).encode()))
    found = list(steps.ended(is_last=True))
    assert len(found) == 1  # the others of its session follow it
    for key, step in steps.ended(is_last=True):
        steps.take(key, step)
    assert {each.name for each in steps._scopes.values()} == {"epoch"}


def test_an_epoch_around_another_scope(tmp_path: Path) -> None:
    """The scope between a step and its epoch ends with the step's batch, or is in the journal."""
    sides = [record(tmp_path / name, session()) for name in "ab"]
    for path in sides:
        (file,) = (path / "spool").iterdir()
        batch = json.loads(file.read_text())
        for place, step in enumerate([e for e in batch["spans"] if e["name"] == "step"]):
            scope = step | {"id": f"{place:032x}", "name": "part", "mark_ids": []}
            step["parent_id"] = scope["id"]
            batch["spans"].insert(batch["spans"].index(step) + 1, scope)
        file.write_text(json.dumps(batch))
    expected = diff(*sides)[1]["digests"]
    assert expected["identical"] is True
    with comparison(*sides) as live:
        for batch_file in SpoolReader(sides[1]):
            live.add(batch_file)
            assert list(live.poll()) == []
        assert list(live.poll(is_last=True)) == []
        assert live.comparison.to_json() == expected
