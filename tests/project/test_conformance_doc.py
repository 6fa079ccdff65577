"""docs/conformance.md names only tests that exist, and leaves no statement without one or a reason.

docs/migrating.md's list of what is cirron-sdk's alone is the package's own.
"""

from __future__ import annotations

import pytest

import cirron_otel
from tests.kit.statement_tables import (
    DOCS,
    check_numbering,
    check_statement,
    reasons_in,
    statements,
)

ROWS = statements((DOCS / "conformance.md").read_text(), "CS")
REASONS = ("later:", "platform", "viewers", "measured:", "cirron-sdk:", "opened by", "written by",
           "that none", "as ")  # fmt: skip


def test_the_statements_are_numbered_from_one_without_a_gap() -> None:
    check_numbering((ident for ident, _, _ in ROWS), 41)


@pytest.mark.parametrize(("ident", "cell"), [(ident, cell) for ident, _, cell in ROWS])
def test_every_statement_has_a_test_that_exists_or_a_reason(ident: str, cell: str) -> None:
    check_statement(ident, cell)
    for reason in reasons_in(cell):
        assert reason.startswith(REASONS), reason


def test_cirron_sdk_only_names_are_documented_and_name_their_import() -> None:
    text = (DOCS / "migrating.md").read_text()
    for name in cirron_otel._OF_CIRRON_SDK:
        assert f"`{name}`" in text
        with pytest.raises(AttributeError, match=f"from cirron import {name}"):
            getattr(cirron_otel, name)
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
        _ = cirron_otel.nothing
