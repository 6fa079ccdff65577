"""docs/dgrr.md: its statements name tests that exist, and its figures are those of the code."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cirron_otel.core.importers.dgrr import importing, layout, training
from cirron_otel.tools.cli import dgrr as commands
from cirron_otel.ulp import FORMATS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "dgrr.md").read_text()
ROWS = re.findall(r"^\| (D\d+) \| (.+?) \| (.*) \|$", TEXT, re.MULTILINE)


def test_the_format_is_read_without_io_or_a_framework() -> None:
    program = (
        "import sys, cirron_otel.core.importers.dgrr.comparing, cirron_otel.core.importers.dgrr\n"
        "bad = {'torch', 'socket', 'threading', 'grpc', 'google.protobuf', 'click', 'sqlite3'}\n"
        "print(sorted(bad & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ast.literal_eval(done.stdout) == []


def test_the_statements_of_the_page_are_numbered() -> None:
    assert [int(ident[1:]) for ident, _, _ in ROWS] == list(range(1, 38))


@pytest.mark.parametrize(("ident", "cell"), [(ident, cell) for ident, _, cell in ROWS])
def test_every_statement_names_tests_that_exist_or_a_reason(ident: str, cell: str) -> None:
    tests = re.findall(r"`([\w/]+\.py)::(\w+)`", cell)
    assert tests or re.search(r"\*[^*]+\*", cell), ident
    for path, name in tests:
        tree = ast.parse((ROOT / "tests" / path).read_text())
        functions = {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)}
        assert name in functions, (ident, path, name)


def test_the_page_has_the_figures_of_the_code() -> None:
    assert f"Batches have {importing.BATCH_MARKS:,} marks" in TEXT
    for name in (*layout.HEADER_NAMES, *layout.RECORD_NAMES, *FORMATS):
        assert f"`{name}`" in TEXT
    constants = (training.SLOPE, training.INTERCEPT, training.NOISE)
    assert constants == (2.0, 1.0, 0.1)
    assert "y = (2 · x + 1) + 0.1 · s(v)" in TEXT
    codes = (commands.USAGE, commands.IO, commands.VALIDATION, commands.DIVERGENCE)
    assert (*codes, commands.INTEGRITY) == (1, 2, 3, 4, 5)


def test_the_exit_codes_are_in_one_table() -> None:
    section = (ROOT / "docs" / "cli.md").read_text().partition("## Exit codes")[2]
    section = section.partition("\n## ")[0].partition("`cirron-otel dgrr …`")[2]
    assert re.findall(r"^\| (\d+) \|", section, re.MULTILINE) == [
        "0",
        "1",
        "2",
        "3",
        "4",
        "5",
        "130",
    ]
