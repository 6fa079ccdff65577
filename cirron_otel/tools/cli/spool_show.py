"""`cirron-otel spool show`: show the scopes of a spool as a tree, with durations and marks."""

# ruff: noqa: PLC0415 - imports in functions, so that other commands start faster

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from ..present.formatting import (
    appendix,
    count,
    duration,
    failure,
    local_moment,
    marks_of,
    printable,
)
from . import output
from .parameters import json_option, run_option, spool_argument
from .progress import progress
from .runs import chosen_run

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

    from ...core.run.trees import Forest, TreeNode
    from ...core.spool.reader import SpoolReader
    from .folding import Fold

_DEFAULT_SPANS = 1000
_FOLDED_SPANS = 50_000
"""The maximum number of folded lines and of trees for which --fold reads all scopes; beyond it,
--fold reads at most this many scopes."""


@click.command(short_help="Show the tree of scopes with durations and marks.")
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
    help=f"At most N spans ({_DEFAULT_SPANS:,}, with --fold all): of a large tree"
    " the upper levels are shown.",
)
@click.option("--fold", "is_folded", is_flag=True, help="Show equal scopes in one line: epoch 0-9.")
@json_option
def show(
    directory: str, run: str | None, session: str | None, depth: int, limit: int | None,
    is_folded: bool, as_json: bool,
) -> int:  # fmt: skip
    """Show the tree of scopes with their durations and marks."""
    from ...core.run.trees import TreeLimits, build_trees
    from ...core.spool.reader import SpoolReader
    from .folding import folded_trees

    with progress("finding the run") as shown:
        reader = SpoolReader(directory, on_progress=shown)
        if run is not None:
            chosen_run(reader, run)
        shown.stage("reading batches", then="building the tree")
        if is_folded:
            forest, folds, is_cut = _folded(reader, session, depth, limit)
            drawn = folded_trees(folds)
        else:
            folds, is_cut = [], False
            most = limit or _DEFAULT_SPANS
            limits = TreeLimits(spans=most, children=min(most, _DEFAULT_SPANS), depth=depth)
            forest = build_trees(reader, session=session, limits=limits)
            drawn = trees(forest)
    if as_json:
        document = forest.to_json()
        if is_folded:
            document["trees"] = [each.to_json() for each in folds]
        output.document({"path": str(reader.paths.spool), **document})
    else:
        output.show(*drawn)
        for line in _tail(forest, is_cut=is_cut):
            output.result(line)
    output.skipped(reader.findings, reader.skipped)
    return 1 if reader.skipped else 0


def _folded(
    reader: SpoolReader, session: str | None, depth: int, limit: int | None
) -> tuple[Forest, list[Fold], bool]:
    """Fold all trees in bounded memory, or only a part if there is a limit or they are too varied.

    Returns the forest, which contains the counts, the folded trees, and whether the limit left
    scopes out.
    """
    from ...core.run.load.scopes import Scopes
    from ...core.run.trees import UNLIMITED, TreeLimits, Trees
    from .folding import TooVariedError, fold

    scopes = Scopes(reader, once=False)
    if limit is None:
        walk = Trees(scopes, TreeLimits(UNLIMITED, UNLIMITED, UNLIMITED, depth), session)
        with contextlib.suppress(TooVariedError):
            folds = fold(walk.roots(_FOLDED_SPANS), walk, _FOLDED_SPANS)
            return walk.forest([]), folds, False
    most = limit or _FOLDED_SPANS
    built = Trees(scopes, TreeLimits(spans=most, children=most, depth=depth), session)
    forest = built.forest(built.grown(built.roots(most)))
    return forest, fold(forest.trees), most <= forest.shown < forest.spans


def trees(forest: Forest) -> Iterator[Tree]:
    """Yield the trees for rich to draw."""
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


def _tail(forest: Forest, *, is_cut: bool) -> list[str]:
    lines = []
    if forest.marks_unattached:
        lines.append(f"outside every session: {marks_of(forest.marks_unattached, 0)}")
    shown = f"{forest.shown:,} of " if forest.shown < forest.spans else ""
    lines.append(f"{shown}{count(forest.spans, 'span')}")
    if is_cut:
        lines.append(
            "the others are omitted, lower levels and later scopes first: equal scopes may seem to"
        )
        lines.append("differ; --limit N reads more, --depth N omits the lower levels of all scopes")
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
    label.append(appendix(marks_of(node.marks, node.marks_left_out)), "green")
    if node.snapshots:
        label.append(f"  {count(node.snapshots, 'snapshot')}", "magenta")
    if node.children_left_out and not node.children:
        label.append(f"  (+ {node.children_left_out:,} inside)", "dim")
    return label
