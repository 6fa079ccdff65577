"""docs/findings.md lists every kind, and every threshold with its value."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cirron_otel.core.run.findings import conclude
from cirron_otel.core.run.findings.thresholds import KINDS, LIMITS, limits_of
from cirron_otel.errors import UsageError
from tests.kit.sessions.processes import ROOT

PAGE = (ROOT / "docs" / "findings.md").read_text()
_ROW = re.compile(r"^\| `([a-z0-9_.]+)` \| ([\d.e+]+) \| (.+) \|$", re.MULTILINE)
_KIND = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*")


def test_the_table_of_thresholds() -> None:
    listed = [(name, float(value), text) for name, value, text in _ROW.findall(PAGE)]
    expected = [(name, float(f"{each.value:g}"), each.meaning) for name, each in LIMITS.items()]
    assert listed == expected


def test_every_kind_is_described() -> None:
    table = PAGE[PAGE.index("## Kinds") : PAGE.index("Severities are")]
    assert set(re.findall(r"`([A-Z0-9_]{5,})`", table)) == set(KINDS)


def test_every_kind_that_the_rules_give_is_listed() -> None:
    """The kinds are the texts in capitals of the modules."""
    folder = Path(conclude.__file__).parent
    texts = {text for path in folder.glob("*.py") if path.name != "thresholds.py"
             for text in re.findall(r'"([A-Z0-9_]{5,})"', path.read_text())}  # fmt: skip
    assert texts <= set(KINDS)
    assert {kind for kind in KINDS if _KIND.fullmatch(kind)} == set(KINDS)


def test_the_thresholds_and_kinds_that_the_page_names_exist() -> None:
    assert set(re.findall(r"`([a-z0-9_]+\.[a-z_]+)`", PAGE)) - {
        "evidence.places",
        "evidence.samples",
        "evidence.victims",
    } == set(LIMITS)
    assert {prefix for prefix in KINDS.values() if prefix} <= {
        name.split(".")[0] for name in LIMITS
    }


@pytest.mark.parametrize(
    "text",
    ["input_bound.warning", "unknown=1", "creep.bytes=x", "creep.bytes=-1", "creep.bytes=nan",
     "input_bound.warning=0.3"],
)  # fmt: skip
def test_invalid_thresholds(text: str) -> None:
    with pytest.raises(UsageError):
        limits_of([text])


def test_changed_thresholds() -> None:
    limits = limits_of(["input_bound.warning=0.3", "input_bound.critical=0.5"])
    assert limits.severity("input_bound", 0.4) == "warning"
    assert limits["spikes.factor"] == 3
    assert limits.to_json()["input_bound.critical"] == 0.5
    assert set(limits.to_json()) == set(LIMITS)
