"""A report by a real Spark, a master and two workers, is equal to the one in Python."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.columns.layout import EMPTY_GROUP
from cirron_otel.core.columns.writing import WriterLimits
from cirron_otel.tools.cli.demo import RECORDING
from tests.core.columns.helpers import add, add_with_killed_compaction, flip_bit
from tests.kit.backends.process import free_endpoints
from tests.kit.generators.trees import hostile, random_spool, training
from tests.kit.spools.recorded import NAMES, SPOOLS
from tests.tools.conftest import COMMAND, environment

from .documents import Files, in_python
from .spark import Cluster
from .test_report import files_of

pytestmark = pytest.mark.xdist_group("engines-spark")

CLI = "import sys; from cirron_otel.tools.cli import main; sys.exit(main())"
KILLED, DAMAGED = "killed compaction", "damaged"
"""The tables that a compaction has left when it was killed, and those with a changed bit."""
CASES: dict[str, list[Files]] = {
    "recordings and texts": [
        *(files_of(SPOOLS / name) for name in NAMES), files_of(RECORDING), hostile(),
    ],
    "summaries": [random_spool(9, 60)],
    # Without the first rank, whose files have the names of the others.
    KILLED: [random_spool(5, 60), training(ranks=4, steps=40)[2:]],
}  # fmt: skip
"""Several recordings are one: an application needs a second for each query, however small it is.
The second random recording has step summaries, the last one oddities."""
MORE = {"recordings and texts": "comparison", KILLED: "diagnosis"}
"""The document of a case besides its report."""


def names_of(case: str) -> tuple[str, ...]:
    return ("report", MORE[case]) if case in MORE else ("report",)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the tables of each case, and with damaged ones."""
    folder = tmp_path_factory.mktemp("tables") / "odd %20 é"
    for name, parts in CASES.items():
        files = [file for part in parts for file in part]
        if name == KILLED:
            add_with_killed_compaction(folder / name, files)
        else:
            add(folder / name, files, WriterLimits())
    add(folder / DAMAGED, training(ranks=1, steps=20), WriterLimits())
    flip_bit(spans_of(folder / DAMAGED), "start_ns")
    return folder


def spans_of(tables: Path) -> Path:
    [file] = (path for path in tables.glob("spans/*/*/*") if path.name != EMPTY_GROUP.file)
    return file


@pytest.fixture(scope="module")
def documents(spark_cluster: Cluster, tables: Path) -> dict[str, Any]:
    """The documents of each case. One application computes all, because its start takes long."""
    cases = [*CASES, DAMAGED]
    wanted = [f"{','.join(names_of(case))}:{tables / case}" for case in cases]
    done = spark_cluster.run("-m", "tests.system.engines.spark_reports", spark_cluster.url, *wanted)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(cases, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_the_documents_are_equal(case: str, documents: dict[str, Any], tmp_path: Path) -> None:
    files = [file for part in CASES[case] for file in part]
    expected = in_python(files, tmp_path, names_of(case))
    assert documents[case] == json.loads(json.dumps(expected))


def test_a_changed_bit_is_an_error(documents: dict[str, Any], tables: Path) -> None:
    assert documents[DAMAGED].keys() == {"error"}
    message = documents[DAMAGED]["error"]
    assert message.startswith("Spark's workers cannot read the tables: [FAILED_READ_FILE")
    assert spans_of(tables / DAMAGED).name in message


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


# A command that waits for an executor for some seconds.
IMPATIENT = f"""
from cirron_otel.core.engines import spark_engine
spark_engine._WORKERS_S = 3
{CLI}
"""

# A command whose executors are killed when they have the rows of three intermediate tables.
KILLING = f"""
import os, signal
from pathlib import Path
from cirron_otel.core.engines.spark_engine import SparkEngine

create, created = SparkEngine.create, []

def create_and_kill(engine, name, query):
    create(engine, name, query)
    created.append(name)
    if len(created) == 3:
        application = engine._session.sparkContext.applicationId.encode()
        killed = 0
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            words = path.read_bytes().split(b"\\0") if path.exists() else []
            if b"--executor-id" in words and application in words:
                os.kill(int(path.parent.name), signal.SIGKILL)
                killed += 1
        assert killed, "no executor"

SparkEngine.create = create_and_kill
{CLI}
"""


@pytest.mark.parametrize(
    ("program", "executor", "messages"),
    [
        (IMPATIENT, "64g", ("has not started an executor for 3 s", "free cores and memory")),
        (KILLING, None, ("figures: [CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND]", "run it again")),
    ],
    ids=["none", "killed"],
)
def test_without_executors_is_one_line(
    program: str,
    executor: str | None,
    messages: tuple[str, ...],
    spark_cluster: Cluster,
    tmp_path: Path,
) -> None:
    add(tmp_path / "tables", training(ranks=2, steps=20), WriterLimits())
    variables = {}
    if executor is not None:
        settings = (spark_cluster.folder / "conf" / "spark-defaults.conf").read_text()
        (tmp_path / "conf").mkdir()
        (tmp_path / "conf" / "spark-defaults.conf").write_text(
            f"{settings}spark.executor.memory {executor}\n"
        )
        variables["SPARK_CONF_DIR"] = str(tmp_path / "conf")
    done = spark_cluster.run(
        "-c", program, "report", f"parquet:{tmp_path}/tables", "--engine", spark_cluster.url,
        variables=variables,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (5, ""), done.stderr
    for message in messages:
        assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_without_the_extra_is_one_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [COMMAND, "report", RECORDING, "--engine", "spark://localhost:7077"], check=False,
        env=environment(XDG_CACHE_HOME=str(tmp_path)), capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'cirron-otel[spark]'" in done.stderr
    assert done.stderr.count("\n") == 1
