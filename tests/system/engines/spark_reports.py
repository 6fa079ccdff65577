"""Print documents of directories of tables by Spark, by one application.

`python -m tests.system.engines.spark_reports MASTER report,diagnosis:DIR...`
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from cirron_otel.core.engines.spark_engine import spark, spark_session

from .documents import print_documents


def main() -> None:
    """Print the documents of each directory that the command line names."""
    url, *wanted = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder, spark_session(url, Path(folder)) as session:
        print_documents(wanted, spark(session))


if __name__ == "__main__":
    main()
