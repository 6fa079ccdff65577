"""An optional field of a span needs the schema, the mapping, a column and its migration."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cirron_otel
from cirron_otel import semconv
from cirron_otel.core.records import columns, schema
from cirron_otel.core.targets.sql import database
from tests.kit.spools.made import encoded, made, span

PACKAGE = Path(str(cirron_otel.__file__)).parent
MIGRATIONS = Path(str(database.__file__)).with_name("migrations")
CHANGES = {
    schema: (
        "    otel: Otel = UNSET\n\n\nclass MarkFields",
        "    otel: Otel = UNSET\n    probes: Count | UnsetType = UNSET\n\n\nclass MarkFields",
    ),
    semconv: (
        "OPTIONAL: tuple[tuple[str, str], ...] = ()",
        'OPTIONAL: tuple[tuple[str, str], ...] = (("cirron.probes", "probes"),)',
    ),
    columns: (
        "    model_id: str | None\n",
        "    model_id: str | None\n    probes: int | None = None\n",
    ),
}
MIGRATION = 'ALTER TABLE "TraceSpan" ADD COLUMN "probes" BIGINT;\n'
STORE = """
import sys
from cirron_otel.core.delivery.batch_target import SealedBatch
from cirron_otel.sdk.flush.rows import SpanRow, encode
from cirron_otel.core.spool.reader import SpoolReader
from cirron_otel.core.spool.writer import SpoolWriter
from cirron_otel.core.targets.sql.storage import Storage

with Storage.open(f"sqlite:///{sys.argv[2]}/traces.db") as storage:
    for batch in SpoolReader(sys.argv[1]):
        storage.write([SealedBatch(batch.name, batch.data)])
    print(storage.database.rows('SELECT "probes", "extra" FROM "TraceSpan" ORDER BY "ordinal"'))
    for name, data in storage.batches():
        SpoolWriter(f"{sys.argv[2]}/read").write(data, name)
row = SpanRow("", "", None, None, 0, 0, None, None, None, 0, 0, None, {}, [])
print(b"probes" in encode(row))
row.probes = 5
print(encode(row).endswith(b',"probes":5}'))
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a copy of the package whose spans have one more field."""
    folder = tmp_path_factory.mktemp("package")
    copy = folder / PACKAGE.name
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for module, change in CHANGES.items():
        path = copy / Path(str(module.__file__)).relative_to(PACKAGE)
        text = path.read_text()
        assert text.count(change[0]) == 1, path
        path.write_text(text.replace(*change))
    number = database.current("sqlite") + 1
    (copy / MIGRATIONS.relative_to(PACKAGE) / f"{number:04}_probes.sql").write_text(MIGRATION)
    return folder


def python(package: Path, *arguments: str | Path) -> str:
    """Run Python with the copy, and return its output."""
    ran = subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=package, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(package)}, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_a_field_makes_the_round_trip_through_every_form(package: Path, tmp_path: Path) -> None:
    where = "import cirron_otel; print(cirron_otel.__file__)"
    assert Path(python(package, "-c", where).strip()).parents[1].samefile(package)
    batch = made(1, spans=[span(1), span(2) | {"probes": 3}, span(3, otel={"kind": 2}, probes=0)])
    data = encoded(batch)
    name = f"{batch['created_ns']:020}-{batch['batch_id']}.json"
    spool = tmp_path / "first" / "spool"
    spool.mkdir(parents=True)
    (spool / name).write_bytes(data)
    cli = ("-m", PACKAGE.name)
    verified = python(package, *cli, "spool", "verify", "--json", tmp_path / "first")
    assert json.loads(verified)["findings"] == []
    for number, suffix in enumerate((".jsonl", ".binpb"), 2):
        otlp = tmp_path / f"traces{suffix}"
        python(package, *cli, "convert", tmp_path / "first", otlp)
        assert b"cirron.probes" in otlp.read_bytes()
        assert b"cirron.rest" not in otlp.read_bytes()
        back = tmp_path / str(number)
        python(package, *cli, "convert", otlp, back)
        assert [path.read_bytes() for path in (back / "spool").glob("*.json")] == [data]
    output = python(package, "-c", STORE, tmp_path / "first", tmp_path)
    extra = '{"set":{"pid":1}}', '{"set":{"otel":{"kind":2},"pid":1}}'
    assert output.splitlines() == [
        str([(None, extra[0]), (3, extra[0]), (0, extra[1])]), "False", "True"
    ]  # fmt: skip
    assert [path.read_bytes() for path in (tmp_path / "read" / "spool").glob("*.json")] == [data]
