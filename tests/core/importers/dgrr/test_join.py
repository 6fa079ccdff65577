"""`convert --join`: the records of a trace on the steps of a run of our own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.tools.convert.convert import ConvertRequest, convert
from tests.kit.spools.comparing import RECORDED, batches

from .traces import (
    CLEAN,
    chain,
    command,
    trace,
)

RANKS = RECORDED / "07_ranks"
"""A run of two ranks, of which each item of a loop is a `batch`."""
TORCH = RECORDED / "01_torch_basic"
"""A run of one rank with `step`s."""


def steps_of(spool: Path, rank: int) -> list[dict[str, Any]]:
    """The steps of a rank in order."""
    spans = [span for batch in batches(spool).values() for span in batch["spans"]]
    names = {span["name"] for span in spans}
    name = "step" if "step" in names else "batch"
    steps = [span for span in spans if span["name"] == name and (span["rank"] or 0) == rank]
    return sorted(steps, key=lambda span: (span["start_ns"], span["id"]))


def marks_of(spool: Path) -> list[dict[str, Any]]:
    """The marks in the order of their records."""
    marks = [mark for batch in batches(spool).values() for mark in batch["marks"]]
    return sorted(marks, key=lambda mark: mark["attrs"]["record"])


@pytest.mark.parametrize(("run", "rank"), [(RANKS, None), (RANKS, 0), (RANKS, 1), (TORCH, None)])
def test_the_nth_record_is_on_the_nth_step(run: Path, rank: int | None, tmp_path: Path) -> None:
    steps = steps_of(run, rank or 0)
    assert len(steps) > 3
    path = tmp_path / "t.dgrr"
    path.write_bytes(trace(chain(len(steps))))
    chosen = [] if rank is None else ["--select", f"rank={rank}"]
    joined = tmp_path / "joined"
    assert command("convert", f"dgrr:{path}", joined, "--join", run, *chosen)[0] == 0
    found = [(mark["span_id"], mark["ts_ns"]) for mark in marks_of(joined)]
    assert found == [(step["id"], step["end_ns"]) for step in steps]
    sessions = {batch["otel"]["session"] for batch in batches(joined).values()}
    owned = {span["id"] for batch in batches(run).values() for span in batch["spans"]}
    assert sessions <= owned
    for source in (joined, _through_otlp(joined, tmp_path)):
        assert command("convert", source, f"dgrr:{tmp_path}/out")[0] == 0
        assert (tmp_path / "out").read_bytes() == path.read_bytes()


def _through_otlp(spool: Path, folder: Path) -> Path:
    convert(ConvertRequest(str(spool), str(folder / "joined.jsonl")))
    return folder / "joined.jsonl"


def test_records_without_a_step_are_reported_and_preserved(tmp_path: Path) -> None:
    steps = len(steps_of(RANKS, 0))
    (tmp_path / "long.dgrr").write_bytes(trace(chain(steps + 4_500)))
    joined = tmp_path / "joined"
    code, out, problems = command(
        "convert", f"dgrr:{tmp_path}/long.dgrr", joined, "--join", RANKS, "--json"
    )
    assert code == 1
    assert "4500 records have no step" in problems
    assert [each["code"] for each in json.loads(out)["skipped"]] == ["no-step"]
    spans = [span for batch in batches(joined).values() for span in batch["spans"]]
    assert [span["name"] for span in spans] == ["cirron.session"]
    assert {mark["span_id"] for mark in marks_of(joined)[steps:]} == {spans[0]["id"]}
    assert command("convert", joined, f"dgrr:{tmp_path}/out")[0] == 0
    assert (tmp_path / "out").read_bytes() == (tmp_path / "long.dgrr").read_bytes()


def test_a_trace_in_the_spool_of_the_run(tmp_path: Path) -> None:
    """The marks are found on the steps of the run when both are read together."""
    both = tmp_path / "both"
    convert(ConvertRequest(str(TORCH), str(both)))
    (tmp_path / "t.dgrr").write_bytes(trace(chain(len(steps_of(TORCH, 0)))))
    convert(ConvertRequest(f"dgrr:{tmp_path}/t.dgrr", str(both), join=str(TORCH)))
    code, out, _ = command("report", both, "--full")
    assert code in (0, 1)
    assert "dgrr.step" in out


def test_one_rank_is_selected(tmp_path: Path) -> None:
    for chosen in (["rank=0..1"], ["rank=0", "rank=1"]):
        options = [word for each in chosen for word in ("--select", each)]
        code, _, problems = command(
            "convert", f"dgrr:{CLEAN}", tmp_path / "out", "--join", RANKS, *options
        )
        assert code == 2
        assert "select one rank" in problems
    assert not (tmp_path / "out").exists()


def test_a_missing_run_is_refused(tmp_path: Path) -> None:
    source = f"dgrr:{CLEAN}"
    for run, more in ((tmp_path / "no", []), (RANKS, ["--select", "rank=7"])):
        code, _, problems = command("convert", source, tmp_path / "out", "--join", run, *more)
        assert code == 3
        assert problems.count("\n") == 1
    assert "contains no step of rank 7" in problems
    assert not (tmp_path / "out").exists()
