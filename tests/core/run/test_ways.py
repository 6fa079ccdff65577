"""A recording that is read in one pass gives the same report as through a database."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from cirron_otel.core.run.load import columns, reducer
from cirron_otel.core.run.load.arranged import ArrangedRecording
from cirron_otel.core.run.load.errors import NotReducibleError
from cirron_otel.core.run.load.reducer import Reducer
from cirron_otel.core.run.opening import open_run
from cirron_otel.core.run.relations import Texts
from tests.kit.examples import examples
from tests.kit.generators.run_spools import run_spool
from tests.kit.generators.trees import hostile, random_spool
from tests.kit.spools.reports import reported

from .spools import Files, written

FIXED = 40


@pytest.mark.hypothesis
@pytest.mark.parametrize("seed", range(examples(200, FIXED)))
def test_runs(seed: int, tmp_path: Path) -> None:
    reader = written(tmp_path, run_spool(seed))
    reported(reader, reader)


@pytest.mark.hypothesis
@pytest.mark.parametrize("seed", range(examples(200, FIXED)))
def test_random_trees(seed: int, tmp_path: Path) -> None:
    reader = written(tmp_path, random_spool(seed))
    reported(reader, reader)


def test_odd_records(tmp_path: Path) -> None:
    reader = written(tmp_path, hostile())
    reported(reader, reader)


@pytest.mark.parametrize("seed", range(0, 24, 3))
def test_rows_in_files(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of a relation are written to a file above a size, which is a few rows here."""
    monkeypatch.setattr(columns, "_UNSEALED", 3)
    monkeypatch.setattr(columns, "_IN_MEMORY", 500)
    reader = written(tmp_path, run_spool(seed))
    reported(reader, reader)


def reasons(files: Files, folder: Path) -> str:
    """The reason why some files cannot be read in one pass; empty if they can."""
    found = Reducer(Texts())
    try:
        for batch in written(folder, files):
            found.add_batch(batch)
        found.finish()
    except NotReducibleError as error:
        return str(error)
    return ""


def test_most_runs_are_reduced_as_they_are_read(tmp_path: Path) -> None:
    """Those of this SDK are, if no record is repeated; the trees have all reasons against it."""
    ways = Counter(reasons(run_spool(seed), tmp_path / str(seed)) for seed in range(80))
    assert ways[""] >= 30
    assert ways["a producer whose scopes need a shape"] >= 20
    ways.update(reasons(random_spool(seed), tmp_path / f"tree {seed}") for seed in range(30))
    assert len(ways) >= 3


def test_too_many_waiting_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reducer, "MOST_PENDING", 5)
    assert reasons(run_spool(0), tmp_path) == "too many spans wait for their parents"


def test_batches_that_can_be_read_only_once(tmp_path: Path) -> None:
    """Their records are read into columns at once, because another pass is impossible."""
    reader = written(tmp_path, run_spool(0))
    with open_run(iter(list(reader))) as once, open_run(reader) as often:
        assert isinstance(once.recording, ArrangedRecording)
        assert isinstance(often.recording, Reducer)
        assert [each.to_json() for each in once.ranks] == [each.to_json() for each in often.ranks]
        assert once.ranks
