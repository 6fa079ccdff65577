"""`report --engine duckdb` prints what `report` prints, and keeps the tables of a spool."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cirron_otel.core.columns.layout import EMPTY_GROUP
from cirron_otel.core.columns.reading import ColumnsReader
from cirron_otel.core.columns.schema import TABLES
from cirron_otel.core.engines.columnar_batches import ColumnarBatches
from cirron_otel.core.engines.duckdb_engine import DuckDBEngine
from cirron_otel.errors import InputError
from cirron_otel.tools.cli.demo import RECORDING
from tests.core.columns.helpers import add, add_with_killed_compaction
from tests.kit.generators.trees import training
from tests.kit.servers.command_server import COLUMNS, shared_server
from tests.kit.spools.made import encoded, made, span
from tests.kit.spools.recorded import SPOOLS, own_spool
from tests.tools.conftest import COMMAND, environment

TEXT = (Path(__file__).parents[3] / "docs" / "engines.md").read_text()
Report = Callable[..., subprocess.CompletedProcess[str]]


def command(*arguments: object, cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run `cirron-otel` in a copy of a process that has imported the engines."""
    words = [COMMAND, *map(str, arguments)]
    done = shared_server(COLUMNS).run(words, cwd, env, timeout=600)
    out, err = done.stdout.decode(), done.stderr.decode()
    return subprocess.CompletedProcess(words, done.returncode, out, err)


@pytest.fixture
def report(tmp_path: Path) -> Report:
    """Run `cirron-otel report` with a cache of its own."""

    env = environment(XDG_CACHE_HOME=str(tmp_path / "cache"))

    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        return command("report", *arguments, cwd=tmp_path, env=env)

    return call


def same(report: Report, source: object, *options: object) -> subprocess.CompletedProcess[str]:
    """Check that both engines have the same output, messages and exit code; return DuckDB's."""
    expected = report(source, *options)
    done = report(source, *options, "--engine", "duckdb")
    assert (done.returncode, done.stdout) == (expected.returncode, expected.stdout), done.stderr
    assert done.stderr == expected.stderr
    return done


def written(folder: Path, files: list[tuple[str, bytes]]) -> Path:
    (folder / "spool").mkdir(parents=True, exist_ok=True)
    for name, data in files:
        (folder / "spool" / name).write_bytes(data)
    return folder


def tables_in(tmp_path: Path) -> dict[Path, int]:
    """The files of the cache, with the times of their last change."""
    return {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.parquet")}


@pytest.mark.parametrize("options", [(), ("--json",), ("--json", "--run", "last")])
def test_the_output_is_the_same(options: tuple[str, ...], report: Report, tmp_path: Path) -> None:
    assert same(report, own_spool("07_ranks", tmp_path), *options).returncode == 0


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_python_computes_the_report_of_a_recording_of_cirron_sdk(
    options: tuple[str, ...], report: Report
) -> None:
    expected = report(SPOOLS / "07_ranks", *options)
    done = report(SPOOLS / "07_ranks", *options, "--engine", "duckdb")
    assert (done.returncode, done.stdout) == (0, expected.stdout)
    reason = "the run has scopes of cirron-sdk"
    assert done.stderr == f"cirron-otel: note: {reason}; --engine python computes the report\n"


def test_the_phases_of_several_ranks_are_the_same(report: Report, tmp_path: Path) -> None:
    done = same(report, written(tmp_path / "s", training(3, 40)), "--full")
    assert re.search(r"^forward +240 ", done.stdout, re.MULTILINE)


def test_batches_in_two_groups_count_once(report: Report, tmp_path: Path) -> None:
    files = training(ranks=2, steps=20, seed=1)
    spool = written(tmp_path / "s", files)
    add_with_killed_compaction(tmp_path / "c", files)
    of_spool = json.loads(report(spool, "--json").stdout)
    of_tables = json.loads(same(report, f"parquet:{tmp_path / 'c'}", "--json").stdout)
    del of_spool["source"], of_tables["source"]
    assert of_tables == of_spool


def test_a_file_that_cannot_be_read_is_reported_in_every_report(
    report: Report, tmp_path: Path
) -> None:
    spool = written(tmp_path / "s", [*training(1, 30), ("0-torn.json", b'{"spans": [')])
    for _ in range(2):
        done = same(report, spool, "--json")
        assert done.returncode == 1
        assert "0-torn.json" in done.stderr


def test_second_report_adds_only_new_files(report: Report, tmp_path: Path) -> None:
    files = training(ranks=2, steps=10)
    spool = written(tmp_path / "s", files[:2])
    same(report, spool, "--json", "--run", "all")
    first = tables_in(tmp_path)
    same(report, spool, "--json", "--run", "all")
    assert tables_in(tmp_path) == first
    written(spool, files[2:])
    same(report, spool, "--json", "--run", "all")
    second = tables_in(tmp_path)
    assert first.items() < second.items()
    [folder] = (tmp_path / "cache" / "cirron-otel" / "columns").iterdir()
    assert folder.stat().st_mode & 0o77 == 0


def test_evicted_batches_are_left_out_and_the_cache_may_be_removed(
    report: Report, tmp_path: Path
) -> None:
    files = training(ranks=2, steps=10)
    spool = written(tmp_path / "s", files)
    before = json.loads(same(report, spool, "--json").stdout)
    (spool / "spool" / files[0][0]).unlink()
    after = json.loads(same(report, spool, "--json").stdout)
    assert 0 < after["spans"] < before["spans"]
    shutil.rmtree(tmp_path / "cache")
    assert json.loads(same(report, spool, "--json").stdout) == after


def test_two_commands_at_once(tmp_path: Path, report: Report) -> None:
    spool = written(tmp_path / "s", training(ranks=2, steps=30))
    expected = report(spool, "--json").stdout
    command = [COMMAND, "report", str(spool), "--json", "--engine", "duckdb"]
    env = environment(XDG_CACHE_HOME=str(tmp_path / "cache"))
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
        for _ in range(2)
    ]
    for each in running:
        out, err = each.communicate(timeout=300)
        assert (each.returncode, out.decode()) == (0, expected), err


