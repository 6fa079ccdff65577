"""docs/columns.md describes the tables as they are, and its queries run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import duckdb
import pytest

from cirron_otel.core.columns import layout, schema
from cirron_otel.core.columns.arrow import schema_of
from cirron_otel.core.columns.parquet_files import ROW_GROUP_ROWS
from cirron_otel.core.columns.schema import TABLES, VALUE_FIELDS
from cirron_otel.tools.cli.demo import RECORDING
from cirron_otel.tools.convert.convert import ConvertRequest, convert
from tests.kit.spools.recorded import SPOOLS

TEXT = (Path(__file__).parents[3] / "docs" / "columns.md").read_text()
DOCUMENTED = dict(re.findall(r"<!-- table: (\w+) -->\n\|.*\n\|.*\n((?:\|.*\n)+)", TEXT))
SQL = [
    statement
    for block in re.findall(r"```sql\n(.*?)```", TEXT, re.DOTALL)
    for statement in block.split(";\n")
    if statement.strip()
]


@pytest.mark.parametrize("table", TABLES)
def test_columns(table: str) -> None:
    said = re.findall(r"^\| `(\w+)` \| ([\w<>]+)(\??) \|", DOCUMENTED[table], re.MULTILINE)
    assert said == [(c.name, c.type, "?" if c.is_nullable else "") for c in TABLES[table]]


def test_column_types_match_the_arrow_schema() -> None:
    for table, columns in TABLES.items():
        for column in columns:
            field = schema_of(table).field(column.name)
            assert field.nullable == column.is_nullable
            name = re.sub(r"<(?:item|element): (\w+).*>", r"<\1>", str(field.type))
            assert name == column.type or (column.type == schema.MAP and name.startswith("map<"))


def test_the_fields_of_a_value() -> None:
    section = TEXT[TEXT.index("## Attributes") : TEXT.index("## Owners")]
    said = re.findall(r"^\| `(\w+)` \| (\w+) \|", section, re.MULTILINE)
    assert said == list(VALUE_FIELDS)


def test_constants() -> None:
    assert f"`{layout.EMPTY_GROUP.file.removesuffix('.parquet')}`" in TEXT
    assert f"`{schema.VERSION_KEY}`" in TEXT
    assert f"at most {ROW_GROUP_ROWS:,} rows" in TEXT
    assert f"the format version, `{schema.FORMAT_VERSION}`" in TEXT
    assert f"`{layout.NO_RUN}`" in TEXT
    assert f"`{layout.NO_DATE}`" in TEXT
    assert f"`{layout.WRITING}/{layout.LOCK}`" in TEXT


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A DuckDB, and the directory with tables of a recording of this package and of cirron-sdk."""
    folder = tmp_path_factory.mktemp("queries")
    for spool in (RECORDING, SPOOLS / "01_torch_basic"):
        convert(ConvertRequest(str(spool), f"parquet:{folder}/columns"))
    connection = duckdb.connect()
    connection.execute(SQL[0].replace("'columns/", f"'{folder}/columns/"))
    yield connection, folder
    connection.close()


@pytest.mark.parametrize("number", range(len(SQL)))
def test_queries(connection: Any, number: int) -> None:
    engine, folder = connection
    if number:
        rows = engine.execute(SQL[number].replace("'columns/", f"'{folder}/columns/")).fetchall()
        # All sessions of the recording have ended; a view is queried by the next statements.
        assert rows or "HAVING" in SQL[number] or SQL[number].lstrip().startswith("CREATE")
