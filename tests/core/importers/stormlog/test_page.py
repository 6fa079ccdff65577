"""The interface of the Stormlog page: names, signatures, and its snippet."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from cirron_otel.core.importers import stormlog
from tests.kit.loaded_modules import loaded_by
from tests.kit.statement_tables import (
    DOCS,
    check_numbering,
    check_statement,
    statements,
)

from .conftest import SIMULATED

ROWS = statements((DOCS / "stormlog.md").read_text(), "P")
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
    heavy = {"torch", "socket", "threading", "grpc", "google.protobuf", "click"}
    assert not loaded_by("import cirron_otel.core.importers.stormlog") & heavy


def test_the_statements_of_the_page_are_numbered() -> None:
    check_numbering((ident for ident, _, _ in ROWS), 50)


@pytest.mark.parametrize(("ident", "cell"), [(ident, cell) for ident, _, cell in ROWS])
def test_every_statement_names_tests_that_exist_or_a_reason(ident: str, cell: str) -> None:
    check_statement(ident, cell)
