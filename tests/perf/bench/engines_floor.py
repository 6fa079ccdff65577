"""A plain query of DuckDB that aggregates the phases of the steps.

    python -m tests.perf.bench.engines_floor DIR

It has no rules for the records that a report has rules for: no steps inside steps, no phases inside
phases, no repeated ids, no batches that are expanded, no marks, no verdicts.
"""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb

from cirron_otel.core.engines.duckdb_engine import MEMORY_LIMIT

QUERY = """
WITH span AS (
    SELECT id, parent_id, name, rank, end_ns - start_ns AS ns
    FROM read_parquet($files, hive_partitioning = false)
), step AS (
    SELECT id, rank, ns FROM span WHERE name = 'step'
), phase AS (
    SELECT step.id, step.rank, step.ns AS step_ns, span.name, span.ns
    FROM span JOIN step ON span.parent_id = step.id
), part AS (
    SELECT rank, name, ns FROM phase
    UNION ALL SELECT rank, 'step', ns FROM step
    UNION ALL
    SELECT any_value(rank), 'unattributed', any_value(step_ns) - sum(ns) FROM phase GROUP BY id
)
SELECT rank, name, count(*), sum(ns), max(ns), median(ns), quantile_disc(ns, 0.95)
FROM part GROUP BY rank, name ORDER BY rank, name
"""


def main() -> None:
    """Print the aggregates."""
    files = [str(path) for path in Path(sys.argv[1], "spans").rglob("*.parquet")]
    connection = duckdb.connect()
    connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")  # that of the engine
    connection.execute("SET preserve_insertion_order = false")
    for row in connection.execute(QUERY, {"files": files}).fetchall():
        print(*row, sep="\t")


if __name__ == "__main__":
    main()
