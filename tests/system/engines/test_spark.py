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
from tests.kit.spools.recorded import NAMES, SPOOLS, own_spool
from tests.tools.conftest import COMMAND, environment

from . import relations
from .documents import Files, in_python
from .relations import RELATIONS
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
The random recording of the last case contains odd records."""
MORE = {"recordings and texts": ("comparison", RELATIONS), KILLED: ("diagnosis", RELATIONS)}
"""The documents of a case besides its report."""


def names_of(case: str) -> tuple[str, ...]:
    return ("report", *MORE.get(case, ()))


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
    names = tuple(name for name in names_of(case) if name != RELATIONS)
    expected = in_python(files, tmp_path / "s", names)
    if RELATIONS in names_of(case):
        expected[RELATIONS] = relations.plain(relations.in_columns(files, tmp_path / "r"))
    assert documents[case] == json.loads(json.dumps(expected))


def test_a_changed_bit_is_an_error(documents: dict[str, Any], tables: Path) -> None:
    assert documents[DAMAGED].keys() == {"error"}
    message = documents[DAMAGED]["error"]
    assert message.startswith("Spark's workers cannot read the tables: [FAILED_READ_FILE")
    assert spans_of(tables / DAMAGED).name in message


# Commands, one after the other, that share the application which the first one starts.
SHARING = """
import contextlib, json, os, sys
from pathlib import Path
from cirron_otel.core.engines import spark_engine
from cirron_otel.tools.cli.main import run

start, sessions = spark_engine.spark_session, []
with contextlib.ExitStack() as stack:

    @contextlib.contextmanager
    def started_once(url, _):
        if not sessions:
            sessions.append(stack.enter_context(start(url, Path())))
        yield sessions[0]

    spark_engine.spark_session = started_once
    for name, arguments in json.loads(sys.argv[1]).items():
        for stream, suffix in ((1, "out"), (2, "err")):
            with open(f"{name}.{suffix}", "wb") as file:
                os.dup2(file.fileno(), stream)
        Path(f"{name}.code").write_text(str(run(arguments)))
"""
COMMANDS = {"report": ["report", "07_ranks", "--json"],
            "diff": ["diff", "01_torch_basic", "07_ranks", "--json"]}  # fmt: skip


Result = tuple[int, str, str]
"""An exit code, and the texts of stdout and stderr."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory in which the commands run."""
    found = tmp_path_factory.mktemp("commands")
    for name in ("01_torch_basic", "07_ranks"):
        own_spool(name, found)
    return found


@pytest.fixture(scope="module")
def results(spark_cluster: Cluster, folder: Path) -> dict[str, Result]:
    """The result of each command, and of a report from a directory whose name is a pattern."""
    add(folder / "all*", training(ranks=1, steps=2))
    commands = {**COMMANDS, "odd": ["report", f"parquet:{folder / 'all*'}", "--json"]}
    arguments = {name: [*each, "--engine", spark_cluster.url] for name, each in commands.items()}
    program = f"import os; os.chdir({str(folder)!r}){SHARING}"
    variables = {"XDG_CACHE_HOME": str(folder / "cache")}
    done = spark_cluster.run("-c", program, json.dumps(arguments), variables=variables)
    errors = [each.read_text() for each in sorted(folder.glob("*.err"))]
    assert done.returncode == 0, "\n".join([*errors, done.stderr[-3000:]])
    return {
        name: (
            int((folder / f"{name}.code").read_text()),
            (folder / f"{name}.out").read_text(),
            (folder / f"{name}.err").read_text(),
        )
        for name in commands
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_prints_the_same_as_in_python(
    name: str, results: dict[str, Result], folder: Path
) -> None:
    expected = subprocess.run(
        [COMMAND, *COMMANDS[name]], capture_output=True, text=True, check=True, cwd=folder
    )
    assert results[name] == (0, expected.stdout, expected.stderr)


def test_a_path_that_is_a_pattern_is_one_line(results: dict[str, Result]) -> None:
    assert_is_one_line(results["odd"], 2, "expected a path without *")


def assert_is_one_line(result: Result, code: int, message: str) -> None:
    assert result[:2] == (code, ""), result[2]
    assert message in result[2]
    assert result[2].count("\n") == 1
    assert "secret" not in result[2]


@pytest.mark.parametrize(
    ("master", "variables", "code", "message"),
    [
        ("", {}, 5, "cannot be reached"),
        ("u:secret@", {}, 2, "use spark://HOST:PORT"),
        (None, {"JAVA_HOME": "/nonexistent"}, 2, "install Java 17"),
    ],
    ids=["closed", "secret", "java"],
)
def test_an_error_of_the_command_is_one_line(
    master: str | None,
    variables: dict[str, str],
    code: int,
    message: str,
    spark_cluster: Cluster,
    tmp_path: Path,
) -> None:
    """`master` precedes the address of a closed port; None is the cluster's URL."""
    [closed] = free_endpoints(1)
    engine = spark_cluster.url if master is None else f"spark://{master}{closed}"
    done = spark_cluster.run(
        "-c", CLI, "report", str(own_spool("07_ranks", tmp_path)), "--json", "--engine", engine,
        variables={"XDG_CACHE_HOME": str(tmp_path / "cache")} | variables,
    )  # fmt: skip
    assert_is_one_line((done.returncode, done.stdout, done.stderr), code, message)


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
