"""What a run spent its time on, from records that are made for it."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.analysis.breakdown import PERCENTILES
from cirron_otel.core.analysis.run_report import RunReport
from cirron_otel.core.spool.reader import SpoolReader
from tests.kit.spools.reports import reported

_START = 1_795_000_000_000_000_000


def span(name: str, ns: int, parent: str | None = None, **more: Any) -> dict[str, Any]:
    """A span whose id is its name, or `id`, which a number stands for."""
    named = more.pop("id", name)
    start = more.pop("at", _START)
    return {
        "id": _id(named), "name": name, "parent_id": None if parent is None else _id(parent),
        "index": None, "start_ns": start, "end_ns": start + ns, "cpu_ns": None, "gpu_ns": None,
        "memory_peak_bytes": None, "thread_id": 1, "pid": 1, "rank": 0, "attrs": {}, "mark_ids": [],
        **more,
    }  # fmt: skip


def row(steps_ns: int, *durations: int) -> dict[str, Any]:
    """The figures of scopes in steps that take so long together."""
    return {
        "times": len(durations), "total_ns": sum(durations), "share": sum(durations) / steps_ns,
        "median_ns": round(statistics.median(durations)), "max_ns": max(durations),
        **{f"{name}_ns": max(durations) for name in PERCENTILES},
    }  # fmt: skip


def mark(name: str, value: Any, at: int, of: str) -> dict[str, Any]:
    kind = "string" if isinstance(value, str) else "number"
    return {
        "id": _id(f"{name}{at}"), "span_id": _id(of), "name": name, "value_type": kind,
        "value": value, "attrs": {}, "ts_ns": _START + at, "kind": "point",
    }  # fmt: skip


def _id(name: str) -> str:
    return name.encode().hex().ljust(32, "0")[:32]


def spool(
    folder: Path, *files: list[dict[str, Any]], marks: list[dict[str, Any]] | None = None
) -> RunReport:
    (folder / "spool").mkdir()
    for number, spans in enumerate(files):
        batch = {
            "schema_version": 1, "sdk_version": "0.3.0+cirron-otel", "batch_id": f"{number:032x}",
            "created_ns": _START + number, "spans": spans, "snapshots": [],
            "marks": marks or [] if number == 0 else [],
        }  # fmt: skip
        path = folder / "spool" / f"{_START + number:020d}-{number:032x}.json"
        path.write_text(json.dumps(batch))
    reader = SpoolReader(folder)
    found = reported(reader, slowest=3, durations=True)
    assert not reader.findings
    return found


def test_phases_and_unattributed_time_add_up_to_the_steps(tmp_path: Path) -> None:
    """Children lie in files before their steps, as they are written."""
    found = spool(
        tmp_path,
        [span("forward", 40, "a", id="f1"), span("backward", 30, "a", id="b1")],
        [span("step", 100, "epoch", id="a", index=4), span("forward", 50, "b", id="f2")],
        [span("step", 60, "epoch", id="b", index=5), span("epoch", 200, index=2)],
    )
    [rank] = found.ranks
    said = rank.to_json()
    assert {key: said[key] for key in ("rank", "spans", "first_ns", "last_ns", "run_ns")} == {
        "rank": 0, "spans": 6, "first_ns": _START, "last_ns": _START + 200, "run_ns": 200,
    }  # fmt: skip
    assert said["steps"] == row(160, 60, 100)
    assert said["phases"] == [
        {"name": "forward", **row(160, 40, 50)},
        {"name": "backward", **row(160, 30)},
    ]
    assert said["unattributed"] == row(160, 30, 10)
    assert [(s.epoch, s.index, s.duration_ns, s.phases) for s in found.slowest_steps] == [
        ("2", "4", 100, {"forward": 40, "backward": 30}),
        ("2", "5", 60, {"forward": 50}),
    ]
    assert found.slowest_steps[0].span_id == _id("a")


def test_the_phases_of_micro_steps_are_their_steps(tmp_path: Path) -> None:
    found = spool(
        tmp_path,
        [
            span("forward", 10, "m1", id="f1"),
            span("forward", 20, "m2", id="f2"),
            span("micro_step", 15, "s", id="m1"),
            span("micro_step", 25, "s", id="m2"),
            span("optimizer_step", 5, "s", id="o"),
            span("step", 60, id="s"),
        ],
    )
    [steps] = [rank.steps for rank in found.ranks]
    assert {phase.name: phase.durations for phase in steps.phases} == {
        "forward": [10, 20],
        "optimizer_step": [5],
    }
    assert steps.unattributed.durations == [25]


def test_ranks_are_reported_separately_and_duplicates_count_once(tmp_path: Path) -> None:
    first = [span("forward", 1, "s0", id="f0"), span("step", 2, id="s0")]
    found = spool(
        tmp_path,
        first,
        [span("step", 7, id="s1", rank=1), span("step", 9, id="s2", rank=None), *first],
    )
    assert [(each.rank, each.steps.steps.durations) for each in found.ranks] == [
        (None, [9]),
        (0, [2]),
        (1, [7]),
    ]
    assert found.ranks[1].steps.phases[0].durations == [1]
    assert (found.spans, [each.spans for each in found.ranks]) == (4, [1, 2, 1])


def test_a_step_within_a_step_is_its_phase(tmp_path: Path) -> None:
    found = spool(tmp_path, [span("step", 5, "outer", id="inner"), span("step", 9, id="outer")])
    [rank] = found.ranks
    assert rank.steps.steps.durations == [9]
    assert [(each.name, each.durations) for each in rank.steps.phases] == [("step", [5])]


def test_step_nested_deeper_in_a_step_is_also_its_phase(tmp_path: Path) -> None:
    spans = [
        span("forward", 900, "a", id="f"),
        span("step", 800, "f", id="b"),
        span("step", 100, "m", id="c"),
        span("micro_step", 100, "a", id="m"),
        span("step", 1000, "a's parent", id="a"),
    ]
    [rank] = spool(tmp_path, spans).ranks
    assert rank.steps.steps.durations == [1000]
    assert {each.name: each.durations for each in rank.steps.phases} == {
        "forward": [900],
        "step": [100],
    }


def test_self_parented_step_counts_as_one_step(tmp_path: Path) -> None:
    [rank] = spool(tmp_path, [span("step", 9, "s", id="s")]).ranks
    assert (rank.steps.steps.durations, rank.steps.phases) == ([9], [])


def test_phases_inside_an_optimizers_closure_count_by_themselves(tmp_path: Path) -> None:
    """As with LBFGS, skorch and Lightning; so do those inside the user's own scopes."""
    spans = [
        span("forward", 30, "o", id="f", at=_START),
        span("backward", 50, "o", id="b", at=_START + 30),
        span("attention", 20, "f", id="inside a forward"),
        span("backward", 7, "f", id="penalty"),
        span("optimizer_step", 100, "s", id="o"),
        span("forward", 5, "mine", id="f2"),
        span("collective", 1, "mine", id="c"),
        span("forward", 3, "eval", id="f3"),
        span("augment", 9, "s", id="mine"),
        span("eval", 4, "s", id="eval"),
        span("step", 120, id="s"),
    ]
    [rank] = spool(tmp_path, spans).ranks
    assert {each.name: each.durations for each in rank.steps.phases} == {
        "forward": [30, 5], "backward": [50], "optimizer_step": [20], "augment": [3], "eval": [4],
        "collective": [1],
    }  # fmt: skip
    assert rank.steps.unattributed.durations == [7]


