"""`convert SRC steps.csv` and `steps.parquet`: the same rows as `read(SRC).steps()`."""

from __future__ import annotations

import csv
import stat
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest

import cirron_otel as ci
from cirron_otel.errors import MissingExtraError, TargetError
from cirron_otel.tools.cli.demo import RECORDING
from cirron_otel.tools.convert.convert import ConvertRequest, convert
from tests.core.columns.helpers import flip_bit
from tests.kit.spools.made import (
    encoded,
    made,
    mark,
    span,
)
from tests.kit.spools.recorded import SPOOLS
from tests.tools.conftest import Run, run
from tests.tools.convert.rows import places

from .tables import arrow_rows

__all__ = ["run"]
TRAINING = SPOOLS / "01_torch_basic"


@pytest.mark.parametrize("spool", [TRAINING, RECORDING], ids=str)
def test_parquet_has_the_same_rows_and_types(spool: Path, tmp_path: Path) -> None:
    report = convert(ConvertRequest(str(spool), f"{tmp_path}/steps.parquet"))
    table = pq.read_table(tmp_path / "steps.parquet")
    assert table == ci.read(spool).steps().to_arrow()
    assert report.exit_code == 0
    assert report.written == 1
    assert report.bytes_written == (tmp_path / "steps.parquet").stat().st_size


def test_a_reader_of_parquet_may_verify_checksums(tmp_path: Path) -> None:
    convert(ConvertRequest(str(RECORDING), f"{tmp_path}/steps.parquet"))
    flip_bit(tmp_path / "steps.parquet", "duration_ns")
    pq.read_table(tmp_path / "steps.parquet")
    with pytest.raises(OSError, match="CRC checksum verification failed"):
        pq.read_table(tmp_path / "steps.parquet", page_checksum_verification=True)


@pytest.mark.parametrize("spool", [TRAINING, RECORDING], ids=str)
def test_csv_has_the_same_values(spool: Path, tmp_path: Path) -> None:
    convert(ConvertRequest(str(spool), f"{tmp_path}/steps.csv"))
    expected = ci.read(spool).steps().to_polars()
    found = pl.read_csv(tmp_path / "steps.csv", schema=expected.schema)
    assert found.equals(expected)


def text_of(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_csv_of_unusual_names_and_values(tmp_path: Path) -> None:
    marks = [
        mark(1, 1, name='a, "b"\nc', value='x, "y"\nz'), mark(2, 1, value=float("nan")),
        mark(3, 1, name="flag", value=True), mark(4, 1, name="ü", value=-0.0),
    ]  # fmt: skip
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "1.json").write_bytes(encoded(made(1, spans=[span(1)], marks=marks)))
    convert(ConvertRequest(str(tmp_path), f"{tmp_path}/steps.csv"))
    with (tmp_path / "steps.csv").open(encoding="utf-8", newline="") as file:
        names, values = csv.reader(file)
    table = ci.read(tmp_path).steps().to_arrow()
    assert names == table.column_names
    assert values == [text_of(value) for value in table.to_pylist()[0].values()]
    assert {'mark_a, "b"\nc': 'x, "y"\nz', "mark_loss": "nan", "mark_flag": "true",
            "mark_ü": "-0.0"}.items() <= dict(zip(names, values, strict=True)).items()  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((f"{first}1", f"'{first}1") for first in "=+-@\t\n\uff1d\uff0b\uff0d\uff20"),
        ('=HYPERLINK("http://x")\x1b[31m', '\'=HYPERLINK("http://x")\\x1b[31m'),
        ("\r=1", "\\r=1"),
        ("a\x00\x7f\x9b\u202eb", "a\\x00\\x7f\\x9b\\u202eb"),
        ("a=1\n\tb", "a=1\n\tb"),
    ],
)
def test_csv_contains_no_formulas_and_no_control_characters(
    text: str, expected: str, tmp_path: Path
) -> None:
    """Numbers are unchanged."""
    marks = [mark(1, 1, name="note", value=text), mark(2, 1, name="loss", value=-1.5)]
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "1.json").write_bytes(encoded(made(1, spans=[span(1)], marks=marks)))
    convert(ConvertRequest(str(tmp_path), f"{tmp_path}/steps.csv"))
    with (tmp_path / "steps.csv").open(encoding="utf-8", newline="") as file:
        names, values = csv.reader(file)
    row = dict(zip(names, values, strict=True))
    assert (row["mark_note"], row["mark_loss"]) == (expected, "-1.5")


@pytest.mark.parametrize("name", sorted(places.SOURCES.keys() - {"postgresql", "tar", "tempo"}))
@pytest.mark.parametrize("target", sorted(places.FIGURES.values()))
def test_every_source(name: str, target: str, tmp_path: Path) -> None:
    spool = places.spool_for(name, tmp_path)
    expected = ci.read(spool).steps()
    with places.SOURCES[name].intact(spool, tmp_path) as source:
        report = convert(
            ConvertRequest(source.argument, f"{tmp_path}/{target}", source_format=source.format)
        )
    if not len(expected):
        assert not (tmp_path / target).exists()
        assert [each.code for each in report.skipped] == ["no-steps"]
    elif target.endswith(".csv"):
        found = pl.read_csv(tmp_path / target, schema=expected.to_polars().schema)
        assert found.equals(expected.to_polars())
    else:
        assert pq.read_table(tmp_path / target) == expected.to_arrow()


def test_selection(tmp_path: Path) -> None:
    from cirron_otel.tools.convert.select import Selection

    select = Selection.parse(["epoch=1"])
    convert(ConvertRequest(str(TRAINING), f"{tmp_path}/steps.parquet", select=select))
    found = pq.read_table(tmp_path / "steps.parquet").to_pylist()
    expected = [row for row in arrow_rows(ci.read(TRAINING).steps()) if row["epoch"] == 1]
    assert [row["span_id"] for row in found] == [row["span_id"] for row in expected]
    assert len(found) == 8


def test_the_command(run: Run, tmp_path: Path) -> None:
    done = run("convert", RECORDING, "steps.csv")
    assert done.returncode == 0
    assert "written to steps.csv" in done.stdout
    piped = run("convert", RECORDING, "-", "--to", "steps-csv")
    assert piped.stdout == (tmp_path / "steps.csv").read_text()
    assert stat.S_IMODE((tmp_path / "steps.csv").stat().st_mode) == 0o600


def test_without_a_step_the_file_is_unchanged(run: Run, tmp_path: Path) -> None:
    (tmp_path / "steps.csv").write_text("before")
    done = run("convert", SPOOLS / "06_threads", "steps.csv")
    assert done.returncode == 1
    assert "steps.csv: no step: steps.csv is unchanged [no-steps]" in done.stderr
    assert (tmp_path / "steps.csv").read_text() == "before"


def test_a_folder_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="nowhere"):
        convert(ConvertRequest(str(TRAINING), f"{tmp_path}/nowhere/steps.csv"))
    assert list(tmp_path.iterdir()) == []


def test_parquet_needs_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"cirron-otel\[columns\]"):
        convert(ConvertRequest(str(TRAINING), f"{tmp_path}/steps.parquet"))
    convert(ConvertRequest(str(TRAINING), f"{tmp_path}/steps.csv"))
    assert [path.name for path in tmp_path.iterdir()] == ["steps.csv"]
