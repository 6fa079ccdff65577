"""Trees as text, and the description of differences: the measure of the conformance tests."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from .judging import judge
from .loops import every
from .trees import (
    Node,
    difference,
    folded,
    mark_faults,
    parse,
    time_faults,
)

TWO_STEPS = """
cirron.session
  epoch[0]
    step[0-1]
      data_load
      forward{module=Net}
      loss
      backward! x2
"""


@pytest.mark.parametrize("loop", every().values(), ids=lambda loop: loop.name)
def test_the_expected_trees_can_be_read_and_written(loop: Any) -> None:
    tree = parse(loop.tree)
    assert tree.name == "cirron.session"
    assert difference(parse("\n".join(folded([tree]))), tree) == ""


def test_range_expands_to_as_many_siblings() -> None:
    root = parse(TWO_STEPS)
    steps = root.children[0].children
    assert [step.label for step in steps] == ["step[0]", "step[1]"]
    labels = ["data_load", "forward", "loss", "backward!", "backward!"]
    assert [[child.label for child in step.children] for step in steps] == [labels, labels]
    assert steps[1].children[1].attrs == {"module": "Net"}


@pytest.mark.parametrize("text", ["a\nb", "a\n    b", "a b", "a\n  b]", ""])
def test_invalid_tree_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"root|tree|indented"):
        parse(text)


def _rename(node: Node) -> None:
    node.children[0].children[1].name = "h2d"


def _renumber(node: Node) -> None:
    node.children[0].children[1].index = 2


def _clear(node: Node) -> None:
    node.children[0].children[0].children[4].is_error = False


def _drop(node: Node) -> None:
    del node.children[0].children[1].children[0]


def _swap(node: Node) -> None:
    node.children[0].children[0].children.reverse()


def _other_module(node: Node) -> None:
    node.children[0].children[0].children[1].attrs = {"module": "Other"}


@pytest.mark.parametrize("change", [_rename, _renumber, _clear, _drop, _swap, _other_module])
def test_every_difference_is_reported(change: Any) -> None:
    expected, recorded = parse(TWO_STEPS), parse(TWO_STEPS)
    assert difference(expected, recorded) == ""
    change(recorded)
    assert difference(expected, recorded) != ""


def _timed(name: str, start: int, end: int, *children: Node, **attrs: Any) -> Node:
    record = {"start_ns": start, "end_ns": end, "thread_id": 1}
    return Node(name, None, False, attrs, list(children), record)


def test_contradictory_times_are_reported() -> None:
    def step(first: int, unattributed: int, second: int = 50, end: int = 90) -> Node:
        children = [_timed("forward", first, 50), _timed("backward", second, end)]
        return _timed("step", 10, 90, *children, unattributed_ns=unattributed)

    assert time_faults(step(20, 10)) == []
    assert "1 ns are neither" in time_faults(step(20, 9))[0]
    assert "before step" in time_faults(step(9, -1))[0]
    assert "after step" in time_faults(step(20, 9, end=91))[0]
    assert "before the end of forward" in time_faults(step(20, 9, second=49))[0]
    assert time_faults(_timed("step", 0, 1)) == ["step has no unattributed_ns"]
    assert time_faults(_timed("step", 0, 1), needs_unattributed=False) == []


def test_micro_steps_may_overlap_only_while_their_batches_wait() -> None:
    def step(fetch: int, forward: int, rests: tuple[int, int]) -> Node:
        first, second = (
            _timed("micro_step", start, end, *children, unattributed_ns=rest)
            for start, end, children, rest in (
                (0, 50, (_timed("data_load", 0, 10), _timed("forward", 30, 50)), rests[0]),
                (
                    fetch,
                    90,
                    (_timed("data_load", 15, 25), _timed("forward", forward, 90)),
                    rests[1],
                ),
            )
        )
        return _timed("step", 0, 90, first, second, unattributed_ns=0)

    assert time_faults(step(15, 60, (10, 10))) == []
    assert "1 ns are neither" in time_faults(step(15, 60, (11, 10)))[0]
    assert "1 ns are neither" in time_faults(step(15, 60, (10, 11)))[0]
    assert "before the end of micro_step" in time_faults(step(14, 60, (10, 10)))[0]
    assert "before the end of micro_step" in time_faults(step(15, 49, (10, 0)))[0]


def test_lost_duplicated_or_misplaced_marks_are_reported() -> None:
    made = ["on step", "loss"]
    there = [("on step", "step"), ("loss", "epoch")]
    assert mark_faults(made, there) == []
    assert mark_faults(made, there[:1])
    assert mark_faults(made, [*there, there[0]])
    assert "stands on epoch" in mark_faults(made, [("on step", "epoch"), there[1]])[0]
    assert "no scope" in mark_faults(made, [there[0], ("loss", "")])[0]


def test_judge_tolerates_numbering_and_loss_but_not_an_extra_epoch() -> None:
    expected = parse(TWO_STEPS)
    recorded = copy.deepcopy(expected)
    for step in recorded.children[0].children:
        step.index = 5 + (step.index or 0)
        step.children[2].name = "forward"
    verdict = judge(expected, recorded)
    assert verdict.is_right
    assert verdict.notes == ["step numbers", "`loss`"]
    recorded.children.append(Node("epoch", 1))
    verdict = judge(expected, recorded)
    assert not verdict.is_right
    assert verdict.notes == ["2 `epoch`, not 1"]
