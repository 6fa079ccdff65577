"""Batches come back from the files of the tables, whatever the batches and the sizes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cirron_otel import exactjson
from cirron_otel.core.columns.batch_rows import rows_of
from cirron_otel.core.columns.layout import EMPTY_GROUP, partition_of
from cirron_otel.core.columns.packed import arrow_rows
from cirron_otel.core.columns.reading import ColumnsReader, RowSelect
from cirron_otel.core.columns.schema import TABLES, TIME_OF_TABLE
from cirron_otel.core.columns.writing import ColumnsWriter, WriterLimits
from cirron_otel.core.records.check import check_batch
from cirron_otel.errors import InputError, TargetError
from cirron_otel.tools.cli.main import run as run_command
from cirron_otel.tools.convert import workers
from cirron_otel.tools.convert.convert import ConvertRequest, convert
from tests.core.targets.sql.test_lossless import ODD
from tests.kit.generators import strategies
from tests.kit.spools import mutations
from tests.kit.spools.comparing import (
    RECORDED,
    assert_same,
    batches,
    recorded,
)
from tests.kit.spools.made import (
    EPOCH_NS,
    encoded,
    made,
    span,
)

from .helpers import (
    TINY,
    add,
    assert_stored,
    of_run,
    stored,
    visible,
)

FEW = settings(max_examples=40, deadline=None)
limits = st.builds(
    WriterLimits,
    group_bytes=st.sampled_from([1, 5_000, 20_000, 10**6]),
    open_bytes=st.sampled_from([1, 30_000, 10**6]),
    row_group_rows=st.integers(1, 5),
)
odd = strategies.batches | mutations.batches() | st.sampled_from(list(ODD.values()))


@FEW
@given(some=st.lists(odd, max_size=6), limits=limits, parts=st.integers(1, 3))
def test_generated_batches(some: list[Any], limits: WriterLimits, parts: int) -> None:
    texts = [exactjson.dumps(batch) for batch in some]
    files = [
        (f"{number:020d}-x.json", data)
        for number, data in enumerate(texts)
        if check_batch(data) is None
    ]
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        new = sum(add(directory, files[start::parts], limits) for start in range(parts))
        assert new == len(files)
        assert_stored(directory, files)
        assert add(directory, reversed(files), limits) == 0
        assert_stored(directory, files)


@pytest.mark.parametrize("name", [path.name for path in recorded()])
def test_recordings(name: str, tmp_path: Path) -> None:
    convert(ConvertRequest(str(RECORDED / name), f"parquet:{tmp_path}/tables"))
    report = convert(ConvertRequest(f"parquet:{tmp_path}/tables", str(tmp_path / "back")))
    assert report.exit_code == 0
    assert_same(batches(tmp_path / "back"), batches(RECORDED / name))


def test_all_recordings_in_one_directory(tmp_path: Path) -> None:
    truth = {}
    for spool in recorded():
        convert(ConvertRequest(str(spool), f"parquet:{tmp_path}/tables"))
        truth |= batches(spool)
    assert truth
    convert(ConvertRequest(f"parquet:{tmp_path}/tables", str(tmp_path / "back")))
    assert_same(batches(tmp_path / "back"), truth)


# --- adding ------------------------------------------------------------------------------------


def test_converting_again_adds_nothing(tmp_path: Path) -> None:
    target = f"parquet:{tmp_path}/tables"
    first = convert(ConvertRequest(str(RECORDED / "01_torch_basic"), target))
    before = {path: path.stat().st_mtime_ns for path in visible(tmp_path / "tables")}
    second = convert(ConvertRequest(str(RECORDED / "01_torch_basic"), target))
    assert (first.unchanged, first.written) == (0, len(before))
    assert (second.unchanged, second.written, second.exit_code) == (second.batches, 0, 0)
    assert {path: path.stat().st_mtime_ns for path in visible(tmp_path / "tables")} == before


def test_more_batches_are_added(tmp_path: Path) -> None:
    files = [of_run(number % 3, str(number % 2), batch_id=f"{number:032x}") for number in range(9)]
    assert add(tmp_path, files[:5]) == 5
    assert add(tmp_path, files[3:]) == 4
    assert_stored(tmp_path, files)


def test_the_same_value_in_other_bytes_is_the_same_batch(tmp_path: Path) -> None:
    name, data = of_run(1)
    assert add(tmp_path, [(name, data), (name, data.replace(b",", b" , "))]) == 1
    assert add(tmp_path, [(name, data.replace(b",", b", "))]) == 0
    assert_stored(tmp_path, [(name, data)])


def test_the_same_value_is_recognised_beside_other_content_of_its_name(tmp_path: Path) -> None:
    name, data = of_run(1)
    other = data.replace(b'"train"', b'"trial"')
    assert add(tmp_path, [(name, data)]) == 1
    assert add(tmp_path, [(name, other), (name, data.replace(b",", b" , "))]) == 1
    assert_stored(tmp_path, [(name, data), (name, other)])


def test_other_content_of_the_same_name_is_added_beside_the_first(tmp_path: Path) -> None:
    name, data = of_run(1)
    other = data.replace(b'"train"', b'"trial"')
    elsewhere = data.replace(b'"r"', b'"another run"')
    tables = tmp_path / "tables"
    assert add(tables, [(name, data), (name, other), (name, elsewhere)]) == 3
    assert_stored(tables, [(name, data), (name, other), (name, elsewhere)])
    report = convert(ConvertRequest(f"parquet:{tables}", str(tmp_path / "back")))
    assert report.exit_code == 0
    found = batches(tmp_path / "back")
    assert len(found) == 3
    assert name in found
    assert all(each.startswith(name.removesuffix(".json")) for each in found)


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with (
        ColumnsWriter(tmp_path),
        pytest.raises(TargetError, match="another process writes there"),
        ColumnsWriter(tmp_path),
    ):
        pass
    add(tmp_path, [of_run(1)])


def test_an_error_drops_the_open_group_only(tmp_path: Path) -> None:
    add(tmp_path, [of_run(1)])
    writer = ColumnsWriter(tmp_path)
    writer.add(arrow_rows(rows_of(*of_run(2))))
    writer.__exit__(KeyError, KeyError(), None)
    assert_stored(tmp_path, [of_run(1)])
    assert add(tmp_path, [of_run(2)]) == 1


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(TargetError, match=r"file cannot be written: Not a directory"):
        add(tmp_path / "file", [of_run(1)])


# --- the files ---------------------------------------------------------------------------------


def test_files_are_private_and_complete(tmp_path: Path) -> None:
    add(tmp_path / "tables", [of_run(1), of_run(2)])
    assert [path.name for path in (tmp_path / "tables" / "_writing").iterdir()] == ["lock"]
    for path in visible(tmp_path / "tables"):
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        pq.ParquetFile(path).read()


def test_rows_are_in_the_order_of_time_with_statistics(tmp_path: Path) -> None:
    files = [of_run(1, batch_id=f"{n:032x}", records=7) for n in (3, 1, 2)]
    add(tmp_path, files, WriterLimits(row_group_rows=4))
    for table in TABLES:
        group = partition_of("r", EPOCH_NS + 86_400 * 10**9).path
        [path] = (tmp_path / table / group).glob("*.parquet")
        file = pq.ParquetFile(path)
        assert file.metadata.metadata[b"cirron.columns"] == b"1"
        times = file.read().column(TIME_OF_TABLE[table]).to_pylist()
        assert times == sorted(times)
        index = file.schema_arrow.names.index(TIME_OF_TABLE[table])
        columns = [
            file.metadata.row_group(n).column(index) for n in range(file.metadata.num_row_groups)
        ]
        assert len(columns) > 1 or table in ("batches", "sessions", "snapshots")
        assert all(column.compression == "ZSTD" for column in columns)
        bounds = [(column.statistics.min, column.statistics.max) for column in columns]
        assert bounds == sorted(bounds)
        run = file.schema_arrow.names.index("run_id")
        assert file.metadata.row_group(0).column(run).statistics.min == "r"


RUNS = [
    "r", "0012", "1e5", "a/b", "..", ".", "a b", "é", "x=1", "%41", "a" * 199, "é" * 99, "x" * 999,
    "new\nline", "a\\b", "__HIVE_DEFAULT_PARTITION__", "NULL", "sha256-", "nul\0",
]  # fmt: skip


@pytest.mark.parametrize("run", RUNS)
def test_any_run_has_a_partition(run: str, tmp_path: Path) -> None:
    files = [of_run(1, run), of_run(2, "another"), of_run(3, "")]
    add(tmp_path / "tables", files)
    assert_stored(tmp_path / "tables", files)
    assert {path.name for path in tmp_path.iterdir()} == {"tables"}
    reader = ColumnsReader(tmp_path / "tables")
    [stored_run] = {
        each for each in reader.rows("spans").column("run_id").to_pylist() if each != "another"
    } - {None}
    assert stored_run == run or run in ("x" * 999, "nul\0")
    rows = reader.rows("spans", RowSelect(run_id=stored_run))
    assert rows.num_rows == 3
    assert set(rows.column("run_id").to_pylist()) == {stored_run}


@pytest.mark.parametrize("created", [None, "x", -1, 2**63, 2**70, 1.5])
def test_a_batch_without_a_valid_time_has_a_partition(created: Any, tmp_path: Path) -> None:
    file = ("any.json", encoded(made(1, created_ns=created, spans=[span(1)])))
    add(tmp_path, [file])
    assert_stored(tmp_path, [file])
    folder = tmp_path / "spans" / EMPTY_GROUP.partition.path
    assert len(list(folder.iterdir())) == 2


def test_batch_of_several_runs_is_selected_by_each_run(tmp_path: Path) -> None:
    resources = [
        {"resource": {"attributes": {"cirron.run.id": run}}, "scope_spans": [{"spans": 1}]}
        for run in ("a", "b")
    ]
    batch = made(1, spans=[span(1), span(2), span(3)], otel={"resource_spans": resources})
    add(tmp_path, [("x.json", encoded(batch))])
    reader = ColumnsReader(tmp_path)
    for run, number in (("a", 1), ("b", 2)):
        assert reader.rows("spans", RowSelect(run)).column("index").to_pylist() == [number]
    assert reader.rows("spans").column("run_id").to_pylist() == ["a", "b", None]


def test_an_empty_table_has_its_columns(tmp_path: Path) -> None:
    add(tmp_path, [])
    reader = ColumnsReader(tmp_path)
    for table, columns in TABLES.items():
        assert reader.rows(table).num_rows == 0
        assert reader.rows(table).column_names == [column.name for column in columns]


# --- reading less ------------------------------------------------------------------------------


def _spoil(path: Path, first: int = 0, last: int | None = None) -> None:
    data = bytearray(path.read_bytes())
    last = len(data) if last is None else last
    data[first:last] = os.urandom(last - first)
    path.write_bytes(data)


def test_files_of_other_runs_and_row_groups_of_other_times_are_not_read(tmp_path: Path) -> None:
    add(tmp_path, [of_run(1, "a", records=8), of_run(2, "b")], WriterLimits(row_group_rows=4))
    [other] = (tmp_path / "spans" / "run=b").rglob("*.parquet")
    _spoil(other)
    [path] = (tmp_path / "spans" / "run=a").rglob("*.parquet")
    second = pq.ParquetFile(path).metadata.row_group(1)
    first_byte = min(
        column.dictionary_page_offset or column.data_page_offset
        for column in map(second.column, range(second.num_columns))
    )
    _spoil(path, first_byte, first_byte + 9)
    reader = ColumnsReader(tmp_path)
    until = EPOCH_NS + 104 * 1000
    rows = reader.rows("spans", RowSelect("a", EPOCH_NS, until))
    assert rows.column("start_ns").to_pylist() == [EPOCH_NS + n * 1000 for n in range(100, 104)]
    with pytest.raises(InputError, match="cannot be read"):
        reader.rows("spans", RowSelect("a"))


def test_convert_reads_only_the_files_of_a_run(tmp_path: Path) -> None:
    files = [of_run(1, "aaaa"), of_run(2, "bbbb")]
    add(tmp_path / "tables", files)
    [other] = (tmp_path / "tables" / "spans" / "run=bbbb").rglob("*.parquet")
    _spoil(other)
    source = f"parquet:{tmp_path}/tables"
    report = convert(ConvertRequest(source, str(tmp_path / "by id"), run="aaaa"))
    assert (report.exit_code, list(batches(tmp_path / "by id"))) == (0, [files[0][0]])
    report = convert(ConvertRequest(source, str(tmp_path / "by part of it"), run="aaa"))
    assert (report.exit_code, list(batches(tmp_path / "by part of it"))) == (1, [files[0][0]])


@pytest.mark.parametrize("options", [("report", "--json"), ("diagnose",), ("diff", "--json")])
def test_commands_read_only_the_files_of_a_run(
    options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add(tmp_path, [of_run(1, "aaaa"), of_run(2, "bbbb")])
    [other] = (tmp_path / "spans" / "run=bbbb").rglob("*.parquet")
    _spoil(other)
    sources = [f"parquet:{tmp_path}"] * (2 if "diff" in options else 1)
    assert run_command([*options, *sources, "--run", "aaaa"]) == 0
    assert "aaaa" in capsys.readouterr().out
    assert run_command([*options, *sources, "--run", "all"]) == 1
    assert "cannot be read" in capsys.readouterr().err


def test_runs_with_the_names_of_the_options(tmp_path: Path) -> None:
    """`last` and `all` select runs, also if there are runs with these ids."""
    files = [of_run(1, "all"), of_run(2, "last"), of_run(3, "z")]
    add(tmp_path / "tables", files)
    for run, expected in (("all", files), ("last", files[2:])):
        convert(ConvertRequest(f"parquet:{tmp_path}/tables", str(tmp_path / run), run=run))
        assert list(batches(tmp_path / run)) == [name for name, _ in expected]


def test_only_some_columns(tmp_path: Path) -> None:
    add(tmp_path, [of_run(1)])
    rows = ColumnsReader(tmp_path).rows("marks", columns=["name", "value_float"])
    assert rows.to_pylist() == [{"name": "loss", "value_float": 0.5}] * 3


def test_limits_do_not_change_the_rows(tmp_path: Path) -> None:
    files = [of_run(number, str(number % 2)) for number in range(8)]
    add(tmp_path / "one", files, TINY)
    add(tmp_path / "other", files, WriterLimits())
    assert stored(tmp_path / "one") == stored(tmp_path / "other")
    for table in ("spans", "marks", "snapshots", "sessions"):
        one, other = (
            sorted(map(str, ColumnsReader(tmp_path / name).rows(table).to_pylist()))
            for name in ("one", "other")
        )
        assert one == other


def test_worker_processes_make_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_POOL_FROM_BYTES", 0)
    spool, target = RECORDED / "01_torch_basic", f"parquet:{tmp_path}/tables"
    first = convert(ConvertRequest(str(spool), target, jobs=2))
    assert (first.unchanged, first.exit_code) == (0, 0)
    again = convert(ConvertRequest(str(spool), target, jobs=2))
    assert again.unchanged == again.batches == first.batches
    convert(ConvertRequest(target, str(tmp_path / "back")))
    assert_same(batches(tmp_path / "back"), batches(spool))


def test_too_deeply_nested_batch_is_reported(tmp_path: Path) -> None:
    name, data = of_run(1)
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / name).write_bytes(data)
    deep = encoded(made(2, spans=[span(1, attrs={"a": "DEEP"})]))
    deep = deep.replace(b'"DEEP"', b"[" * 600 + b"]" * 600)
    (tmp_path / "spool" / "x.json").write_bytes(deep)
    report = convert(ConvertRequest(str(tmp_path / "spool"), f"parquet:{tmp_path}/tables"))
    assert report.exit_code == 1
    assert [finding.message for finding in report.skipped] == [
        "JSON nested too deep: more than 512 levels"
    ]
    assert_stored(tmp_path / "tables", [(name, data)])


def test_a_missing_file_with_rows_is_an_error(tmp_path: Path) -> None:
    """A group without marks has no file of marks; one with spans has a file of spans."""
    add(tmp_path, [("x.json", encoded(made(1, spans=[span(1)])))])
    reader = ColumnsReader(tmp_path)
    assert (reader.rows("marks").num_rows, reader.rows("spans").num_rows) == (0, 1)
    file = max((tmp_path / "spans").rglob("*.parquet"), key=lambda each: each.stat().st_size)
    file.unlink()
    with pytest.raises(InputError, match=f"{file.name} is missing: run the command again"):
        reader.rows("spans")
