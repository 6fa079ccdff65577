"""`diff` of runs with digests: the first step, quantity and tensor."""

from __future__ import annotations

import json
import math
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.analysis.divergence.comparing import compare_runs
from cirron_otel.core.analysis.divergence.observed_steps import DIGESTS, Observation, ObservedStep
from tests.core.importers.dgrr.traces import (
    ANSWERS,
    CLEAN,
    DRIFT,
    RECORDINGS,
    command,
)

from .spools import (
    Session,
    changed,
    from_step,
    moved,
    record,
    session,
)

Change = Callable[[Session], None]


def diff(*arguments: object) -> tuple[int, Any]:
    code, out, _ = command("diff", *arguments, "--json")
    return code, json.loads(out) if out else None


def joined(*arguments: object) -> str:
    return " ".join(line.strip() for line in text(*arguments))


def text(*arguments: object) -> list[str]:
    code, out, problems = command("diff", *arguments)
    assert (code, problems) == (0, "")
    return out.splitlines()


@pytest.fixture
def runs(tmp_path: Path) -> Callable[..., tuple[int, Any]]:
    """Compare the run A with a changed copy of it."""

    def compare(*changes: Change, a: Session | None = None, **options: Any) -> tuple[int, Any]:
        first = session() if a is None else a
        paths = [
            record(tmp_path / name, each, **options)
            for name, each in (("a", first), ("b", changed(first, *changes)))
        ]
        return diff(*paths)

    return compare


def test_two_equal_runs(runs: Callable[..., tuple[int, Any]], tmp_path: Path) -> None:
    code, document = runs()
    assert code == 0
    assert document["divergence"] is None
    digests = document["digests"]
    assert (digests["identical"], digests["compared"]) == (True, 30)
    assert digests["ranks"][0]["differing"] == 0
    lines = text(tmp_path / "a", tmp_path / "b")
    assert lines[3] == "IDENTICAL: all 30 steps of 1 rank are equal"
    assert command("diff", tmp_path / "a", tmp_path / "b", "--fail-on", "divergence")[0] == 0


@pytest.mark.parametrize("tensors", [True, False])
@pytest.mark.parametrize(
    ("step", "quantity", "tensor"),
    [
        (0, "rng", "python"),
        (7, "batch", "targets"),
        (8, "loss", "loss"),
        (12, "grads", "fc.bias"),
        (29, "weights", "norm.mean"),
        (20, "optimizer", "fc.weight.momentum"),
    ],
)
def test_the_first_difference(
    runs: Callable[..., tuple[int, Any]], step: int, quantity: str, tensor: str, tensors: bool
) -> None:
    code, document = runs(from_step(step, quantity, tensor, ulps=3), tensors=tensors)
    assert code == 0
    is_named = tensors and quantity != "loss"
    assert document["divergence"] == {
        "rank": 0, "step": step, "epoch": step // 10, "index": step % 10, "quantity": quantity,
        "tensor": tensor if is_named else None, "ulp": 3 if tensors or quantity == "loss" else None,
    }  # fmt: skip
    assert document["digests"]["identical"] is False
    assert document["digests"]["ranks"][0]["differing"] == 30 - step


def test_an_element_that_is_not_recorded_has_no_distance(
    runs: Callable[..., tuple[int, Any]],
) -> None:
    # Of five numbers, the first four are recorded.
    _, document = runs(from_step(12, "weights", "fc.bias", element=4))
    assert document["divergence"]["tensor"] == "fc.bias"
    assert document["divergence"]["ulp"] is None


def test_the_text_and_the_exit_code(runs: Callable[..., tuple[int, Any]], tmp_path: Path) -> None:
    runs(from_step(12, "grads", "fc.bias"))
    sides = tmp_path / "a", tmp_path / "b"
    lines = text(*sides)
    start = lines.index(
        "DIVERGED: step 12 of rank 0 (epoch 1, index 2), grads of fc.bias, 1 ULP apart"
    )
    assert lines[start + 1].startswith("  suggests: the backward pass")
    assert "rng, batch and loss of this step are equal" in " ".join(
        each.strip() for each in lines[start : start + 5]
    )
    assert command("diff", *sides, "--fail-on", "divergence")[0] == 6
    assert command("diff", *sides, "--fail-on", "crit")[0] == 0