def test_optimizer_time_with_a_closure_covers_only_time_after_each_call(tmp_path: Path) -> None:
    """Two calls of LBFGS; the time between the phases of a call is not the optimizer's."""
    at = _START
    spans = [
        span("step", 100, id="s"),
        span("optimizer_step", 90, "s", id="o", at=at + 5),
        span("zero_grad", 2, "o", id="z1", at=at + 8),
        span("forward", 10, "o", id="f1", at=at + 11),
        span("backward", 10, "o", id="b1", at=at + 25),
        span("clip_grad", 4, "o", id="c1", at=at + 37),
        span("zero_grad", 2, "o", id="z2", at=at + 48),
        span("forward", 10, "o", id="f2", at=at + 50),
        span("backward", 10, "o", id="b2", at=at + 63),
    ]
    [rank] = spool(tmp_path, spans).ranks
    phases = {each.name: each.durations for each in rank.steps.phases}
    assert phases["optimizer_step"] == [(48 - 41) + (95 - 73)]
    assert rank.steps.unattributed.durations == [100 - 48 - 29]


def training(rank: int, *steps: dict[str, int], begun: int = 0) -> list[dict[str, Any]]:
    """Steps of these phases, one after the other, `begun` ns after the session began."""
    at, spans = _START + begun, []
    for number, phases in enumerate(steps):
        start = at
        for name, ns in phases.items():
            spans.append(span(name, ns, f"{rank}s{number}", id=f"{rank}{name[:5]}{number}", at=at,
                              rank=rank))  # fmt: skip
            at += ns
        spans.append(span("step", at - start, f"{rank}", id=f"{rank}s{number}", at=start,
                          rank=rank))  # fmt: skip
    session = span("cirron.session", at - _START, id=f"{rank}", at=_START, rank=rank)
    return [*spans, session]


