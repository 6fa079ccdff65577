"""The comparison finds a change of an output, and finds none between two runs of one version."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import cirron_otel

from . import corpus
from .difference import (
    Difference,
    Expected,
    differences,
    outputs_of,
    report,
)

PACKAGE = Path(cirron_otel.__file__).parent
VECTORS = ("vector-fields", "vector-carriers", "vector-foreign.", "hostile-truncated")
RECORDED = "04_marks_edge"
CHANGES = {
    "semconv.py": ('INDEX = "cirron.index"', 'INDEX = "cirron.number"'),
    "collector/service/metrics.py": ('"dead_letters"', '"undeliverable"'),
    "core/importers/dgrr/training.py": ("NOISE = 2.0, 1.0, 0.1", "NOISE = 2.0, 1.0, 0.2"),
    "tools/present/ledger_rows.py": ('"input": "waiting for input"', '"input": "input"'),
}
"""Changes of the mapping, the collector, a training and a report."""


def run(folder: Path, package_parent: Path, place: Path) -> dict[str, bytes]:
    """Run `probe` over the corpus in `place` with the package in `package_parent`."""
    folder.mkdir()
    (folder / "corpus").symlink_to(place / "corpus")
    paths = (package_parent, Path(__file__).parent)
    subprocess.run(
        [sys.executable, "-m", "probe", "corpus", "outputs.jsonl"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "COLUMNS": "80"},
        check=True,
    )
    return outputs_of(folder / "outputs.jsonl")


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, bytes]]:
    """The outputs of this version, of this version again, and of a changed one."""
    place = tmp_path_factory.mktemp("compare")
    corpus.write(place / "all", generated=2, mutated=2, runs=2, seed=1)
    chosen = place / "corpus"
    shutil.copytree(place / "all" / "spools" / RECORDED, chosen / "spools" / RECORDED)
    shutil.copytree(place / "all" / "runs", chosen / "runs")
    for recording in ("stormlog/v039-cli_track", "traceml/ddp2_short"):
        shutil.copytree(place / "all" / "recordings" / recording, chosen / "recordings" / recording)
    (chosen / "files").mkdir()
    (chosen / "traces").mkdir()
    for name in ("clean_100.dgrr", "mutation-0009.dgrr"):
        shutil.copy(place / "all" / "traces" / name, chosen / "traces")
    for path in (place / "all" / "files").iterdir():
        if path.name.startswith((*VECTORS, "case-")):
            shutil.copy(path, chosen / "files")
    changed = place / "package"
    shutil.copytree(PACKAGE, changed / "cirron_otel", ignore=shutil.ignore_patterns("__pycache__"))
    for name, (old, new) in CHANGES.items():
        file = changed / "cirron_otel" / name
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))
    parents = {"first": PACKAGE.parent, "second": PACKAGE.parent, "changed": changed}
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(run, place / side, parent, place) for side, parent in parents.items()]
        return [each.result() for each in runs]


def test_two_runs_of_one_version_are_equal(sides: list[dict[str, bytes]]) -> None:
    first, second, _ = sides
    assert [each.name for each in differences(first, second)] == []
    kinds = {name.split(" ")[0] for name in first}
    assert kinds >= {
        "name", "option", "recording", "convert", "report", "diagnose", "diff", "runs", "spool",
        "steps", "answer", "dgrr", "collector", "schema", "rows",
    }  # fmt: skip


def test_changed_attribute_and_changed_metric_are_reported(
    sides: list[dict[str, bytes]],
) -> None:
    first, _, changed = sides
    found = {each.name: list(each.lines()) for each in differences(first, changed)}
    written = "convert vector-fields.json out.jsonl segmented | file"
    assert any("cirron.number" in line for line in found[written])
    assert "dead_letters" in found["collector metrics"][0]
    assert "dead_letters" not in found["collector metrics"][1]
    assert "collector configuration | stdout" not in found
    assert "dgrr train | file" in found
    assert "dgrr verify clean_100.dgrr | stdout" not in found
    assert "report 000 | stdout" in found
    assert "report 000 --json | stdout" not in found


@pytest.mark.parametrize(
    ("expected", "is_right"),
    [
        ([], False),
        ([Expected("b*", "a reason")], False),
        ([Expected("b*", "a reason"), Expected("new", "another")], True),
        ([Expected("*", "a reason"), Expected("new", "another")], False),
    ],
)
def test_only_listed_differences_pass(expected: list[Expected], is_right: bool) -> None:
    found = differences({"a": b"1", "b": b"1", "bc": b"1"}, {"a": b"1", "b": b"2", "new": b""})
    assert [each.name for each in found] == ["b", "bc", "new"]
    lines, verdict = report(found, expected)
    assert verdict is is_right
    assert ("differs: b" in lines) is not any(each.outputs in ("b*", "*") for each in expected)


def test_the_beginning_of_a_difference_is_shown() -> None:
    base, new = Difference("x", b"0" * 500 + b"old", b"0" * 500 + b"other").lines()
    assert base.endswith("0old'")
    assert new.endswith("0other'")
    assert len(new) < 120
    assert list(Difference("x", None, b"").lines()) == ["only in the new version"]
