"""Reports and verdicts of exported summaries, compared with those of the complete batches."""

from __future__ import annotations

import json
import random

import pytest

from cirron_otel.core.analysis.verdicts.run_window import diagnose_batches
from cirron_otel.core.analysis.verdicts.thresholds import thresholds_of
from cirron_otel.core.delivery.batch_target import SealedBatch
from cirron_otel.core.records.step_summaries import INSIDE
from cirron_otel.core.run.load.arranged import Records
from cirron_otel.core.run.relations import Texts
from cirron_otel.core.targets.exported_part import exported_part

from .batches import (
    GeneratedRank,
    files,
    report_json,
    stated,
)
from .ranks import Job, SimulatedRank
from .test_export_budget import exported


@pytest.mark.parametrize("budget", [1, 3, 8])
def test_simulated_ranks_have_the_same_report(budget: int) -> None:
    job = Job.of(16, 12, 7, budget)
    batches = [each.batch for rank in job.present for each in SimulatedRank(job, rank).batches()]
    parts = [exported_part(batch) for batch in batches]
    assert sum(map(spans_in, parts)) < sum(map(spans_in, batches)) / 2
    assert report_json(parts) == report_json(batches)
    limits = thresholds_of("run")
    diagnosis = diagnose_batches(files(parts), limits, job.ranks).to_json()
    assert diagnosis["window"].pop("summarised") > 0
    complete = diagnose_batches(files(batches), limits, job.ranks).to_json()
    assert complete["window"].pop("summarised") == 0
    assert diagnosis == complete
    assert diagnosis["verdicts"][0]["kind"] == "COMPUTE_STRAGGLER"
    assert diagnosis["verdicts"][0]["ranks"] == [job.straggler]


def spans_in(batch: SealedBatch) -> int:
    return len(json.loads(batch.data)["spans"])


@pytest.mark.parametrize("seed", range(12))
def test_steps_of_any_shape_have_the_same_report(seed: int) -> None:
    arrivals = [(seed % 7 + 3, 20, 10, 0)] * 12
    _, some = exported(arrivals, 1 + seed % 5 * 3, seed)
    batches, parts = [batch for _, batch, *_ in some], [part for _, _, part, _ in some]
    assert report_json(parts) == report_json(batches)


@pytest.mark.parametrize("seed", range(6))
def test_complete_batches_replace_their_summaries(seed: int) -> None:
    """The complete spool may be imported later: in any order, nothing counts twice."""
    arrivals = [(6, 20, 10, 0)] * 10
    _, some = exported(arrivals, 2, seed)
    batches, parts = [batch for _, batch, *_ in some], [part for _, _, part, _ in some]
    both = [*batches, *parts[: seed + 3], *parts[2:5]]
    random.Random(seed).shuffle(both)
    assert sorted(rows_of(both)) == sorted(rows_of(batches))
    few = [*parts, *batches[:4]]
    assert report_json(sorted(few)) == report_json(batches)


def rows_of(batches: list[SealedBatch]) -> list[tuple[object, ...]]:
    records = Records(files(batches), Texts())
    spans = [repr(records.span(row)) for row in records.rows.tolist()]
    marks = [records.mark(row) for row in records.mark_rows.tolist()]
    text = records.texts.text
    names = [(text(name), kind, value, at) for name, kind, value, _, at in marks]
    owners = [records.id_of(each) for each in records.mark_scope[records.mark_rows].tolist()]
    return [*((each,) for each in spans), *zip(map(repr, names), map(repr, owners), strict=True)]


def test_many_scopes_share_rows() -> None:
    rank = GeneratedRank(1)
    document = json.loads(rank.batch(1, 50, 0).data)
    (step,) = document["spans"][:1]
    step.pop("otel", None)
    micro = [step | {"id": f"{n:032x}", "name": "micro_step", "parent_id": step["id"]}
             for n in range(1, 701)]  # fmt: skip
    inner = [step | {"id": f"{n + 10_000:032x}", "name": "forward", "parent_id": f"{n:032x}"}
             for n in range(1, 701)]  # fmt: skip
    document["spans"] = [*inner, *micro, step]
    document["marks"] = document["snapshots"] = []
    batch = stated(SealedBatch("x", json.dumps(document).encode()), {"steps": [step["id"]]})
    (left,) = json.loads(exported_part(batch).data)["spans"]
    length = step["end_ns"] - step["start_ns"]
    assert [row[:2] + row[3:4] for row in json.loads(left["attrs"][INSIDE])] == [
        ["micro_step", -1, 700 * length], ["forward", 0, 700 * length],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "inside",
    [
        7, "7", "[[]]", "{", '[["forward", 1, 0, 1]]', '[["forward", -2, 0, 1]]',
        '[["forward", -1, 0, -1]]', '[[3, -1, 0, 1]]', '[["forward", -1, 0.5, 1]]',
        '[["forward", -1, 0, 1, "x"]]', '["\\ud800"]',
    ],
)  # fmt: skip
def test_other_values_are_not_rows(inside: object) -> None:
    rank = GeneratedRank(1)
    document = json.loads(rank.batch(1, 50, 0).data)
    document["spans"][-1]["attrs"] = {INSIDE: inside}
    data = json.dumps(document, separators=(",", ":")).encode()
    assert len(Records(files([SealedBatch("x", data)]), Texts()).rows) == len(document["spans"])
