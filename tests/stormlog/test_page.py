"""The interface of the Stormlog page: names, signatures, and its snippet."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cirron_otel.core.importers import stormlog
from tests.stormlog.conftest import SIMULATED

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "stormlog.md").read_text()
ROWS = re.findall(r"^\| (P\d+) \| (.+?) \| (.*) \|$", TEXT, re.MULTILINE)
SNIPPET = """\
from cirron_otel.core.importers.stormlog import load_telemetry_events, load_telemetry_sessions

sessions = load_telemetry_sessions("./live_sink")
selected = sessions[0]
events = load_telemetry_events(
    "./live_sink",
    session_id=selected.summary.session_id,
)

print(selected.summary.session_id)
print(selected.summary.status)
print(len(events))
"""
SIGNATURES = {
    "load_telemetry_sessions": "path, permissive_legacy=True, events_key=None",
    "load_telemetry_events": "path, permissive_legacy=True, events_key=None, session_id=None",
    "telemetry_event_from_record": "record, permissive_legacy=True, default_collector='legacy."
    "unknown', default_sampling_interval_ms=0, default_session_id=None",
    "telemetry_event_to_dict": "event",
    "validate_telemetry_record": "record",
    "derive_timeline_markers": "events, *, include_phase_markers=True",
    "derive_session_timeline_markers": "session, *, include_phase_markers=True",
    "timeline_marker_to_dict": "marker",
}


def test_reconstructing_a_capture_with_only_the_import_changed(tmp_path: Path) -> None:
    (tmp_path / "live_sink").symlink_to(SIMULATED / "sink")
    done = subprocess.run(
        [sys.executable, "-c", SNIPPET], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["afeb7d9d-b361-4aea-8281-c464d8cb32ed", "completed", "69"]


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str) -> None:
    assert name in stormlog.__all__
    parameters = inspect.signature(getattr(stormlog, name)).parameters.values()
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in parameters]
    assert str(inspect.Signature(plain)) == f"({SIGNATURES[name]})"


def test_the_reader_imports_neither_a_framework_nor_a_socket() -> None:
    program = (
        "import sys, cirron_otel.core.importers.stormlog\n"
        "bad = {'torch', 'socket', 'threading', 'grpc', 'google.protobuf', 'click'}\n"
        "print(sorted(bad & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ast.literal_eval(done.stdout) == []


def test_the_statements_of_the_page_are_numbered() -> None:
    numbers = [int(ident[1:]) for ident, _, _ in ROWS]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) > 50


@pytest.mark.parametrize(("ident", "cell"), [(ident, cell) for ident, _, cell in ROWS])
def test_every_statement_names_tests_that_exist_or_a_reason(ident: str, cell: str) -> None:
    tests = re.findall(r"`([\w/]+\.py)::(\w+)`", cell)
    assert tests or re.search(r"\*[^*]+\*", cell), ident
    for path, name in tests:
        tree = ast.parse((ROOT / "tests" / path).read_text())
        functions = {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)}
        assert name in functions, (ident, path, name)