@pytest.mark.parametrize("how", ["zero", "shape", "nan"])
def test_losses_with_equal_numbers_and_other_bits_differ(tmp_path: Path, how: str) -> None:
    numbers = {"zero": (0.0, -0.0), "shape": (1.0, 1.0), "nan": (math.nan, -math.nan)}[how]

    def change(recorded: Session, number: float, shape: str) -> None:
        recorded.steps[4].tensor("loss", "loss")[0] = number
        recorded.steps[4].shape = shape if how == "shape" else ""

    sides = [
        record(tmp_path / shape, changed(session(), partial(change, number=number, shape=shape)))
        for number, shape in zip(numbers, ("[]", "[1]"), strict=True)
    ]
    found = diff(*sides)[1]["divergence"]
    assert (found["step"], found["quantity"], found["ulp"]) == (4, "loss", 0)
    assert "0 ULP apart: the sign of a zero, the bits of a NaN, or the shape" in joined(*sides)
    assert diff(*sides, "--ulp-tol", 1)[1]["divergence"] is None


@pytest.mark.parametrize(
    ("b", "tensor", "reason"),
    [
        (
            {"inputs": 5, "labels": 5},
            "targets",
            "A has targets, float32 [5]; B has labels, float32",
        ),
        ({"inputs": 5, "targets": 4}, "targets", "A has targets, float32 [5]; B has targets,"),
        ({"inputs": 5}, "targets", "A has targets, float32 [5]; B has nothing more"),
        ({"inputs": 5, "targets": 5, "z": 1}, "z", "A has nothing more; B has z, float32 [1]"),
    ],
)
def test_other_tensors_are_named(
    tmp_path: Path, b: dict[str, int], tensor: str, reason: str
) -> None:
    def change(recorded: Session) -> None:
        tensors = recorded.steps[4].tensors("batch")
        old = dict(tensors)
        tensors.clear()
        tensors |= {name: (old.get(name) or [0.0] * 5)[:size] for name, size in b.items()}

    sides = record(tmp_path / "a", session()), record(tmp_path / "b", changed(session(), change))
    found = diff(*sides)[1]["divergence"]
    assert (found["quantity"], found["tensor"], found["ulp"]) == ("batch", tensor, None)
    shown = joined(*sides)
    assert f"suggests: the runs have different tensors in this place: {reason}" in shown
    assert "the data" not in shown


def test_the_tolerance_is_for_the_loss(tmp_path: Path) -> None:
    def change(recorded: Session) -> None:
        loss = recorded.steps[4].tensor("loss", "loss")
        loss[0] = moved(loss[0], 5)

    first = session()
    sides = record(tmp_path / "a", first), record(tmp_path / "b", changed(first, change))
    assert diff(*sides)[1]["divergence"]["ulp"] == 5
    assert diff(*sides, "--ulp-tol", 4)[1]["divergence"]["step"] == 4
    assert diff(*sides, "--ulp-tol", 5)[1]["divergence"] is None
    code, _, problem = command("diff", *sides, "--ulp-tol", "-1")
    assert code == 2
    assert "ulp-tol" in problem


def test_the_earliest_rank_and_cause(tmp_path: Path) -> None:
    ranks = [session(rank, pid=rank + 1) for rank in range(2)]
    one = changed(ranks[1], from_step(11, "batch", "inputs"))
    zero = changed(ranks[0], from_step(11, "grads", "fc.weight"))
    _, document = diff(record(tmp_path / "a", *ranks), record(tmp_path / "b", zero, one))
    assert document["divergence"] == {
        "rank": 1, "step": 11, "epoch": 1, "index": 1, "quantity": "batch", "tensor": "inputs",
        "ulp": 1,
    }  # fmt: skip
    found = [each["divergence"]["quantity"] for each in document["digests"]["ranks"]]
    assert found == ["grads", "batch"]


def test_a_resumed_run_is_compared_by_the_steps_that_both_have(tmp_path: Path) -> None:
    complete, resumed = session(), session(first=15)
    sides = record(tmp_path / "a", complete), record(tmp_path / "b", resumed)
    _, document = diff(*sides)
    assert document["divergence"] is None
    rank = document["digests"]["ranks"][0]
    assert (rank["compared"], rank["only_a"], rank["only_b"]) == (15, 15, 0)
    assert document["digests"]["identical"] is False
    assert (
        "EQUAL SO FAR: the 15 steps of 1 rank that both runs have are equal; A has 15 more"
        in joined(*sides)
    )
    assert command("diff", *sides, "--fail-on", "divergence")[0] == 0
    drawn = changed(resumed, from_step(0, "rng", "torch"))
    _, document = diff(sides[0], record(tmp_path / "c", drawn))
    assert document["divergence"]["step"] == 15
    assert document["divergence"]["quantity"] == "rng"
    _, document = diff(tmp_path / "c", sides[0])
    assert (document["divergence"]["step"], document["divergence"]["index"]) == (0, 5)