def test_the_speed_is_that_of_the_steps_after_the_warm_up(tmp_path: Path) -> None:
    slow, fast = {"forward": 900}, {"forward": 10}
    [rank] = spool(tmp_path, training(0, slow, slow, *[fast] * 20)).ranks
    assert rank.steps_per_second == pytest.approx(1e8)


def test_the_epoch_may_be_further_up(tmp_path: Path) -> None:
    spans = [span("step", 5, "t"), span("train", 6, "e", id="t"), span("epoch", 7, id="e", index=3)]
    [slow] = spool(tmp_path, spans).slowest_steps
    assert slow.epoch == "3"


def test_a_name_that_is_ours_is_a_phase_like_others(tmp_path: Path) -> None:
    spans = [span("unattributed", 90, "s"), span("step", 100, id="s")]
    [slow] = spool(tmp_path, spans).slowest_steps
    assert slow.phases == {"unattributed": 90}


@pytest.mark.parametrize("text", ["1_0", " 5 ", "١٢", "infinity", "nan", "0x10", ""])
def test_number_like_text_marks_are_not_numbers(tmp_path: Path, text: str) -> None:
    marks = [mark("note", text, 1, "s")]
    [series] = spool(tmp_path, [span("step", 5, id="s")], marks=marks).marks
    assert (series.first, series.numbers, series.min) == (text, 0, None)


def test_series_that_are_too_many_are_counted(tmp_path: Path) -> None:
    marks = [mark(f"m{number:05}", number, 1, "s") for number in range(1003)]
    found = spool(tmp_path, [span("step", 5, id="s")], marks=marks)
    assert (len(found.marks), found.marks_left_out, found.marks[-1].count) == (1000, 3, 1)


def test_marks_are_series(tmp_path: Path) -> None:
    marks = [
        mark("loss", 2.5, 2, "s"),
        mark("loss", 3, 1, "s"),
        {**mark("loss", None, 3, "s"), "value_nonfinite": "nan"},
        mark("phase", "warm-up", 1, "nobody"),
        mark("cirron.overhead_ns", 7, 1, "s"),
    ]
    found = spool(tmp_path, [span("step", 5, id="s", rank=3)], marks=marks)
    loss, phase = found.marks
    assert (loss.name, loss.rank, loss.count, loss.numbers) == ("loss", 3, 3, 2)
    assert (loss.first, loss.last, loss.min, loss.max) == ("3", "nan", 2.5, 3.0)
    assert (phase.rank, phase.first, phase.numbers, phase.min) == (None, "warm-up", 0, None)


@pytest.mark.parametrize(("ns", "counted"), [(-5, [0]), (0, [0]), (2**63, [])])
def test_invalid_span_times_do_not_fail_the_report(
    tmp_path: Path, ns: int, counted: list[int]
) -> None:
    """One that ends before it starts took no time; one whose end fits 64 bits not is left out."""
    found = spool(tmp_path, [span("step", ns, at=0, id="s"), span("step", 7, id="t")])
    [rank] = found.ranks
    assert rank.steps.steps.durations == [*counted, 7]
