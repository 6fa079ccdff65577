"""docs/dataframes.md describes the tables as they are; its examples have the results it shows."""

from __future__ import annotations

import ast
import doctest
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from traitlets.config import Config

import cirron_otel as ci
from cirron_otel.core.analysis.session_columns import SESSION_COLUMNS, TableColumn
from cirron_otel.core.records.rows import MAX_TEXT
from cirron_otel.core.run.step_table import FIXED_COLUMNS, MAX_NAMES
from cirron_otel.tools.cli.demo import RECORDING
from cirron_otel.tools.frames.reading import Recording
from cirron_otel.tools.frames.run_rows import RUN_COLUMNS

DOCS = Path(__file__).parents[3] / "docs"
TEXT = (DOCS / "dataframes.md").read_text()
NOTEBOOK = DOCS / "examples" / "steps.ipynb"
DOCUMENTED = dict(re.findall(r"<!-- table: (\w+) -->\n\|.*\n\|.*\n((?:\|.*\n)+)", TEXT))


@pytest.fixture
def in_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a program with a recording in `.cirron`, as the current directory."""
    shutil.copytree(RECORDING, tmp_path / ".cirron")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("in_a_run")
def test_the_examples_have_the_results_that_are_shown() -> None:
    test = doctest.DocTestParser().get_doctest(TEXT, {}, "dataframes.md", None, 0)
    assert len(test.examples) > 5
    assert doctest.DocTestRunner().run(test).failed == 0


@pytest.mark.parametrize(
    ("table", "columns"),
    [("steps", FIXED_COLUMNS), ("sessions", SESSION_COLUMNS), ("runs", RUN_COLUMNS)],
)
def test_columns(table: str, columns: tuple[TableColumn, ...]) -> None:
    shown = re.findall(r"^\| `(\w+)` \| (\w+) \|", DOCUMENTED[table], re.MULTILINE)
    assert shown == [tuple(column) for column in columns]


def test_attributes_and_limits() -> None:
    attributes = {name for name in vars(Recording) if not name.startswith("_")}
    assert attributes == {"steps", "sessions", "spans", "marks", "runs", "findings", "close"}
    for name in attributes:
        assert re.search(rf"`{name}(\(\))?`", TEXT)
    assert TEXT.count(f"{MAX_NAMES:,}") == 2
    assert f"at most {MAX_TEXT} characters" in TEXT


def run_cells(notebook: Path) -> list[object]:
    """Run the code of a notebook, and return the value that each cell shows."""
    cells = [c for c in json.loads(notebook.read_text())["cells"] if c["cell_type"] == "code"]
    names: dict[str, object] = {}
    shown = []
    for cell in cells:
        *statements, last = ast.parse("".join(cell["source"])).body
        exec(compile(ast.Module(statements, []), notebook.name, "exec"), names)
        assert isinstance(last, ast.Expr)
        shown.append(eval(compile(ast.Expression(last.value), notebook.name, "eval"), names))
        assert not cell["outputs"]
    return shown


@pytest.mark.usefixtures("in_a_run")
def test_the_notebook() -> None:
    runs, epochs, shares, slowest = run_cells(NOTEBOOK)
    assert list(runs["run_id"]) == [each.id for each in ci.runs()]  # type: ignore[index]
    assert list(epochs["steps"]) == [6, 6, 3]  # type: ignore[index]
    assert shares.sum() == pytest.approx(1)  # type: ignore[attr-defined]
    assert shares.index[0] == "phase_forward_ns"  # type: ignore[attr-defined]
    assert len(slowest) == 5  # type: ignore[arg-type]
    assert set(slowest["longest"]) == {"phase_forward_ns"}  # type: ignore[index]


@pytest.fixture
def short_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Jupyter's files; the path of a socket in it has at most 107 characters."""
    with tempfile.TemporaryDirectory(prefix="jupyter-") as folder:
        for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
            monkeypatch.setenv(name, f"{folder}/{name.lower()}")
        yield Path(folder)


@pytest.mark.usefixtures("short_folder")
def test_the_notebook_in_a_kernel_of_jupyter(in_a_run: Path) -> None:
    """Every cell shows the tables that the same code has in a program."""
    expected = run_cells(NOTEBOOK)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(
        notebook,
        config=Config({"ConnectionFileMixin": {"transport": "ipc"}}),
        timeout=600,
        startup_timeout=600,
        resources={"metadata": {"path": str(in_a_run)}},
    )
    client.execute()
    assert client.km is None, "the kernel has not ended"
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == [*range(1, len(expected) + 1)]
    for cell, value in zip(cells, expected, strict=True):
        (shown,) = cell.outputs
        assert shown.output_type == "execute_result"
        if hasattr(value, "_repr_html_"):
            assert shown.data["text/html"].split() == value._repr_html_().split()
        else:
            assert shown.data["text/plain"] == repr(value)


def test_duckdbs_shell_reads_the_file(in_a_run: Path) -> None:
    (query,) = re.findall(r"^duckdb -c \"(.*)\"$", TEXT, re.MULTILINE)
    shell = Path(sys.executable).with_name("duckdb")
    subprocess.run(
        [shell.with_name("cirron-otel"), "convert", ".cirron", "steps.parquet"], check=True
    )
    done = subprocess.run(
        [shell, "-csv", "-c", query], cwd=in_a_run, capture_output=True, text=True, check=True
    )
    rows = [line.split(",")[:2] for line in done.stdout.splitlines()]
    assert rows == [["epoch", "steps"], ["0", "6"], ["1", "6"], ["2", "3"]]
