"""`cirron-otel spool show`: the scopes of a spool as a tree, durations and marks beside them."""

# ruff: noqa: PLC0415 - what a command needs is imported when it runs: the others start without

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from ..semconv import OVERHEAD_NS
from . import output
from .parameters import json_option, run_option, spool_argument
from .runs import chosen_run
from .text import count, duration, local_moment, printable

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

    from ..spool.tree import Forest, MarkNode, TreeNode

_MARKS_SHOWN = 5
_MAX_VALUE = 40
_LONG_FRACTION = re.compile(r"-?\d{1,9}\.\d{6,20}(e[+-]?\d{1,3})?", re.ASCII)
_DEFAULT_SPANS = 1000
_FOLDED_SPANS = 50_000


@click.command(short_help="The tree of scopes, durations and marks.")
@spool_argument
@run_option
@click.option("--session", metavar="ID", help="Only this session (`spool ls` lists them).")
@click.option(
    "--depth", type=click.IntRange(1, 64), default=64, metavar="N", help="Only the top N levels."
)
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000_000),
    metavar="N",
    help=f"At most N spans ({_DEFAULT_SPANS:,}, with --fold {_FOLDED_SPANS:,}): of a large tree"
    " the upper levels are shown.",
)
@click.option(
    "--fold", "is_folded", is_flag=True, help="One line for scopes that are alike: epoch 0-9."
)
@json_option
def show(
    directory: str, run: str | None, session: str | None, depth: int, limit: int | None,
    is_folded: bool, as_json: bool,
) -> int:  # fmt: skip
    """The tree of scopes, with their durations and marks."""
    from ..spool.reader import SpoolReader
    from ..spool.tree import Limits, build_trees
    from .folding import fold, folded_trees

    reader = SpoolReader(directory)
    if run is not None:
        chosen_run(reader, run)
    most = limit or (_FOLDED_SPANS if is_folded else _DEFAULT_SPANS)
    children = most if is_folded else min(most, _DEFAULT_SPANS)
    limits = Limits(spans=most, children=children, depth=depth)
    forest = build_trees(reader, session=session, limits=limits)
    if as_json:
        document = forest.to_json()
        if is_folded:
            document["trees"] = [each.to_json() for each in fold(forest.trees)]
        output.document({"path": str(reader.paths.spool), **document})
    else:
        output.show(*(folded_trees(fold(forest.trees)) if is_folded else trees(forest)))
        for line in _tail(forest):
            output.result(line)
    output.skipped(reader.findings, reader.skipped)
    return 1 if reader.skipped else 0


def trees(forest: Forest) -> Iterator[Tree]:
    """The trees for rich to draw."""
    from rich.tree import Tree

    for root in forest.trees:
        tree = Tree(_label(root, None))
        todo = [(tree, root)]
        while todo:
            branch, node = todo.pop()
            for child in node.children:
                todo.append((branch.add(_label(child, node)), child))
            if node.children and node.children_left_out:
                branch.add(_plain(f"… {node.children_left_out:,} more"))
        yield tree


def _tail(forest: Forest) -> list[str]:
    lines = []
    if forest.marks_unattached:
        lines.append(f"outside every session: {_marks(forest.marks_unattached, 0)}")
    shown = f"{forest.shown:,} of " if forest.shown < forest.spans else ""
    lines.append(f"{shown}{count(forest.spans, 'span')}")
    if forest.trees_left_out:
        lines.append(f"{forest.trees_left_out:,} more trees: --limit shows more")
    return lines


def _plain(text: str) -> Text:
    from rich.text import Text

    return Text(text, style="dim", no_wrap=True, overflow="ellipsis")


def _label(node: TreeNode, parent: TreeNode | None) -> Text:
    from rich.text import Text

    label = Text(no_wrap=True, overflow="ellipsis")
    if node.recorded:
        label.append(printable(node.name if node.name is not None else "(no name)"), "bold")
        if node.index is not None:
            label.append(f" {printable(node.index)}", "bold")
        label.append(f"  {duration(node.duration_ns)}", "cyan")
        label.append(failure(node.error), "red")
    else:
        label.append(f"(not recorded) {printable(node.id or '')}", "yellow")
    if parent is None and node.start_ns is not None:
        label.append(f"  {local_moment(node.start_ns)}", "dim")
    if node.rank is not None and (parent is None or node.rank != parent.rank):
        label.append(f"  rank {node.rank}", "dim")
    label.append(appendix(node.marks, node.marks_left_out), "green")
    if node.snapshots:
        label.append(f"  {count(node.snapshots, 'snapshot')}", "magenta")
    if node.children_left_out and not node.children:
        label.append(f"  (+ {node.children_left_out:,} inside)", "dim")
    return label


def failure(error: str | None) -> str:
    """What stands beside a scope that failed; nothing beside others."""
    return "" if error is None else f"  ✗ {_short(printable(error))}"


def appendix(marks: list[MarkNode], left_out: int) -> str:
    """What stands beside a scope with these marks; nothing without any."""
    # The SDK's own mark stands in every scope: --json has it.
    users = [mark for mark in marks if mark.name != OVERHEAD_NS]
    return f"  {_marks(users, left_out)}" if users or left_out else ""


def _marks(marks: list[MarkNode], left_out: int) -> str:
    """The last value of each mark, and how many there are where it is more than one."""
    last: dict[str, str] = {}
    often: dict[str, int] = {}
    for mark in marks:
        name = printable(mark.name if mark.name is not None else "?")
        last[name] = _short(mark.value)
        often[name] = often.get(name, 0) + 1
    parts = []
    for name, value in list(last.items())[:_MARKS_SHOWN]:
        parts.append(f"{name}={value}" + (f" ({often[name]:,}×)" if often[name] > 1 else ""))
    more = left_out + sum(list(often.values())[_MARKS_SHOWN:])
    return ", ".join(parts) + (f", {count(more, 'more mark')}" if more else "")


def _short(value: str | None) -> str:
    """A mark's value for people: six digits of a long fraction, the beginning of a long text."""
    if value is None:
        return "?"
    if _LONG_FRACTION.fullmatch(value):
        return f"{float(value):.6g}"
    text = printable(value)
    return text if len(text) <= _MAX_VALUE else text[: _MAX_VALUE - 1] + "…"
