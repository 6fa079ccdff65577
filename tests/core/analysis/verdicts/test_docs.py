"""docs/verdicts.md lists every threshold and every kind of verdict."""

from __future__ import annotations

import re
from typing import get_args

from cirron_otel.core.analysis.verdicts.thresholds import THRESHOLDS
from cirron_otel.core.analysis.verdicts.verdict import Kind
from tests.kit.sessions.processes import ROOT

PAGE = (ROOT / "docs" / "verdicts.md").read_text()
_ROW = re.compile(r"^\| `([a-z_.]+)` \| ([\d.]+) \| ([\d.]+) \| (.+) \|$", re.MULTILINE)


def test_the_table_of_thresholds() -> None:
    listed = [(n, float(live), float(run), text) for n, live, run, text in _ROW.findall(PAGE)]
    assert listed == [(name, *threshold) for name, threshold in THRESHOLDS.items()]


def test_every_kind_is_described() -> None:
    rules = PAGE[PAGE.index("## The rules") : PAGE.index("**The primary verdict**")]
    described = set(re.findall(r"`([A-Z0-9_]+)`", rules))
    assert described == set(get_args(Kind))


def test_the_thresholds_that_the_rules_name_exist() -> None:
    names = set(re.findall(r"`([a-z_]+\.[a-z_]+)`", PAGE))
    files = {"optimizer.step"}
    assert names - files <= set(THRESHOLDS) | {
        "system.cpu", "cuda.memory_reserved_peak_bytes", "cuda.memory_peak_bytes", "hw.temperature",
    }  # fmt: skip
    assert set(THRESHOLDS) <= names
