"""Programs written for cirron-sdk, run with it and, but for the import, unchanged with ours.

What the two spools say must be the same, except for what docs/migrating.md lists; `shape` below is
that list in code.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cirron_otel as ci
from tests.conftest import leave_out
from tests.kit import references
from tests.kit.environments import EnvironmentUnavailableError
from tests.kit.recorder.record import CONSTRAINTS, environment
from tests.kit.sessions.spool_trees import (
    OVERHEAD,
    SESSION,
    Node,
    Spool,
    read_spool,
)

PROGRAMS = Path(__file__).parents[1] / "programs" / "drop_in"
IMPORT = "import cirron as ci"
THEIRS = "0.3.0"
"""The version of cirron-sdk. What it prints and records is stored (tests/kit/references.py)."""

EXIT_STATUS = {"leaving": 3}
DIRECTORY = {"configured": "elsewhere"}
"""Where a program has its spool, if not in `.cirron`."""

PLACE = {"epoch", "global_step", "loss", "cirron.unit_ns", "cirron.waiting_ns"}
"""Attributes that steps have here alone."""
MEASURED = {
    "time_to_first_token_ms", "request_duration_ms", "tokens_per_second", "gpu_memory_peak",
}  # fmt: skip
"""Marks of `inference` whose values are times."""


def run(python: Path, text: str, directory: Path, name: str) -> str:
    """Run a program in a directory of its own; what it printed."""
    directory.mkdir()
    program = directory / f"{name}.py"
    program.write_text(text)
    taken = ("OTEL_", "CIRRON_", "PYTHON", "RANK", "LOCAL_RANK", "WORLD_SIZE", "TRACE")
    environ = {key: value for key, value in os.environ.items() if not key.startswith(taken)}
    result = subprocess.run(
        [python, "-I", program],
        cwd=directory, env={**environ, "HOME": str(directory)}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert result.returncode == EXIT_STATUS.get(name, 0), result.stderr
    assert "Traceback" not in result.stderr
    return result.stdout


def alike(node: Node, session: Node | None) -> Any:
    """A span and what is below it, as comparable JSON."""
    record = node.record
    return {
        "name": "step" if node.name == "batch" else node.name,
        "index": record["index"],
        "attrs": attributes(record["attrs"]),
        "measured": [record[key] for key in ("cpu_ns", "gpu_ns", "memory_peak_bytes")],
        "rank": record["rank"],
        "in main thread": session and record["thread_id"] == session.record["thread_id"],
        "same process": session and record["pid"] == session.record["pid"],
        "marks": marks(node),
        "children": in_order([alike(child, session) for child in node.children]),
    }


def attributes(attrs: dict[str, Any]) -> dict[str, Any]:
    attrs = {key: value for key, value in attrs.items() if key not in PLACE}
    known = attrs.get("request_id")
    return attrs | {"request_id": f"{len(known)} digits"} if isinstance(known, str) else attrs


def marks(node: Node) -> list[Any]:
    return [said(mark) for mark in node.marks if mark["name"] != OVERHEAD]


def said(mark: dict[str, Any]) -> Any:
    value = "measured" if mark["name"] in MEASURED else mark["value"]
    keys = ("name", "value_type", "kind", "attrs", "value_nonfinite")
    return [value, *(mark.get(key) for key in keys)]


def in_order(found: list[Any]) -> list[Any]:
    """Threads and tasks run when they are let: order says nothing, the text of a tree does."""
    return sorted(found, key=lambda each: json.dumps(each, sort_keys=True))


def shape(spool: Spool) -> Any:
    """A whole spool as comparable JSON, without what docs/migrating.md lists.

    With cirron-sdk a scope of a thread, and a request, has no parent, and a process that does not
    call `shutdown()` no session; with us all of them hang on the session.
    """
    assert not spool.lost
    outside = [said(mark) for mark in spool.outside]
    if len(spool.sessions) > 1:
        found = [[alike(each, each) for each in root.children] for root in spool.sessions]
        others = [alike(root, None) for root in spool.roots if root.name != SESSION]
        return [in_order(found), in_order(others), outside]
    session = spool.sessions[0] if spool.sessions else None
    home = session or (spool.roots[0] if spool.roots else None)
    tops: list[Node] = []
    for root in spool.roots:
        take_out(root, "request", tops)
        tops += root.children if root is session else [root]
    return {
        "scopes": in_order([alike(top, home) for top in tops]),
        "on the session": in_order(marks(session)) if session else [],
        "outside": outside,
    }


def has_content(found: Any) -> bool:
    return any(found.values()) if isinstance(found, dict) else any(found)


def take_out(node: Node, name: str, taken: list[Node]) -> None:
    """Move every span of that name below `node` to `taken`."""
    for child in list(node.children):
        take_out(child, name, taken)
        if child.name == name:
            node.children.remove(child)
            taken.append(child)


@pytest.mark.recorded
@pytest.mark.parametrize("name", sorted(path.stem for path in PROGRAMS.glob("*.py")))
def test_a_program_of_cirron_sdk_runs_unchanged(name: str, tmp_path: Path) -> None:
    text = (PROGRAMS / f"{name}.py").read_text()
    assert text.count(IMPORT) == 1
    try:
        theirs = environment(THEIRS)
    except EnvironmentUnavailableError as error:
        leave_out(str(error))
    recorded, where = tmp_path / "recorded", DIRECTORY.get(name, ".cirron")
    ours = text.replace(IMPORT, "import cirron_otel as ci")
    printed = run(Path(sys.executable), ours, tmp_path / "ours", name)
    found = shape(read_spool(tmp_path / "ours" / where))

    def compare(folder: Path) -> None:
        assert printed == (folder / "printed").read_text()
        expected = shape(read_spool(folder / "theirs" / where))
        assert found == expected
        assert has_content(expected) or name == "switched_off"

    def record(folder: Path) -> None:
        (folder / "printed").write_text(run(theirs, text, folder / "theirs", name))
        compare(folder)  # a recording that differs from ours is not stored

    files = [PROGRAMS / f"{name}.py", Path(__file__), CONSTRAINTS]
    references.fill(recorded, references.key_of(files, "drop-in", THEIRS), record)
    compare(recorded)


def test_cirron_has_its_options_and_names_the_guide_for_missing_attributes() -> None:
    cirron = ci.Cirron(api_key="secret", sample_rate=0.5)
    assert (cirron.api_key, cirron.sample_rate) == ("secret", 0.5)
    assert isinstance(cirron.output_dir, str)
    assert "secret" not in repr(cirron)
    for name in ("load", "env", "secret", "deps", "nothing of that name"):
        with pytest.raises(AttributeError, match=r"docs/migrating\.md"):
            getattr(cirron, name)
