"""Hooks are installed and removed with the session and with torch: before, in and after a loop."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.sdk.instrumentation.frameworks import FRAMEWORKS
from tests.kit.sessions.processes import ROOT, environment

from . import trees

NAMES = ", ".join([*FRAMEWORKS, "auto", "none"])
PHASES = ("data_load", "forward", "loss", "backward", "optimizer_step")


def phases(indent: int, names: tuple[str, ...] = PHASES) -> str:
    return "".join(f"\n{'  ' * indent}{name}" for name in names)


STEPS = f"\n    step[0-5]{phases(3)}"
WHOLE = f"cirron.session\n  epoch[0]{STEPS}"
TREES = {
    "imported_later": WHOLE,
    "not_none": "cirron.session",
    "not_one": "cirron.session",
    "by_name": "cirron.session",
    "first": WHOLE,
    "second": WHOLE,
    "twice": WHOLE,
    "before_middle": f"""
cirron.session
  epoch[0]
    step[0-1]{phases(3)}
    step[2]
      data_load
""",
    "after_middle": f"""
cirron.session
  step[0]{phases(2, PHASES[1:])}
  epoch[0]
    step[0]{phases(3)}
  afterwards
""",
    "claimed": f"""
cirron.session
  epoch[0]{STEPS}
  epoch[1]{phases(2) * 6}
  epoch[1]{STEPS}
""",
    "terminated": f"""
cirron.session!
  epoch[0]!
    step[0-2]{phases(3)}
    step[3]!
      data_load
""",
    "interrupted": f"""
cirron.session
  epoch[0]
    step[0-2]{phases(3)}
    step[3]
      data_load
  epoch[1]{STEPS}
""",
}
"""Of each session."""


class Ran:
    def __init__(self, directory: Path) -> None:
        # In a new interpreter, because one case needs torch not to be imported yet.
        module = "tests.sdk.instrumentation.torch.programs.installing"
        done = subprocess.run(
            [sys.executable, "-m", module, directory], cwd=ROOT, timeout=240, check=False,
            env=environment(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1"),
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        self.directory = directory
        self.results = json.loads(done.stdout)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return Ran(tmp_path_factory.mktemp("installing"))


@pytest.mark.parametrize("session", TREES)
def test_the_tree_of_each_session(ran: Ran, session: str) -> None:
    (recorded,) = trees.read(ran.directory / session).values()
    assert trees.difference(trees.parse(TREES[session]), recorded.root) == ""
    assert recorded.orphans == []
    assert trees.time_faults(recorded.root) == []


def test_every_session_is_looked_at(ran: Ran) -> None:
    found = {each.name for each in ran.directory.iterdir()}
    assert found == set(TREES), "a second profile() makes no session"


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        # torch is there to be found, and not imported: nothing is hooked; then it is, and then not.
        ("imported_later", [True, False, [], ["torch"], True, [], False, True]),
        ("not_at_all", [[], False, [], False]),
        (
            "by_name",
            [
                ["torch"],
                {"frameworks": f"'jax' is not hooked: expected {NAMES}"},
            ],
        ),
        ("one_after_the_other", True),
        ("twice", [True, False]),
        ("middle", True),
        ("claimed", [None, None]),
        ("terminated", -15),
        ("interrupted", False),
    ],
)
def test_program_observes_the_expected_hook_state(ran: Ran, case: str, expected: Any) -> None:
    assert ran.results[case] == expected