def test_columnar_tables(report: Report, tmp_path: Path) -> None:
    columns = tmp_path / "columns"
    done = command("convert", RECORDING, f"parquet:{columns}", cwd=tmp_path, env=environment())
    assert done.returncode == 0, done.stderr
    same(report, f"parquet:{columns}", "--json")
    assert not (tmp_path / "cache").exists()


def test_a_batch_in_several_groups_counts_once(report: Report, tmp_path: Path) -> None:
    """As after a compaction that was killed."""
    columns = tmp_path / "columns"
    spool = written(tmp_path / "s", training(ranks=2, steps=30))
    done = command("convert", spool, f"parquet:{columns}", cwd=tmp_path, env=environment())
    assert done.returncode == 0, done.stderr
    arguments = (f"parquet:{columns}", "--json", "--run", "all", "--engine", "duckdb")
    expected = report(*arguments).stdout
    group = next(g for g in ColumnsReader(columns).groups() if g != EMPTY_GROUP)
    again = group._replace(file=group.file[:-40] + "f" * 32 + ".parquet")
    for table in TABLES:
        if (columns / table / group.path).exists():
            shutil.copy(columns / table / group.path, columns / table / again.path)
    done = report(*arguments)
    assert (done.returncode, done.stdout) == (0, expected), done.stderr


@pytest.mark.parametrize("key", [None, "f" * 64])
def test_spans_of_a_batch_that_is_missing(report: Report, tmp_path: Path, key: str | None) -> None:
    columns = tmp_path / "columns"
    done = command("convert", RECORDING, f"parquet:{columns}", cwd=tmp_path, env=environment())
    assert done.returncode == 0, done.stderr
    file = max((columns / "spans").rglob("*.parquet"), key=lambda path: path.stat().st_size)
    rows = pq.read_table(file, partitioning=None)
    number = rows.schema.get_field_index("batch_key")
    keys = [*rows["batch_key"].to_pylist()[:-1], key]
    field = rows.schema.field(number).with_nullable(True)
    pq.write_table(rows.set_column(number, field, pa.array(keys, field.type)), file)
    done = report(f"parquet:{columns}", "--engine", "duckdb")
    assert (done.returncode, done.stdout) == (3, "")
    assert "spans of a batch that is not in batches" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_run_that_needs_python(report: Report, tmp_path: Path) -> None:
    files = [(name, data.replace(b'"loss"', b'"digest.loss"')) for name, data in training(1, 5)]
    spool = written(tmp_path / "s", files)
    done = report(spool, "--json", "--engine", "duckdb")
    assert done.stdout == report(spool, "--json").stdout
    assert "note: the run has digests; --engine python computes the report" in done.stderr
    assert done.stderr.count("\n") == 1


