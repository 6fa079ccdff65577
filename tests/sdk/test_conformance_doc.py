"""docs/conformance.md names only tests that exist, and leaves no statement without one or a reason.

docs/migrating.md's list of what is cirron-sdk's alone is the package's own.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import cirron_otel

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
TEXT = (ROOT / "docs" / "conformance.md").read_text()
ROWS = re.findall(r"^\| ([CS]\d+) \| (.+?) \| (.*) \|$", TEXT, re.MULTILINE)
REASONS = ("later:", "platform", "viewers", "measured:", "cirron-sdk:", "opened by", "written by",
           "that none", "as ")  # fmt: skip


def held_by(cell: str) -> tuple[list[str], list[str]]:
    """The tests and the reasons of a row's last cell."""
    return re.findall(r"`([\w/]+\.py::[\w:]+)`", cell), re.findall(r"\*([^*]+)\*", cell)


def names_in(path: Path) -> set[str]:
    """The tests of a file, those of a class as `Class::test`."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        found |= {
            prefix + each.name
            for each in inner
            if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))
            and each.name.startswith("test_")
        }
    return found


def test_the_statements_are_numbered_from_one_without_a_gap() -> None:
    for letter in "CS":
        numbers = [int(ident[1:]) for ident, _, _ in ROWS if ident[0] == letter]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) > 40
    table_lines = [line for line in TEXT.splitlines() if re.match(r"\| [CS]\d", line)]
    assert len(table_lines) == len(ROWS)


@pytest.mark.parametrize(("ident", "cell"), [(ident, cell) for ident, _, cell in ROWS])
def test_every_statement_has_a_test_that_exists_or_a_reason(ident: str, cell: str) -> None:
    tests, reasons = held_by(cell)
    assert tests or reasons, ident
    for test in tests:
        path, _, name = test.partition("::")
        assert (TESTS / path).is_file(), test
        assert name in names_in(TESTS / path), test
    for reason in reasons:
        assert reason.startswith(REASONS), reason


def test_what_is_cirron_sdks_alone_is_listed_and_says_where_it_is() -> None:
    text = (ROOT / "docs" / "migrating.md").read_text()
    for name in cirron_otel._OF_CIRRON_SDK:
        assert f"`{name}`" in text
        with pytest.raises(AttributeError, match=f"from cirron import {name}"):
            getattr(cirron_otel, name)
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
        _ = cirron_otel.nothing
