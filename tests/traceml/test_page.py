"""docs/traceml.md: its statements name tests that exist, and its reader stays light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cirron_otel.core.importers.traceml import payloads, records, stream
from cirron_otel.core.importers.traceml.step_rows import PHASES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "traceml.md").read_text()
ROWS = re.findall(r"^\| (T\d+) \| (.+?) \| (.*) \|$", TEXT, re.MULTILINE)


def test_the_reader_imports_neither_a_framework_nor_a_socket() -> None:
    program = (
        "import sys, cirron_otel.core.importers.traceml.stream\n"
        "bad = {'torch', 'socket', 'threading', 'grpc', 'google.protobuf', 'click', 'sqlite3'}\n"
        "print(sorted(bad & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ast.literal_eval(done.stdout) == []


def test_the_statements_of_the_page_are_numbered() -> None:
    numbers = [int(ident[1:]) for ident, _, _ in ROWS]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) > 30


@pytest.mark.parametrize(("ident", "cell"), [(ident, cell) for ident, _, cell in ROWS])
def test_every_statement_names_tests_that_exist_or_a_reason(ident: str, cell: str) -> None:
    tests = re.findall(r"`([\w/]+\.py)::(\w+)`", cell)
    assert tests or re.search(r"\*[^*]+\*", cell), ident
    for path, name in tests:
        tree = ast.parse((ROOT / "tests" / path).read_text())
        functions = {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)}
        assert name in functions, (ident, path, name)


def test_the_page_has_the_figures_of_the_code() -> None:
    assert f"after {stream.BATCH_FRAMES} frames, or {stream.BATCH_BYTES // 1000} kB" in TEXT
    assert f"more than {payloads.MAX_CONTAINERS:,} lists and maps" in TEXT
    assert f"Up to {records.MAX_PENDING:,} steps wait" in TEXT
    for event, name in PHASES.items():
        assert f"| `{event}` | `{name}` |" in TEXT
