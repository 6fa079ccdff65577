"""The spools of simulated runs: the recorded times are the simulated ones, to the nanosecond."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from cirron_otel.core.run.opening import open_run
from cirron_otel.core.run.relations import rows
from cirron_otel.core.spool.reader import SpoolReader
from tests.kit.spools.made import EPOCH_NS

from .building import Family
from .case import Case
from .families import AT_THRESHOLDS, FAMILIES
from .plan import simulate
from .producers import PRODUCERS, write
from .reading import marks_of, named, run_ns, spans_of, total_ns
from .truth import THRESHOLDS

BY_NAME = {each.name: each for each in (*FAMILIES, *AT_THRESHOLDS)}
PHASES = ("data_load", "h2d", "forward", "loss", "zero_grad", "backward", "optimizer_step")


def small_case(family: str, *, most: int = 6_000, seeds: int = 60) -> Case:
    """Return the first case of a family with few units and only one cause."""
    for seed in range(seeds):
        case = BY_NAME[family].build(seed)
        if case.plan.ranks * case.plan.units * 8 <= most and len(case.expected) < 2:
            return case
    raise AssertionError(f"{family}: no small case")


def sick_case(family: str) -> Case:
    for seed in range(60):
        case = BY_NAME[family].build(seed)
        if (
            len(case.expected) == len(case.planted) == 1
            and case.plan.ranks * case.plan.units < 3000
        ):
            return case
    raise AssertionError(f"{family}: no case with one cause")


@pytest.mark.parametrize(
    "family", ["healthy, one rank", "healthy, DDP", "healthy, FSDP", "healthy, DDP on devices"]
)
def test_opened_run_has_the_units_ranks_and_phases_of_the_simulation(
    family: str, tmp_path: Path
) -> None:
    case = small_case(family)
    (tmp_path / "spool").mkdir()
    for name, data in write(case):
        (tmp_path / "spool" / name).write_bytes(data)
    plan, times = case.plan, case.times
    found: dict[int, list[tuple[int, int]]] = {}
    parts: dict[str, int] = {}
    with open_run(reader := SpoolReader(tmp_path), reader) as run:
        texts = run.recording.texts
        for units, of_units in run.recording.unit_blocks():
            for rank, start, ns in rows(units, "rank", "start_ns", "ns"):
                found.setdefault(rank, []).append((start, ns))
            for name, ns in rows(of_units, "name", "ns"):
                shown = texts.text(name) or ""
                parts[shown] = parts.get(shown, 0) + ns
    assert sorted(found) == list(range(plan.ranks))
    for rank in range(plan.ranks):
        zero = EPOCH_NS + int(plan.skew[rank])
        starts, ends = times.unit_start[rank], times.unit_end[rank]
        assert sorted(found[rank]) == [
            (zero + int(start), int(end - start)) for start, end in zip(starts, ends, strict=True)
        ]
    for name in PHASES:
        if name in plan.order:
            assert parts[name] == int((times.end[name] - times.start[name]).sum())
    assert set(parts) <= {*PHASES, "log"}


@pytest.mark.parametrize("producer", PRODUCERS)
def test_every_producer_records_each_unit_once(producer: str) -> None:
    healthy = next(
        each.build(0)
        for each in FAMILIES
        if each.kind == "healthy" and each.build(0).producer == producer
    )
    spans = spans_of(write(healthy))
    if producer == "dgrr":
        return
    name = {"manual": "batch", "batches": "batch", "inference": "request", "requests": "request",
            "stormlog": "train", "foreign": "item"}.get(producer, "step")  # fmt: skip
    evaluations = [
        each for each in spans if each["name"] == "epoch" and producer == "hooks"
        and not any(other["parent_id"] == each["id"] and _has_optimizer(other, spans)
                    for other in spans)
    ]  # fmt: skip
    units = [
        each for each in named(spans, name)
        if each["parent_id"] not in {other["id"] for other in evaluations}
    ]  # fmt: skip
    assert len(units) == healthy.plan.ranks * healthy.plan.units
    fetched = producer in ("hooks", "batches", "trainer")
    for rank in range(healthy.plan.ranks):
        zero = EPOCH_NS + int(healthy.plan.skew[rank])
        expected = healthy.times.end["data_load"] if fetched else healthy.times.unit_start
        starts = [each["start_ns"] - zero for each in units if each["rank"] == rank]
        assert starts == expected[rank].tolist()


def _has_optimizer(step: dict[str, object], spans: list[dict[str, object]]) -> bool:
    return any(
        each["parent_id"] == step["id"] and each["name"] == "optimizer_step" for each in spans
    )


@pytest.mark.parametrize("producer", ["hooks", "batches", "trainer"])
def test_fetches_of_cirron_sdk_are_attributes_that_end_at_their_scope(producer: str) -> None:
    family = {"hooks": "cirron-sdk hooks", "batches": "cirron-sdk batches",
              "trainer": "cirron-sdk Trainer"}[producer]  # fmt: skip
    case = small_case(f"healthy, {family}")
    fetches = [each for each in named(spans_of(write(case)), "data_load") if each["attrs"]]
    durations = [each["attrs"]["data_load_ns"] for each in fetches]
    assert durations == case.times.own["data_load"][0].tolist()
    begun = [each["start_ns"] - EPOCH_NS - ns for each, ns in zip(fetches, durations, strict=True)]
    assert begun == case.times.start["data_load"][0].tolist()


def test_steps_of_batches_are_nested_in_the_step_ahead_of_them() -> None:
    spans = spans_of(write(small_case("healthy, cirron-sdk batches")))
    by_id = {each["id"]: each for each in spans}
    steps = named(spans, "step")
    for ahead, step in itertools.pairwise(steps):
        parent = by_id[step["parent_id"]]
        assert parent is ahead or (parent["name"] == "epoch" and step["index"] == 0)
    assert any(by_id[step["parent_id"]]["name"] == "step" for step in steps)


@pytest.mark.parametrize(
    "family",
    [
        "input bound, one rank",
        "input bound, DDP",
        "input bound, FSDP",
        "input bound, cirron-sdk manual",
    ],
)
def test_price_of_slow_input_is_the_recorded_share(family: str) -> None:  # fmt: skip
    case = sick_case(family)
    spans = spans_of(write(replace(case, plan=replace(case.plan, skew=case.plan.skew * 0))))
    evaluations = {each["id"] for each in named(spans, "eval", "validation")}
    loads = [each for each in named(spans, "data_load") if each["parent_id"] not in evaluations]
    assert total_ns(loads) / run_ns(spans) == pytest.approx(case.expected[0].price, abs=5e-4)


@pytest.mark.parametrize(
    "family",
    ["straggler, input, DDP", "straggler, forward, DDP", "straggler, optimizer, FSDP",
     "straggler that moves, input, DDP", "straggler in some units, forward, DDP",
     "spikes, forward, one rank", "slow interval, forward, one rank",
     "slower and slower, input, DDP", "slow first batches, DDP"],
)  # fmt: skip
def test_price_is_the_recorded_difference_to_the_twin(family: str) -> None:
    case = sick_case(family)
    assert case.twin is not None
    plan, twin = (replace(each, skew=each.skew * 0) for each in (case.plan, case.twin))
    sick = run_ns(spans_of(write(replace(case, plan=plan))))
    healthy = run_ns(spans_of(write(replace(case, plan=twin, times=simulate(twin)))))
    assert (sick - healthy) / sick == pytest.approx(case.expected[0].price, abs=5e-4)


def test_ranks_end_the_recorded_backward_together() -> None:
    case = small_case("straggler, input, DDP")
    spans = spans_of(write(replace(case, plan=replace(case.plan, skew=case.plan.skew * 0))))
    ends = [
        [each["end_ns"] for each in named(spans, "backward", rank=rank)]
        for rank in range(case.plan.ranks)
    ]
    assert all(each == ends[0] for each in ends)
    starts = {each["start_ns"] for each in named(spans, "backward")}
    assert len(starts) > case.plan.units


@pytest.mark.parametrize(
    "family",
    ["failed, one of many ranks", "killed, one of many ranks", "out of memory, one of many ranks"],
)
def test_no_record_starts_after_the_death_of_its_process(family: str) -> None:  # fmt: skip
    case = small_case(family)
    files = write(case)
    spans = spans_of(files)
    victim = case.expected[0].ranks
    assert victim is not None
    for rank, death in case.deaths.items():
        of_rank = [each for each in spans if each["rank"] == rank]
        end = EPOCH_NS + int(case.plan.skew[rank]) + death.at
        assert max(each["end_ns"] for each in of_rank) == end
        failed = [each for each in of_rank if "otel" in each]
        assert {each["otel"]["status"]["message"] for each in failed} == {death.error}
        assert {"cirron.session", "epoch", "step"} <= {each["name"] for each in failed}
        inner = "forward" if rank in victim else "backward"
        assert inner in {each["name"] for each in failed}
    assert min(case.deaths.values(), key=lambda each: each.at) is case.deaths[victim[0]]
    ooms = [each for each in marks_of(files) if each["name"] == "oom"]
    causes = [each["attrs"].get("failure_cause") for each in named(spans, "cirron.session")]
    is_oom = "out of memory" in family
    assert len(ooms) == causes.count("out of memory") == is_oom
    if is_oom:
        owner = next(each for each in spans if each["id"] == ooms[0]["span_id"])
        assert (owner["name"], owner["rank"]) == ("forward", victim[0])


def test_values_that_are_not_finite_are_recorded_as_texts() -> None:
    case = small_case("loss not finite, one rank")
    (first, last) = (case.expected[0].units or ())[0]
    losses = [each for each in marks_of(write(case)) if each["name"] == "loss"]
    odd = [place for place, each in enumerate(losses) if "value_nonfinite" in each]
    assert odd == list(range(first, last + 1))
    assert {losses[place]["value"] for place in odd} == {None}


def test_all_files_are_valid_batches_of_the_wire_schema(tmp_path: Path) -> None:
    for family in FAMILIES[:: len(FAMILIES) // 12]:
        folder = tmp_path / family.name.replace(" ", "-").replace(",", "")
        (folder / "spool").mkdir(parents=True)
        files = write(family.build(0))
        for name, data in files:
            (folder / "spool" / name).write_bytes(data)
        reader = SpoolReader(folder)
        assert len(list(reader)) == len(files)
        assert not reader.findings
        for _, data in files:
            batch = json.loads(data)
            ids = {each["id"] for each in batch["marks"]}
            assert ids == {id_ for span in batch["spans"] for id_ in span["mark_ids"]}


def test_spans_of_a_case_are_limited() -> None:
    built = (family.build(seed) for family in FAMILIES for seed in (0, 1))
    large = sorted(built, key=lambda each: each.plan.ranks * each.plan.units)[-4:]
    counts = [len(spans_of(write(case))) for case in large]
    assert 20_000 < max(counts) < 60_000


def test_overhead_of_tracing_is_the_planted_time() -> None:
    case = small_case("tracing, one rank")
    marks = [each for each in marks_of(write(case)) if each["name"] == "cirron.overhead_ns"]
    spent = sum(each["value"] for each in marks)
    assert spent == int(case.times.own["~trace"].sum())
    price = spent / case.times.total
    assert case.is_healthy or price == pytest.approx(case.expected[0].price, abs=1e-4)


@pytest.mark.parametrize("family", AT_THRESHOLDS, ids=lambda each: each.name)
def test_weight_is_exactly_the_multiple_of_the_threshold(family: Family) -> None:
    case = family.build(0)
    factor = 1.25 if "1.25" in family.name else 0.8
    assert case.is_healthy == (factor < 1)
    if case.expected:
        found = case.expected[0]
        assert found.weight == pytest.approx(factor * THRESHOLDS[family.kind][0], rel=2e-3)
