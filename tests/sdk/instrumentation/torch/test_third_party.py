"""Loops from other projects train identically with and without tracing: losses and weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit import references
from tests.kit.sessions.processes import ROOT, environment
from tests.kit.sessions.spool_trees import read_spool

from . import trees
from .third_party.expected import PROGRAMS, Program
from .third_party.program import BATCHES, EPOCHS


def results(program: Program, trace: Path) -> list[Any]:
    """Return the results that both runs print; the one without tracing is computed once."""
    folder = Path(__file__).with_name("third_party")
    key = references.key_of(folder.glob("*.py"), program.name, program.option)
    untraced = references.load(key)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            f"tests.sdk.instrumentation.torch.third_party.{program.name}",
            trace,
            program.option,
            *(["--traced-only"] if untraced is not None else []),
        ],
        cwd=ROOT,
        env=environment(CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    if untraced is None:
        references.store(key, printed[0])
        return printed
    return [untraced, *printed]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.name + each.option)
def test_it_trains_the_same_and_gives_its_tree(program: Program, tmp_path: Path) -> None:
    expected, traced = results(program, tmp_path)
    assert traced == expected
    steps = BATCHES // int(program.option[-1])
    assert len(expected["losses"]) >= EPOCHS * (steps + 1)
    assert len(set(expected["losses"])) > EPOCHS * steps / 2
    spool = read_spool(tmp_path)
    assert spool.session.record["end_ns"] is not None
    assert spool.lost == []
    (recorded,) = trees.read(tmp_path).values()
    assert recorded.orphans == []
    assert trees.time_faults(recorded.root) == []
    if program.tree:
        assert trees.difference(trees.parse(program.tree), recorded.root) == ""
    else:
        assert program.note
        found = [node.label for node in trees.without_upkeep(recorded.root).children]
        assert found == ["epoch[0]", "epoch[1]"], "the epochs are right in any case"
