"""Loops from other projects train identically with and without tracing: losses and weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.kit import references
from tests.kit.forked_scripts import ForkedScripts
from tests.kit.sessions.spool_trees import read_spool

from . import trees
from .third_party.expected import PROGRAMS, Program
from .third_party.program import BATCHES, EPOCHS


def results(scripts: ForkedScripts, program: Program, trace: Path) -> list[Any]:
    """Return the results that both runs print; the one without tracing is computed once."""
    folder = Path(__file__).with_name("third_party")
    key = references.key_of(folder.glob("*.py"), program.name, program.option)
    untraced = references.load(key)
    module = f"tests.sdk.instrumentation.torch.third_party.{program.name}"
    more = ["--traced-only"] if untraced is not None else []
    done = scripts.module(module, trace, program.option, *more)
    assert done.returncode == 0, done.stderr
    printed = [json.loads(line) for line in done.stdout.splitlines()]
    if untraced is None:
        references.store(key, printed[0])
        return printed
    return [untraced, *printed]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.name + each.option)
def test_it_trains_the_same_and_gives_its_tree(
    program: Program, scripts: ForkedScripts, tmp_path: Path
) -> None:
    expected, traced = results(scripts, program, tmp_path)
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
