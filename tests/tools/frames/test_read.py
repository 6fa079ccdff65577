"""`cirron_otel.read`: tables of every kind of source."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import cirron_otel as ci
from cirron_otel.core.columns.schema import MARKS, SPANS, TABLES
from cirron_otel.errors import CirronOtelError, InputError, UsageError
from cirron_otel.tools.cli.demo import RECORDING
from cirron_otel.tools.convert import tables
from cirron_otel.tools.convert.convert import ConvertRequest, convert
from cirron_otel.tools.frames.lazy_table import LazyTable
from cirron_otel.tools.frames.reading import Recording
from tests.core.columns.helpers import of_run
from tests.kit.spools.recorded import NAMES, SPOOLS
from tests.tools.cli.comparing import job
from tests.tools.convert.rows import places

from .tables import (
    Rows,
    arrow_rows,
    pandas_rows,
    polars_rows,
)

NAMES_OF_TABLES = ("steps", "spans", "marks", "sessions", "runs")


def by_id(rows: Rows) -> Rows:
    """Records in an order that does not depend on the files, without the keys of these."""
    rows = [{name: row[name] for name in row if name != "batch_key"} for row in rows]
    return sorted(rows, key=lambda row: (str(row["id"]), row["ordinal"]))


def assert_equal_frames(table: LazyTable) -> None:
    """pandas and Polars have the rows of the Arrow table, with the same values."""
    expected = arrow_rows(table)
    assert polars_rows(table) == expected, table.name
    assert pandas_rows(table) == expected, table.name


def assert_same_tables(
    recording: Recording, expected: Recording, names: Iterable[str] = NAMES_OF_TABLES
) -> None:
    """Two recordings have the same rows, of the same types, in frames of all libraries."""
    assert recording.findings == []
    for name in names:
        table, other = (getattr(each, name)() for each in (recording, expected))
        assert table.to_arrow().schema == other.to_arrow().schema
        sort = by_id if name in ("spans", "marks") else list
        assert sort(arrow_rows(table)) == sort(arrow_rows(other))
        assert_equal_frames(table)
    assert len(expected.spans()) > 0


@pytest.mark.parametrize("name", sorted(places.SOURCES.keys() - {"tar"}))
def test_every_source_has_the_same_tables(name: str, tmp_path: Path) -> None:
    """tests/core/columns/test_bucket.py reads tables in S3."""
    spool = places.spool_for(name, tmp_path)
    with (
        places.SOURCES[name].intact(spool, tmp_path) as source,
        ci.read(source.argument, source_format=source.format) as recording,
    ):
        assert_same_tables(recording, ci.read(spool))


READ_STDIN = """
import sys
import cirron_otel as ci
from tests.tools.frames.test_read import assert_same_tables
spool, source_format, *names = sys.argv[1:]
assert_same_tables(ci.read("-", source_format=source_format), ci.read(spool), names)
"""


@pytest.mark.parametrize(
    "name", sorted(name for name, row in tables.SOURCES.items() if row.reads_stdin)
)
def test_standard_input_has_the_same_tables(name: str, tmp_path: Path) -> None:
    names = set(NAMES_OF_TABLES)
    spool = places.spool_for(name, tmp_path)
    if name == "stormlog":
        path = tmp_path / "export.json"
        convert(ConvertRequest(str(spool), f"stormlog:{path}"))
        spool = tmp_path / "of the export"
        names.remove("spans")  # Stormlog's sessions are named after their file.
        convert(ConvertRequest(f"stormlog:{path}", str(spool)))
    elif name == "dgrr":
        path = places.DGRR
    else:
        path = tmp_path / min(spool.rglob("*.json")).name
        convert(ConvertRequest(str(spool), str(path), target_format=name))
    done = subprocess.run(
        [sys.executable, "-c", READ_STDIN, str(spool), name, *sorted(names)],
        cwd=Path(__file__).parents[3], input=path.read_bytes(), capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()


def test_recordings_of_cirron_sdk_have_runs_and_sessions_in_all_tables() -> None:
    """Its batches name neither: the tables of records have those of the steps and the sessions."""
    for name in ("01_torch_basic", "06_threads", "07_ranks", "23_sigkill_plus_stray_tmp"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            recording = ci.read(SPOOLS / name)
        sessions = {row["session_id"]: row["run_id"] for row in arrow_rows(recording.sessions())}
        rows = arrow_rows(recording.spans())
        assert {row["run_id"] for row in rows} == set(
            recording.runs().to_arrow()["run_id"].to_pylist()
        )
        assert all(sessions[row["session_id"]] == row["run_id"] for row in rows)
        spans = {row["id"]: row for row in rows}
        for row in arrow_rows(recording.marks()):
            owner = spans.get(row["span_id"])
            if owner is not None:
                assert (row["run_id"], row["session_id"]) == (owner["run_id"], owner["session_id"])
        for row in arrow_rows(recording.steps()):
            owner = spans[row["span_id"]]
            assert (row["run_id"], row["session_id"]) == (owner["run_id"], owner["session_id"])


@pytest.mark.parametrize("spool", [*(SPOOLS / name for name in NAMES), RECORDING], ids=str)
def test_frames_of_pandas_and_polars_are_equal(spool: Path) -> None:
    recording = ci.read(spool)
    for name in NAMES_OF_TABLES:
        assert_equal_frames(getattr(recording, name)())


def test_integers_stay_exact() -> None:
    frame = ci.read(RECORDING).steps().to_pandas()
    assert str(frame["start_ns"].dtype) == "int64[pyarrow]"
    assert str(frame["gpu_ns"].dtype) == "int64[pyarrow]"
    assert frame["gpu_ns"].isna().all()


def test_records_are_the_columns_of_the_tables() -> None:
    recording = ci.read(RECORDING)
    for name, table in ((SPANS, recording.spans()), (MARKS, recording.marks())):
        assert table.to_arrow().column_names == [column.name for column in TABLES[name]]
    times = recording.spans().to_arrow().column("start_ns").to_pylist()
    assert times == sorted(times)


def test_a_table_is_read_when_it_is_used(tmp_path: Path) -> None:
    copy = shutil.copytree(RECORDING, tmp_path / "copy")
    table = ci.read(copy).steps()
    assert repr(table) == "<LazyTable steps: not read yet>"
    count = len(table)
    shutil.rmtree(copy)
    assert table.to_arrow().num_rows == count > 0
    assert repr(table) == f"<LazyTable steps: {count:,} rows>"


def test_libraries_accept_a_table_directly() -> None:
    import duckdb
    import polars as pl
    import pyarrow as pa

    steps = ci.read(RECORDING).steps()
    assert pa.table(steps) == steps.to_arrow()
    assert pl.DataFrame(steps).equals(steps.to_polars())
    longest = duckdb.sql("SELECT max(duration_ns) FROM steps").fetchall()
    assert longest == [(max(steps.to_arrow().column("duration_ns").to_pylist()),)]


def temporary_spools(folder: Path) -> list[Path]:
    return list(folder.glob("cirron-otel-*"))


def test_a_temporary_spool_lives_as_long_as_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.jsonl"
    convert(ConvertRequest(str(RECORDING), str(path)))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    table = ci.read(path).steps()
    gc.collect()
    assert len(temporary_spools(tmp_path)) == 1
    assert len(table) > 0
    del table
    gc.collect()
    assert temporary_spools(tmp_path) == []


def test_a_closed_recording_keeps_the_tables_that_were_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    convert(ConvertRequest(str(RECORDING), str(path)))
    with ci.read(path) as recording:
        steps = recording.steps()
        assert len(steps) > 0
    assert steps.to_arrow().num_rows > 0
    with pytest.raises(InputError):
        recording.spans().to_arrow()


@pytest.fixture
def two_runs(tmp_path: Path) -> Path:
    (tmp_path / "spool").mkdir()
    for number, run in ((1, "a" * 32), (2, "b" * 32)):
        name, data = of_run(number, run)
        (tmp_path / "spool" / name).write_bytes(data)
    return tmp_path


def test_one_run_or_all(two_runs: Path) -> None:
    def runs(recording: Recording) -> list[set[Any]]:
        return [
            {row["run_id"] for row in arrow_rows(getattr(recording, name)())}
            for name in ("steps", "spans", "marks")
        ]

    first, second = "a" * 32, "b" * 32
    assert runs(ci.read(two_runs)) == [{first, second}] * 3
    assert runs(ci.read(two_runs, run="all")) == [{first, second}] * 3
    assert runs(ci.read(two_runs, run="last")) == [{second}] * 3
    assert runs(ci.read(two_runs, run="aaaa")) == [{first}] * 3
    with pytest.raises(UsageError, match="no run has the name or id 'c'"):
        ci.read(two_runs, run="c")


def test_unreadable_batch_causes_a_warning(two_runs: Path) -> None:
    (two_runs / "spool" / "torn.json").write_bytes(b'{"schema_version": 1, "spans": [')
    with pytest.warns(UserWarning, match="is incomplete: .*; `findings` lists it$"):
        recording = ci.read(two_runs)
    assert [finding.name for finding in recording.findings] == ["torn.json"]
    assert len(recording.spans()) == 6
    assert len(recording.findings) == 1


def test_a_missing_source() -> None:
    with pytest.raises(InputError, match="nowhere"):
        ci.read("nowhere")


def test_an_address_or_a_format_that_is_not_valid() -> None:
    with pytest.raises(UsageError, match="unknown format 'parchment'"):
        ci.read(RECORDING, source_format="parchment")
    with pytest.raises(UsageError):
        ci.read("jaeger:nonsense")


@pytest.mark.parametrize("name", sorted(places.SOURCES.keys() - {"postgresql", "tar"}))
def test_damage_is_a_warning_or_an_error(
    name: str, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    with places.SOURCES[name].damaged(tmp_path) as source:
        try:
            recording = ci.read(source.argument, source_format=source.format)
        except CirronOtelError:
            return
        assert recording.findings
        assert any("is incomplete" in str(each.message) for each in recwarn)


@pytest.mark.parametrize(
    ("package", "call", "message"),
    [
        ("pandas", "to_pandas", "to_pandas() needs pandas: run `pip install pandas`"),
        ("polars", "to_polars", "to_polars() needs polars: run `pip install polars`"),
        (
            "pyarrow",
            "to_arrow",
            "run `pip install 'cirron-otel[columns]'`",
        ),
        ("pyarrow", "to_pandas", "needs the extra 'columns'"),
    ],
)
def test_a_missing_package_is_named(package: str, call: str, message: str) -> None:
    program = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "import cirron_otel as ci\n"
        "from cirron_otel.errors import UsageError\n"
        f"steps = ci.read({str(RECORDING)!r}).steps()\n"
        f"try: steps.{call}()\n"
        "except UsageError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert message in done.stdout, done.stderr


def test_an_import_is_light() -> None:
    program = (
        f"import cirron_otel as ci; ci.read({str(RECORDING)!r}).steps()\n"
        "import sys; print({'pyarrow', 'pandas', 'polars', 'duckdb', 'numpy'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


def test_a_notebook_shows_rows_and_runs(tmp_path: Path) -> None:
    recording = ci.read(job(tmp_path, units=22, resource={"cirron.run.name": "<b>mine"}))
    shown = recording.steps()._repr_html_()
    assert shown.count("<tr>") == 21
    assert shown.endswith("<p>and 2 more rows</p>")
    for html in (recording.runs()._repr_html_(), recording._repr_html_()):
        assert html.count("<tr>") == 2
        assert "&lt;b&gt;mine" in html
