"""The table of scores on the page about verdicts, with the first score of each family."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from .building import Family
from .scoring import Score

PAGE: Final = Path(__file__).parents[3] / "docs" / "verdicts.md"
BEGIN: Final = "<!-- sick runs: begin -->"
END: Final = "<!-- sick runs: end -->"
_ROW: Final = re.compile(r"^\| (?P<name>[^|]+?) \| [^|]* \| (?P<first>[^|]*?) \|", re.MULTILINE)
_HEAD: Final = (
    "| family | kind | first | now | second | wrong | silent | false alarm |",
    "|---|---|---|---|---|---|---|---|",
)


def text_of(score: Score) -> str:
    """Return the number of right cases of all cases."""
    return f"{score.outcomes['right first']}/{score.cases}"


def first_scores(page: str) -> dict[str, str]:
    """Return the first score of each family that the page has."""
    section = _section(page)
    return {
        row["name"]: row["first"]
        for row in _ROW.finditer(section)
        if re.fullmatch(r"\d+/\d+", row["first"])
    }


def table(
    families: Sequence[Family], scores: Mapping[str, Score], first: Mapping[str, str]
) -> list[str]:
    """Return the lines of the table. A family without a first score gets the one of now."""
    lines = list(_HEAD)
    total, first_right, first_cases = Score(), 0, 0
    for family in families:
        score = scores[family.name]
        total.outcomes += score.outcomes
        total.cases += score.cases
        first_score = first.get(family.name, text_of(score))
        right, cases = map(int, first_score.split("/"))
        first_right += right
        first_cases += cases
        lines.append(_row(family.name, family.kind, first_score, score))
    lines.append(_row("all", "", f"{first_right}/{first_cases}", total))
    return lines


def _row(name: str, kind: str, first: str, score: Score) -> str:
    counts = [score.outcomes[each] for each in ("right second", "wrong", "silent", "false alarm")]
    shown = " | ".join(str(count) if count else "" for count in counts)
    shown_kind = f"`{kind}`" if kind and kind != "healthy" else kind
    return f"| {name} | {shown_kind} | {first} | {text_of(score)} | {shown} |"


def updated(page: str, lines: Sequence[str]) -> str:
    """Return the page with other lines between the markers. Raises ValueError without markers."""
    begin, end = page.index(BEGIN) + len(BEGIN), page.index(END)
    body = "\n".join(lines)
    return f"{page[:begin]}\n\n{body}\n\n{page[end:]}"


def _section(page: str) -> str:
    begin, end = page.find(BEGIN), page.find(END)
    return page[begin:end] if 0 <= begin < end else ""
