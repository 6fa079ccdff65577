"""`diff` of runs that lack digests or steps: they are never identical without a reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cirron_otel.core.analysis.divergence.comparing import compare_runs
from cirron_otel.core.analysis.divergence.observed_steps import DIGESTS, Observation, ObservedStep
from cirron_otel.tools.present.divergence_text import comparison_lines
from tests.core.importers.dgrr.traces import CLEAN, command, dgrr

from .spools import (
    changed,
    cut,
    drop,
    fail,
    from_step,
    leave_open,
    record,
    session,
)
from .test_diff import diff, joined, text


def test_only_steps_with_digests_in_both_are_compared(tmp_path: Path) -> None:
    first = session()
    sides = record(tmp_path / "a", first), record(tmp_path / "b", first, every=10)
    rank = diff(*sides)[1]["digests"]["ranks"][0]
    assert (rank["compared"], rank["only_a"], rank["only_b"]) == (3, 27, 0)


@pytest.mark.parametrize("quantity", ["rng", "batch", "loss", "optimizer"])
def test_digests_that_could_not_be_taken(tmp_path: Path, quantity: str) -> None:
    second = changed(session(), fail(7, quantity))
    sides = record(tmp_path / "a", session()), record(tmp_path / "b", second)
    _, document = diff(*sides)
    assert (document["divergence"], document["digests"]["identical"]) == (None, False)
    assert (document["digests"]["failed"], document["digests"]["ranks"][0]["failed"]) == (1, 1)
    assert (
        "EQUAL, except for 1 digest that could not be taken: the others of 30 steps of 1 rank are"
        " equal" in joined(*sides)
    )
    code, _, problem = command("diff", *sides, "--fail-on", "divergence")
    assert (code, "1 digest could not be taken" in problem) == (1, True)
    assert command("diff", *sides)[0] == 0


def test_a_difference_after_a_digest_that_could_not_be_taken(tmp_path: Path) -> None:
    wrong = changed(session(), fail(12, "batch"), from_step(12, "loss", "loss"))
    sides = record(tmp_path / "a", session()), record(tmp_path / "b", wrong)
    assert diff(*sides)[1]["divergence"]["quantity"] == "loss"
    text_of = joined(*sides)
    assert "rng of this step is equal; batch could not be digested" in text_of
    assert "1 digest could not be taken, and is not compared" in text_of
    assert command("diff", *sides, "--fail-on", "divergence")[0] == 6


@pytest.mark.parametrize("quantities", [3, 4])
def test_a_run_that_ends_within_a_step(tmp_path: Path, quantities: int) -> None:
    short = changed(session(), lambda each: cut(each, 13, quantities))
    a, b = record(tmp_path / "a", session()), record(tmp_path / "b", short)
    for sides, side in (((a, b), "B"), ((b, a), "A")):
        _, document = diff(*sides)
        assert (document["divergence"], document["digests"]["identical"]) == (None, False)
        assert document["digests"]["ranks"][0]["ends"] == {"run": side, "step": 13}
        assert f"equal; {side} ends within step 13 of rank 0; " in joined(*sides)
        assert command("diff", *sides, "--fail-on", "divergence")[0] == 0
    assert diff(b, b)[1]["digests"]["identical"] is True


@pytest.mark.parametrize("how", ["no error", "a later step", "another quantity"])
def test_a_step_that_lacks_quantities_for_another_reason(tmp_path: Path, how: str) -> None:
    other = changed(session(), lambda each: cut(each, 13, 4))
    if how == "no error":
        other.steps[13].error = None
    elif how == "a later step":
        other.steps += session().steps[14:]
    else:
        del other.steps[13].quantities[2]
    _, document = diff(record(tmp_path / "a", session()), record(tmp_path / "b", other))
    expected = "loss" if how == "another quantity" else "weights"
    assert (document["divergence"]["step"], document["divergence"]["quantity"]) == (13, expected)


def test_runs_without_digests(tmp_path: Path) -> None:
    empty = session()
    for step in empty.steps:
        step.quantities.clear()
    a, b = record(tmp_path / "a", empty), record(tmp_path / "b", session())
    code, document = diff(a, b)
    assert (code, document["divergence"], document["digests"]["identical"]) == (0, None, False)
    assert any(line.startswith("NOT COMPARED: A has no digests") for line in text(a, b))
    code, _, problem = command("diff", a, b, "--fail-on", "divergence")
    assert (code, "no step was compared" in problem) == (1, True)


@pytest.mark.parametrize("every", [1, 10])
def test_marks_that_were_dropped(tmp_path: Path, every: int) -> None:
    sides = record(tmp_path / "a", session()), record(tmp_path / "b", session(), every=every)
    drop(sides[1], 1_234)
    _, document = diff(*sides)
    assert (document["divergence"], document["digests"]["identical"]) == (None, False)
    assert document["digests"]["dropped"] == {"a": 0, "b": 1_234}
    lines = joined(*sides)
    assert f"EQUAL SO FAR: the {30 // every} steps of 1 rank that both runs have are equal" in lines
    assert "B dropped 1,234 marks while recording" in lines
    code, _, problem = command("diff", *sides, "--fail-on", "divergence")
    assert (code, "B dropped 1,234 marks" in problem) == (1, True)


def test_a_trace_that_ends_early_diverges(tmp_path: Path) -> None:
    short = tmp_path / "short.dgrr"
    assert command("dgrr", "rollback", "--trace", CLEAN, "--step", 40, "--out", short)[0] == 0
    code, compared = dgrr("compare", "--a", CLEAN, "--b", short)
    assert (code, compared["diverged"]) == (4, True)
    for sides, side in (((CLEAN, short), "B"), ((short, CLEAN), "A")):
        traces = [f"dgrr:{each}" for each in sides]
        _, document = diff(*traces)
        found = document["divergence"]
        assert (found["step"], found["quantity"], found["ulp"]) == (compared["step"], "loss", None)
        assert document["digests"]["identical"] is False
        assert f"{side} has no such step" in joined(*traces)
        assert command("diff", *traces, "--fail-on", "divergence")[0] == 6


def test_the_open_epoch_of_a_killed_run_is_in_its_journal(tmp_path: Path) -> None:
    short = session()
    del short.steps[25:]
    a, b = record(tmp_path / "a", session()), record(tmp_path / "b", short)
    leave_open(b, "epoch", "cirron.session")
    for sides in ((a, b), (b, a)):
        _, document = diff(*sides)
        assert (document["divergence"], document["digests"]["compared"]) == (None, 25)
    (b / "state").rename(b / "away")
    rank = diff(a, b)[1]["digests"]["ranks"][0]
    assert (rank["compared"], rank["only_a"], rank["only_b"]) == (20, 10, 5)


def test_runs_without_a_common_step(tmp_path: Path) -> None:
    first, second = session(count=15, epochs=1), session(first=15, epochs=1)
    lines = joined(record(tmp_path / "a", first), record(tmp_path / "b", second))
    assert "NOT COMPARED: both runs have digests, but no step with the same numbers" in lines


def test_ranks_beyond_the_limit_are_not_identical() -> None:
    def steps(source: int) -> Iterator[ObservedStep]:
        for rank in range(1_003):
            for number in range(2):
                observed = [Observation("loss", "a", 0, 0)]
                yield ObservedStep(source, rank, None, str(number), 1, 1, 1, number, observed)

    compared = compare_runs(steps(DIGESTS), steps(DIGESTS))
    assert (compared.left_out, compared.is_identical, compared.first) == (3, False, None)
    line = " ".join(comparison_lines(compared))
    assert line.startswith("EQUAL SO FAR: the 2,000 steps of 1,000 ranks")
    assert compared.to_json()["ranks_left_out"] == 3
