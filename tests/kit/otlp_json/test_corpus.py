"""The corpus of OTLP/JSON: its files are those of the tables, and our reader conforms."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from . import __main__ as readers
from .case import OTLP, PROTO, PROTOJSON, RFC
from .corpus import FOLDER, cases, files
from .syntax import CONFORMANCE
from .table import PAGE, document

ROOT = Path(__file__).parents[3]
RUN = [sys.executable, str(FOLDER / "run.py")]
READER = [sys.executable, "-m", "tests.kit.otlp_json.reader"]
RUNNER = runpy.run_path(str(FOLDER / "run.py"))
CANONICAL: Callable[[str, Any], Any] = RUNNER["canonical"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*RUN, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )


def test_the_files_are_those_of_the_tables() -> None:
    stored = {
        str(path.relative_to(FOLDER)): path.read_bytes()
        for path in [FOLDER / "index.json", *(FOLDER / "cases").iterdir()]
    }
    assert stored == files()


def test_the_corpus_has_every_verdict_and_a_source_for_each_case() -> None:
    every = cases()
    assert len({case.data for case in every}) == len({case.name for case in every}) == len(every)
    assert len(every) >= 200
    for verdict in ("accept", "reject", "either"):
        assert sum(case.verdict == verdict for case in every) >= 30
    for case in every:
        assert case.source.startswith((OTLP, PROTO, PROTOJSON, RFC, CONFORMANCE))
        assert case.outcomes


def test_our_reader_conforms_in_every_case() -> None:
    done = run("--lines", *READER, "--lines")
    assert done.returncode == 0, done.stdout
    assert f"all         {len(cases())} of  {len(cases())}" in done.stdout


def test_a_reader_may_run_once_per_document() -> None:
    for command in (["--only", "bool", *READER], ["--only", "id-", "--jobs", "1", *READER]):
        done = run(*command)
        assert done.returncode == 0, done.stdout


PYTHON = [sys.executable, "-c"]
WRONG: dict[str, tuple[list[str], str]] = {
    "accepts everything": ([*PYTHON, ""], "accepted, expected a rejection"),
    "rejects everything": ([*PYTHON, "exit(1)"], "rejected, expected an acceptance"),
    "reads other content": ([*PYTHON, "print('{}')"], "accepted with other content"),
    "writes other text": ([*PYTHON, "print('read')"], "accepted with other content"),
    "is killed": ([*PYTHON, "import os; os.kill(os.getpid(), 9)"], "the reader crashed"),
    "takes too long": (["sleep", "1000"], "the reader crashed or took too long"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_reader_that_does_not_conform_is_reported(what: str, tmp_path: Path) -> None:
    command, problem = WRONG[what]
    timeout = "0.5" if what == "takes too long" else "100"
    results = tmp_path / "results.json"
    done = run("--only", "bool-", "--timeout", timeout, "--json", str(results), *command)
    assert done.returncode == 1
    assert problem in done.stdout
    assert PROTOJSON in done.stdout
    found = json.loads(results.read_text())
    assert len(found) == sum(case.group == "bool" for case in cases())
    assert set(found.values()) != {"ok"}


def test_a_document_may_be_named_by_its_path() -> None:
    done = run("--only", "bool-true", *PYTHON, "open(__import__('sys').argv[1], 'rb')", "{}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "name the command"),
        (("--only", "nothing", "true"), "no case has"),
        (("/nothing",), "cannot be run"),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: tuple[str, ...], problem: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert problem in done.stderr


def test_a_reader_that_ends_early_fails_the_remaining_cases() -> None:
    code = "import sys; sys.stdin.readline(); print('{\"accepted\": true}', flush=True)"
    done = run("--only", "bool-", "--lines", *PYTHON, code)
    assert done.returncode == 1
    assert "the reader crashed" in done.stdout


EQUAL = [
    ("Span", {"traceId": "AB" * 16}, {"traceId": "ab" * 16}),
    ("Span", {"startTimeUnixNano": 5}, {"startTimeUnixNano": "5"}),
    ("Span", {"flags": 0, "status": {}, "events": [], "name": ""}, {}),
    ("Span", {"parentSpanId": "0000000000000000", "newer": 1}, {}),
    ("AnyValue", {"doubleValue": 1}, {"doubleValue": 1.0}),
    ("AnyValue", {"doubleValue": "NaN"}, {"doubleValue": float("nan")}),
    ("TracesData", {"resourceSpans": [{"scopeSpans": [{}]}]}, {}),
]
DIFFERENT = [
    ("AnyValue", {"stringValue": ""}, {}),
    ("AnyValue", {"boolValue": False}, {"boolValue": True}),
    ("AnyValue", {"doubleValue": -0.0}, {"doubleValue": 0.0}),
    ("AnyValue", {"intValue": "1"}, {"doubleValue": 1.0}),
    ("AnyValue", {"arrayValue": {"values": [{}]}}, {"arrayValue": {}}),
    ("Span", {"kind": 1}, {"kind": 2}),
]


@pytest.mark.parametrize(("kind", "a", "b"), EQUAL)
def test_equal_content_has_one_canonical_form(kind: str, a: Any, b: Any) -> None:
    assert CANONICAL(kind, a) == CANONICAL(kind, b)


@pytest.mark.parametrize(("kind", "a", "b"), DIFFERENT)
def test_other_content_has_another_canonical_form(kind: str, a: Any, b: Any) -> None:
    assert CANONICAL(kind, a) != CANONICAL(kind, b)


def test_the_sign_of_zero_is_read_from_the_output() -> None:
    read = RUNNER["read_output"]
    assert CANONICAL("AnyValue", read('{"doubleValue":-0}')) == {"doubleValue": "-0.0"}
    assert CANONICAL("Span", read('{"kind":-0,"flags":0}')) == {}


def test_the_command_of_the_page_runs() -> None:
    (command,) = re.findall(r"^```text\npython3 (.*)\n```$", PAGE.read_text(), re.MULTILINE)
    arguments = [sys.executable if each == "python3" else each for each in shlex.split(command)]
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, check=False, capture_output=True)
    assert done.returncode == 0, done.stdout


def test_the_page_has_the_cases_of_the_corpus() -> None:
    text = PAGE.read_text()
    count = str(len(cases()))
    assert re.search(rf"^\| all \| {count} \| {count} \|", text, re.MULTILINE)
    table = text.partition("<!-- cases -->")[2]
    named = re.findall(r"^\| `([a-z0-9-]+)` ", table, re.MULTILINE)
    assert set(named) <= {case.name for case in cases()}


@pytest.mark.backends
def test_the_page_has_the_results_of_the_backends() -> None:
    found = {name: readers.results_of(name) for name in readers.READERS}
    assert document(PAGE.read_text(), found) == PAGE.read_text()
