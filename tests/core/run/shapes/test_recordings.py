"""The units of the recordings of cirron-sdk are those of the programs that were recorded."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.analysis.runs import read_runs
from cirron_otel.core.run.opening import open_run
from cirron_otel.core.run.report import report_of
from cirron_otel.core.run.spool_summary import summarise
from tests.kit.examples import examples

from .recorded import NAMES, Batches, Reading, divided, reading, recording, written

MS = 1_000_000

# For each recording: the recorded name of the units, their number in each epoch, the number of
# evaluations, the number of scopes of each phase in units, and the total of each phase in ms.
TRUTH: dict[str, tuple[str, dict[str | None, int], int, dict[str, tuple[int, float]]]] = {
    "hooks": ("step", {"0": 12, "2": 12, "4": 12}, 3, {
        "data_load": (36, 515.06), "forward": (72, 10.01), "backward": (36, 9.68),
        "optimizer_step": (36, 20.59),
    }),
    "batches": ("batch", {"0": 12, "1": 12, "2": 12}, 3, {
        "data_load": (36, 497.81), "forward": (72, 11.22), "backward": (36, 14.48),
        "optimizer_step": (36, 22.78),
    }),
    "manual": ("batch", {"0": 12, "1": 12, "2": 12}, 3, {
        "data_load": (36, 410.09), "forward": (36, 10.49), "backward": (36, 13.66),
        "optimizer_step": (36, 31.35),
    }),
    "trainer": ("step", {"0": 6, "1": 6}, 2, {
        "data_load": (24, 6.96), "forward": (24, 286.30), "backward": (24, 63.30),
        "optimizer_step": (12, 22.88),
    }),
    "requests": ("request", {None: 20}, 0, {"preprocess": (20, 50.46), "model": (20, 97.79)}),
    "loop": ("optimizer_step", {None: 8}, 0, {
        "data_load": (8, 17.20), "forward": (8, 1.70), "backward": (8, 2.98),
        "optimizer_step": (8, 2.31),
    }),
    "hooks_without_loader": ("optimizer_step", {None: 10}, 2, {
        "forward": (20, 1.27), "backward": (10, 1.42), "optimizer_step": (10, 1.81),
    }),
    "batches_of_a_range": ("batch", {"0": 5, "1": 5}, 0, {
        "forward": (20, 1.26), "backward": (10, 1.39), "optimizer_step": (10, 1.72),
    }),
    "batches_without_phases": ("batch", {None: 6}, 0, {}),
    "validations": ("step", {"0": 10, "2": 10, "4": 10, "6": 10}, 4, {
        "data_load": (40, 3.62), "forward": (80, 2.57), "backward": (40, 3.92),
        "optimizer_step": (40, 5.15),
    }),
    "accumulation": ("batch", {"0": 8, "1": 8}, 0, {
        "data_load": (16, 3.06), "forward": (32, 1.86), "backward": (16, 2.33),
        "optimizer_step": (8, 2.04),
    }),
    "ranks": ("step", {"0": 16}, 0, {
        "data_load": (16, 3.29), "forward": (32, 3.89), "backward": (16, 3.65),
        "optimizer_step": (16, 4.71),
    }),
    "estimator": ("step", {}, 0, {}),
}  # fmt: skip


@pytest.fixture(scope="module", params=NAMES)
def read(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The name of a recording, its batches, and what is read of them."""
    batches = recording(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, batches, reading(written(folder / "s", batches))


def test_units_phases_and_evaluations(read: tuple[str, Batches, Reading]) -> None:
    name, _, found = read
    unit, per_epoch, evaluations, phases = TRUTH[name]
    assert (found.name, found.per_epoch) == (unit, per_epoch)
    assert len(found.evaluations) == evaluations
    assert {
        each: (times, round(ns / MS, 2)) for each, (times, ns) in found.phases.items()
    } == phases


def test_epochs(read: tuple[str, Batches, Reading]) -> None:
    """No epoch is counted twice, and the passes of evaluations are none."""
    name, _, found = read
    expected = sorted(each for each in TRUTH[name][1] if each is not None)
    assert sorted(found.epochs) == (expected if name != "ranks" else ["0", "0"])


def test_units_do_not_overlap_and_contain_their_parts(read: tuple[str, Batches, Reading]) -> None:
    _, _, found = read
    ended: dict[int, int] = {}
    for unit in found.units:
        assert unit.start_ns >= ended.get(unit.rank, 0)
        ended[unit.rank] = unit.start_ns + unit.ns
        assert sum(ns for _, ns in unit.parts.values()) <= unit.ns
    for start_ns, ns in found.evaluations:
        for unit in found.units:
            assert unit.start_ns + unit.ns <= start_ns or unit.start_ns >= start_ns + ns - MS


def test_each_span_counts_once(read: tuple[str, Batches, Reading]) -> None:
    _, batches, found = read
    assert found.spans == sum(len(batch["spans"]) for batch in batches.values())


@pytest.mark.parametrize(
    ("name", "ms"),
    [("hooks", [40.9, 56.4, 65.9]), ("batches", [43.0, 48.9, 51.1]), ("manual", [24.2, 39.4, 46.3]),
     ("validations", [3.9, 3.2, 3.3, 3.0]), ("trainer", [15.1, 3.5])],
)  # fmt: skip
def test_evaluations_end_ahead_of_the_next_epoch(
    name: str, ms: list[float], tmp_path: Path
) -> None:
    """Some are recorded as open until the process ends."""
    found = reading(written(tmp_path / "s", recording(name)))
    assert [round(ns / MS, 1) for _, ns in found.evaluations] == ms


def test_loading_is_the_time_of_the_fetches(tmp_path: Path) -> None:
    """A fetch that is recorded on a point and on its batch counts once."""
    batches = recording("batches")
    spans = [span for batch in batches.values() for span in batch["spans"]]
    fetches = {
        span["start_ns"] - span["attrs"]["data_load_ns"]: span["attrs"]["data_load_ns"]
        for span in spans
        if span["name"] == "batch"
    }
    found = reading(written(tmp_path / "s", batches))
    assert len(found.units) == len(fetches) == 36
    for unit in found.units:
        times, ns = unit.parts["data_load"]
        assert times == 1
        fetched = fetches[unit.start_ns]
        assert fetched <= ns <= fetched * 1.01


def test_marks_keep_their_values_and_are_of_their_epoch(tmp_path: Path) -> None:
    reader = written(tmp_path / "s", recording("batches"))
    with open_run(reader, reader) as run:
        marks = {each.name: each for each in report_of(run).marks}
    assert {name: (each.count, each.is_eval) for name, each in marks.items()} == {
        "loss": (36, False), "val_loss": (3, True),
    }  # fmt: skip
    assert len(marks["loss"].epochs) == 3


def test_two_ranks_in_one_spool_are_one_run(tmp_path: Path) -> None:
    reader = written(tmp_path / "s", recording("ranks"))
    [run] = read_runs(reader).runs
    assert (run.ranks, len(run.sessions)) == ([0, 1], 2)
    found = reading(reader)
    assert [each["rank"] for each in found.ranks] == [0, 1]
    assert [each["steps"]["times"] for each in found.ranks] == [8, 8]


def test_recorded_scopes_and_sessions_are_unchanged(tmp_path: Path) -> None:
    batches = recording("batches")
    reader = written(tmp_path / "s", batches)
    summary = summarise(reader)
    assert summary.spans == 301
    with open_run(reader, reader) as run:
        [session] = run.sessions
    assert (session.id, session.spans, session.state) == (
        summary.sessions[0].id, 301, summary.sessions[0].state,
    )  # fmt: skip


@pytest.mark.hypothesis
@pytest.mark.parametrize("seed", range(examples(20, 2)))
def test_any_division_into_batches_gives_the_same_units(
    seed: int, read: tuple[str, Batches, Reading], tmp_path: Path
) -> None:
    name, batches, expected = read
    chance = random.Random(f"{name} {seed}")
    assert reading(written(tmp_path / "s", divided(batches, chance))) == expected
