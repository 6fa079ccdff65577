"""`report` of a run with digests: the replicas whose weights diverge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.core.importers.dgrr.traces import command

from .spools import (
    Session,
    changed,
    fail,
    from_step,
    record,
    session,
)


def report(path: Path) -> Any:
    code, out, problems = command("report", path, "--json")
    assert (code, problems) == (0, "")
    return json.loads(out)["replicas"]


def ranks(count: int, **options: Any) -> list[Session]:
    return [session(rank, pid=rank + 1, **options) for rank in range(count)]


def test_equal_replicas(tmp_path: Path) -> None:
    found = report(record(tmp_path, *ranks(3)))
    assert found == {"groups": [[0, 1, 2]], "compared": 30, "divergences": []}


def test_the_rank_that_differs_is_named_with_the_step(tmp_path: Path) -> None:
    recorded = ranks(4)
    recorded[2] = changed(recorded[2], from_step(12, "weights", "fc.bias", ulps=2))
    path = record(tmp_path, *recorded)
    assert report(path)["divergences"] == [{
        "rank": 2, "step": 12, "epoch": 1, "index": 2, "quantity": "weights", "tensor": "fc.bias",
        "ulp": 2, "ranks": [0, 1, 2, 3], "odd": [2],
    }]  # fmt: skip
    lines = command("report", path, "--full")[1].splitlines()
    start = lines.index(
        "DIVERGED: the weights of rank 2 differ from those of ranks 0-1, 3 from step 12"
    )
    assert lines[start + 1] == "  (epoch 1, index 2) on: fc.bias, 2 ULP apart"
    assert command("report", path, "--html", tmp_path / "page.html")[0] == 0
    page = (tmp_path / "page.html").read_text()
    assert "the weights of rank 2 differ from those of ranks 0-1, 3 from step 12" in page


def test_of_two_ranks_neither_is_to_blame(tmp_path: Path) -> None:
    recorded = ranks(2)
    recorded[0] = changed(recorded[0], from_step(3, "weights", "fc.weight"))
    path = record(tmp_path, *recorded, tensors=False)
    (found,) = report(path)["divergences"]
    assert (found["odd"], found["step"], found["tensor"], found["ulp"]) == ([1], 3, None, None)
    assert "do not show which of the ranks" in " ".join(
        command("report", path, "--full")[1].split()
    )


def test_shards_are_not_compared(tmp_path: Path) -> None:
    assert report(record(tmp_path, *ranks(2, shared=False))) is None
    assert report(record(tmp_path / "one", session())) is None


def test_groups_of_replicas(tmp_path: Path) -> None:
    recorded = ranks(4)
    for each in recorded[2:]:
        for step in each.steps:
            step.tensor("grads", "fc.weight")[0] += 1
            step.tensor("weights", "fc.weight")[0] += 1
    recorded[3] = changed(recorded[3], from_step(20, "weights", "fc.weight"))
    found = report(record(tmp_path, *recorded))
    assert found["groups"] == [[0, 1], [2, 3]]
    assert [(each["ranks"], each["step"]) for each in found["divergences"]] == [([2, 3], 20)]


def apart(recorded: Session, *quantities: str, first: int = 0) -> None:
    """Let quantities differ by rank from a step on."""
    for step in recorded.steps[first:]:
        for quantity in quantities:
            for numbers in step.tensors(quantity).values():
                numbers[0] += recorded.pid


def constant(recorded: Session, quantity: str, until: int = 30) -> None:
    """Let a quantity have the values of the first step, up to another one."""
    for step in recorded.steps[1:until]:
        for name, numbers in step.tensors(quantity).items():
            numbers[:] = recorded.steps[0].tensor(quantity, name)


def test_replicas_that_begin_with_other_weights(tmp_path: Path) -> None:
    """Equal gradients in steps with different gradients show that they are averaged."""
    recorded = [changed(each, lambda rank: apart(rank, "weights")) for each in ranks(2)]
    (found,) = report(record(tmp_path / "two", *recorded))["divergences"]
    assert found == {
        "rank": 1, "step": 0, "epoch": 0, "index": 0, "quantity": "weights", "tensor": "fc.weight",
        "ulp": found["ulp"], "ranks": [0, 1], "odd": [1],
    }  # fmt: skip
    text = " ".join(command("report", tmp_path / "two", "--full")[1].split())
    assert (
        "DIVERGED: the weights of rank 1 differ from those of rank 0 from step 0 (epoch 0" in text
    )
    assert "the gradients are averaged, but the ranks began with other weights" in text
    # Without digests of tensors, these might be buffers.
    assert report(record(tmp_path / "step", *recorded, tensors=False)) is None
    many = [changed(each, lambda rank: apart(rank, "weights")) for each in ranks(4)]
    (found,) = report(record(tmp_path / "many", *many))["divergences"]
    assert (found["step"], found["odd"]) == (0, [1, 2, 3])


@pytest.mark.parametrize("tensors", [True, False])
@pytest.mark.parametrize("odd", [0, 2])
def test_one_of_many_begins_with_other_weights(tmp_path: Path, odd: int, tensors: bool) -> None:
    recorded = ranks(4)
    recorded[odd] = changed(recorded[odd], lambda rank: apart(rank, "weights"))
    found = report(record(tmp_path, *recorded, tensors=tensors))
    assert found["groups"] == [[0, 1, 2, 3]]
    (found,) = found["divergences"]
    assert (found["step"], found["odd"], found["rank"]) == (0, [odd], odd)
    assert found["tensor"] == ("fc.weight" if tensors else None)


@pytest.mark.parametrize("tensors", [True, False])
def test_stages_of_a_pipeline_are_not_compared(tmp_path: Path, tensors: bool) -> None:
    def stage(recorded: Session) -> None:
        apart(recorded, "grads")
        constant(recorded, "weights", until=3)
        apart(recorded, "weights", first=3)

    recorded = [changed(each, stage) for each in ranks(4)]
    assert report(record(tmp_path / "stages", *recorded, tensors=tensors)) is None
    # Two stages with two replicas each.
    for pair in (recorded[:2], recorded[2:]):
        for quantity in ("grads", "weights"):
            for step, other in zip(pair[0].steps, pair[1].steps, strict=True):
                step.tensors(quantity).update(other.tensors(quantity))
    found = report(record(tmp_path / "pairs", *recorded, tensors=tensors))
    assert (found["groups"], found["divergences"]) == ([[0, 1], [2, 3]], [])
    wrong = [*recorded[:3], changed(recorded[3], from_step(9, "weights", "fc.bias"))]
    (found,) = report(record(tmp_path / "wrong", *wrong, tensors=tensors))["divergences"]
    assert (found["step"], found["ranks"]) == (9, [2, 3])


def test_unchanging_gradients_are_not_evidence_of_averaging(tmp_path: Path) -> None:
    def zero(recorded: Session) -> None:
        constant(recorded, "grads")
        apart(recorded, "weights")

    assert report(record(tmp_path, *[changed(each, zero) for each in ranks(3)])) is None


def test_equal_gradients_that_change_in_a_later_step_show_averaging(tmp_path: Path) -> None:
    def begun_apart(recorded: Session) -> None:
        constant(recorded, "grads", until=3)
        apart(recorded, "weights")

    recorded = [changed(each, begun_apart) for each in ranks(2)]
    (found,) = report(record(tmp_path, *recorded))["divergences"]
    assert (found["step"], found["ranks"]) == (0, [0, 1])


@pytest.mark.parametrize("first", [True, False])
def test_averaged_weights(tmp_path: Path, first: bool) -> None:
    """Each rank has its own gradients; the weights are averaged in each step, or are not."""

    def own(recorded: Session) -> None:
        apart(recorded, "grads")
        constant(recorded, "weights", until=3)
        if not first:
            apart(recorded, "weights", first=3)

    recorded = [changed(each, own) for each in ranks(3)]
    found = report(record(tmp_path / "equal", *recorded))
    expected = {"groups": [[0, 1, 2]], "compared": 30, "divergences": []}
    assert found == (expected if first else None)
    recorded[1] = changed(recorded[1], from_step(20, "weights", "fc.bias"))
    found = report(record(tmp_path / "wrong", *recorded))
    assert (found and found["divergences"][0]["step"]) == (20 if first else None)


def test_shards_with_equal_gradients(tmp_path: Path) -> None:
    recorded = [changed(each, lambda rank: apart(rank, "weights")) for each in ranks(3)]
    for each in recorded:
        each.is_sharded = True
    assert report(record(tmp_path / "apart", *recorded)) is None
    # Replicas of shards have equal weights in two steps with different weights.
    replicas = ranks(3)
    replicas[1] = changed(replicas[1], from_step(20, "weights", "fc.bias"))
    for each in replicas:
        each.is_sharded = True
    (found,) = report(record(tmp_path / "replicas", *replicas))["divergences"]
    assert (found["step"], found["odd"]) == (20, [1])


def test_a_rank_that_ends_early(tmp_path: Path) -> None:
    recorded = [changed(each, own_buffers) for each in ranks(3)]
    recorded[1] = changed(recorded[1], from_step(17, "weights", "fc.bias"))
    del recorded[2].steps[24:]
    (found,) = report(record(tmp_path, *recorded))["divergences"]
    assert (found["step"], found["odd"]) == (17, [1])


def own_buffers(recorded: Session) -> None:
    """Statistics that differ by rank in every step, as those of BatchNorm do."""
    for step in recorded.steps:
        step.tensor("weights", "norm.mean")[0] += recorded.pid


def test_per_replica_buffers_do_not_hide_weight_divergence(tmp_path: Path) -> None:
    recorded = [changed(each, own_buffers) for each in ranks(3)]
    equal = report(record(tmp_path / "equal", *recorded))
    assert equal == {"groups": [[0, 1, 2]], "compared": 30, "divergences": []}
    for step in (1, 2, 17, 29):
        wrong = changed(recorded[1], from_step(step, "weights", "fc.bias", ulps=4))
        path = record(tmp_path / str(step), recorded[0], wrong, recorded[2])
        (found,) = report(path)["divergences"]
        assert (found["step"], found["odd"], found["tensor"]) == (step, [1], "fc.bias")
        assert found["ulp"] == 4
    zero = changed(recorded[0], from_step(8, "weights", "fc.bias"))
    (found,) = report(record(tmp_path / "zero", zero, *recorded[1:]))["divergences"]
    assert (found["step"], found["odd"]) == (8, [0])


@pytest.mark.parametrize(("step", "replicas"), [(9, [0, 1, 2]), (0, [0, 2])])
def test_failed_digests_are_not_counted_as_divergence(
    tmp_path: Path, step: int, replicas: list[int]
) -> None:
    recorded = ranks(3)
    recorded[1] = changed(recorded[1], fail(step, "weights"))
    assert report(record(tmp_path, *recorded)) == {
        "groups": [replicas], "compared": 30, "divergences": [],
    }  # fmt: skip


def test_failed_tensor_digests_are_not_counted_as_divergence(tmp_path: Path) -> None:
    recorded = [changed(each, lambda rank: apart(rank, "weights", first=1)) for each in ranks(2)]
    for each in recorded:
        each.steps[0].tensor("weights", "norm.mean")[0] += each.pid
    recorded[1] = changed(recorded[1], fail(29, "weights"))
    (found,) = report(record(tmp_path, *recorded))["divergences"]
    assert found["step"] == 1
