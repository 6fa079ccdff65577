"""Damaged and foreign files, and other readers of the tables."""

from __future__ import annotations

import math
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cirron_otel.core.columns.directory import DirectoryTables
from cirron_otel.core.columns.layout import EMPTY_GROUP
from cirron_otel.core.columns.reading import ColumnsReader, read_group
from cirron_otel.core.columns.schema import RECORD_TABLES, TABLES
from cirron_otel.errors import InputError
from cirron_otel.tools.cli.main import run as run_command
from tests.kit.spools.comparing import batches
from tests.kit.spools.made import (
    encoded,
    made,
    mark,
    span,
)

from .helpers import (
    add,
    flip_bit,
    of_run,
    stored,
)

FILES = [of_run(1), of_run(2, "s")]


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Two groups, of one batch each."""
    add(tmp_path / "tables", FILES)
    return tmp_path / "tables"


def converted(source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code and the messages of a conversion."""
    code = run_command(["convert", source, str(tmp_path / "back")])
    message = capsys.readouterr().err
    assert "Traceback" not in message
    assert "internal error" not in message
    return code, message


def file_of(tables: Path, table: str) -> Path:
    [path] = (tables / table / "run=r").rglob("*.parquet")
    return path


def rewrite(path: Path, metadata: dict[str, str] | None = None, drop: str = "") -> None:
    """Write a file again, with other metadata or without a column."""
    rows = pq.ParquetFile(path).read()
    rows = rows.drop_columns([drop]) if drop else rows
    pq.write_table(rows.replace_schema_metadata(metadata), path)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def change_text(path: Path) -> None:
    """Replace the texts that a row's rest is made of."""
    rows = pq.ParquetFile(path).read()
    number = rows.column_names.index("extra")
    broken = pa.array(['{"neither": 1}'] * rows.num_rows)
    pq.write_table(rows.set_column(number, "extra", broken), path)


def change_bytes(path: Path) -> None:
    """Replace a byte of a string in the file, so that it is not UTF-8."""
    rows = pq.ParquetFile(path).read()
    text = pa.array([b"st\xffp"] * rows.num_rows, pa.binary()).view(pa.string())
    rows = rows.set_column(rows.column_names.index("name"), "name", text)
    pq.write_table(rows, path)


VERSION = {"cirron.columns": "1"}
DAMAGES: dict[str, tuple[Any, str]] = {
    "cut": (cut, "Parquet magic bytes not found"),
    "empty": (lambda path: path.write_bytes(b""), "Parquet file size is 0 bytes"),
    "no file": (Path.unlink, "No such file or directory"),
    "other bytes": (
        lambda path: path.write_bytes(b"PAR1" + b"\xff" * 400 + b"PAR1"), "cannot be read"
    ),
    "no version": (rewrite, "no cirron.columns in its metadata"),
    "another version": (lambda path: rewrite(path, {"cirron.columns": "9"}), "format version 9"),
    "no column": (lambda path: rewrite(path, VERSION, "id"), "no column 'id'"),
    "no rows": (
        lambda path: pq.write_table(pq.ParquetFile(path).read().slice(0, 1), path),
        "1 rows in spans where the batch has 3",
    ),
    "not UTF-8": (change_bytes, "Invalid UTF8"),
    "a text": (change_text, "is not a difference between a record and its fields"),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "message"), DAMAGES.values(), ids=DAMAGES)
