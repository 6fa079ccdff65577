"""The variables with which Ray's processes join a trace. These tests need no Ray."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cirron_otel as ci
from cirron_otel.core.config.options import OPTIONS, Config
from cirron_otel.core.config.resolve import resolve
from cirron_otel.sdk.session import process_session
from cirron_otel.sdk.session.job import BOOTSTRAP
from tests.kit.sessions.processes import environment

CHANGED: dict[str, Any] = {
    "output": ("log", "spool"), "exporters": (), "flush_interval": 0.25,
    "spool_max_bytes": 5_000_000, "workspace_id": "w", "run_id": "r", "quiet": True,
    "run_details": ("git", "host"), "frameworks": ("ray", "torch"), "snapshots": None,
    "detail_every": 7, "cuda_timing": False, "overhead_marks": 0, "trace_layout": "session",
    "segment_records": 9, "exit_timeout": 2.5, "sample_rate": 0.125,
}  # fmt: skip


def test_a_worker_resolves_the_options_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(Config(), **CHANGED)
    for name, text in process_session.option_variables(config).items():
        monkeypatch.setenv(name, text)
    resolved = resolve(None)
    assert not resolved.problems
    assert {name: getattr(resolved.config, name) for name in CHANGED} == CHANGED


def test_secrets_are_not_passed() -> None:
    config = replace(Config(), api_key="secret")
    assert process_session.option_variables(config) == {}
    assert any(option.key.is_secret for option in OPTIONS)


def test_the_user_s_variables_take_precedence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=secret")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json")
    assert process_session.ProcessSession().variables({}) == {}
    with ci.profile(output_dir="spool", exporters="none", join="none") as profiler:
        with ci.scope("fit") as fit:
            found = process_session.ProcessSession().variables(
                {"CIRRON_RUN_NAME": "mine", "PYTHONPATH": "/a:/b"}
            )
        assert profiler.run is not None
        assert found["CIRRON_OTEL_RUN_ID"] == profiler.run.id
    assert found["CIRRON_OUTPUT_DIR"] == str(tmp_path / "spool")
    assert "CIRRON_RUN_NAME" not in found
    assert found["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] == "http/json"
    assert "OTEL_EXPORTER_OTLP_HEADERS" not in found
    assert f"{fit.get_span_context().span_id:016x}" in found["TRACEPARENT"]
    assert found["PYTHONPATH"] == os.pathsep.join([str(BOOTSTRAP), "/a", "/b"])


def test_the_directory_of_the_hooks_is_on_the_path_once() -> None:
    path = process_session.with_hooks(process_session.with_hooks("${PYTHONPATH}"))
    assert path == f"{BOOTSTRAP}{os.pathsep}${{PYTHONPATH}}"


@pytest.mark.parametrize("rest", ["", "/somewhere"])
def test_an_empty_rest_of_the_path_is_not_the_working_directory(rest: str, tmp_path: Path) -> None:
    program = "import os, sys; print(os.environ['PYTHONPATH'], sys.path[1:])"
    path = tmp_path / "program.py"
    path.write_text(program)
    output = subprocess.run(
        [sys.executable, str(path)],
        cwd="/tmp",
        env=environment(PYTHONPATH=f"{BOOTSTRAP}{os.pathsep}{rest}"),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "'/tmp'" not in output
    assert (rest in output) if rest else output.startswith(f"{BOOTSTRAP} ")
