"""The ledgers of generated recordings add up, and are equal in both ways and in DuckDB."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.examples import examples
from tests.kit.generators.run_spools import run_spool
from tests.kit.spools.made import encoded, made, mark, span
from tests.system.engines.relations import engine_recording, storable

from .generated import is_for_engines, recording, together
from .identities import Checks, check_in_python, errors_of
from .readers import DUCKDB, TABLES, opened

PYTHON, DUCKDB_READS = 100, 100
"""The recordings that each engine reads in a normal run."""
FOUND = (
    101,  # the last unit of a rank begins after the end of its spans
    227,  # a rank repeats units that are slow
    287,
    416,  # scopes inside a unit have the same id
    656,  # several phases wait for the device
    2584,  # a batch without spans has the time of tracing of the scope around
)
"""Seeds of recordings that were read wrongly."""
FOUND_IN_ENGINES = (
    2610,  # scopes with different names have the same times
    3234,  # all spans of a batch with marks of the time of tracing are repeated
)


@pytest.mark.hypothesis
def test_identities_of_generated_recordings() -> None:
    checks = Checks({})
    checks.run([*FOUND, *range(1000, 1000 + examples(2000, PYTHON))])
    assert not checks.failures, checks.failures[0]
    assert checks.counts["python"] >= PYTHON
    assert checks.counts["without units"] < checks.counts["python"] / 4


@pytest.mark.hypothesis
def test_recordings_in_engines_and_tables_are_those_of_python() -> None:
    with opened(DUCKDB) as duckdb, opened(TABLES) as tables:
        checks = Checks({DUCKDB: duckdb, TABLES: tables}, has_python=False)
        checks.run([*FOUND_IN_ENGINES, *range(2000, 2000 + examples(400, DUCKDB_READS))])
    assert not checks.failures, checks.failures[0]
    assert checks.counts[DUCKDB] >= DUCKDB_READS / 2
    assert checks.counts[TABLES] >= DUCKDB_READS / 5


def test_recordings_that_are_read_as_one_keep_their_scopes() -> None:
    found = [storable(run_spool(seed)) for seed in (0, 4)]
    assert all(map(is_for_engines, found))
    assert len(together(found)) == sum(map(len, found))


def test_spans_of_one_id_that_contain_each_other_in_a_unit(tmp_path: Path) -> None:
    """The second scope 3 is inside scope 4, which is inside the first one."""
    spans = [span(1), span(2, 1, name="mine"), span(3, 2, name="mine"), span(4, 3, name="mine"),
             span(3, 4, name="mine"), span(1, 4, name="mine")]  # fmt: skip
    batch = made(0, spans=spans, marks=[mark(number, number) for number in (1, 3, 4)])
    files = [(f"{batch['created_ns']:020d}-{batch['batch_id']}.json", encoded(batch))]
    assert check_in_python(files, tmp_path)["units"]["count"] == 1


def test_sums_of_duckdb_are_integers(tmp_path: Path) -> None:
    files = storable(recording(20008))
    with opened(DUCKDB) as duckdb:
        assert errors_of(files, tmp_path, {DUCKDB: duckdb}) == {DUCKDB: None}
    with engine_recording(tmp_path / "c") as found:
        assert {type(each.overhead_ns) for each in found.sums.ranks.values()} == {int}