def test_damage_is_reported_and_the_rest_is_read(
    damage: Any, message: str, tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(file_of(tables, "spans"))
    code, found = converted(f"parquet:{tables}", tmp_path, capsys)
    assert code == 1
    assert message in found
    assert list(batches(tmp_path / "back")) == [FILES[1][0]]


@pytest.mark.parametrize(
    ("table", "column"),
    [("spans", "start_ns"), ("spans", "thread_id"), ("marks", "value_float"), ("batches", "marks")],
)
def test_a_flipped_bit_of_a_number_is_an_error(
    table: str,
    column: str,
    tables: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    paths = [next((tables / table / run).rglob("*.parquet")) for run in ("run=r", "run=s")]
    flip_bit(paths[0], column)
    code, found = converted(f"parquet:{tables}", tmp_path, capsys)
    assert (code, list(batches(tmp_path / "back"))) == (1, [FILES[1][0]])
    assert f"{paths[0]} cannot be read" in found
    assert "CRC checksum verification failed" in found
    flip_bit(paths[1], column)
    for arguments in (
        ["convert", f"parquet:{tables}", str(tmp_path / "none")],
        ["report", f"parquet:{tables}"],
    ):
        assert run_command(arguments) == 3
        found = capsys.readouterr().err
        assert f"{paths[0]} cannot be read" in found
        assert found.count("\n") == 1
    with pytest.raises(InputError, match=f"{paths[0]} cannot be read.*checksum"):
        ColumnsReader(tables).rows(table)


def test_every_page_has_a_checksum(tables: Path, tmp_path: Path) -> None:
    """Also those of dictionaries: no bit in the pages changes values that are read.

    One byte of each four is changed, which is several of each page.
    """
    path = file_of(tables, "spans")
    store = DirectoryTables(tables)
    [group] = (group for group in store.groups("spans") if str(path).endswith(group.path))
    data, rows = path.read_bytes(), read_group(store, "spans", group)
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    chance = random.Random(3)
    found = 0
    places = [at + chance.randrange(4) for at in range(4, footer - 3, 4)]
    for place in places:
        changed = bytearray(data)
        changed[place] ^= 1 << chance.randrange(8)
        path.write_bytes(changed)
        try:
            assert read_group(store, "spans", group).equals(rows), place
        except InputError as error:
            assert str(path) in str(error)  # noqa: PT017
            found += 1
    assert found > len(places) / 2


def spoil_key(path: Path) -> None:
    rows = pq.ParquetFile(path).read()
    keys = pa.array(["x"] * rows.num_rows)
    rows = rows.set_column(rows.column_names.index("batch_key"), "batch_key", keys)
    pq.write_table(rows, path)


@pytest.mark.parametrize("jobs", [[], ["--jobs", "1"]])
@pytest.mark.parametrize(
    ("damage", "message"),
    [(cut, "magic bytes"), (spoil_key, "batch_key is not 32 hexadecimal digits")],
)
def test_a_damaged_target_is_an_error_of_the_target(
    damage: Any,
    message: str,
    jobs: list[str],
    tables: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, data = of_run(1, batch_id="f" * 32)
    damage(file_of(tables, "batches"))
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / name).write_bytes(data)
    add(tmp_path / "others", [(name, data)])
    for source in (str(tmp_path), f"parquet:{tmp_path}/others"):
        before = sorted(tables.rglob("*"))
        assert run_command(["convert", source, f"parquet:{tables}", *jobs]) == 4
        found = capsys.readouterr().err
        assert found.count("\n") == 1
        assert message in found
        assert "repair or remove the file" in found
        assert sorted(tables.rglob("*")) == before
    code, found = converted(f"parquet:{tables}", tmp_path, capsys)
    assert (code, list(batches(tmp_path / "back"))) == (1, [FILES[1][0]])


@pytest.mark.parametrize("url", ["gs://bucket/x", "https://host/x", "S3://bucket/x", "file:///x"])
def test_another_url_is_not_a_directory(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.json").write_bytes(FILES[0][1])
    for arguments in (["one.json", f"parquet:{url}"], [f"parquet:{url}", "back"]):
        assert run_command(["convert", *arguments]) == 2
        assert "name a directory or s3://BUCKET/PREFIX" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["one.json"]


def test_a_partition_may_be_a_link(tables: Path, tmp_path: Path) -> None:
    """Parts of the tables can be moved to another disk."""
    (tables / "spans" / "run=r").rename(tmp_path / "moved")
    (tables / "spans" / "run=r").symlink_to(tmp_path / "moved")
    assert ColumnsReader(tables).rows("spans").num_rows == 6
    assert len(stored(tables)) == 2
    assert add(tables, FILES) == 0


def test_a_partition_that_is_removed_meanwhile_hides_no_other(tables: Path) -> None:
    groups = DirectoryTables(tables).groups("batches")
    first = next(groups)
    for path in (tables / "batches").iterdir():
        if path.name != f"run={first.partition.run}":
            shutil.rmtree(path)
            break
    assert len({first.partition, *(group.partition for group in groups)}) == 2


def test_nothing_that_can_be_read(
    tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (tables / "spans").rglob("*.parquet"):
        cut(path)
    code, found = converted(f"parquet:{tables}", tmp_path, capsys)
    assert code == 3
    assert found.count("\n") == 1
    assert "contains no batch" in found


def test_path_without_tables_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file.parquet").write_bytes(b"PAR1")
    (tmp_path / "folder").mkdir()
    for name, message in (
        ("file.parquet", "is not a directory: expected tables that"),
        ("folder", "has no table batches: expected tables that"),
        ("absent", "does not exist: expected tables that"),
    ):
        code, found = converted(f"parquet:{tmp_path}/{name}", tmp_path, capsys)
        assert code == 3
        assert found.count("\n") == 1
        assert message in found


def test_tables_without_the_prefix_are_recognised(
    tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    back = str(tmp_path / "back")
    for arguments in (["convert", str(tables), back], ["report", str(tables)]):
        assert run_command(arguments) == 3
        assert f"contains columnar tables: name them parquet:{tables}\n" in capsys.readouterr().err
    file = tmp_path / "steps.parquet"
    file.write_bytes(b"PAR1")
    for arguments in (["report", str(file)], ["convert", str(file), back]):
        assert run_command(arguments) == 2
        found = capsys.readouterr().err
        assert f"{file} is a single Parquet file" in found
        assert "as parquet:DIR" in found
        assert found.count("\n") == 1
    (tables / "spool").mkdir()
    (tables / "spool" / FILES[0][0]).write_bytes(FILES[0][1])
    assert run_command(["convert", str(tables), back]) == 0
    assert list(batches(tmp_path / "back")) == [FILES[0][0]]


def test_tables_of_another_version_are_not_written(
    tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite(tables / "batches" / EMPTY_GROUP.path, {"cirron.columns": "9"})
    before = sorted(tables.rglob("*"))
    (tmp_path / "one.json").write_bytes(FILES[0][1])
    code = run_command(["convert", str(tmp_path / "one.json"), f"parquet:{tables}"])
    assert code == 4
    assert "format version 9: expected 1" in capsys.readouterr().err
    assert sorted(tables.rglob("*")) == before


def test_files_of_others_are_left_alone(tables: Path) -> None:
    others = [
        tables / "spans" / "mine.parquet",
        tables / "notes.txt",
        tables / "spans" / "run=r" / "x",
    ]
    for path in others:
        path.write_text("mine")
    (tables / "_writing" / "mine").mkdir()
    add(tables, [of_run(3)])
    assert (tables / "_writing" / "mine").is_dir()
    assert [path.read_text() for path in others] == ["mine"] * 3
    assert ColumnsReader(tables).rows("spans").num_rows == 9


def test_standard_streams_are_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one.json").write_bytes(FILES[0][1])
    assert run_command(["convert", str(tmp_path / "one.json"), "parquet:-"]) == 2
    assert "tables cannot be written to -" in capsys.readouterr().err
    assert run_command(["convert", "-", str(tmp_path / "back"), "--from", "parquet"]) == 2


@pytest.mark.parametrize("arguments", [["parquet:in", "out"], ["in.json", "parquet:out"]])
def test_without_pyarrow_the_message_names_the_extra(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "in.json").write_bytes(FILES[0][1])
    program = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from cirron_otel.tools.cli.main import run\n"
        "sys.exit(run(['convert', *sys.argv[1:]]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "pip install 'cirron-otel[columns]'" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


# --- other readers -----------------------------------------------------------------------------

VALUES = {
    "string": "train", "int": 2**53 + 1, "double": 0.1, "bool": True, "nul": "a\0b",
    "nan": math.nan, "list": [1, "x", None], "null": None, "big": 2**70, "zero": -0.0,
}  # fmt: skip


@pytest.fixture
def odd_tables(tmp_path: Path) -> Path:
    """A batch with attributes of every type."""
    marks = [mark(1, 1, attrs=VALUES), mark(2, 1, value=None, value_nonfinite="nan")]
    batch = made(1, spans=[span(1, attrs=VALUES), span(2, index=2**70, new=1)], marks=marks)
    add(tmp_path / "tables", [("x.json", encoded(batch)), *FILES])
    return tmp_path / "tables"


def test_duckdb_reads_every_type(odd_tables: Path) -> None:
    [row] = duckdb.sql(
        "SELECT a['string'].string_value, a['int'].int_value, a['double'].double_value,"
        " a['bool'].bool_value, a['nul'].string_value, isnan(a['nan'].double_value),"
        " a['list'].json_value, a['null'].json_value, a['big'].json_value, a['absent'],"
        " a['int'].string_value, CAST(a['zero'].double_value AS VARCHAR)"
        f" FROM (SELECT attributes AS a FROM read_parquet('{odd_tables}/spans/**/*.parquet') s"
        f" JOIN read_parquet('{odd_tables}/batches/**/*.parquet') b USING (batch_key)"
        " WHERE b.name = 'x.json' AND s.ordinal = 0)"
    ).fetchall()  # fmt: skip
    assert row == (
        "train", 2**53 + 1, 0.1, True, "a\0b", True, '[1, "x", null]'.replace(" ", ""), "null",
        str(2**70), None, None, "-0.0",
    )  # fmt: skip


def test_duckdb_reads_values_that_do_not_fit_from_extra(odd_tables: Path) -> None:
    rows = duckdb.sql(
        f"SELECT index, extra FROM read_parquet('{odd_tables}/spans/**/*.parquet')"
        " WHERE extra IS NOT NULL"
    ).fetchall()
    assert rows == [(None, f'{{"set":{{"index":{2**70},"new":1}}}}')]


def test_duckdb_and_polars_see_the_same_rows(odd_tables: Path) -> None:
    reader = ColumnsReader(odd_tables)
    for table in RECORD_TABLES:
        names = [c.name for c in TABLES[table] if c.type != "map"]
        files = f"{odd_tables}/{table}/**/*.parquet"
        ours = reader.rows(table, columns=names)
        of_duckdb = duckdb.sql(
            f'SELECT {", ".join(map(chr(34).join, [["", n, ""] for n in names]))}'
            f" FROM read_parquet('{files}', hive_partitioning = false)"
        ).fetchall()  # fmt: skip
        of_polars = pl.scan_parquet(files, hive_partitioning=False).select(names).collect().rows()
        expected = [tuple(row.values()) for row in ours.to_pylist()]
        assert expected
        assert sorted(map(repr, of_duckdb)) == sorted(map(repr, expected))
        assert sorted(map(repr, of_polars)) == sorted(map(repr, expected))


def test_engines_read_the_partitions(odd_tables: Path) -> None:
    rows = duckdb.sql(
        "SELECT DISTINCT run, CAST(date AS VARCHAR) FROM"
        f" read_parquet('{odd_tables}/spans/**/*.parquet',"
        " hive_types = {'run': VARCHAR, 'date': DATE}) ORDER BY ALL"
    ).fetchall()
    frame = pl.scan_parquet(
        f"{odd_tables}/spans/**/*.parquet", hive_schema={"run": pl.String, "date": pl.Date}
    )
    found = frame.select("run", pl.col("date").cast(pl.String)).unique().sort("run").collect()
    days = [
        (run, path.parent.name.removeprefix("date="))
        for run in ("r", "s")
        for path in (odd_tables / "spans" / f"run={run}").rglob("*.parquet")
    ]
    assert [row for row in rows if row[0] in ("r", "s")] == days
    assert [row for row in found.rows() if row[0] in ("r", "s")] == days


def test_a_copy_elsewhere_is_read(tables: Path, tmp_path: Path) -> None:
    shutil.copytree(tables, tmp_path / "copy", ignore=shutil.ignore_patterns("_writing"))
    assert ColumnsReader(tmp_path / "copy").rows("batches").num_rows == 2
