"""A report by a real Spark, a master and two workers, is equal to the one in Python."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from cirron_otel.core.columns.writing import WriterLimits
from cirron_otel.tools.cli.demo import RECORDING
from tests.backends.process import free_endpoints
from tests.cli.conftest import COMMAND, environment
from tests.columns.helpers import add
from tests.engines.documents import Files, in_python
from tests.engines.generated import hostile, random_spool, training
from tests.engines.spark import Cluster
from tests.engines.test_report import files_of
from tests.spool.recorded import NAMES, SPOOLS

pytestmark = pytest.mark.xdist_group("engines-spark")

CLI = "import sys; from cirron_otel.tools.cli import main; sys.exit(main())"
CASES: dict[str, list[Files]] = {
    "recordings": [files_of(SPOOLS / name) for name in NAMES] + [files_of(RECORDING)],
    "oddities": [random_spool(5, 60)],
    "summaries": [random_spool(9, 60)],
    "texts": [hostile()],
    "training": [training(ranks=3, steps=40)],
}
"""The recordings are one: an application needs a second for each query, however small it is."""
MORE = {"recordings": "comparison", "oddities": "diagnosis", "texts": "comparison"}
"""The document of a case besides its report."""


def names_of(case: str) -> tuple[str, ...]:
    return ("report", MORE[case]) if case in MORE else ("report",)


def test_the_documents_are_equal(spark_cluster: Cluster, tmp_path: Path) -> None:
    expected = {}
    for name, parts in CASES.items():
        files = [file for part in parts for file in part]
        folder = tmp_path / "odd %20 é" / name
        add(folder, files, WriterLimits())
        expected[name] = in_python(files, tmp_path / "s" / name, names_of(name))
    wanted = [f"{','.join(names_of(name))}:{tmp_path / 'odd %20 é' / name}" for name in CASES]
    done = spark_cluster.run("-m", "tests.engines.spark_reports", spark_cluster.url, *wanted)
    assert done.returncode == 0, done.stderr[-3000:]
    documents = list(map(json.loads, done.stdout.splitlines()))
    for name, document in zip(CASES, documents, strict=True):
        assert document == json.loads(json.dumps(expected[name])), name


def test_the_command_and_its_errors(spark_cluster: Cluster, tmp_path: Path) -> None:
    source = str(SPOOLS / "07_ranks")

    def report(
        engine: str, source: str = source, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        variables = {"XDG_CACHE_HOME": str(tmp_path / "cache")} | variables
        return spark_cluster.run(
            "-c", CLI, "report", source, "--json", "--engine", engine, variables=variables
        )

    expected = subprocess.run(
        [COMMAND, "report", source, "--json"], capture_output=True, check=True
    )
    done = report(spark_cluster.url)
    assert (done.stdout, done.returncode) == (expected.stdout.decode(), 0), done.stderr
    assert done.stderr == expected.stderr.decode()

    pair = [str(SPOOLS / each) for each in ("01_torch_basic", "07_ranks")]
    compare = ["diff", *pair, "--json"]
    expected = subprocess.run([COMMAND, *compare], capture_output=True, check=True)
    variables = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = spark_cluster.run(
        "-c", CLI, *compare, "--engine", spark_cluster.url, variables=variables
    )
    assert (done.stdout, done.returncode) == (expected.stdout.decode(), 0), done.stderr

    odd = tmp_path / "all*"
    add(odd, training(ranks=1, steps=2))
    [closed] = free_endpoints(1)
    for engine, variables, code, message in (
        (spark_cluster.url, {"source": f"parquet:{odd}"}, 2, "expected a path without *"),
        (f"spark://{closed}", {}, 5, "cannot be reached"),
        (f"spark://u:secret@{closed}", {}, 2, "use spark://HOST:PORT"),
        (spark_cluster.url, {"JAVA_HOME": "/nonexistent"}, 2, "install Java 17"),
    ):
        done = report(engine, **variables)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert message in done.stderr
        assert done.stderr.count("\n") == 1
        assert "secret" not in done.stderr


def test_without_the_extra_is_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [COMMAND, "report", RECORDING, "--engine", "spark://localhost:7077"], check=False,
        env=environment(XDG_CACHE_HOME=str(tmp_path)), capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'cirron-otel[spark]'" in done.stderr
    assert done.stderr.count("\n") == 1
