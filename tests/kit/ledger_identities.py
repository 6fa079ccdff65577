"""The identities that hold for the ledger, the findings and the document of every recording."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from cirron_otel.core.run.figures.ledger import Ledger
from cirron_otel.core.run.findings.finding import Finding


def assert_exact(ledger: Ledger) -> None:
    """The accounts of each lane add up to the extent, and no time is negative."""
    extent = ledger.last_ns - ledger.first_ns
    for lane in ledger.lanes:
        assert sum(lane.totals.values()) == extent
        assert all((times >= 0).all() for times in lane.accounts.values())
        assert all(ns >= 0 for ns in lane.outside.values())
        for account in {account for account, _ in lane.parts}:
            listed = sum(ns for (of, _), ns in lane.parts.items() if of == account)
            assert listed <= lane.totals.get(account, 0)
    assert sum(ledger.totals.values()) == ledger.total_ns


def assert_affordable(findings: Sequence[Finding], total_ns: int) -> None:
    """The findings cost at most the total, and no share or gain exceeds its whole."""
    claimed = 0
    for finding in findings:
        assert finding.cost_ns is None or finding.cost_ns >= 0
        for share in (finding.share, finding.running_share):
            assert share is None or 0 <= share <= 1
        if finding.share_low is not None and finding.share is not None:
            assert 0 <= finding.share_low <= finding.share + 1e-9
        if finding.severity != "notice":
            claimed += finding.cost_ns or 0
        assert finding.sentence.endswith(".")
        assert finding.advice or finding.severity == "notice"
        assert all(first <= last for first, last in finding.steps)
        assert all(math.isfinite(each) for each in _numbers(finding.evidence))
        assert all((each.gain_ns or 0) <= (finding.cost_ns or 0) for each in finding.advice)
    assert claimed <= total_ns


def assert_consistent(document: dict[str, Any]) -> None:
    """The ledger of a document adds up, and its shares are at most 1. All of it is JSON."""
    json.dumps(document, allow_nan=False)
    ledger = document["ledger"]
    if ledger is None:
        return
    assert sum(each["ns"] for each in ledger["accounts"]) == ledger["total_ns"]
    for account in ledger["accounts"]:
        assert account["ns"] >= 0
        assert account["share"] is None or 0 <= account["share"] <= 1
        assert sum(each["ns"] for each in account["parts"]) <= account["ns"]
    for rank in ledger["ranks"]:
        assert sum(rank["accounts"].values()) == rank["total_ns"]
    costs = [each["cost_ns"] or 0 for each in document["findings"] if each["severity"] != "notice"]
    assert sum(costs) <= ledger["total_ns"]


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            yield from _numbers(each)
    elif isinstance(value, int | float):
        yield value
