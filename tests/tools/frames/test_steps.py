"""The rows of steps: the same figures as in the report, and the marks of each step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cirron_otel as ci
from cirron_otel.core.analysis.run_report import RunReport
from cirron_otel.core.run import step_table
from cirron_otel.core.spool.reader import SpoolReader
from cirron_otel.core.spool.writer import SpoolWriter
from cirron_otel.tools.cli.demo import RECORDING
from cirron_otel.tools.convert.convert import ConvertRequest, convert
from tests.kit.spools.made import (
    EPOCH_NS,
    encoded,
    made,
    mark,
    span,
)
from tests.kit.spools.recorded import NAMES, SPOOLS
from tests.kit.spools.reports import reported

from .tables import Rows, arrow_rows

TESTDATA = SPOOLS.parent


def report_of(spool: Path) -> RunReport:
    reader = SpoolReader(spool)
    return reported(reader, reader, slowest=1000, durations=True)


def written(folder: Path, *batches: dict[str, Any]) -> Path:
    writer = SpoolWriter(folder, max_bytes=None, durable=False)
    for batch in batches:
        writer.write(encoded(batch))
    return folder


def steps_of(folder: Path, spans: list[dict[str, Any]], marks: list[dict[str, Any]]) -> Rows:
    return arrow_rows(ci.read(written(folder, made(1, spans=spans, marks=marks))).steps())


def sums(rows: Iterable[dict[str, Any]], name: str) -> int:
    return sum(row[name] for row in rows if row.get(name) is not None)


def assert_as_reported(spool: Path) -> None:
    """The rows add up to the report, and its slowest steps are rows."""
    rows = arrow_rows(ci.read(spool).steps())
    report = report_of(spool)
    assert len(rows) == sum(len(each.steps.steps.durations) for each in report.ranks)
    for each in report.ranks:
        of_rank = [row for row in rows if row["rank"] == each.rank]
        assert [row["duration_ns"] for row in of_rank] == each.steps.steps.durations
        assert [row["unattributed_ns"] for row in of_rank] == each.steps.unattributed.durations
        for phase in each.steps.phases:
            assert sums(of_rank, f"phase_{phase.name}_ns") == phase.total_ns
    by_id = {row["span_id"]: row for row in rows}
    for slow in report.slowest_steps:
        row = by_id[slow.span_id]
        assert (row["rank"], row["start_ns"]) == (slow.rank, slow.start_ns)
        assert [row["epoch"], row["index"]] == [
            None if text is None else int(text) for text in (slow.epoch, slow.index)
        ]
        phases = {n: v for n, v in row.items() if n.startswith("phase_") and v is not None}
        assert phases == {f"phase_{name}_ns": ns for name, ns in slow.phases.items()}
        assert row["duration_ns"] - sum(phases.values()) == row["unattributed_ns"]


@pytest.mark.parametrize("spool", [*(SPOOLS / name for name in NAMES), RECORDING], ids=str)
def test_rows_match_the_report(spool: Path) -> None:
    assert_as_reported(spool)


NESTED = ["step", "micro_step", "forward", "backward", "optimizer_step", "mine", "eval", "epoch"]


@settings(max_examples=60, deadline=None)
@given(
    scopes=st.lists(
        st.tuples(
            st.sampled_from(NESTED), st.integers(0, 11), st.integers(0, 50), st.integers(-5, 50),
            st.sampled_from([None, 0, 1]),
        ),
        max_size=12,
    )
)  # fmt: skip
def test_any_tree(tmp_path_factory: pytest.TempPathFactory, scopes: list[Any]) -> None:
    """Scopes that overlap, end before they start, nest in any order, or form cycles."""
    spans = [
        span(number, parent, name=name, start_ns=EPOCH_NS + start,
             end_ns=EPOCH_NS + start + ns, rank=rank)
        for number, (name, parent, start, ns, rank) in enumerate(scopes)
    ]  # fmt: skip
    folder = tmp_path_factory.mktemp("tree")
    assert_as_reported(written(folder, made(1, spans=spans)))


def test_costs_match_the_spans(tmp_path: Path) -> None:
    attributes = {"cuda.memory_peak_bytes": 5, "cuda.memory_reserved_peak_bytes": 6}
    failed = {"status": {"code": 2, "message": "ValueError: bad"}}
    (row,) = steps_of(
        tmp_path,
        [
            span(1, None, gpu_ns=400, memory_peak_bytes=7, attrs=attributes, otel=failed),
            span(2, 1, name="forward", gpu_ns=100),
            span(3, 1, name="forward", gpu_ns=50),
            span(4, 1, name="backward"),
        ],
        [],
    )
    assert (row["gpu_ns"], row["memory_peak_bytes"]) == (400, 7)
    assert (row["device_peak_bytes"], row["device_reserved_peak_bytes"]) == (5, 6)
    assert row["error"] == "ValueError: bad"
    assert row["gpu_forward_ns"] == 150
    assert row["phase_forward_ns"] == 1000
    assert "gpu_backward_ns" not in row


def test_a_mark_of_any_scope_in_the_step(tmp_path: Path) -> None:
    spans = [span(1), span(2, 1, name="mine"), span(3, 2, name="loss"), span(4), span(5, name="x")]
    marks = [
        mark(1, 1, name="lr", value=0.25),
        mark(2, 3, name="loss", value=2.5),
        mark(3, 4, name="loss", value=1.5),
        mark(4, 5, name="outside"),
        mark(5, "root", name="nowhere"),
    ]
    first, second = steps_of(tmp_path, spans, marks)
    assert (first["mark_lr"], first["mark_loss"]) == (0.25, 2.5)
    assert (second["mark_lr"], second["mark_loss"]) == (None, 1.5)
    assert not {"mark_outside", "mark_nowhere"} & first.keys()


def test_the_last_mark_of_a_name_counts(tmp_path: Path) -> None:
    marks = [mark(1, 1, value=3.0, ts_ns=5), mark(2, 1, value=2.0, ts_ns=4), mark(3, 1, ts_ns=5)]
    (row,) = steps_of(tmp_path, [span(1)], marks)
    assert row["mark_loss"] == 0.5


def test_marks_of_an_evaluation_are_apart(tmp_path: Path) -> None:
    spans = [span(1), span(2, 1, name="eval"), span(3, 2, name="forward")]
    (row,) = steps_of(tmp_path, spans, [mark(1, 1), mark(2, 3, value=9.5), mark(3, 2, name="acc")])
    assert (row["mark_loss"], row["eval_mark_loss"], row["eval_mark_acc"]) == (0.5, 9.5, 0.5)


def test_marks_omitted_from_the_report_have_no_column(tmp_path: Path) -> None:
    marks = [
        mark(1, 1, name="cirron.overhead_ns", value=5),
        mark(2, 1, name="digest.loss", value="0" * 32, attrs={"step": 1}),
    ]
    (row,) = steps_of(tmp_path, [span(1)], marks)
    assert not [name for name in row if "mark" in name]


NAN = {"value": None, "value_nonfinite": "nan"}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2], [1, 2]),
        ([1, 2.5], [1.0, 2.5]),
        ([2**63 - 1, None], [2**63 - 1, None]),
        ([2**53 + 1, 0.5], [str(2**53 + 1), "0.5"]),
        ([2**64, 1], [str(2**64), "1"]),
        ([0.1, NAN], [0.1, "NaN"]),
        ([-0.0, 1e300], [-0.0, 1e300]),
        ([True, False], [True, False]),
        ([True, 1], ["true", "1"]),
        (["best", 1.5], ["best", "1.5"]),
        (["5", "6"], ["5", "6"]),
        (["0.5", None], ["0.5", None]),
        (["true", "false"], ["true", "false"]),
        (["nan", "Infinity"], ["nan", "Infinity"]),
        (["5", 6], ["5", "6"]),
        ([NAN, "inf"], ["nan", "inf"]),
        ([None, None], [None, None]),
    ],
)
def test_the_type_of_a_mark_holds_all_its_values(
    tmp_path: Path, values: list[Any], expected: list[Any]
) -> None:
    marks = [
        mark(number, number, **(value if isinstance(value, dict) else {"value": value}))
        for number, value in enumerate(values, 1)
    ]
    rows = steps_of(tmp_path, [span(1), span(2)], marks)
    found = [row["mark_loss"] for row in rows]
    assert found == expected
    assert [type(each) for each in found] == [type(each) for each in expected]
    if expected[0] == 0 and isinstance(expected[0], float):
        assert math.copysign(1, found[0]) == math.copysign(1, expected[0])


@pytest.mark.parametrize(("index", "expected"), [(5, 5), (1.5, None), ("a", None), (2**63, None)])
def test_a_number_of_a_step_is_an_integer(tmp_path: Path, index: Any, expected: Any) -> None:
    (row,) = steps_of(tmp_path, [span(1, index=index)], [])
    assert row["index"] == expected


def test_no_name_and_a_question_mark_are_apart(tmp_path: Path) -> None:
    names: list[str | None] = ["", "?", None]
    spans = [span(1), *(span(n, 1, name=name, gpu_ns=n) for n, name in enumerate(names, 2))]
    marks = [mark(1, 1, name="", value=1), mark(2, 1, name="?", value=2)]
    (row,) = steps_of(tmp_path, spans, marks)
    assert {
        "phase__ns": 1000, "phase_?_ns": 500, "gpu__ns": 2 + 4, "gpu_?_ns": 3, "mark_": 1,
        "mark_?": 2,
    }.items() <= row.items()  # fmt: skip
    assert row["unattributed_ns"] == 500 - 3 * 500


def test_names_without_a_column_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_table, "MAX_NAMES", 2)
    spans = [span(1), *(span(n, 1, name=f"phase{n}") for n in range(2, 6))]
    marks = [mark(n, 1, name=f"m{n}") for n in range(3)]
    recording = ci.read(written(tmp_path, made(1, spans=spans, marks=marks)))
    (row,) = arrow_rows(recording.steps())
    assert [name for name in row if name.startswith(("phase_", "mark_"))] == [
        "phase_phase2_ns", "phase_phase3_ns", "mark_m0", "mark_m1",
    ]  # fmt: skip
    assert row["unattributed_ns"] == 500 - 4 * 500
    left_out = "3 phases and names of marks have no column in the steps"
    assert [finding.message for finding in recording.findings] == [left_out]
    report = convert(ConvertRequest(str(tmp_path), f"{tmp_path}/steps.csv"))
    assert [(each.name, each.message) for each in report.skipped] == [
        (f"{tmp_path}/steps.csv", left_out)
    ]


def test_times_that_are_too_far_apart_have_no_sum(tmp_path: Path) -> None:
    """A step whose duration has more than 64 bits is not a unit, and has no row."""
    spans = [
        span(1, start_ns=-(2**63) + 1, end_ns=2**63 - 1),
        span(2),
        *(span(n, 2, name="forward", start_ns=-(2**62), end_ns=2**62 - 1) for n in range(3, 8)),
    ]
    recording = ci.read(written(tmp_path, made(1, spans=spans)))
    (near,) = arrow_rows(recording.steps())
    assert (near["duration_ns"], near["phase_forward_ns"]) == (500, None)
    damaged = "steps with damaged times, which have no row: 1"
    assert [finding.message for finding in recording.findings] == [damaged]
    convert(ConvertRequest(str(tmp_path), f"{tmp_path}/steps.csv"))
    assert (tmp_path / "steps.csv").read_text().splitlines()[1].split(",")[8:10] == ["500", ""]


def test_several_ranks_and_runs(tmp_path: Path) -> None:
    def batch(number: int, rank: int) -> dict[str, Any]:
        otel = {"session": f"{number:032x}", "resource": {"attributes": {"cirron.run.id": "r1"}}}
        root = span(100 + number, None, id=f"{number:032x}", name="cirron.session", rank=rank)
        step = span(number, None, parent_id=f"{number:032x}", rank=rank, index=0)
        return made(number, spans=[step, root], otel=otel)

    rows = arrow_rows(ci.read(written(tmp_path, batch(1, 0), batch(2, 1))).steps())
    assert [(row["run_id"], row["rank"]) for row in rows] == [("r1", 0), ("r1", 1)]
    assert [row["session_id"] for row in rows] == [f"{1:032x}", f"{2:032x}"]


@pytest.mark.parametrize(
    ("source", "has_steps"),
    [
        ("traceml:traceml/v050/ddp2_short/frames", True),
        ("stormlog:stormlog/v039/sim_gpu/sink", False),
        ("dgrr:dgrr/clean_100.dgrr", False),
    ],
)
def test_imported_recordings(tmp_path: Path, source: str, has_steps: bool) -> None:
    kind, _, path = source.partition(":")
    convert(ConvertRequest(f"{kind}:{TESTDATA / path}", str(tmp_path / "spool")))
    assert bool(len(ci.read(tmp_path).steps())) == has_steps
    assert_as_reported(tmp_path)