def test_a_restarted_job_counts_with_its_last_attempt(tmp_path: Path) -> None:
    complete = session()
    crashed = session()
    del crashed.steps[20:]
    resumed = session(first=15, pid=2)
    a = record(tmp_path / "a", complete)
    _, document = diff(a, record(tmp_path / "b", crashed, resumed))
    assert (document["divergence"], document["digests"]["identical"]) == (None, True)
    drawn = changed(resumed, from_step(0, "rng", "torch"))
    _, document = diff(a, record(tmp_path / "c", crashed, drawn))
    assert document["divergence"]["step"] == 15
    _, document = diff(tmp_path / "b", tmp_path / "c")
    assert document["digests"]["ranks"][0]["compared"] == 35
    assert (document["divergence"]["index"], document["divergence"]["quantity"]) == (5, "rng")


def test_steps_without_numbers_are_matched_by_their_order(tmp_path: Path) -> None:
    def strip(recorded: Session) -> None:
        for step in recorded.steps:
            step.epoch = step.index = None

    first = changed(session(count=12), strip)
    short = changed(first, from_step(4, "batch", "inputs"))
    del short.steps[8:]
    _, document = diff(record(tmp_path / "a", first), record(tmp_path / "b", short))
    found = document["divergence"]
    assert (found["step"], found["epoch"], found["index"]) == (4, None, None)
    assert document["digests"]["ranks"][0]["only_a"] == 4


def idle(recorded: Session) -> None:
    """Seed a generator that the program does not use otherwise: its state is always the same."""
    for step in recorded.steps:
        step.tensor("rng", "python")[:] = [float(len(recorded.steps)), 2.0, 3.0, 4.0, recorded.pid]


@pytest.mark.parametrize("tensors", [True, False])
def test_a_generator_that_is_not_used_has_no_effect(tmp_path: Path, tensors: bool) -> None:
    first = changed(session(), idle)
    second = changed(session(pid=2), idle)
    a = record(tmp_path / "a", first, tensors=tensors)
    b = record(tmp_path / "b", second, tensors=tensors)
    _, document = diff(a, b)
    assert (document["divergence"], document["digests"]["identical"]) == (None, True)
    assert "generators of random numbers that have no effect" in joined(a, b)
    for quantity, tensor in (("grads", "fc.bias"), ("batch", "inputs")):
        wrong = changed(second, from_step(12, quantity, tensor))
        path = record(tmp_path / quantity, wrong, tensors=tensors)
        document = diff(a, path)[1]
        found = document["divergence"]
        assert (found["step"], found["quantity"]) == (12, quantity)
        assert document["digests"]["ranks"][0]["differing"] == 18


def test_another_generator_differs_beside_one_that_is_not_used(tmp_path: Path) -> None:
    first = changed(session(), idle)
    second = changed(session(pid=2), idle, from_step(17, "rng", "torch"))
    _, document = diff(record(tmp_path / "a", first), record(tmp_path / "b", second))
    found = document["divergence"]
    assert (found["step"], found["quantity"], found["tensor"]) == (17, "rng", "torch")


def test_a_step_that_does_other_work(tmp_path: Path) -> None:
    def skip(recorded: Session) -> None:
        del recorded.steps[6].quantities[3:]

    first = session()
    sides = record(tmp_path / "a", first), record(tmp_path / "b", changed(first, skip))
    found = diff(*sides)[1]["divergence"]
    assert (found["step"], found["quantity"], found["tensor"]) == (6, "grads", None)
    assert "A has grads, and B has nothing more" in joined(*sides)


def test_traces_take_the_same_path() -> None:
    _, document = diff(f"dgrr:{CLEAN}", f"dgrr:{DRIFT}")
    assert document["divergence"] == {
        "rank": None, "step": 37, "epoch": None, "index": 37, "quantity": "loss", "tensor": None,
        "ulp": 93,
    }  # fmt: skip
    assert diff(f"dgrr:{CLEAN}", f"dgrr:{CLEAN}")[1]["digests"]["identical"] is True
    assert command("diff", f"dgrr:{CLEAN}", f"dgrr:{DRIFT}", "--fail-on", "divergence")[0] == 6


@pytest.mark.parametrize("answer", ANSWERS["compare"], ids=lambda each: each["b"])
def test_the_traces_of_the_testdata(answer: dict[str, Any]) -> None:
    sides = [f"dgrr:{RECORDINGS / answer[name]}" for name in "ab"]
    _, document = diff(*sides, "--ulp-tol", answer["ulp_tol"])
    assert (document["divergence"] is not None) == answer["diverged"]
    if answer["diverged"]:
        assert document["divergence"]["step"] == answer["first_step_index"]


