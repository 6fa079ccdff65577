"""Trees drawn small, and `spool show --fold`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cirron_otel.cli.folding import fold, folded_trees
from cirron_otel.spool.breakdown import break_down
from cirron_otel.spool.tree import MarkNode, TreeNode
from tests.cli.conftest import SPOOLS, Run


def node(name: str, *children: TreeNode, ns: int = 1000, **more: Any) -> TreeNode:
    return TreeNode(id=name, name=name, duration_ns=ns, children=list(children), **more)


def step(number: int, *phases: str, **more: Any) -> TreeNode:
    return node("step", *map(node, phases), index=str(number), **more)


def drawn(root: TreeNode) -> list[str]:
    console = Console(width=200, highlight=False, markup=False)
    with console.capture() as captured:
        console.print(*folded_trees(fold([root])))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_what_is_alike_is_one_line_with_the_median() -> None:
    steps = [step(number, "forward", "backward", ns=ns) for number, ns in enumerate([5, 9, 100])]
    assert drawn(node("epoch", *steps, index="0")) == [
        "epoch 0  1 µs",
        "└── step 0-2  median 9 ns",
        "    ├── forward  median 1 µs",
        "    └── backward  median 1 µs",
    ]


def test_what_differs_stands_for_itself() -> None:
    steps = [step(number, "forward", *(["loss"] * (number % 3 == 1))) for number in range(6)]
    assert drawn(node("epoch", *steps)) == [
        "epoch  1 µs",
        "├── step 0, 2-3, 5  median 1 µs",
        "│   └── forward  median 1 µs",
        "└── step 1, 4  median 1 µs",
        "    ├── forward  median 1 µs",
        "    └── loss  median 1 µs",
    ]


def test_phases_are_counted_in_each_of_what_is_around() -> None:
    steps = [step(number, *["data_load", "forward"] * 3) for number in range(4)]
    epochs = [node("epoch", *steps, index=str(number)) for number in range(2)]
    assert drawn(node("run", *epochs)) == [
        "run  1 µs",
        "└── epoch 0-1  median 1 µs",
        "    └── step 0-3  median 1 µs",
        "        ├── data_load 3×  median 1 µs",
        "        └── forward 3×  median 1 µs",
    ]


@pytest.mark.parametrize(
    "other",
    [
        step(1, error="boom"),
        step(1, rank=3),
        step(1, recorded=False),
        step(1, children_left_out=2),
        node("stop", index="1"),
        node("step"),
    ],
)
def test_what_is_not_alike_is_not_folded(other: TreeNode) -> None:
    assert len(fold([node("epoch", step(0), other)])[0].children) == 2


def test_odd_numbers_and_names_are_shown_as_they_are() -> None:
    odd = [node("a\x1bb", index=index) for index in ("1.5", "-1", "x\n")]
    assert drawn(node("run", *odd))[1] == r"└── a\x1bb 1.5, -1, x\n  median 1 µs"
    many = [node("step", index=str(number)) for number in range(0, 400, 2)]
    line = drawn(node("run", *many))[1]
    assert "…  median" in line
    assert len(line) < 80


def test_marks_snapshots_and_what_is_left_out_are_those_of_all() -> None:
    def of(number: int) -> TreeNode:
        marks = [
            MarkNode("loss", f"0.{number}", "point", number),
            MarkNode("cirron.overhead_ns", "12", "summary", number),
        ]
        return step(number, marks=marks, snapshots=2, children_left_out=3)

    lines = drawn(node("epoch", of(1), of(2), children_left_out=4))
    assert lines[1] == "├── step 1-2  median 1 µs  loss=0.2 (2×)  4 snapshots  (+ 6 inside)"
    assert lines[2] == "└── … 4 more"


def test_a_breakdown_of_what_is_strange() -> None:
    assert break_down([]).to_json()["steps"]["total_ns"] == 0
    micro = node("micro_step", node("forward", ns=30), ns=60)
    odd = node("step", micro, node("optimizer_step", ns=40), node("x", ns=5), ns=100)
    unknown = node("step")
    unknown.duration_ns = None
    found = break_down([node("run", odd, unknown, node("forward", ns=7))])
    assert {phase.name: phase.total_ns for phase in found.phases} == {
        "forward": 30,
        "optimizer_step": 40,
        "x": 5,
    }
    assert found.unattributed.durations == [25, 0]


def test_show_folds(run: Run, spool: Path) -> None:
    result = run("spool", "show", "--fold")
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == "cirron.session  1.12 s  2026-11-20 18:02:13 UTC  rank 0"
    assert lines[1] == "├── forward  624 µs"
    assert lines[2].startswith("└── epoch 0-2  median 6.84 ms  lr=0.001 (24×), step_id=23 (24×),")
    assert lines[3] == "    └── step 0-23  median 472 µs  loss=1.39413 (24×)"
    assert [line.split()[1] for line in lines[4:9]] == [
        "data_load", "forward", "backward", "clip", "optimizer_step",
    ]  # fmt: skip
    assert lines[9:] == ["173 spans"]


def test_show_folds_for_machines_too(run: Run, spool: Path) -> None:
    document = json.loads(run("spool", "show", "--fold", "--depth", "2", "--json").stdout)
    (session,) = document["trees"]
    forward, epoch = session["children"]
    assert (forward["indexes"], forward["times"]) == (None, 1)
    assert (epoch["indexes"], epoch["times"], epoch["snapshots"]) == ("0-2", 3, 24)
    assert epoch["marks"]["improved"] == "true"
    assert (epoch["children"], epoch["children_left_out"]) == ([], 24)
    assert document["spans"] == 173


def test_show_folds_what_was_never_recorded(run: Run) -> None:
    killed = run("spool", "show", "--fold", SPOOLS / "23_sigkill_plus_stray_tmp")
    assert killed.stdout.startswith("(not recorded) 6be68e14fbceb75295d67298be3cf47f\n")
