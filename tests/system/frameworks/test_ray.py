"""Ray Train and Ray Tune: trees over all processes, results and values."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.kit.sessions.spool_trees import read_spool
from tests.sdk.instrumentation.torch import trees

from . import Program
from .ray_cluster import cluster, driver
from .running import parameters
from .workers import Workers, python_of

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.timeout(900)]

FRAMEWORK = "ray_jobs"
_SPAN_DIGITS = 16


@pytest.fixture(scope="module")
def drivers() -> Iterator[Workers]:
    python = python_of("ray")
    with (
        cluster(python) as variables,
        driver(python, variables, FRAMEWORK, "untraced") as untraced,
        driver(python, variables, FRAMEWORK, "cirron-otel") as traced,
    ):
        yield untraced, traced


@pytest.mark.parametrize("program", parameters(FRAMEWORK))
def test_a_program_gives_one_trace_over_all_its_processes(
    program: Program, drivers: Workers, tmp_path: Path
) -> None:
    untraced, traced = drivers
    with ThreadPoolExecutor() as pool:  # Ray mostly waits for one process after the other
        bare = pool.submit(untraced.run, program, tmp_path / "untraced")
        [outcome] = traced.run(program, tmp_path / "traced")
        [expected] = bare.result()
    # On a cluster, Ray itself draws random numbers in the driver: two untraced runs differ.
    compared = ("result", "error") if program.slow else ("result", "random", "error")
    faults = [
        f"{key}: {outcome[key]!r}, untraced: {expected[key]!r}"
        for key in compared
        if outcome[key] != expected[key]
    ]
    if outcome["error"] != program.error:
        faults.append(f"the program raised {outcome['error']!r}")
    faults += outcome["complaints"]
    root, others = joined(tmp_path / "traced")
    faults += others
    faults.append(trees.difference(trees.parse(program.tree), root))
    faults += _value_faults(tmp_path / "traced", outcome["result"].get("logs", []))
    faults = [fault for fault in faults if fault]
    if faults:
        pytest.fail("\n".join([program.title, *faults]), pytrace=False)


def joined(directory: Path) -> tuple[trees.Node, list[str]]:
    """Return the tree of the driver with the sessions below their parents in the trace, and faults.

    Sessions below the same scope are in the order of their ranks, trials in that of their ids.
    """
    spool = read_spool(directory)
    roots = [trees._node(root, trees._threads(root)) for root in spool.roots]
    faults = [
        fault
        for root in roots
        for fault in trees.time_faults(root, needs_unattributed=False)
        if not fault.startswith("trial")  # trials of a tuning may overlap
    ]
    scopes = {node.record["id"][:_SPAN_DIGITS]: node for root in roots for node in root.walk()}
    drivers = []
    for root in roots:
        root.attrs = {"rank": root.record["rank"], **root.attrs}
        parent = (root.record.get("otel") or {}).get("parent_span_id")
        if parent is None:
            drivers.append(root)
        elif parent in scopes:
            scopes[parent].children.append(root)
        else:
            faults.append(f"the parent of {root.label} of {root.record['pid']} is missing")
    if len(drivers) != 1:
        faults.append(f"{len(drivers)} sessions have no parent")
    for node in drivers[0].walk():
        if node.attrs.get("run") == f"run-{drivers[0].record['pid']}":  # see ray_jobs._name
            node.attrs["run"] = "run"
    for node in scopes.values():
        if node.name in ("fit", "tune", "trial"):
            node.children.sort(key=_place)
    return drivers[0], faults


def _place(node: trees.Node) -> tuple[Any, ...]:
    return node.record["rank"] or 0, str(node.attrs.get("id", "")), node.record["start_ns"]


def _value_faults(directory: Path, logs: list[Any]) -> list[str]:
    """Compare the values that Ray has with the marks, name by name, over all processes."""
    marks = read_spool(directory).program_marks
    faults = []
    for name in dict.fromkeys(name for name, _ in logs):
        wanted = sorted(value for each, value in logs if each == name)
        found = sorted(mark["value"] for mark in marks if mark["name"] == name)
        if wanted != found:
            faults.append(f"marks {name}: {found}, Ray has: {wanted}")
    return faults
