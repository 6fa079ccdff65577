"""Runs a pair, and compares the result of `diff` with the truth of the program's clock."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cirron_otel.tools.present.ledger_rows import account_name

from .plants import Plant
from .program import Job, Truth, run

TOLERANCE = 0.1
"""The relative error of the size of a difference that is accepted."""


@dataclass(frozen=True)
class Result:
    """The result of a pair."""

    name: str
    is_right: bool
    detail: str
    headline: str


def recorded(job: Job, directory: Path, **options: Any) -> Truth:
    """Run a job in this process, and return its truth."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    return run(job, directory, **options)


def compared(directory: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the JSON document of `diff` of the runs `a` and `b`."""
    command = [sys.executable, "-m", "cirron_otel", "diff", "a", "b", "--json"]
    ended = subprocess.run(
        [*command, *options], cwd=directory, capture_output=True, text=True, check=False
    )
    if not ended.stdout:
        raise AssertionError(f"diff failed with exit code {ended.returncode}: {ended.stderr}")
    return ended.returncode, json.loads(ended.stdout)


def judged(plant: Plant, directory: Path, tolerance: float = TOLERANCE) -> Result:
    """Run both jobs of a planted change; compare the account or setting, and the size."""
    truths = [recorded(job, directory / name) for name, job in (("a", plant.a), ("b", plant.b))]
    code, document = compared(directory, "--fail-on", "slower=5%")
    if plant.setting is not None:
        problems = _problems_of_setting(plant, document, truths, tolerance)
    else:
        problems = _problems_of_account(plant, document, truths, tolerance)
        if code != (6 if plant.is_slower else 0):
            problems.append(f"--fail-on slower=5%: exit code {code}")
    return Result(plant.name, not problems, "; ".join(problems), document["headline"])


def _problems_of_account(
    plant: Plant, document: dict[str, Any], truths: Sequence[Truth], tolerance: float
) -> list[str]:
    cause, problems = document["cause"], []
    if document["verdict"] != ("slower" if plant.is_slower else "faster"):
        problems.append(f"verdict {document['verdict']}")
    if cause is None or cause["account"] != plant.account:
        return [*problems, f"cause {cause}, expected {plant.account}"]
    places = plant.places or ("backward",)
    planted = [
        sum(each.waited.get(place, 0.0) + each.usual.get(place, 0.0) for place in places)
        / job.steps
        for each, job in zip(truths, (plant.a, plant.b), strict=True)
    ]
    truth = (planted[1] - planted[0]) * 1e9
    error = cause["per_unit_ns"] / truth - 1
    if abs(error) > tolerance:
        problems.append(
            f"size {cause['per_unit_ns'] / 1e6:.2f} ms a unit, planted {truth / 1e6:.2f}"
            f" ({error:+.0%})"
        )
    if account_name(cause["account"], "step") not in document["headline"]:
        problems.append("the headline does not name the account")
    return problems


def _problems_of_setting(
    plant: Plant, document: dict[str, Any], truths: Sequence[Truth], tolerance: float
) -> list[str]:
    problems = []
    if f"{plant.setting} " not in document["headline"]:
        problems.append(f"the headline does not name {plant.setting}")
    periods = [
        each.wall / (job.steps - 1) for each, job in zip(truths, (plant.a, plant.b), strict=True)
    ]
    truth = periods[1] / periods[0] - 1
    if document["change"] is None or abs(document["change"] - truth) > tolerance * max(
        1.0, 1 + truth
    ):
        problems.append(f"change {document['change']}, by the program's clock {truth:+.1%}")
    return problems


def equal(number: int, directory: Path) -> Result:
    """Run two equal jobs: `diff` finds no difference."""
    for name in ("a", "b"):
        recorded(Job(), directory / name)
    code, document = compared(directory, "--fail-on", "slower=5%")
    problems = []
    if document["verdict"] not in ("inconclusive", "same"):
        problems.append(f"verdict {document['verdict']}, change {document['change']:+.1%}")
    if code == 6:
        problems.append("--fail-on slower=5% fails")
    return Result(f"equal {number}", not problems, "; ".join(problems), document["headline"])
