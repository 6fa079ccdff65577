"""The groups of tests that repeat programs on other versions, and which of them CI runs.

    python -m tests.kit.matrix

prints the names of the groups whose inputs a recent commit or the working tree changed, separated
by commas, or `none`. To stderr, it prints each group that is left out, and why. `.ci/run` passes
the names to `make test`; `make test-matrix` runs all groups.

A test belongs to a group through the marker `matrix`. This module imports only the standard
library, because CI runs it before `.venv` exists.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECENT_H = 48
"""A commit is recent if it is at most this many hours older than HEAD."""
ALL, NONE = "all", "none"
_PINS = ("pyproject.toml", "constraints.txt", "tests/kit/environments.py")
_ENGINES = (
    "cirron_otel/core/analysis/",
    "cirron_otel/core/columns/",
    "cirron_otel/core/engines/",
    "cirron_otel/core/run/",
    "tests/system/engines/",
    *_PINS,
)


@dataclass(frozen=True)
class Group:
    """Tests whose results differ from those of `make test` only if one of `inputs` changes."""

    title: str
    inputs: tuple[str, ...]
    """Files, and directories with a final slash, relative to the root of the repository."""

    def touched(self, paths: Iterable[str]) -> str | None:
        """Return the first path that is an input, or None."""
        return next((path for path in paths if self._has(path)), None)

    def _has(self, path: str) -> bool:
        return any(
            path.startswith(each) if each.endswith("/") else path == each for each in self.inputs
        )


GROUPS: dict[str, Group] = {
    "oldest-torch": Group(
        "hooks, snapshots and digests with the oldest PyTorch",
        (
            "cirron_otel/sdk/instrumentation/",
            "cirron_otel/sdk/flight_recorder/",
            "cirron_otel/sdk/sampling/",
            "cirron_otel/sdk/snapshots/",
            "cirron_otel/sdk/tracing/",
            "tests/kit/forked_scripts.py",
            "tests/kit/program_server.py",
            "tests/sdk/instrumentation/torch/",
            "tests/sdk/snapshots/",
            *_PINS,
        ),
    ),
    "oldest-trainers": Group(
        "the programs of each framework with its oldest version",
        (
            "cirron_otel/accelerate.py",
            "cirron_otel/lightning.py",
            "cirron_otel/sdk/instrumentation/",
            "tests/kit/program_server.py",
            "tests/sdk/instrumentation/torch/trees.py",
            "tests/system/frameworks/",
            *_PINS,
        ),
    ),
    "other-peers": Group(
        "the older releases of Stormlog and TraceML",
        (
            "cirron_otel/collector/receiver/",
            "cirron_otel/core/importers/",
            "cirron_otel/core/records/",
            "cirron_otel/tools/convert/",
            "tests/core/importers/stormlog/",
            "tests/core/importers/traceml/",
            *_PINS,
        ),
    ),
    "pythons": Group(
        "the wheel in each other supported Python (make pythons)",
        ("cirron_otel/", "tests/kit/wheels.py", "tests/system/pythons/", *_PINS),
    ),
    "faults": Group(
        "50 seeds of an endpoint that mixes its answers (make faults)",
        (
            "cirron_otel/collector/service/",
            "cirron_otel/core/delivery/",
            "cirron_otel/core/http/",
            "cirron_otel/core/spool/",
            "cirron_otel/core/targets/",
            "tests/system/faults/",
            *_PINS,
        ),
    ),
    "sick-runs": Group(
        "reports about real programs with planted causes (make sick SICK=--real)",
        (
            "cirron_otel/core/run/",
            "cirron_otel/sdk/instrumentation/",
            "cirron_otel/sdk/tracing/",
            "tests/system/sick_runs/",
            *_PINS,
        ),
    ),
    "chdb": Group("relations and reports by chDB", _ENGINES),
    "spark": Group("reports by a real Spark", _ENGINES),
}


def recent_changes(root: Path = ROOT) -> list[str] | None:
    """Return the paths that recent commits or the working tree changed; None if it is unknown.

    It is unknown without git, and in a clone that is too shallow to have all recent commits.
    """
    try:
        head = int(git(root, "show", "-s", "--format=%ct", "HEAD"))
        since = f"--since={head - RECENT_H * 3600}"
        commits = git(root, "log", "-m", "--no-renames", "--format=", "--name-only", since)
        if git(root, "rev-parse", "--is-shallow-repository") == "true":
            first = git(root, "log", "--max-parents=0", "--format=%ct", "HEAD").split()
            if any(int(each) >= head - RECENT_H * 3600 for each in first):
                return None
        changed = git(root, "diff", "--no-renames", "--name-only", "HEAD")
        new = git(root, "ls-files", "--others", "--exclude-standard")
    except (OSError, subprocess.CalledProcessError):
        return None
    return sorted({*commits.splitlines(), *changed.splitlines(), *new.splitlines()} - {""})


def git(root: Path, *arguments: str) -> str:
    """Return the output of a command of git. Raises OSError or CalledProcessError."""
    command = ["git", "-C", str(root), "-c", "core.quotePath=false", *arguments]
    # A hook of git has variables that name another repository.
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    return done.stdout.strip()


def choose(
    paths: list[str] | None, groups: Mapping[str, Group] = GROUPS
) -> tuple[dict[str, str], list[str]]:
    """Return the groups to run, each with the reason, and the others.

    `paths` are the changed paths; if they are unknown (None), all groups run.
    """
    if paths is None:
        return dict.fromkeys(groups, "the recent commits are unknown here"), []
    reasons = {name: group.touched(paths) for name, group in groups.items()}
    chosen = {name: f"{path} has changed" for name, path in reasons.items() if path is not None}
    return chosen, [name for name in groups if name not in chosen]


def parse(names: str) -> frozenset[str]:
    """Return the groups of `all`, `none`, or names separated by commas. Raises ValueError."""
    if names in (ALL, NONE):
        return frozenset(GROUPS if names == ALL else ())
    given = frozenset(names.split(","))
    if unknown := sorted(given - set(GROUPS)):
        raise ValueError(
            f"{unknown[0]!r} is not a group of the matrix: expected all, none, or names of"
            f" {', '.join(GROUPS)}, separated by commas"
        )
    return given


def main() -> None:
    """Print the groups to run to stdout, and the reasons to stderr."""
    chosen, others = choose(recent_changes())
    for name, reason in chosen.items():
        print(f"matrix: {name} runs: {reason}", file=sys.stderr)
    for name in others:
        print(
            f"matrix: {name} ({GROUPS[name].title}) is left out: none of its inputs changed within"
            f" {RECENT_H} hours before HEAD; `make test-matrix` runs it",
            file=sys.stderr,
        )
    print(",".join(chosen) or NONE)


if __name__ == "__main__":
    main()
