"""Print documents of directories of tables by Spark, those of each directory on one line, as JSON.

`python -m tests.system.engines.spark_reports MASTER report,diagnosis:DIR...`: all by one
application. For tables that cannot be read, the line is `{"error": MESSAGE}`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from cirron_otel.core.engines.spark_engine import spark, spark_session
from cirron_otel.errors import InputError

from .documents import in_engine
from .relations import RELATIONS, plain


def main() -> None:
    """Print the documents of each directory that the command line names."""
    url, *wanted = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder, spark_session(url, Path(folder)) as session:
        for each in wanted:
            names, _, directory = each.partition(":")
            try:
                documents = _documents(Path(directory), session, names.split(","))
            except InputError as error:
                documents = {"error": str(error)}
            print(json.dumps(documents), flush=True)


def _documents(directory: Path, session: SparkSession, names: list[str]) -> dict[str, Any]:
    documents = in_engine(directory, spark(session), tuple(names))
    if RELATIONS in documents:
        documents[RELATIONS] = plain(documents[RELATIONS])
    return documents


if __name__ == "__main__":
    main()
