"""Folded trees, and `spool show --fold`."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cirron_otel.core.run.load.scopes import Scopes
from cirron_otel.core.run.trees import UNLIMITED, MarkNode, TreeLimits, TreeNode, Trees
from cirron_otel.core.spool.reader import SpoolReader
from cirron_otel.core.spool.writer import SpoolWriter
from cirron_otel.tools.cli import spool_show
from cirron_otel.tools.cli.folding import fold, folded_trees
from cirron_otel.tools.cli.main import run as run_here
from tests.kit.spools.made import (
    encoded,
    made,
    mark,
    span,
    span_id,
)
from tests.tools.conftest import SPOOLS, Run

EVERYTHING = TreeLimits(UNLIMITED, UNLIMITED, UNLIMITED)


def node(name: str, *children: TreeNode, ns: int = 1000, **more: Any) -> TreeNode:
    return TreeNode(id=name, name=name, duration_ns=ns, children=list(children), **more)


def step(number: int, *phases: str, **more: Any) -> TreeNode:
    return node("step", *map(node, phases), index=str(number), **more)


def drawn(root: TreeNode) -> list[str]:
    console = Console(width=200, highlight=False, markup=False)
    with console.capture() as captured:
        console.print(*folded_trees(fold([root])))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_equal_steps_fold_into_one_line_with_the_median() -> None:
    steps = [step(number, "forward", "backward", ns=ns) for number, ns in enumerate([5, 9, 100])]
    assert drawn(node("epoch", *steps, index="0")) == [
        "epoch 0  1 µs",
        "└── step 0-2  median 9 ns",
        "    ├── forward  median 1 µs",
        "    └── backward  median 1 µs",
    ]


def test_differing_steps_have_separate_lines() -> None:
    steps = [step(number, "forward", *(["loss"] * (number % 3 == 1))) for number in range(6)]
    assert drawn(node("epoch", *steps)) == [
        "epoch  1 µs",
        "├── step 0, 2-3, 5  median 1 µs",
        "│   └── forward  median 1 µs",
        "└── step 1, 4  median 1 µs",
        "    ├── forward  median 1 µs",
        "    └── loss  median 1 µs",
    ]


def test_phases_are_counted_per_enclosing_scope() -> None:
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
def test_differing_nodes_are_not_folded(other: TreeNode) -> None:
    assert len(fold([node("epoch", step(0), other)])[0].children) == 2


def test_odd_indexes_and_names_are_escaped_and_long_lists_cut() -> None:
    odd = [node("a\x1bb", index=index) for index in ("1.5", "-1", "x\n")]
    assert drawn(node("run", *odd))[1] == r"└── a\x1bb 1.5, -1, x\n  median 1 µs"
    many = [node("step", index=str(number)) for number in range(0, 400, 2)]
    line = drawn(node("run", *many))[1]
    assert "…  median" in line
    assert len(line) < 80


def test_folded_line_combines_marks_snapshots_and_omitted_children() -> None:
    def of(number: int) -> TreeNode:
        marks = [
            MarkNode("loss", f"0.{number}", "point", number),
            MarkNode("cirron.overhead_ns", "12", "summary", number),
        ]
        return step(number, marks=marks, snapshots=2, children_left_out=3)

    lines = drawn(node("epoch", of(1), of(2), children_left_out=4))
    assert lines[1] == "├── step 1-2  median 1 µs  loss=0.2 (2×)  4 snapshots  (+ 6 inside)"
    assert lines[2] == "└── … 4 more"


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


def test_show_folds_a_session_that_was_never_recorded(run: Run) -> None:
    killed = run("spool", "show", "--fold", SPOOLS / "23_sigkill_plus_stray_tmp")
    assert killed.stdout.startswith("(not recorded) 6be68e14fbceb75295d67298be3cf47f\n")


@pytest.mark.parametrize("name", sorted(path.name for path in SPOOLS.iterdir() if path.is_dir()))
def test_trees_that_are_walked_fold_as_those_in_memory_do(name: str) -> None:
    reader = SpoolReader(SPOOLS / name)
    scopes = Scopes(reader, once=False)
    in_memory, walk = Trees(scopes, EVERYTHING), Trees(scopes, EVERYTHING)
    built = in_memory.forest(in_memory.grown(in_memory.roots(UNLIMITED)))
    walked = fold(walk.roots(UNLIMITED), walk)
    assert [each.to_json() for each in walked] == [each.to_json() for each in fold(built.trees)]
    counted = walk.forest([]).to_json()
    assert counted["spans"] == built.spans
    assert (counted["shown"], counted["trees_left_out"]) == (built.shown, 0)


def long_run(root: Path, steps: int, name: str = "step") -> Path:
    """Write a session of `steps` steps, each with two phases."""
    writer = SpoolWriter(root, max_bytes=None, durable=False)
    session = span(0, name="cirron.session", index=None)
    for number in range(0, steps, 5_000):
        spans = [] if number else [session]
        for step in range(number, min(number + 5_000, steps)):
            first = 1 + 3 * step
            spans.append(span(first, 0, index=step, name=name.format(step)))
            spans += [
                span(first + n, first, index=None, name=phase)
                for n, phase in ((1, "forward"), (2, "backward"))
            ]
        writer.write(encoded(made(number, spans=spans)))
    return root


def test_a_long_run_is_folded_completely(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert spool_show._FOLDED_SPANS == 50_000  # no test is larger
    monkeypatch.setattr(spool_show, "_FOLDED_SPANS", 5_000)
    root = long_run(tmp_path / "long", 2_000)
    assert run_here(["spool", "show", str(root), "--fold"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "└── step 0-1999  median 500 ns",
        "    ├── forward  median 500 ns",
        "    └── backward  median 500 ns",
        "6,001 spans",
    ]


def test_steps_of_two_kinds_in_turn_are_numbered(tmp_path: Path) -> None:
    spans = [span(1, index=None, name="epoch")]
    spans += [span(n, 1, name="step" if n % 2 else "other") for n in range(2, 3_002)]
    writer = SpoolWriter(tmp_path, max_bytes=None, durable=False)
    writer.write(encoded(made(1, spans=spans)))
    walk = Trees(Scopes(SpoolReader(tmp_path), once=False), EVERYTHING)
    [epoch] = fold(walk.roots(10), walk)
    assert [each.times for each in epoch.children] == [1500, 1500]
    assert str(epoch.children[0].indexes).startswith("2, 4, 6, 8, ")
    assert str(epoch.children[1].indexes).startswith("3, 5, 7, 9, ")


def test_spans_that_cannot_be_folded_are_cut_with_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_show, "_FOLDED_SPANS", 30)
    root = str(long_run(tmp_path / "varied", 20, "step_{}"))
    cut = [
        "the others are omitted, lower levels and later scopes first: equal scopes may seem to",
        "differ; --limit N reads more, --depth N omits the lower levels of all scopes",
    ]
    for options in ([], ["--limit", "30"]):
        assert run_here(["spool", "show", root, "--fold", *options]) == 0
        assert capsys.readouterr().out.splitlines()[-3:] == ["30 of 61 spans", *cut]
    for options in (["--limit", "61"], ["--limit", "1000"], ["--depth", "2"]):
        assert run_here(["spool", "show", root, "--fold", *options]) == 0
        assert "left out" not in capsys.readouterr().out


def test_all_marks_of_a_scope_count(tmp_path: Path) -> None:
    marks = [mark(number, 1, value=float(number)) for number in range(2_500)]
    named = [mark(number, 1, name=f"m{number}") for number in range(2_500, 4_000)]
    writer = SpoolWriter(tmp_path, max_bytes=None, durable=False)
    writer.write(encoded(made(1, spans=[span(1)], marks=[*marks, *named])))
    walk = Trees(Scopes(SpoolReader(tmp_path), once=False), EVERYTHING)
    [root] = fold(walk.roots(10), walk)
    assert root.first.id == span_id(1)
    assert str(root.marks).startswith("loss=2499.0 (2,500×), m2500=0.5, ")
    assert str(root.marks).endswith(", 1,496 more marks")


@pytest.mark.parametrize("index", ["9" * 5_000, "1" * 18, "0007"])
def test_long_indexes_do_not_break_folding(index: str) -> None:
    [found] = fold([node("run", step(1), node("step", index=index))])
    [steps] = found.children
    assert len(str(steps.indexes)) <= 40


def test_memory_does_not_grow_with_the_number_of_scopes(tmp_path: Path) -> None:
    peaks = []
    for steps in (300, 3_000):
        reader = SpoolReader(long_run(tmp_path / str(steps), steps))
        walk = Trees(Scopes(reader, once=False), EVERYTHING)
        fold(walk.roots(10), walk)  # the scopes are grouped at their first use
        tracemalloc.start()
        fold(walk.roots(10), walk)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    scopes = 3 * 2_700
    assert peaks[1] - peaks[0] < 60 * scopes
