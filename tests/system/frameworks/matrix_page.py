"""Renders docs/trainers-conformance.md."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from . import Program

PAGE = Path(__file__).parents[3] / "docs" / "trainers-conformance.md"

NO_HOOKS = "cirron-sdk has no hooks into this framework"

HEAD = """\
# Trainers: the trees of {count} programs

[frameworks.md](frameworks.md) and the pages of the frameworks define what is recorded of a run.
This page shows {count} programs as people write them, each with the tree that it must give. The
trees were written before the hooks were run; the history has later corrections. `python -m
tests.system.frameworks.matrix` writes the page; the programs are in
`tests/system/frameworks/programs/`. It was made with {versions}.

**cirron-otel** gives every tree. The tests in `tests/system/frameworks/` run each program with and
without it: the names, numbers, order and status of the scopes are the expected ones, no scope
extends beyond its parent, the program computes the same, its exception is the same, and the marks
equal the framework's own logs.

**cirron-sdk {sdk}** is judged only by the scopes that it has, as on
[torch-conformance.md](torch-conformance.md#how-it-was-judged). Checkpoints, the parts of a
generation, and `prepare` are left out of the comparison. It gives {right} of the {ran} trees of
the programs that were run with it."""


def page(modules: dict[str, dict[str, Program]], content: dict[str, Any]) -> str:
    """Return the page for these results."""
    results, versions = content["programs"], content["versions"]
    keys = [f"{module}.{name}" for module, members in modules.items() for name in members]
    ran = [results[key] for key in keys if "right" in results.get(key, {})]
    text = "\n\n".join(" ".join(part.split("\n")) for part in HEAD.split("\n\n"))
    parts = [
        text.format(
            count=len(keys),
            versions=", ".join(f"{name} {text}" for name, text in sorted(versions.items())),
            sdk=versions.get("cirron-sdk", ""),
            right=sum(each["right"] for each in ran),
            ran=len(ran),
        )
    ]
    for module, members in modules.items():
        found = {name: results.get(f"{module}.{name}", {}) for name in members}
        parts += [f"## {module}", _table(module, list(members.values()), found)]
        parts += [_tree(module, each, found[each.name]) for each in members.values()]
    return "\n\n".join(parts) + "\n"


def _table(module: str, members: list[Program], found: dict[str, Any]) -> str:
    title = (sys.modules[f"tests.system.frameworks.programs.{module}"].__doc__ or "").strip()
    rows = [
        f"| [{each.name}](#{module}-{each.name}) | {_cell(each.title)} | {_sdk(found[each.name])} |"
        for each in members
    ]
    head = [title.splitlines()[0], "", "| program | what it is | cirron-sdk |"]
    return "\n".join([*head, "| --- | --- | --- |", *rows])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").removesuffix(".")


def _sdk(result: dict[str, Any]) -> str:
    if "right" not in result:
        return "has no hooks" if result.get("reason") == NO_HOOKS else "not run"
    if result.get("raised"):
        words = _cell(result["raised"].strip().splitlines()[0]).replace("`", "")
        return f"**raises** {words if len(words) < 80 else f'{words[:76]} ...'}"
    notes = _cell("; ".join(result["notes"]))
    if result["right"]:
        return f"right, but {notes}" if notes else "right"
    return f"**wrong**: {notes}"


def _tree(module: str, program: Program, result: dict[str, Any]) -> str:
    """Return the expected tree, and that of cirron-sdk if it is wrong."""
    ranks = f" In each of {program.ranks} ranks:" if program.ranks > 1 else ""
    text = f'<details id="{module}-{program.name}"><summary>{program.name}</summary>\n\n'
    text += f"{program.title}{ranks}\n\n```text\n{program.tree.strip()}\n```\n"
    if result.get("tree") and not result["right"]:
        text += "\ncirron-sdk:\n\n```text\n" + "\n".join(result["tree"]) + "\n```\n"
    return f"{text}\n</details>"
