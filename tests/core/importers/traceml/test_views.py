"""Views do not draw the phases of TraceML's steps at positions that were not measured."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.tools.cli.main import run
from tests.kit.spools.comparing import RECORDED

FRAMES = Path(__file__).parents[3] / "testdata" / "traceml" / "v050" / "ddp2_short" / "frames"
OURS = RECORDED / "01_torch_basic"


def events(source: str, folder: Path) -> list[dict[str, Any]]:
    """The scopes in the file for Perfetto."""
    path = folder / "run.json"
    assert run(["report", source, "--perfetto", str(path), "--no-pager"]) == 0
    return [each for each in json.loads(path.read_text())["traceEvents"] if each["ph"] == "X"]


def test_perfetto_has_the_sums_as_arguments_of_the_step(tmp_path: Path) -> None:
    found = events(f"traceml:{FRAMES}", tmp_path)
    assert {each["cat"] for each in found} == {"step", "cirron.session"}
    first = next(each for each in found if each["name"] == "step 1")
    assert first["args"]["phases_us"] == {
        "data_load": 4021.645, "forward": 3525.019, "backward": 750.303, "optimizer_step": 614.643
    }  # fmt: skip


def test_perfetto_contains_the_measured_phases_of_native_steps(tmp_path: Path) -> None:
    found = events(str(OURS), tmp_path)
    assert {"forward", "backward"} <= {each["cat"] for each in found}
    assert not any("phases_us" in each["args"] for each in found)


@pytest.mark.parametrize("is_sum", [True, False])
def test_the_page_draws_sums_from_the_start_of_the_step(tmp_path: Path, *, is_sum: bool) -> None:
    source = f"traceml:{FRAMES}" if is_sum else str(OURS)
    page = tmp_path / "run.html"
    assert run(["report", source, "--html", str(page), "--no-pager"]) == 0
    text = page.read_text()
    bars = re.findall(r'<rect class="(k\d+ sum)" x="(\d+)"', text)
    assert bool(bars) == is_sum
    assert ("Dashed bars are sums" in text) == is_sum
    assert {left for _, left in bars} <= {"0"}


def test_the_tree_marks_such_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spool = tmp_path / "spool-of-traceml"
    assert run(["convert", f"traceml:{FRAMES}", str(spool)]) == 0
    capsys.readouterr()
    assert run(["spool", "show", str(spool), "--json"]) == 0
    trees = json.loads(capsys.readouterr().out)["trees"]
    steps = [child for tree in trees for child in tree["children"] if child["name"] == "step"]
    assert len(steps) == 20
    assert all(step["phases_are_sums"] for step in steps)
    assert not any("phases_are_sums" in phase for step in steps for phase in step["children"])
