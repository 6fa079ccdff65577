"""The rules for units, on recordings that are made for one rule each."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.analysis.runs import read_runs
from cirron_otel.core.run.load.reducer import Reducer
from cirron_otel.core.run.opening import open_run
from cirron_otel.core.run.shapes.producers import is_cirron_sdk
from cirron_otel.core.spool.reader import SpoolReader
from cirron_otel.errors import UsageError
from tests.kit.examples import examples
from tests.kit.generators.trees import training
from tests.kit.spools.made import EPOCH_NS, OWN_VERSION, made, span
from tests.kit.spools.reports import reported

from .recorded import Reading, divided, reading, written

SDK = "0.3.0"
US = 1000
RULED = {
    "epoch", "step", "batch", "request", "validation", "data_load", "forward", "backward",
    "optimizer_step", "mine", "cirron.session",
}  # fmt: skip
Scope = tuple[int, int | None, str, int, int]
"""The number, the parent, the name, the start and the end in µs."""


def scope(number: int, parent: int | None, name: str, start: int, end: int, **more: Any) -> Any:
    return span(number, parent, name=name, index=None, start_ns=EPOCH_NS + start * US,
                end_ns=EPOCH_NS + end * US, **more)  # fmt: skip


def spool(folder: Path, *spans: Any, version: str = SDK, **more: Any) -> SpoolReader:
    batch = made(1, spans=list(spans), sdk_version=version, **more)
    return written(folder, {f"{EPOCH_NS:020d}-{1:032x}.json": batch})


def read(folder: Path, *spans: Any, **more: Any) -> Reading:
    return reading(spool(folder, *spans, **more))


def times(found: Reading) -> list[tuple[int, int]]:
    """The starts and the ends of the units in µs."""
    return [
        ((unit.start_ns - EPOCH_NS) // US, (unit.start_ns + unit.ns - EPOCH_NS) // US)
        for unit in found.units
    ]


@pytest.mark.parametrize(
    ("version", "is_sdk"),
    [("0.3.0", True), ("0.1.0", True), ("1.2.3rc1", True), (OWN_VERSION, False), ("", False),
     (None, False), ("otlp", False)],
)  # fmt: skip
def test_versions(version: str | None, is_sdk: bool) -> None:
    assert is_cirron_sdk(version) == is_sdk


def test_recordings_of_this_package_are_read_in_one_pass(tmp_path: Path) -> None:
    """Their batches, nested steps and loading are not interpreted."""
    spans = [
        scope(3, 2, "forward", 20, 30), scope(2, 1, "batch", 10, 40, attrs={"data_load_ns": 9}),
        scope(1, None, "step", 0, 50), scope(4, None, "validation", 60, 70),
    ]  # fmt: skip
    reader = spool(tmp_path / "s", *spans, version=OWN_VERSION)
    with open_run(reader, reader) as run:
        assert isinstance(run.recording, Reducer)
    found = reading(reader)
    assert (times(found), found.evaluations) == ([(0, 50)], [])


def test_a_canonical_recording_of_cirron_sdk_has_the_same_units(tmp_path: Path) -> None:
    spans = [
        each
        for number in range(1, 40, 4)
        for each in (
            scope(number + 1, number, "forward", 10 * number, 10 * number + 8),
            scope(number + 2, number, "optimizer_step", 10 * number + 9, 10 * number + 20),
            scope(number, None, "step", 10 * number, 10 * number + 25),
        )
    ]
    reader = spool(tmp_path / "sdk", *spans)
    with open_run(reader, reader) as run:
        assert isinstance(run.recording, Reducer)
    reported(reader, reader)
    assert reading(reader) == read(tmp_path / "own", *spans, version=OWN_VERSION)


def random_tree(seed: int, *, has_attributes: bool) -> list[Any]:
    """Scopes in any form, with names that have a rule."""
    chance = random.Random(seed)
    names = chance.sample(sorted(RULED), chance.randint(2, len(RULED)))
    found = []
    for number in range(1, 40):
        parent = chance.choice([None, *range(max(1, number - 8), number)])
        begun = chance.randrange(100_000)
        attrs = chance.choice([{}, {}, {"data_load_ns": 9000}, {"mode": "eval"}])
        ended = begun + chance.randrange(20_000)
        more = {"attrs": attrs if has_attributes else {}}
        found.append(scope(number, parent, chance.choice(names), begun, ended, **more))
    return found


@pytest.mark.hypothesis
@pytest.mark.parametrize("seed", range(examples(300, 60)))
def test_one_pass_gives_the_same_units_as_the_shape(seed: int, tmp_path: Path) -> None:
    reader = spool(tmp_path / "s", *random_tree(seed, has_attributes=seed % 2 == 1)[::-1])
    assert reported(reader, reader).spans == 39


@pytest.mark.hypothesis
@pytest.mark.parametrize("seed", range(examples(300, 40)))
def test_any_division_of_a_tree_gives_the_same_units(seed: int, tmp_path: Path) -> None:
    spans = random_tree(seed, has_attributes=True)
    batches = {f"{EPOCH_NS:020d}-{1:032x}.json": made(1, spans=spans, sdk_version=SDK)}
    expected = reading(written(tmp_path / "one", batches))
    other = divided(batches, random.Random(seed))
    assert reading(written(tmp_path / "several", other)) == expected


def test_ordinary_trainings_are_read_in_one_pass_and_equal_the_shape(tmp_path: Path) -> None:
    own = f'"sdk_version":"{OWN_VERSION}"'.encode()
    files = {
        name: json.loads(data.replace(own, b'"sdk_version":"0.3.0"'))
        for name, data in training(2, 30)
    }
    reader = written(tmp_path / "s", files)
    with open_run(reader, reader) as run:
        assert isinstance(run.recording, Reducer)
    together = reported(reader, reader).together
    assert together is not None
    assert together.steps.times > 0


def test_loading_on_a_point_and_on_its_batch_is_united(tmp_path: Path) -> None:
    found = read(
        tmp_path / "s",
        scope(1, None, "step", 100, 150),
        scope(2, 1, "data_load", 100, 101, attrs={"data_load_ns": 80 * US}),
        scope(3, 1, "batch", 102, 152, attrs={"data_load_ns": 81 * US}),
        scope(4, 3, "forward", 110, 140),
    )
    assert (found.name, times(found)) == ("batch", [(21, 152)])
    assert found.phases == {"data_load": (1, 81 * US), "forward": (1, 30 * US)}


def test_loading_on_a_batch_alone_is_a_part(tmp_path: Path) -> None:
    found = read(
        tmp_path / "s",
        scope(3, None, "batch", 102, 152, attrs={"data_load_ns": 81 * US}),
        scope(4, 3, "forward", 110, 140),
    )
    assert found.phases == {"data_load": (1, 81 * US), "forward": (1, 30 * US)}
    assert times(found) == [(21, 152)]


def test_loading_does_not_start_ahead_of_the_end_of_the_previous_unit(tmp_path: Path) -> None:
    found = read(
        tmp_path / "s",
        scope(1, None, "batch", 0, 100), scope(2, 1, "forward", 10, 90),
        scope(3, None, "batch", 150, 200, attrs={"data_load_ns": 80 * US}),
        scope(4, 3, "forward", 160, 190),
    )  # fmt: skip
    assert times(found) == [(0, 100), (100, 200)]


def test_a_load_beside_steps_is_for_the_next_step(tmp_path: Path) -> None:
    found = read(
        tmp_path / "s",
        scope(1, None, "epoch", 0, 500),
        scope(2, 1, "data_load", 20, 21, attrs={"data_load_ns": 10 * US}),
        scope(3, 1, "data_load", 40, 41, attrs={"data_load_ns": 10 * US}),
        scope(4, 1, "step", 50, 100), scope(5, 4, "forward", 50, 60),
        scope(6, 4, "optimizer_step", 80, 90),
        scope(7, 1, "data_load", 200, 201, attrs={"data_load_ns": 10 * US}),
        scope(8, 1, "forward", 210, 220, attrs={"mode": "eval"}),
        scope(9, 1, "step", 300, 400), scope(10, 9, "forward", 300, 320),
        scope(11, 9, "optimizer_step", 380, 390),
    )  # fmt: skip
    assert [unit.parts.get("data_load") for unit in found.units] == [(2, 20 * US), None]
    assert times(found) == [(11, 100), (300, 400)]
    assert [(start - EPOCH_NS, ns) for start, ns in found.evaluations] == [(191 * US, 29 * US)]


def test_steps_and_epochs_inside_each_other_are_siblings(tmp_path: Path) -> None:
    found = read(
        tmp_path / "s",
        scope(1, None, "epoch", 0, 900), scope(2, 1, "step", 10, 40),
        scope(3, 2, "optimizer_step", 20, 30), scope(4, 2, "step", 50, 80),
        scope(5, 4, "optimizer_step", 60, 70), scope(6, 4, "epoch", 100, 900),
        scope(7, 6, "step", 110, 140), scope(8, 7, "optimizer_step", 120, 130),
    )  # fmt: skip
    assert times(found) == [(10, 40), (50, 80), (110, 140)]
    assert found.outside == {"epoch": 2}
    assert [each["steps"]["total_ns"] for each in found.ranks] == [90 * US]


def test_an_evaluation_that_is_still_open_ends_with_the_next_epoch(tmp_path: Path) -> None:
    found = read(
        tmp_path / "s",
        scope(1, None, "validation", 0, 900), scope(2, 1, "epoch", 5, 50),
        scope(3, 2, "step", 10, 45), scope(4, 3, "data_load", 10, 12),
        scope(5, 1, "epoch", 100, 200), scope(6, 5, "step", 110, 140),
        scope(7, 6, "optimizer_step", 120, 130),
    )  # fmt: skip
    assert (times(found), found.outside["eval"]) == ([(110, 140)], 1)
    assert found.evaluations == [(EPOCH_NS, 100 * US)]


def test_an_epoch_is_an_evaluation_only_if_its_process_has_optimizer_steps(tmp_path: Path) -> None:
    spans = [
        scope(1, None, "epoch", 0, 90), scope(2, 1, "step", 10, 40), scope(3, 2, "forward", 20, 30),
    ]  # fmt: skip
    assert times(read(tmp_path / "without", *spans)) == [(10, 40)]
    training = [
        scope(4, None, "epoch", 100, 190), scope(5, 4, "step", 110, 140),
        scope(6, 5, "optimizer_step", 120, 130),
    ]  # fmt: skip
    found = read(tmp_path / "with", *spans, *training)
    assert (times(found), len(found.evaluations)) == ([(110, 140)], 1)
    other = read(tmp_path / "other", *spans, *(each | {"pid": 2} for each in training))
    assert (len(other.units), other.evaluations) == (2, [])


def test_scopes_around_one_optimizer_step_are_the_units(tmp_path: Path) -> None:
    spans = [
        each
        for number in range(1, 13, 3)
        for each in (
            scope(number, None, "turn", 100 * number, 100 * number + 90),
            scope(number + 1, number, "forward", 100 * number + 20, 100 * number + 40),
            scope(number + 2, number, "optimizer_step", 100 * number + 50, 100 * number + 60),
        )
    ]
    found = read(tmp_path / "s", *spans)
    assert (found.name, times(found)) == ("turn", [(100 * n, 100 * n + 90) for n in (1, 4, 7, 10)])


def test_requests_are_units_only_without_others(tmp_path: Path) -> None:
    requests = [scope(1, None, "request", 0, 50), scope(2, 1, "model", 10, 40)]
    found = read(tmp_path / "alone", *requests)
    assert (found.name, times(found), found.phases) == (
        "request",
        [(0, 50)],
        {"model": (1, 30_000)},
    )
    training = [scope(5, None, "step", 110, 140), scope(6, 5, "optimizer_step", 120, 130)]
    assert times(read(tmp_path / "both", *requests, *training)) == [(110, 140)]


def test_scopes_in_a_cycle_are_read(tmp_path: Path) -> None:
    found = read(
        tmp_path / "s",
        scope(1, 2, "step", 0, 50), scope(2, 3, "batch", 0, 50), scope(3, 1, "epoch", 0, 50),
        scope(4, 4, "step", 0, 10), scope(5, 1, "forward", 0, 10), scope(6, None, "step", 60, 70),
    )  # fmt: skip
    assert found.spans == 6
    assert (60, 70) in times(found)


FOREIGN = {"resource_spans": [{"resource": {"attributes": {}}, "scope_spans": []}]}


def items() -> list[Any]:
    """Ten items of a pipeline, each with two scopes inside, and ten others without."""
    found = [scope(1, None, "pipeline", 0, 1000)]
    for number in range(10):
        first, begun = 10 + 4 * number, 90 * number
        found += [
            scope(first, 1, "item", begun, begun + 80),
            scope(first + 1, first, "fetch", begun, begun + 50),
            scope(first + 2, first, "transform", begun + 50, begun + 70),
            scope(first + 3, 1, "log", begun + 80, begun + 89),
        ]
    return found


def test_units_of_another_service_are_the_repeated_scopes_with_others_inside(
    tmp_path: Path,
) -> None:
    found = read(tmp_path / "s", *items(), version=OWN_VERSION, otel=FOREIGN)
    assert (found.name, len(found.units)) == ("item", 10)
    assert found.phases == {"fetch": (10, 500 * US), "transform": (10, 200 * US)}


def test_own_requests_are_units_without_steps(tmp_path: Path) -> None:
    requests = [{**each, "name": "request"} if each["name"] == "item" else each for each in items()]
    found = read(tmp_path / "alone", *requests, version=OWN_VERSION)
    assert (found.name, len(found.units)) == ("request", 10)
    step = scope(90, None, "step", 2000, 2010)
    assert times(read(tmp_path / "both", *requests, step, version=OWN_VERSION)) == [(2000, 2010)]


def test_repeated_scopes_around_training_are_units_without_steps(tmp_path: Path) -> None:
    """So in recordings of Stormlog. A scope that occurs once is not a unit."""
    scopes = [scope(1, None, "job", 0, 1000), scope(2, 1, "backward", 5, 6)]
    for number in range(5):
        first = 10 + 5 * number
        begun = 100 * number
        scopes += [
            scope(first, 1, "train", begun, begun + 80),
            scope(first + 1, 1, "more", begun, begun + 99),
            scope(first + 2, first, "forward", begun, begun + 20),
            scope(first + 3, first, "optimizer_step", begun + 20, begun + 60),
            scope(first + 4, first + 1, "mine", begun + 80, begun + 90),
        ]  # fmt: skip
    found = read(tmp_path / "s", *scopes, version=OWN_VERSION)
    assert (found.name, len(found.units)) == ("train", 5)


def test_the_units_of_another_service_can_be_named(tmp_path: Path) -> None:
    reader = spool(tmp_path / "s", *items(), version=OWN_VERSION, otel=FOREIGN)
    with open_run(reader, reader, unit="log") as run:
        assert run.recording.unit_name == "log"
        assert [rank.steps.steps.total_ns for rank in run.ranks] == [90 * US]
    with (
        pytest.raises(UsageError, match="are named 'step'"),
        open_run(reader, reader, unit="nothing"),
    ):
        pass


def test_scopes_of_another_service_that_a_collector_stored_are_not_of_cirron_sdk(
    tmp_path: Path,
) -> None:
    """It stores them with the release of this package, without its suffix."""
    found = read(tmp_path / "s", *items(), version=SDK, otel=FOREIGN)
    assert (found.name, len(found.units)) == ("item", 10)


def test_scopes_of_another_service_named_step_are_its_units(tmp_path: Path) -> None:
    spans = [*items(), scope(500, 1, "step", 950, 960)]
    found = read(tmp_path / "s", *spans, version=OWN_VERSION, otel=FOREIGN)
    assert (found.name, times(found)) == ("step", [(950, 960)])


@pytest.mark.parametrize(("start", "runs"), [(40, 1), (50, 1), (51, 2), (99, 2), (200, 2)])
def test_ranks_that_ran_together_for_half_of_the_time_are_one_run(
    start: int, runs: int, tmp_path: Path
) -> None:
    spans = [
        scope(1, None, "cirron.session", 0, 100),
        scope(2, None, "cirron.session", start, start + 100, rank=1, pid=2),
    ]
    assert len(read_runs(spool(tmp_path / "s", *spans)).runs) == runs
