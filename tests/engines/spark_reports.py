"""Print the reports of directories of tables by Spark, one JSON document a line.

`python -m tests.engines.spark_reports MASTER DIR...`: one application reports all directories.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from cirron_otel.core.engines.columnar_batches import ColumnarBatches
from cirron_otel.core.engines.engine_report import report_of
from cirron_otel.core.engines.source import opened_run
from cirron_otel.core.engines.spark_engine import spark, spark_session

SLOWEST = 5


def main() -> None:
    """Report each directory that the command line names."""
    url, *directories = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder, spark_session(url, Path(folder)) as session:
        for directory in directories:
            with opened_run(ColumnarBatches(Path(directory)), connect=spark(session)) as run:
                print(json.dumps(report_of(run, SLOWEST).to_json()), flush=True)


if __name__ == "__main__":
    main()
