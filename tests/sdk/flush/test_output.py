"""`output=` without a spool: nothing is written anywhere, unless something is to be sent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import cirron_otel as ci


@pytest.mark.parametrize("output", ["none", "stdout", ["log"]])
def test_output_without_a_spool_creates_no_directory(
    tmp_path: Path, output: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    ci.profile(frameworks=[], output_dir=str(tmp_path / "run"), output=output)
    with ci.scope("step"):
        ci.mark("loss", 0.5)
    assert ci.flush()
    assert ci.trace("dict")["roots"][0]["marks"][0]["value"] == 0.5
    assert ci.shutdown()
    health = ci.health()
    assert health["recorded"]["spans"] == 2
    assert health["swallowed_errors"] == {}
    assert ("step" in capsys.readouterr().out) == (output == "stdout")
    assert list(tmp_path.iterdir()) == []


def test_exported_spans_are_spooled_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    ci.profile(frameworks=[], output_dir=str(tmp_path), output="none")
    with ci.scope("step"):
        pass
    assert ci.flush(120)
    assert not ci.shutdown(timeout=0.5)
    assert len(list((tmp_path / "spool").glob("*.json"))) >= 1


def test_second_session_starts_its_drop_count_at_zero(tmp_path: Path) -> None:
    ci.profile(frameworks=[], output_dir=str(tmp_path), mark_capacity=1, flush_interval=3600)
    for number in range(5):
        ci.mark("loss", number)
    ci.shutdown()
    assert ci.health()["mark_drop_count"] == 4
    ci.profile(frameworks=[], output_dir=str(tmp_path))
    ci.shutdown()
    assert ci.health()["mark_drop_count"] == 0
