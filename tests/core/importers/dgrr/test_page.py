"""docs/dgrr.md: its statements name tests that exist, and its figures are those of the code."""

from __future__ import annotations

import pkgutil
import re

import pytest

from cirron_otel.core import importers
from cirron_otel.core.importers.dgrr import importing, layout, training
from cirron_otel.tools.cli import dgrr as commands
from cirron_otel.ulp import FORMATS
from tests.kit.loaded_modules import loaded_by
from tests.kit.statement_tables import (
    DOCS,
    check_numbering,
    check_statement,
    statements,
)

TEXT = (DOCS / "dgrr.md").read_text()
ROWS = statements(TEXT, "D")


def test_the_format_is_read_without_io_or_a_framework() -> None:
    heavy = {"torch", "socket", "threading", "grpc", "google.protobuf", "click", "sqlite3"}
    package = importers.dgrr.__name__
    names = [f"{package}.{each.name}" for each in pkgutil.iter_modules(importers.dgrr.__path__)]
    loaded = loaded_by("".join(f"import {each}\n" for each in names))
    assert {f"{package}.checking", f"{package}.restoring"} <= loaded
    assert not loaded & heavy - {"sqlite3"}  # the temporary database of `restoring`
    bare = [f"{package}.{each}" for each in ("checking", "comparing", "layout", "training")]
    assert not loaded_by("".join(f"import {each}\n" for each in bare)) & heavy


def test_the_statements_of_the_page_are_numbered() -> None:
    check_numbering((ident for ident, _, _ in ROWS), 37)


@pytest.mark.parametrize(("ident", "cell"), [(ident, cell) for ident, _, cell in ROWS])
def test_every_statement_names_tests_that_exist_or_a_reason(ident: str, cell: str) -> None:
    check_statement(ident, cell)


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
    section = (DOCS / "cli.md").read_text().partition("## Exit codes")[2]
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
