"""The contract that every row of the tables of sources and targets fulfils."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cirron_otel.tools.cli.main import run as run_command
from cirron_otel.tools.convert import tables
from cirron_otel.tools.convert.convert import ConvertRequest, convert
from tests.conftest import leave_out
from tests.kit.spools.comparing import assert_same, batches

from . import places, tar_rows
from .places import Given, contents, spool_for

DOCUMENTED = (Path(__file__).parents[4] / "docs" / "cli.md").read_text()


@pytest.fixture(params=sorted(places.SOURCES))
def source_name(request: pytest.FixtureRequest) -> str:
    """Each row of the sources."""
    if request.param == "postgresql":
        try:
            from tests.kit.backends.postgres import missing
        except ImportError as error:
            leave_out(f"psycopg cannot be imported ({error})")
        if reason := missing():
            leave_out(reason)
    return str(request.param)


def command(name: str, source: Given, *arguments: object) -> list[str]:
    """The words of a command that reads `source`."""
    chosen = [] if source.format is None else ["--from", source.format]
    return [name, source.argument, *map(str, arguments), *chosen]


def test_every_row_has_a_case_and_is_documented() -> None:
    assert set(places.SOURCES) == set(tables.SOURCES)
    assert places.TARGETS.keys() | places.FIGURES.keys() == set(tables.TARGETS)
    for name in (tables.SOURCES.keys() | tables.TARGETS.keys()) - {tar_rows.NAME}:
        assert f"`{name}`" in DOCUMENTED or f"`{name}:" in DOCUMENTED, name


def test_reading_twice_gives_the_same(source_name: str, tmp_path: Path) -> None:
    spool = spool_for(source_name, tmp_path)
    with places.SOURCES[source_name].intact(spool, tmp_path) as source:
        first = contents(source, tmp_path / "first")
        second = contents(source, tmp_path / "second")
    assert_same(first, batches(spool))
    assert_same(second, first)


@pytest.mark.parametrize("name", sorted(places.TARGETS))
def test_written_spool_is_read_back_the_same(name: str, tmp_path: Path) -> None:
    spool = spool_for(name, tmp_path)
    target = str(tmp_path / places.name_of_target(name, spool))
    report = convert(ConvertRequest(str(spool), target, target_format=name))
    assert report.exit_code == 0
    assert report.written
    assert report.batches == len(batches(spool))
    assert_same(contents(Given(target, name), tmp_path / "back"), batches(spool))


PAIRS = [
    (source_name, name)
    for source_name in sorted(places.SOURCES.keys() - {"postgresql", "tempo"})
    for name in sorted(places.TARGETS)
    if len({name, source_name} & places.RECORDINGS.keys()) < 2
]
"""The pairs of a source and a target. The files of one importer cannot hold another's records."""


@pytest.mark.parametrize(("source_name", "name"), PAIRS)
def test_every_source_reaches_every_target(name: str, source_name: str, tmp_path: Path) -> None:
    """PostgreSQL and Tempo take the code paths of SQLite and Jaeger."""
    spool = places.spool_of_one_batch(tmp_path, name, source_name)
    target = str(tmp_path / places.name_of_target(name, spool))
    with places.SOURCES[source_name].intact(spool, tmp_path) as source:
        convert(ConvertRequest(source.argument, target, source.format, name))
    assert_same(contents(Given(target, name), tmp_path / "back"), batches(spool))


def test_damage_is_reported(
    source_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with places.SOURCES[source_name].damaged(tmp_path) as source:
        code = run_command(command("convert", source, tmp_path / "out"))
        report = run_command(command("report", source, "--no-pager"))
    problems = capsys.readouterr().err
    assert code in (1, 3, 5)
    assert report in (1, 3, 5)
    assert "internal error" not in problems
    assert "Traceback" not in problems
    assert problems.count("cirron-otel: ")


@pytest.mark.parametrize("name", ["convert", "export", "report", "diff"])
def test_an_absent_source_has_the_documented_exit_code(
    name: str, source_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cirron_otel.tools.query import client

    monkeypatch.setattr(client, "_FIRST_PAUSE_S", 0.001)
    case = places.SOURCES[source_name]
    more = {"convert": [tmp_path / "out"], "diff": [places.SPOOL]}.get(name, [])
    assert run_command(command(name, case.absent(tmp_path), *more)) == case.absent_code
    assert not (tmp_path / "out").exists()


def test_an_unknown_name_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["convert", "a", "b", "--from", "parchment"]) == 2
    assert "'traceml', 'dgrr', 'parquet', 'iceberg', 'tar'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["convert", "export", "report", "diff"])
def test_help_lists_the_rows(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    run_command([name, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    for row in (*tables.SOURCES.values(), *(tables.TARGETS.values() if name == "convert" else ())):
        assert row.summary in shown


def test_a_prefix_names_a_row(tmp_path: Path) -> None:
    convert(ConvertRequest(str(places.SPOOL), f"tar:{tmp_path}/archive"))
    report = convert(ConvertRequest(f"tar:{tmp_path}/archive", str(tmp_path / "back")))
    assert report.exit_code == 0
    assert_same(batches(tmp_path / "back"), batches(places.SPOOL))
    assert run_command(["report", f"tar:{tmp_path}/archive", "--no-pager"]) == 0


def test_from_must_not_contradict_a_prefix(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["convert", "tar:a", "b", "--from", "batch"]) == 2
    assert "omit it for tar:" in capsys.readouterr().err
    assert run_command(["convert", "jaeger:http://h?trace=a", "b", "--from", "batch"]) == 2
    assert "omit it for jaeger: and tempo:" in capsys.readouterr().err


def test_a_name_cannot_be_registered_twice() -> None:
    with pytest.raises(ValueError, match="registered already"):
        tables.register_source("spool", tar_rows.SOURCE)
    with pytest.raises(ValueError, match="registered already"):
        tables.register_target("spool", tar_rows.TARGET)


def test_the_tables_load_nothing() -> None:
    program = (
        "import sys, cirron_otel.tools.convert.tables;"
        "print([m for m in sys.modules if m.startswith(('google', 'opentelemetry', 'psycopg'))"
        " or m.startswith(('cirron_otel.core', 'cirron_otel.tools.query'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
