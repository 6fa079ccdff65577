"""Print documents of directories of tables by Spark, those of each directory on one line, as JSON.

`python -m tests.engines.spark_reports MASTER DIR...`: one application computes all.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from cirron_otel.core.engines.spark_engine import spark, spark_session
from tests.engines.documents import in_engine, some


def main() -> None:
    """Print the documents of each directory that the command line names."""
    url, *directories = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder, spark_session(url, Path(folder)) as session:
        for number, directory in enumerate(directories):
            documents = in_engine(Path(directory), spark(session), some(number))
            print(json.dumps(documents), flush=True)


if __name__ == "__main__":
    main()
