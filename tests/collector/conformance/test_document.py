"""Tests that docs/ names exist, and every rule of docs/otlp-conformance.md has one."""

from __future__ import annotations

import re

import pytest

from tests.kit.statement_tables import (
    DOCS,
    TESTS,
    check_exists,
    check_numbering,
    named_tests,
    names_in,
)

TEXT = (DOCS / "otlp-conformance.md").read_text()
ROWS = re.findall(r"^\| ([BGHJ]\d+) \| (.+?) \| (.+?) \| (.+?) \| (.+) \|$", TEXT, re.MULTILINE)
WITHOUT = {"H6"}
"""What may be done, and is not."""


def test_rules_are_numbered_from_one_without_a_gap() -> None:
    check_numbering((row[0] for row in ROWS), 1)
    lines = [line for line in TEXT.splitlines() if re.match(r"\| [BGHJ]\d", line)]
    assert len(lines) == len(ROWS) > 50


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_every_rule_is_held_by_tests_that_exist(row: tuple[str, ...]) -> None:
    named = named_tests(row[-1])
    assert bool(named) == (row[0] not in WITHOUT)
    assert "`".join(named) or row[-1] == "–"
    for test in named:
        check_exists(test)


def test_the_tests_that_other_pages_name_exist() -> None:
    pages = {page.name: page.read_text() for page in DOCS.rglob("*.md")}
    for text in pages.values():
        for test in named_tests(text):
            check_exists(test)
    assert len(pages["collector.md"].split("\nTests: ")) > 8


def test_every_test_of_conformance_is_named() -> None:
    """A rule that is tested and not in the table would be found by nobody."""
    named = {test for row in ROWS for test in named_tests(row[-1])}
    for file in ("test_http.py", "test_grpc.py", "test_json.py"):
        for name in names_in(TESTS / "collector" / "conformance" / file):
            assert f"collector/conformance/{file}::{name}" in named
