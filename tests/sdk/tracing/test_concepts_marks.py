"""Cirron's concepts page, "Marks": docs/conformance.md says which sentence each test holds."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest

import cirron_otel as ci
from cirron_otel.core.config.options import Config
from tests.kit.sessions.opened import in_threads, opened, recorded
from tests.kit.sessions.spool_trees import read_spool


def test_without_an_open_scope_a_mark_goes_to_the_session(tmp_path: Path) -> None:
    def act() -> None:
        ci.mark("on the session", 1)
        in_threads(1, lambda _: ci.mark("of a thread", 2))

    assert recorded(tmp_path, act).session.values == [("on the session", 1), ("of a thread", 2)]


def test_mark_outside_a_session_goes_to_root(tmp_path: Path) -> None:
    program = """
import cirron_otel as ci
ci.mark("before", 1)
ci.profile(frameworks=[], output_dir="here")
ci.mark("during", 2)
ci.shutdown()
ci.mark("after", 3)
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, timeout=60)
    spool = read_spool(tmp_path / "here")
    assert [(mark["name"], mark["span_id"]) for mark in spool.outside] == [
        ("before", "root"),
        ("after", "root"),
    ]
    assert spool.session.values == [("during", 2)]
    assert not spool.lost


def test_mark_kind_defaults_to_point_and_summary_retains_attributes(tmp_path: Path) -> None:
    def act() -> None:
        with ci.scope("epoch"):
            ci.mark("loss", 0.5, step=10)
            ci.mark("loss", 0.25, kind="point")
            ci.mark("final", 0.125, kind="summary", split={"name": "test"})

    marks = recorded(tmp_path, act).session.one("epoch").marks[:3]
    assert [(mark["kind"], mark["attrs"]) for mark in marks] == [
        ("point", {"step": 10}),
        ("point", {}),
        ("summary", {"split": {"name": "test"}}),
    ]


class IntLike(int):
    pass


VALUES: list[tuple[Any, str, Any]] = [
    (0.1, "float", 0.1),
    (1.0, "float", 1.0),
    (-0.0, "float", -0.0),
    (5e-324, "float", 5e-324),
    (1, "int", 1),
    (2**63 - 1, "int", 2**63 - 1),
    (-(2**70), "int", -(2**70)),
    (True, "bool", True),
    (False, "bool", False),
    ("text", "string", "text"),
    ("", "string", ""),
    ("x" * 257, "string", "x" * 256),
    ("é" * 200, "string", "é" * 128),
    ("x" + "é" * 200, "string", "x" + "é" * 127),
    ("\U0001f525" * 100, "string", "\U0001f525" * 64),
    (IntLike(7), "int", 7),
    (numpy.float32(0.5), "float", 0.5),
    (numpy.int64(3), "int", 3),
    (numpy.bool_(True), "bool", True),
    (numpy.array(2.5), "float", 2.5),
    (numpy.array([[4]]), "int", 4),
]


def test_values_are_coerced_to_float64_int_bool_and_256_bytes_of_text(tmp_path: Path) -> None:
    def act() -> None:
        with ci.scope("values"):
            for value, _, _ in VALUES:
                ci.mark("value", value)

    marks = recorded(tmp_path, act).session.one("values").marks
    found = [mark for mark in marks if mark["name"] == "value"]
    for mark, (value, value_type, expected) in zip(found, VALUES, strict=True):
        assert mark["value_type"] == value_type, value
        assert repr(mark["value"]) == repr(expected)  # -0.0 is not 0.0, and 1 is not True


def test_non_finite_mark_values_are_preserved(tmp_path: Path) -> None:
    def act() -> None:
        for value in (math.nan, math.inf, -math.inf):
            ci.mark("value", value)

    marks = [m for m in recorded(tmp_path, act).session.marks if m["name"] == "value"]
    assert [(m["value_type"], m["value"], m["value_nonfinite"]) for m in marks] == [
        ("float", None, "nan"),
        ("float", None, "inf"),
        ("float", None, "-inf"),
    ]


def test_arrays_and_other_objects_are_refused_as_mark_values(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    refused = [numpy.zeros(3), [1.0], {"a": 1}, None, object(), 1j]
    with caplog.at_level(logging.WARNING, "cirron_otel"), opened(tmp_path) as profiler:
        for value in refused:
            ci.mark("value", value)
        ci.mark("good", 1)
        assert profiler.health()["swallowed_errors"]["mark"] == len(refused)
    assert read_spool(tmp_path).session.values == [("good", 1)]
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 1


def test_a_thread_holds_64k_marks_by_default() -> None:
    assert Config().mark_capacity == 65_536


def test_a_full_ring_drops_its_oldest_mark_and_counts_it(tmp_path: Path) -> None:
    with opened(tmp_path, mark_capacity=100, flush_interval=3600) as profiler:
        with ci.scope("main"):
            for number in range(250):
                ci.mark("number", number)
        in_threads(1, lambda _: [ci.mark("other", number) for number in range(100)])
        assert profiler.health()["mark_drop_count"] == 150
    session = read_spool(tmp_path).session
    numbers = [value for name, value in session.one("main").values if name == "number"]
    assert numbers == list(range(150, 250))
    assert [value for name, value in session.values if name == "other"] == list(range(100))


def test_nothing_is_dropped_below_the_capacity(tmp_path: Path) -> None:
    with opened(tmp_path, flush_interval=3600) as profiler:
        for number in range(65_536):
            ci.mark("number", number)
        assert profiler.health()["mark_drop_count"] == 0
    assert len(read_spool(tmp_path).session.values) == 65_536
