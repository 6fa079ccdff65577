"""Write the corpus: `index.json`, and a file for each case."""

from __future__ import annotations

import json
from pathlib import Path

from . import numbers, structure, syntax, texts
from .case import REJECT, Case

FOLDER = Path(__file__).parents[2] / "testdata" / "otlp-json"
VERSION = 1


def cases() -> list[Case]:
    """Return all cases, in the order of the index."""
    modules = (numbers, texts, structure, syntax)
    return [case for module in modules for group in module.groups() for case in group.cases]


def files() -> dict[str, bytes]:
    """Return the content of the generated files by their path below the folder."""
    entries, content = [], {}
    for case in cases():
        path = f"cases/{case.name}.json"
        content[path] = case.data
        entries.append(
            {
                "name": case.name,
                "group": case.group,
                "title": case.title,
                "file": path,
                "verdict": case.verdict,
                "outcomes": [
                    {"reject": True} if each == REJECT else {"accept": each}
                    for each in case.outcomes
                ],
                "source": case.source,
            }
        )
    lines = ",\n".join(json.dumps(entry) for entry in entries)
    index = f'{{"version": {VERSION}, "cases": [\n{lines}\n]}}\n'
    return {"index.json": index.encode(), **content}


def write(folder: Path = FOLDER) -> None:
    """Write the generated files, and remove those of earlier cases."""
    content = files()
    (folder / "cases").mkdir(parents=True, exist_ok=True)
    for path in (folder / "cases").iterdir():
        if f"cases/{path.name}" not in content:
            path.unlink()
    for name, data in content.items():
        (folder / name).write_bytes(data)


if __name__ == "__main__":
    write()
