"""Tables of docs/ that give each statement of a page, or each rule, the tests that verify it.

A row begins with an identifier, such as `D7`. A cell names tests as `folder/test_x.py::test_name`,
relative to tests/, or has the reason for there being none, in italics.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs"


def statements(text: str, letters: str) -> list[tuple[str, str, str]]:
    """The rows of three cells whose identifiers begin with one of the letters."""
    rows = re.findall(rf"^\| ([{letters}]\d+) \| (.+?) \| (.*) \|$", text, re.MULTILINE)
    lines = re.findall(rf"^\| [{letters}]\d.*", text, re.MULTILINE)
    assert len(lines) == len(rows), "a row does not have three cells"
    return rows


def check_numbering(idents: Iterable[str], least: int) -> None:
    """The identifiers of each letter count from 1 without a gap, to `least` or further."""
    numbers: dict[str, list[int]] = {}
    for ident in idents:
        numbers.setdefault(ident[0], []).append(int(ident[1:]))
    assert numbers
    for letter, found in numbers.items():
        assert found == list(range(1, len(found) + 1)), letter
        assert len(found) >= least, letter


def named_tests(text: str) -> list[str]:
    """The tests that a text names."""
    return re.findall(r"`([\w/]+\.py::[\w:]+)`", text)


def reasons_in(cell: str) -> list[str]:
    """The reasons of a cell."""
    return re.findall(r"\*([^*]+)\*", cell)


def check_exists(test: str) -> None:
    """The test, `path::name`, exists."""
    path, _, name = test.partition("::")
    assert (TESTS / path).is_file(), test
    assert name in names_in(TESTS / path), test


def check_statement(ident: str, cell: str) -> None:
    """The last cell of a row names tests that exist, or has a reason."""
    tests = named_tests(cell)
    assert tests or reasons_in(cell), ident
    for test in tests:
        check_exists(test)


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
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            and each.name.startswith("test_")
        }
    return found
