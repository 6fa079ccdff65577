"""The glossary and the data paths of CONTRIBUTING.md."""

from __future__ import annotations

import itertools
import re
from functools import cache
from pathlib import Path

import grimp
import pytest

PAGE = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
_MOST_TERMS = 50


def section(heading: str) -> str:
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def arrows() -> list[tuple[str, str]]:
    """Return the pairs of modules that an arrow connects."""
    lines = [line for line in section("The four wings").splitlines() if " → " in line]
    chains = [line.split(" → ") for line in lines]
    return [pair for chain in chains for pair in itertools.pairwise(chain)]


@cache
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("cirron_otel", include_external_packages=False, cache_dir=None)


@pytest.mark.parametrize(("module", "imported"), arrows())
def test_an_arrow_is_an_import(module: str, imported: str) -> None:
    imports = graph().find_modules_directly_imported_by(f"cirron_otel.{module}")
    assert f"cirron_otel.{imported}" in imports


def test_the_paths_cross_the_wings() -> None:
    wings = {module.partition(".")[0] for pair in arrows() for module in pair}
    assert wings == {"core", "sdk", "collector", "tools"}


def test_the_glossary_is_short_and_sorted() -> None:
    rows = re.findall(r"^\| (?!term )([^|]+) \| ([^|]+) \|$", section("Glossary"), re.MULTILINE)
    terms = [term for term, _ in rows]
    assert 30 < len(terms) <= _MOST_TERMS
    assert terms == sorted(set(terms), key=str.casefold)
