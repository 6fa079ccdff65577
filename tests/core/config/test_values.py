from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from cirron_otel.core.config.options import NOT_GIVEN

from .places import Place, found_in_call, found_in_text


class TestValues:
    @pytest.mark.parametrize("text", ["1", "true", "YES", " on ", "True"])
    def test_true(self, text: str) -> None:
        assert found_in_text("cpu_time", text) is True

    @pytest.mark.parametrize("text", ["0", "false", "No", "off"])
    def test_false(self, text: str) -> None:
        assert found_in_text("handle_signals", text) is False

    @pytest.mark.parametrize("text", ["2", "maybe", "tru", "none", "-1", "1.0"])
    def test_neither(self, text: str) -> None:
        assert found_in_text("enabled", text) is NOT_GIVEN

    @pytest.mark.parametrize(
        ("text", "size"),
        [
            ("1", 1),
            ("1_000", 1000),
            ("500MB", 500_000_000),
            ("500 mb", 500_000_000),
            ("1.5GB", 1_500_000_000),
            ("1GiB", 2**30),
            ("64kib", 65_536),
            ("2TB", 2 * 10**12),
            ("12B", 12),
            ("0", NOT_GIVEN),
            ("-1", NOT_GIVEN),
            ("MB", NOT_GIVEN),
            ("1XB", NOT_GIVEN),
            ("1e6", NOT_GIVEN),
            ("9" * 30, NOT_GIVEN),
            ("0.1B", NOT_GIVEN),
            ("inf", NOT_GIVEN),
        ],
    )
    def test_sizes(self, text: str, size: object) -> None:
        assert found_in_text("spool_max_bytes", text) == size

    @pytest.mark.parametrize(
        ("option", "text", "value"),
        [
            ("sample_rate", "0", 0.0),
            ("sample_rate", "1", 1.0),
            ("sample_rate", "1.01", NOT_GIVEN),
            ("sample_rate", "nan", NOT_GIVEN),
            ("flush_interval", "0.05", 0.05),
            ("flush_interval", "0", NOT_GIVEN),
            ("flush_interval", "inf", NOT_GIVEN),
            ("flush_interval", "1e300", NOT_GIVEN),
            ("detail_slow_factor", "0.5", NOT_GIVEN),
            ("detail_slow_factor", "inf", NOT_GIVEN),
            ("shutdown_timeout", "0", 0.0),
            ("mark_capacity", "0", NOT_GIVEN),
            ("mark_capacity", "1_024", 1024),
            ("mark_capacity", "1.5", NOT_GIVEN),
            ("mark_capacity", "9" * 20, NOT_GIVEN),
            ("trace_buffer_max_spans", "0", 0),
            ("detail_every", "0", None),
            ("detail_every", "none", None),
            ("detail_every", "10", 10),
            ("detail_every", "-1", NOT_GIVEN),
            ("sample_interval", "0.01", 0.01),
            ("sample_interval", " Auto ", "auto"),
            ("sample_interval", "none", None),
            ("sample_interval", "OFF", None),
            ("sample_interval", "0", NOT_GIVEN),
            ("sample_interval", "nan", NOT_GIVEN),
            ("sample_interval", "86401", NOT_GIVEN),
            ("cuda_memory", "Phase", "phase"),
            ("cuda_memory", "on", True),
            ("cuda_memory", "step", NOT_GIVEN),
            ("overhead_marks", "true", 1),
            ("overhead_marks", "off", 0),
            ("overhead_marks", "100", 100),
            ("overhead_marks", "-5", NOT_GIVEN),
            ("snapshots", "FULL", "full"),
            ("snapshots", "none", None),
            ("snapshots", "off", None),
            ("snapshots", "some", NOT_GIVEN),
            ("join", "link", "link"),
            ("join", "none", "none"),
            ("trace_layout", "session", "session"),
            ("output", "log, stdout,log", ("log", "stdout")),
            ("output", "none", ()),
            ("output", "none,log", NOT_GIVEN),
            ("output", ",", NOT_GIVEN),
            ("exporters", "otlp,cirron", ("otlp", "cirron")),
            ("exporters", "auto", ("auto",)),
            ("exporters", "auto,otlp", NOT_GIVEN),
            ("exporters", "none", ()),
            ("exporters", "http", NOT_GIVEN),
            ("frameworks", "Torch, transformers", ("torch", "transformers")),
            ("frameworks", "none", ()),
            ("frameworks", "auto", None),
            ("api_endpoint", "https://cirron.example/base/", "https://cirron.example/base"),
            ("api_endpoint", "http://localhost:8080", "http://localhost:8080"),
            ("api_endpoint", "cirron.example", NOT_GIVEN),
            ("api_endpoint", "file:///etc/passwd", NOT_GIVEN),
            ("api_endpoint", "https://host:port", NOT_GIVEN),
            ("api_endpoint", "https://host/?key=1", NOT_GIVEN),
            ("api_endpoint", "https://ho st", NOT_GIVEN),
            ("ingest_path", "api/traces", "/api/traces"),
            ("ingest_path", "//elsewhere.example/x", NOT_GIVEN),
            ("ingest_path", "/a b", NOT_GIVEN),
            ("api_key", "ck_live_1", "ck_live_1"),
            ("api_key", "two\nlines", NOT_GIVEN),
            ("run_id", "a\x00b", NOT_GIVEN),
            ("run_id", "x" * 1001, NOT_GIVEN),
        ],
    )
    def test_texts(self, option: str, text: str, value: object) -> None:
        assert found_in_text(option, text) == value

    @pytest.mark.parametrize(
        ("option", "given", "value"),
        [
            ("sample_rate", np.float32(0.5), 0.5),
            ("sample_rate", Fraction(1, 4), 0.25),
            ("sample_rate", True, NOT_GIVEN),
            ("segment_records", np.int64(7), 7),
            ("segment_records", 7.0, 7),
            ("segment_records", 7.5, NOT_GIVEN),
            ("segment_records", True, NOT_GIVEN),
            ("overhead_marks", False, 0),
            ("overhead_marks", 25, 25),
            ("detail_every", True, NOT_GIVEN),
            ("snapshots", False, None),
            ("output", ["spool", "log"], ("spool", "log")),
            ("output", [], ()),
            ("frameworks", [], ()),
            ("frameworks", ("torch",), ("torch",)),
            ("frameworks", [1], NOT_GIVEN),
            ("workspace_id", 12, "12"),
            ("workspace_id", True, NOT_GIVEN),
            ("spool_max_bytes", 10**9, 10**9),
            ("spool_max_bytes", 1e9, 10**9),
            ("output_dir", b"bytes", NOT_GIVEN),
            ("output_dir", "nul\0", NOT_GIVEN),
        ],
    )
    def test_values_of_calls(self, option: str, given: object, value: object) -> None:
        assert found_in_call(option, given) == value

    @pytest.mark.parametrize(
        ("said", "expected"),
        [("runs", "{cwd}/runs"), ("/var/x", "/var/x"), ("~/x", "{home}/x"), ("~", "{home}")],
    )
    def test_the_directory_is_absolute(self, place: Place, said: str, expected: str) -> None:
        for value in (said, Path(said)):
            found = place.resolve({"output_dir": value}).config.output_dir
            assert found == Path(expected.format(cwd=place.cwd, home=place.home))
