"""Renders docs/torch-conformance.md."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

from .loops import Loop
from .third_party.expected import PROGRAMS

PAGE = Path(__file__).parents[4] / "docs" / "torch-conformance.md"
OURS, SDK, TRACEML = "cirron-otel", "cirron-sdk", "traceml-ai"

HEAD = """\
# PyTorch: the trees of {count} loops

[torch.md](torch.md) defines what is recorded of a training loop. This page shows {count} loops as
people write them. For each it has the tree that the loop must give, which was written before the
hooks existed (the history has later corrections), and what three tools record of the same
code. `python -m tests.sdk.instrumentation.torch.matrix` writes the page; the loops are in
`tests/sdk/instrumentation/torch/loops/`. It was made with torch {torch} on a CPU.

## How it was judged

**cirron-otel {ours}** is right if all of this holds in every rank: the tree is the expected one
(names, numbers, order, status, and the attributes that it names; the trees leave out the work
between the phases, such as `zero_grad`, which `tests/sdk/instrumentation/torch/test_upkeep.py`
covers); no scope extends beyond its parent or overlaps its neighbours; the children of every step
and its `unattributed_ns` add up to its duration to the nanosecond; no mark is lost; the loop
computes the same as without tracing; and nothing was logged, swallowed or dropped.
`tests/sdk/instrumentation/torch/test_conformance.py` checks the same for every row: {right} of
{count} are right.

**cirron-sdk {sdk}** is judged only by the scopes that it has. It counts as right if nothing but the
following differs, which the row then names: *`batch`* (its name for the steps of `ci.batches`),
*step numbers* (they continue through the session), *`loss`* (a second `forward`), *`micro_step`*,
*`eval`* and *`loader_pass`* (their children belong to the scope around them), *`recompute`* (a
`forward` or nothing) and *status*. Attributes and times are not compared. An evaluation that is an
`epoch` is wrong: it shifts the numbers of the epochs that train. If cirron-sdk makes a loop raise,
the row contains the exception. {sdk_right} of {count} are right.

**traceml-ai {traceml}** records a table of steps, not a tree: for each step, the time and the
number of calls of its phases. It was started with `traceml_ai.init(mode="auto")` and its server. It
finds no steps by itself: {bare} If the steps of a loop are in a separate function,
`trace_step(model)` was then put around that function, as the documentation of traceml-ai
specifies. The column shows how many steps were recorded, and the number of calls of each phase that
does not have exactly one call per step. *Not marked*: the steps are not in a separate function; the
loop was left unchanged, so nothing is recorded. traceml-ai was not run with several ranks.
"""


def page(loops: dict[str, Loop], told: dict[str, Any]) -> str:
    """The page that shows these results."""
    results, versions = told["loops"], told["versions"]
    text = "\n\n".join(" ".join(part.split("\n")) for part in HEAD.strip().split("\n\n"))
    head = text.format(
        count=len(loops),
        torch=versions["torch"],
        ours=versions[OURS],
        sdk=versions[SDK],
        traceml=versions[TRACEML],
        right=sum(not results[name][OURS] for name in loops),
        sdk_right=sum(results[name][SDK]["right"] for name in loops),
        bare=_found_alone(results),
    )
    parts = [head, "## The loops"]
    for group, members in itertools.groupby(loops.values(), lambda loop: loop.group):
        parts += [f"### {group}", _table(list(members), results)]
    parts += [_others(), "## The expected trees"]
    parts += [_tree(loop, results[name]) for name, loop in loops.items()]
    return "\n\n".join(parts) + "\n"


def _table(loops: list[Loop], results: dict[str, Any]) -> str:
    title = (sys.modules[loops[0].run.__module__].__doc__ or "").strip().splitlines()[0]
    rows = [
        f"| [{loop.name}](#{loop.name}) | {_cell(loop.title)} | {_ours(results[loop.name][OURS])}"
        f" | {_sdk(results[loop.name][SDK])} | {_traceml(results[loop.name][TRACEML])} |"
        for loop in loops
    ]
    head = [title, "", f"| loop | what it is | {OURS} | {SDK} | {TRACEML} |"]
    return "\n".join([*head, "| --- | --- | --- | --- | --- |", *rows])


OTHERS = """\
## Loops of others

Loops from other projects, with tiny models. They train the same with and without tracing, to the
last bit; `tests/sdk/instrumentation/torch/test_third_party.py` checks that, and the trees.
The other tools were not run with them."""


def _others() -> str:
    """The loops of libraries, each with its tree, or with what is not right about it yet."""
    parts = [" ".join(part.split("\n")) for part in OTHERS.split("\n\n")]
    rows = [
        f"| `{each.name} {each.option}` | {each.title} | {'right' if each.tree else 'not yet'} |"
        for each in PROGRAMS
    ]
    parts += ["\n".join(["| program | what it is | cirron-otel |", "| --- | --- | --- |", *rows])]
    for each in PROGRAMS:
        told = f"```text\n{each.tree.strip()}\n```" if each.tree else f"{each.note}."
        summary = f"<summary>{each.name} {each.option}</summary>"
        parts += [f"<details>{summary}\n\n{told}\n\n</details>"]
    return "\n\n".join(parts)


def _found_alone(results: dict[str, Any]) -> str:
    """Return a sentence on the steps that it recorded of unchanged loops."""
    ran = [result[TRACEML]["bare"] for result in results.values() if result[TRACEML]]
    steps, with_steps = sum(r["steps"] for r in ran), sum(r["steps"] > 0 for r in ran)
    if not steps:
        return f"of the {len(ran)} unchanged loops of one rank it recorded no step."
    return f"of {len(ran)} unchanged loops it recorded {steps} steps in {with_steps}."


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").removesuffix(".")


def _ours(wrong: list[str]) -> str:
    return "**wrong**" if wrong else "right"


def _sdk(result: dict[str, Any]) -> str:
    if result.get("raised"):
        return f"**raises** {_short(result['raised'])}"
    notes = _cell("; ".join(result["notes"]))
    if result["right"]:
        return f"right, but {notes}" if notes else "right"
    return f"**wrong**: {notes}"


def _short(error: str) -> str:
    """The first words of what was raised."""
    words = _cell(error.strip().splitlines()[0]).replace("`", "")
    return words if len(words) < 80 else f"{words[:76]} ..."


def _traceml(result: dict[str, Any]) -> str:
    if not result:
        return "not run"
    marked = result["marked"]
    for run in (result["bare"], marked):
        if run["error"]:
            return f"**raises** {_short(run['error'])}"
    if not marked["marked"]:
        return f"{marked['steps']} steps" if marked["steps"] else "not marked"
    told = f"{marked['steps']} of {marked['marked']} steps"
    others = [f"{n} {phase}" for phase, n in marked["phases"].items() if n != marked["steps"]]
    others += [f"no {p}" for p in ("fetch", "forward", "backward") if p not in marked["phases"]]
    return f"{told}: {', '.join(others)}" if others else told


def _tree(loop: Loop, result: dict[str, Any]) -> str:
    """What is expected, and what cirron-sdk made of it if that is wrong."""
    ranks = f" In each of {loop.ranks} ranks:" if loop.ranks > 1 else ""
    text = f'<details id="{loop.name}"><summary>{loop.name}</summary>\n\n{loop.title}{ranks}\n\n'
    text += f"```text\n{loop.tree.strip()}\n```\n"
    told = result[SDK]
    if told["tree"] and not told["right"]:
        text += f"\n{SDK}:\n\n```text\n" + "\n".join(told["tree"]) + "\n```\n"
    return f"{text}\n</details>"
