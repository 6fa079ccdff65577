"""The interface of engines suffices for one more: relations and reports by chDB are equal."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.columns.writing import WriterLimits
from tests.conftest import leave_out
from tests.core.columns.helpers import add
from tests.kit.environments import EnvironmentUnavailableError, run_in
from tests.kit.examples import examples
from tests.kit.generators.run_spools import run_spool
from tests.kit.generators.trees import hostile, random_spool

from . import relations
from .documents import CHDB, Files, in_python
from .relations import RELATIONS, has_other_units, storable
from .test_report import RECORDINGS, files_of

pytestmark = [pytest.mark.matrix("chdb"), pytest.mark.xdist_group("engines-chdb")]

ROOT = Path(__file__).parents[3]


def recordings() -> Files:
    """All recordings as one."""
    return [file for spool in RECORDINGS.values() for file in files_of(spool)]


def run_files(seed: int) -> Files:
    return storable(run_spool(seed))


REPORTS = ("report", "comparison", "diagnosis")
CASES: dict[str, tuple[Callable[[], Files], tuple[str, ...]]] = {
    "recordings": (recordings, (*REPORTS, RELATIONS)),
    "texts": (hostile, ("report", RELATIONS)),
    "summaries": (partial(random_spool, 9, 60), ("report", RELATIONS)),
    **{f"tree {seed}": (partial(random_spool, seed), (RELATIONS,)) for seed in (0, 1, 5)},
    **{
        f"run {seed}": (partial(run_files, seed), (RELATIONS,))
        for seed in (2, 3, *range(100, 100 + examples(20, 0)))
        if not has_other_units(run_files(seed))
    },
}
"""The files of each case, and the names of its documents. The trees have repeated spans, summaries
of steps and odd records."""


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The documents of each case by one process, because the start of a database takes long."""
    folder = tmp_path_factory.mktemp("tables")
    for name, (files, _) in CASES.items():
        add(folder / name, files(), WriterLimits())
    wanted = [f"{','.join(names)}:{folder / case}" for case, (_, names) in CASES.items()]
    arguments = ["-m", "tests.system.engines.chdb_engine", *wanted]
    try:
        done = run_in(CHDB, arguments, cwd=ROOT, timeout=600)
    except EnvironmentUnavailableError as error:
        leave_out(str(error))
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(CASES, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.hypothesis
@pytest.mark.parametrize("case", CASES)
def test_the_documents_are_equal(case: str, documents: dict[str, Any], tmp_path: Path) -> None:
    files, names = CASES[case][0](), CASES[case][1]
    reports = tuple(name for name in names if name != RELATIONS)
    expected = in_python(files, tmp_path / "s", reports)
    if RELATIONS in names:
        expected[RELATIONS] = relations.plain(relations.in_columns(files, tmp_path / "r"))
    assert documents[case] == json.loads(json.dumps(expected))