def test_wrong_use_is_one_line(report: Report, tmp_path: Path) -> None:
    (tmp_path / "a.otlp.jsonl").write_text("{}")
    for arguments, message in (
        (["a.otlp.jsonl"], "convert a.otlp.jsonl to parquet:DIR first"),
        ([RECORDING, "--html", "page.html"], "--perfetto and --html need --engine python"),
    ):
        done = report(*arguments, "--engine", "duckdb")
        assert done.returncode == 2
        assert done.stdout == ""
        assert message in done.stderr
        assert done.stderr.count("\n") == 1


def test_tables_that_are_damaged_are_one_line(report: Report, tmp_path: Path) -> None:
    spool = written(tmp_path / "s", training(ranks=1, steps=5))
    assert report(spool, "--engine", "duckdb").returncode == 0
    file = max((tmp_path / "cache").rglob("spans/**/*.parquet"), key=lambda f: f.stat().st_size)
    file.write_bytes(b"PAR1" + bytes(100))
    done = report(spool, "--engine", "duckdb")
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert file.name in done.stderr


@pytest.mark.parametrize("table", ["spans", "marks"])
def test_a_missing_file_is_an_error(report: Report, tmp_path: Path, table: str) -> None:
    """As if a program that cleans caches had removed it."""
    spool = written(tmp_path / "s", training(ranks=1, steps=5))
    assert report(spool, "--engine", "duckdb").returncode == 0
    file = max((tmp_path / "cache").rglob(f"{table}/**/*.parquet"), key=lambda f: f.stat().st_size)
    file.unlink()
    done = report(spool, "--engine", "duckdb")
    assert (done.returncode, done.stdout) == (3, "")
    assert f"{file.name} is missing" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_table_that_is_missing_is_an_error(report: Report, tmp_path: Path) -> None:
    columns = tmp_path / "columns"
    files = [made(1, spans=[span(1)])]
    spool = written(tmp_path / "s", [("1.json", encoded(each)) for each in files])
    done = command("convert", spool, f"parquet:{columns}", cwd=tmp_path, env=environment())
    assert done.returncode == 0, done.stderr
    shutil.rmtree(columns / "marks")
    done = report(f"parquet:{columns}", "--engine", "duckdb")
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "has no table marks" in done.stderr


def test_a_file_that_disappears_is_not_a_lack_of_space(tmp_path: Path) -> None:
    add(tmp_path / "c", training(ranks=1, steps=5))
    batches = ColumnarBatches(tmp_path / "c")
    with DuckDBEngine(batches, tmp_path) as files:
        files.odd_keys()
        for path in batches.files("spans"):
            Path(path).unlink()
        with pytest.raises(InputError, match="DuckDB cannot read the tables: IO Error: No files"):
            files.outlines()


def test_an_id_that_is_not_valid_text_needs_python(report: Report, tmp_path: Path) -> None:
    batch = made(1, spans=[span(1), span(2, 1) | {"id": "\ud800"}])
    spool = written(tmp_path / "s", [("1.json", json.dumps(batch).encode())])
    for options in ((), ("--run", "last")):
        done = report(spool, "--engine", "duckdb", "--json", *options)
        expected = report(spool, "--json", *options)
        assert (done.returncode, done.stdout) == (expected.returncode, expected.stdout)
    assert "an id that is not valid text" in done.stderr


def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    shutil.copytree(RECORDING, tmp_path / ".cirron")
    blocks = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
    lines = [line.split("#")[0] for block in blocks for line in block.splitlines()]
    commands = [shlex.split(line) for line in lines if line.startswith("cirron-otel")]
    assert len(commands) == 5
    env = environment(XDG_CACHE_HOME=str(tmp_path / "cache"))
    for words in commands:
        done = command(*words[1:], cwd=tmp_path, env=env)
        assert done.returncode == 0, done.stderr
    assert tables_in(tmp_path)