def test_another_form_of_a_trace_is_the_same_trace(tmp_path: Path) -> None:
    assert command("convert", f"dgrr:{CLEAN}", tmp_path / "clean.jsonl")[0] == 0
    assert diff(f"dgrr:{CLEAN}", tmp_path / "clean.jsonl")[1]["digests"]["identical"] is True
    found = diff(tmp_path / "clean.jsonl", f"dgrr:{DRIFT}")[1]["divergence"]
    assert (found["step"], found["ulp"]) == (37, 93)


def test_another_form_of_a_run_is_the_same_run(tmp_path: Path) -> None:
    first = session()
    a = record(tmp_path / "a", first)
    b = record(tmp_path / "b", changed(first, from_step(12, "weights", "norm.mean", ulps=2)))
    assert command("convert", b, tmp_path / "b.jsonl")[0] == 0
    _, document = diff(a, tmp_path / "b.jsonl")
    assert document["divergence"]["tensor"] == "norm.mean"
    assert document["divergence"]["ulp"] == 2


def test_memory_does_not_grow_with_the_steps() -> None:
    def steps(digest: str) -> Iterator[ObservedStep]:
        for number in range(count):
            observations = [Observation(each, digest, 0, number) for each in ("loss", "weights")]
            yield ObservedStep(DIGESTS, 0, None, str(number), 1, 1, 1, number, observations)

    peaks = []
    for count in (1_000, 20_000):
        tracemalloc.start()
        compared = compare_runs(steps("a"), steps("b"))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert compared.ranks[0].differing == count
    assert peaks[1] < 1.5 * peaks[0] + 100_000


def test_marks_of_a_program_with_such_names(tmp_path: Path) -> None:
    """Marks that only look like digests or traces are the program's own, and not compared."""
    odd: list[tuple[str, Any, Any]] = [
        ("digest.weights", 5, {}), ("digest.loss", "x", {"bits": "zz", "dtype": 5, "step": 1}),
        ("digest.loss", "0" * 32, {"bits": "1" * 40, "dtype": "float32", "step": 1}),
        ("digest.loss", "0" * 32, {"bits": "-1", "dtype": "float32", "step": 1}),
        ("digest.grads", "1" * 32, {"step": 1, "tensors": {"layout": 7, "names": 8}}),
        ("digest.grads", "2" * 32, [1]), ("digest.", "3", None), ("dgrr.step", "text", {}),
        ("dgrr.step", 1.0, {"step_id": "1"}), ("digest.made up", "4", {"step": 0}),
        ("digest.time", "4" * 8, {}), ("digest.rng", "4", {"step": 0}),
    ]  # fmt: skip
    paths = []
    for name in "ab":
        path = record(tmp_path / name, session(count=3))
        (file,) = (path / "spool").iterdir()
        batch = json.loads(file.read_text())
        steps = [each["id"] for each in batch["spans"] if each["name"] == "step"]
        for number, (mark, value, attrs) in enumerate(odd):
            text = f"{value}{name}" if str(value).startswith("4") else value
            batch["marks"].append({
                "id": f"{number:032x}", "span_id": steps[number % 3], "name": mark,
                "value_type": "string", "value": text, "attrs": attrs, "kind": "point",
                "ts_ns": 2_000_000_000_000_000_000 + number,
            })  # fmt: skip
        file.write_text(json.dumps(batch))
        paths.append(path)
    _, document = diff(*paths)
    assert (document["divergence"], document["digests"]["identical"]) == (None, True)
    code, out, _ = command("report", paths[0], "--json")
    listed = {each["name"]: each["count"] for each in json.loads(out)["marks"]}
    assert code == 0
    own = {"digest.made up", "digest.time", "digest.", "digest.rng", "digest.weights"}
    assert own <= listed.keys()
    assert (listed["digest.loss"], listed["digest.grads"]) == (1, 1)
    assert "digest.optimizer" not in listed


def test_an_extra_draw_without_effect(tmp_path: Path) -> None:
    def draw(recorded: Session) -> None:
        for step in recorded.steps[17:]:
            numbers = step.tensor("rng", "torch")
            numbers[0] = moved(numbers[0])

    a = record(tmp_path / "a", session())
    lines = joined(a, record(tmp_path / "b", changed(session(), draw)))
    assert "DIVERGED: step 17 of rank 0 (epoch 1, index 7), rng of torch" in lines
    assert "apart from rng, the 30 compared steps are equal" in lines
