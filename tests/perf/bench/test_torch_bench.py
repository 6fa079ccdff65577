"""The torch section runs and prints all that it is for; its sizes here say nothing about times."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.conftest import leave_out, need_torch

from . import torch_cost, torch_tables, torch_untrained
from .printing import has_rows, printed_by
from .worker_processes import Workers

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.xdist_group("torch bench")]
CLOCKS = r"( +[+-]\d+\.\d){5}   ± \d+\.\d"
RATIO = r": -?\d+\.\d+ \(bar "


@pytest.fixture(scope="module")
def printed() -> str:
    need_torch()
    return printed_by("torch")


def test_every_figure_of_ours_is_printed(printed: str) -> None:
    rows = ("the bare step itself", "cirron-otel" + CLOCKS, "cirron-otel, detail_every=10" + CLOCKS)
    assert has_rows(printed, *rows, "by hand" + CLOCKS), printed
    assert has_rows(printed, "cirron-otel / the step, wall, running" + RATIO + r"0\.01"), printed


def test_untrained_operations_are_measured_with_many_classes(printed: str) -> None:
    for number in torch_untrained.CLASSES:
        for title in torch_untrained.DOINGS.values():
            row = rf"{number:,} classes, {title} +\d+\.\d +[+-]\d+\.\d \(bar 60"
            assert has_rows(printed, row), printed


@pytest.mark.parametrize(("added", "above"), [(59.9, False), (60.1, True)])
def test_cost_that_exceeds_the_bar_is_marked(added: float, above: bool) -> None:
    assert torch_untrained.line("a batch", added, 100.0).endswith("ABOVE)") is above


def test_ours_lost_nothing(printed: str) -> None:
    lines = re.findall(r"lost by (cirron-otel|by hand).*: (.*)", printed)
    assert len(lines) == 5  # a process of ours, or two, in each of the three tables
    assert {lost for _, lost in lines} == {"nothing"}


@pytest.mark.parametrize(
    ("neighbour", "bars"), [("cirron-sdk", ("0.35", "0.7", "0.35")), ("traceml-ai", ("0.4",))]
)
def test_a_neighbour_is_measured_in_the_same_run(
    printed: str, neighbour: str, bars: tuple[str, ...]
) -> None:
    if f"without {neighbour}" in printed:
        leave_out(f"{neighbour} cannot be installed here")
    assert has_rows(printed, neighbour + CLOCKS), printed
    assert re.findall(rf"/ {neighbour}, .*\(bar ([\d.]+)", printed) == list(bars)


def test_a_worker_trains_the_26_modules_and_records_their_steps(tmp_path: Path) -> None:
    need_torch()
    subject = torch_tables.Subject("by hand", torch_tables.BY_HAND)
    work = {"width": 4, "batch": 2, "steps": 3}
    with Workers(torch_cost.PROGRAM) as processes:
        python = Path(sys.executable)
        worker = torch_cost.Worker(processes, subject, {"work": work}, python, tmp_path)
        try:
            worker.do("install")
            block = worker.do("block", epochs=2)
            worker.do("close")
        finally:
            worker.end()
    assert set(block) == set(torch_tables.CLOCKS)
    spans = [
        span
        for path in (tmp_path / ".cirron" / "spool").glob("*.json")
        for span in json.loads(path.read_bytes())["spans"]
    ]
    names = [span["name"] for span in spans]
    phases = ("data_load", "forward", "backward", "optimizer_step")
    assert [names.count(name) for name in ("epoch", "step", *phases)] == [3, *[9] * 5], (
        "two passes of three steps, and one before them that does not count"
    )


def test_the_mlp_has_26_modules() -> None:
    need_torch()
    from .torch_worker import Training, Work

    assert len(list(Training(Work(4, 2, 3)).model.modules())) == 26


def test_a_worker_that_dies_is_not_waited_for_and_its_words_are_shown(tmp_path: Path) -> None:
    need_torch()
    subject = torch_tables.Subject("bare", torch_tables.BARE)
    with Workers(torch_cost.PROGRAM) as processes:
        python = Path(sys.executable)
        worker = torch_cost.Worker(processes, subject, {"work": {}}, python, tmp_path)
        died = r"(?s)bare did not answer 'block'.*missing 3 required"
        with pytest.raises(RuntimeError, match=died):
            worker.do("block", epochs=1)
        worker.end()


def test_added_cost_is_relative_to_bare_and_less_its_process_bias() -> None:
    def blocks(bare: float, tool: float) -> dict[str, torch_tables.Block]:
        return {"bare": {"wall": bare}, "tool": {"wall": tool}}

    before = [blocks(100, 105), blocks(200, 205), blocks(100, 130)]
    after = [blocks(100, 125), blocks(150, 185)]
    assert torch_cost.added_by("tool", "wall", before, after) == [20, 30]
    assert torch_cost.added_by("bare", "wall", before, after) == [0, 0]


@pytest.mark.parametrize(("cost", "above"), [(34.0, ""), (36.0, ", ABOVE")])
def test_ratio_that_exceeds_its_bar_is_marked(
    capsys: pytest.CaptureFixture[str], cost: float, above: str
) -> None:
    table = torch_tables.tables(torch_tables.TINY)[0]
    added = {
        label: {clock: [each] * 3 for clock in torch_tables.CLOCKS}
        for label, each in (("bare", 0.0), ("cirron-otel", cost), ("cirron-sdk", 100.0))
    }
    torch_cost.report(table, added, dict.fromkeys(torch_tables.CLOCKS, 500.0), 3)
    said = f"  cirron-otel / cirron-sdk, thread cpu: {cost / 100:.4f} (bar 0.35{above})\n"
    assert said in capsys.readouterr().out
