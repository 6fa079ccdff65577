"""Runs all loops with cirron-otel and the other tools, and writes docs/torch-conformance.md.

    python -m tests.sdk.instrumentation.torch.matrix [--all]

A neighbour's results are kept in tests/testdata/torch-conformance.json, so that the test that the
page is up to date needs none; they are made again where a loop has changed, or with `--all`.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from tests.kit.program_server import ProgramError

from . import traceml_run
from .judging import faults, judge
from .loops import Loop, every
from .matrix_page import PAGE, page
from .peers import CIRRON_SDK
from .running import Worker
from .trees import folded, parse, read

STORED = Path(__file__).parents[3] / "testdata" / "torch-conformance.json"
OURS, SDK, TRACEML = "cirron-otel", "cirron-sdk", "traceml-ai"
ELSE = "computes something else"


def digest(loop: Loop) -> str:
    """Identify what a loop does and should give; its results are stored with this. The title
    does not count, so it can be reworded without new results."""
    text = inspect.getsource(loop.run).replace(loop.title, "", 1) + loop.tree
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def stored() -> dict[str, Any]:
    """The results of the last run: `versions`, and `loops` by their names."""
    return json.loads(STORED.read_text()) if STORED.exists() else {"versions": {}, "loops": {}}


def main() -> None:
    """Run what is to be run, store it, and write the page."""
    loops, before = every(), {} if "--all" in sys.argv else stored()["loops"]
    kept = {
        name: before[name]
        for name, loop in loops.items()
        if before.get(name, {}).get("digest") == digest(loop) and TRACEML in before[name]
    }
    results = {name: kept.get(name, {"digest": digest(loop)}) for name, loop in loops.items()}
    changed = [loop for name, loop in loops.items() if name not in kept]
    with tempfile.TemporaryDirectory() as parent:
        with ExitStack() as stack:
            bare = stack.enter_context(Worker("untraced"))
            ours = stack.enter_context(Worker(OURS))
            sdk = stack.enter_context(Worker(SDK, CIRRON_SDK.make()))
            for name, loop in loops.items():
                computed = [o.result for o in bare.run_loop(loop, Path(parent, "bare", name))]
                results[name][OURS] = _of_ours(ours, loop, computed, Path(parent, OURS, name))
                if loop in changed:
                    found = _of_sdk(sdk, loop, computed, Path(parent, SDK, name))
                    results[name][SDK] = found
        if changed:
            _add_traceml(results, changed, Path(parent, TRACEML))
    versions = {"torch": torch.__version__.partition("+")[0]}
    versions |= {SDK: "0.3.0", TRACEML: "0.5.0", OURS: importlib.metadata.version(OURS)}
    told = {"versions": versions, "loops": results}
    STORED.write_text(json.dumps(told, indent=1) + "\n")
    PAGE.write_text(page(loops, told))
    wrong = [name for name, result in results.items() if result[OURS]]
    print(f"{len(loops)} loops, {len(wrong)} wrong: {', '.join(wrong) or 'none'}")


def _of_ours(worker: Worker, loop: Loop, computed: list[str], directory: Path) -> list[str]:
    """What is wrong; empty if nothing is."""
    try:
        outcomes = worker.run_loop(loop, directory)
        recorded = read(directory)
    except (ProgramError, ValueError) as error:
        return [str(error)]
    if list(recorded) != list(range(loop.ranks)):
        return [f"ranks {list(recorded)}"]
    if [outcome.result for outcome in outcomes] != computed:
        return [ELSE]
    return [
        fault
        for rank, outcome in enumerate(outcomes)
        for fault in faults(loop, outcome, recorded[rank])
    ]


def _of_sdk(worker: Worker, loop: Loop, computed: list[str], directory: Path) -> dict[str, Any]:
    """Whether it is right, notes, what it `raised`, and the tree of the first rank."""
    wrong: dict[str, Any] = {"right": False, "notes": [], "tree": []}
    try:
        outcomes = worker.run_loop(loop, directory)
    except ProgramError as error:
        return wrong | {"raised": str(error).splitlines()[-1]}
    raised = [outcome.error for outcome in outcomes if outcome.error]
    if raised:
        return wrong | {"raised": raised[0]}
    recorded = read(directory / ".cirron")
    if len(recorded) != loop.ranks:
        return wrong | {"notes": [f"trees of {len(recorded)} ranks, not {loop.ranks}"]}
    expected = parse(loop.tree)
    verdicts = [judge(expected, found.root) for found in recorded.values()]
    worst = min(verdicts, key=lambda verdict: verdict.is_right)
    notes = list(worst.notes)
    if orphans := max(len(found.orphans) for found in recorded.values()):
        notes.append(f"{orphans} scopes have a parent that is not there")
    if [outcome.result for outcome in outcomes] != computed:
        notes.append(ELSE)
    tree = folded([next(iter(recorded.values())).root])
    return {"right": notes == worst.notes and worst.is_right, "notes": notes, "tree": tree}


def _add_traceml(results: dict[str, Any], changed: list[Loop], directory: Path) -> None:
    bare = traceml_run.steps(directory / "bare", marked=False)
    marked = traceml_run.steps(directory / "marked", marked=True)
    for loop in changed:
        found: dict[str, Any] = {}
        if loop.name in bare:
            found = {"bare": bare[loop.name], "marked": marked[loop.name]}
        results[loop.name][TRACEML] = found


if __name__ == "__main__":
    main()
