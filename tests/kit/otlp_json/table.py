"""The tables of docs/otlp-json.md: results by group, and each case in which a reader differs."""

from __future__ import annotations

import re
from pathlib import Path

from .case import Case
from .corpus import cases

PAGE = Path(__file__).parents[3] / "docs" / "otlp-json.md"
Results = dict[str, dict[str, str]]
"""The result of each case (the runner's words) by reader."""
_WORDS = {
    "ok": "",
    "accepted": "accepts",
    "rejected": "rejects",
    "content": "other content",
    "crashed": "no answer",
}
_SHOWN = 60


def document(text: str, results: Results) -> str:
    """Return the page with new tables."""
    for name, table in (("groups", by_group(results)), ("cases", by_case(results))):
        pattern = rf"(<!-- {name} -->\n).*?(\n<!-- end of {name} -->)"
        text = re.sub(pattern, lambda match, new=table: match[1] + new + match[2], text, flags=re.S)  # type: ignore[misc]
    return text


def by_group(results: Results) -> str:
    """Return the table of conforming cases by group."""
    every = cases()
    rows = [["group", "cases", *results]]
    for group in [*dict.fromkeys(case.group for case in every), "all"]:
        own = [case.name for case in every if group in (case.group, "all")]
        rows.append(
            [group, str(len(own)), *(_conforming(found, own) for found in results.values())]
        )
    return _table(rows)


def _conforming(found: dict[str, str], names: list[str]) -> str:
    return str(sum(found[name] == "ok" for name in names))


def by_case(results: Results) -> str:
    """Return the table of the cases in which a reader does not conform."""
    rows = [["case", "document", "rule", *results]]
    for case in cases():
        found = [results[name][case.name] for name in results]
        if set(found) != {"ok"}:
            rows.append([f"`{case.name}`", _excerpt(case), _rule(case), *map(_WORDS.get, found)])  # type: ignore[list-item]
    return _table(rows)


def _rule(case: Case) -> str:
    return f"[{case.verdict}]({case.source})"


def _excerpt(case: Case) -> str:
    """Return the text of a document that makes the case, shortened, as code in a table."""
    text = case.data.decode("utf-8", "backslashreplace")
    match = re.search(r'"endTimeUnixNano":"1700000000000000001",(.*)\}\]\}\]\}\]\}$', text, re.S)
    shown = ascii(match[1] if match else text)[1:-1].replace("\\'", "'").replace("|", "\\|")
    shown = shown.removeprefix('"attributes":[{"key":"k","value":').removesuffix("}]")
    shown = shown.replace("`", "'")
    return f"`{shown if len(shown) <= _SHOWN else shown[:_SHOWN] + '…'}`"


def _table(rows: list[list[str]]) -> str:
    head, *others = rows
    lines = [head, ["---"] * len(head), *others]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
