"""Tests that docs/ names exist, and every rule of docs/otlp-conformance.md has one."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
TEXT = (ROOT / "docs" / "otlp-conformance.md").read_text()
ROWS = re.findall(r"^\| ([BGHJ]\d+) \| (.+?) \| (.+?) \| (.+?) \| (.+) \|$", TEXT, re.MULTILINE)
WITHOUT = {"H6"}
"""What may be done, and is not."""


@cache
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


def named_by(text: str) -> list[str]:
    return re.findall(r"`([\w/]+\.py::[\w:]+)`", text)


def check_exists(test: str) -> None:
    path, _, name = test.partition("::")
    assert (TESTS / path).is_file(), test
    assert name in names_in(TESTS / path), test


def test_rules_are_numbered_from_one_without_a_gap() -> None:
    for letter in "BGHJ":
        numbers = [int(row[0][1:]) for row in ROWS if row[0][0] == letter]
        assert numbers == list(range(1, len(numbers) + 1))
    lines = [line for line in TEXT.splitlines() if re.match(r"\| [BGHJ]\d", line)]
    assert len(lines) == len(ROWS) > 50


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_every_rule_is_held_by_tests_that_exist(row: tuple[str, ...]) -> None:
    named = named_by(row[-1])
    assert bool(named) == (row[0] not in WITHOUT)
    assert "`".join(named) or row[-1] == "–"
    for test in named:
        check_exists(test)


def test_the_tests_that_other_pages_name_exist() -> None:
    pages = {page.name: page.read_text() for page in (ROOT / "docs").rglob("*.md")}
    for text in pages.values():
        for test in named_by(text):
            check_exists(test)
    assert len(pages["collector.md"].split("\nTests: ")) > 8


def test_every_test_of_conformance_is_named() -> None:
    """A rule that is tested and not in the table would be found by nobody."""
    named = {test for row in ROWS for test in named_by(row[-1])}
    for file in ("test_http.py", "test_grpc.py", "test_json.py"):
        for name in names_in(TESTS / "conformance" / file):
            assert f"conformance/{file}::{name}" in named
