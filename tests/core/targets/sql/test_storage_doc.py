"""docs/storage.md says what is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cirron_otel.core.targets.sql.database import steps
from cirron_otel.core.targets.sql.storage import Storage
from tests.kit.spools.recorded import SPOOLS, batch_files

from .helpers import files
from .test_tables import SQL_TYPES, columns_of
from .test_views import COLUMNS, rows

DOCUMENT = Path(__file__).parents[4] / "docs" / "storage.md"
TEXT = DOCUMENT.read_text()
TABLES = dict(re.findall(r"<!-- table: (\w+) -->\n\|.*\n\|.*\n((?:\|.*\n)+)", TEXT))
SQL = [
    statement
    for block in re.findall(r"```sql\n(.*?)```", TEXT, re.DOTALL)
    for statement in block.split(";\n")
    if statement.strip()
]


@pytest.mark.parametrize("table", ["TraceSpan", "TraceMark", "TraceSnapshot", "TraceBatch"])
def test_columns(storage: Storage, table: str) -> None:
    said = {}
    for line in TABLES[table].splitlines():
        name, kind = re.match(r"\| `(\w+)` \| (\w+\??) \|", line).groups()  # type: ignore[union-attr]
        said[name] = kind
    found = columns_of(storage, table)
    assert list(said) == list(found)
    if storage.database.dialect == "sqlite":
        return
    types = SQL_TYPES | {"bytes": "bytea"}
    expected = {name: (types[kind.rstrip("?")], kind.endswith("?")) for name, kind in said.items()}
    assert found == expected


def test_views_and_versions() -> None:
    for view, columns in COLUMNS.items():
        [line] = [line for line in TEXT.splitlines() if line.startswith(f"| `{view}` |")]
        said = re.findall(r"`(\w+)`", line.split("|")[3])
        assert [name for name in said if name not in ("batchKey", "ordinal")] == list(columns)
    versions = re.findall(r"^\| (\d) \|", TEXT[TEXT.index("## Migrations") :], re.MULTILINE)
    assert [int(version) for version in versions] == list(steps("sqlite"))


@pytest.mark.parametrize("number", range(len(SQL)))
def test_statements(storage: Storage, number: int) -> None:
    storage.write(files(batch_files("01_torch_basic")))
    [run] = rows(storage, "TraceRun", "1")
    statement = SQL[number].replace("'1'", f"'{run['runId']}'")
    assert storage.database.rows(statement)


def test_the_program(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    [program] = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    spool = SPOOLS / "01_torch_basic"
    for said, meant in (
        ("sqlite:///traces.db", url),
        ('SpoolReader(".")', f'SpoolReader("{spool}")'),
    ):
        assert said in program
        program = program.replace(said, meant)
    exec(program, {})
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed] == [
        path.name for path in batch_files("01_torch_basic")
    ]


def test_every_link_leads_somewhere() -> None:
    headings = {
        re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in TEXT.splitlines()
        if line.startswith("#")
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", TEXT)) <= headings
    for path in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", TEXT):
        assert (DOCUMENT.parent / path).exists(), path
