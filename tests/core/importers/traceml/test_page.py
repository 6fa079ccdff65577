"""docs/traceml.md: its statements name tests that exist, and its reader stays light."""

from __future__ import annotations

import pytest

from cirron_otel.core.importers.traceml import payloads, records, stream
from cirron_otel.core.importers.traceml.step_rows import PHASES
from tests.kit.loaded_modules import loaded_by
from tests.kit.statement_tables import (
    DOCS,
    check_numbering,
    check_statement,
    statements,
)

TEXT = (DOCS / "traceml.md").read_text()
ROWS = statements(TEXT, "T")


def test_the_reader_imports_neither_a_framework_nor_a_socket() -> None:
    heavy = {"torch", "socket", "threading", "grpc", "google.protobuf", "click", "sqlite3"}
    assert not loaded_by("import cirron_otel.core.importers.traceml.stream") & heavy


def test_the_statements_of_the_page_are_numbered() -> None:
    check_numbering((ident for ident, _, _ in ROWS), 30)


@pytest.mark.parametrize(("ident", "cell"), [(ident, cell) for ident, _, cell in ROWS])
def test_every_statement_names_tests_that_exist_or_a_reason(ident: str, cell: str) -> None:
    check_statement(ident, cell)


def test_the_page_has_the_figures_of_the_code() -> None:
    assert f"after {stream.BATCH_FRAMES} frames, or {stream.BATCH_BYTES // 1000} kB" in TEXT
    assert f"more than {payloads.MAX_CONTAINERS:,} lists and maps" in TEXT
    assert f"Up to {records.MAX_PENDING:,} steps wait" in TEXT
    for event, name in PHASES.items():
        assert f"| `{event}` | `{name}` |" in TEXT
