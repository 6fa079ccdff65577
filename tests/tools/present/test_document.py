"""The document of a run: its JSON form, its state, and its figures."""

from __future__ import annotations

import json

import jsonschema
import numpy as np
import pytest

from cirron_otel.core.records.rows import IndexedSpan
from cirron_otel.core.run.findings.finding import Finding
from cirron_otel.tools.present.document import Document
from cirron_otel.tools.present.ledger_rows import ledger_rows, percentages
from cirron_otel.tools.present.open_scopes import OpenScope
from cirron_otel.tools.present.unit_figures import ScopeRow, scope_rows, unit_figures
from tests.tools.present.made import (
    FAILED,
    FIRST_NS,
    INPUT_BOUND,
    JITTER,
    MS,
    PHASES,
    STRAGGLER,
    S,
    document,
    figures,
    ledger,
    loss,
    session,
)

DOCUMENTS = {
    "healthy": document([JITTER], marks=[loss(2.0, 1.0)]),
    "warning": document([STRAGGLER], "warning", "rank 1 is slow", [0, 1]),
    "failed": document([FAILED, INPUT_BOUND], "failed", "rank 1 failed", [0, 1]),
    "running": document(
        state="running",
        open_scopes=[OpenScope(0, "epoch", "1", FIRST_NS)],
        sessions=[session("open")],
    ),
    "requests": document(unit="request", errors=3),
    "without units": document(units=0, scopes=[ScopeRow("rollout", 2, S, MS, 2 * MS, [0])]),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_are_valid(name: str, validator: jsonschema.Draft202012Validator) -> None:
    found = json.loads(json.dumps(DOCUMENTS[name].to_json()))
    validator.validate(found)
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({**found, "verdict": None})


def test_the_accounts_add_up_to_the_total() -> None:
    found = DOCUMENTS["failed"].to_json()["ledger"]
    assert sum(each["ns"] for each in found["accounts"]) == found["total_ns"] == 50 * S
    for rank in found["ranks"]:
        assert sum(rank["accounts"].values()) == rank["total_ns"] == 25 * S
    names = [each["account"] for each in found["accounts"]]
    assert names == [
        "start_up", "input", "forward", "backward", "optimizer", "unattributed", "between_units",
    ]  # fmt: skip
    by_name = {each["account"]: each["parts"] for each in found["accounts"]}
    assert by_name["input"] == [{"name": "data_load", "ns": 2 * 200 * PHASES["data_load"]}]


def test_findings_are_sorted_by_severity_and_cost() -> None:
    found = document([JITTER, STRAGGLER, INPUT_BOUND, FAILED], "failed").to_json()["findings"]
    assert [each["kind"] for each in found] == [
        "FAILED", "INPUT_BOUND", "COMPUTE_STRAGGLER", "RANK_JITTER",
    ]  # fmt: skip


def test_wrong_values_and_growing_memory_come_ahead_of_costs() -> None:
    spikes = Finding("SPIKES", "warning", 9 * S, 0.2, "A sentence.")
    creep = Finding("CREEP_CONFIRMED", "warning", None, None, "A sentence.")
    wrong = Finding("NON_FINITE", "critical", None, None, "A sentence.")
    heavy = Finding("EVALUATION_HEAVY", "critical", 9 * S, 0.5, "A sentence.")
    found = document([spikes, creep, heavy, wrong], "critical").to_json()["findings"]
    assert [each["kind"] for each in found] == [
        "NON_FINITE", "EVALUATION_HEAVY", "CREEP_CONFIRMED", "SPIKES",
    ]  # fmt: skip


def test_each_unit_is_counted_once_for_all_ranks() -> None:
    of_run = ledger([0, 1], units=50)
    of_run.lanes[1].number = np.arange(10, 60)
    found = unit_figures(figures([0, 1], units=50), of_run)
    assert found is not None
    assert (found.count, found.ranks) == (60, [(0, 50), (1, 50)])
    of_run.lanes = of_run.lanes[:1]
    of_run.lanes[0].number = np.arange(50) % 30  # a restarted process repeats 20 units
    found = unit_figures(figures([0], units=50), of_run)
    assert found is not None
    assert found.count == 30


def test_units_of_a_ledger_with_summed_entries() -> None:
    of_run = ledger([0], units=50)
    of_run.lanes[0].size = 4
    of_run.lanes[0].number = np.arange(0, 200, 4)
    found = unit_figures(figures([0], units=200), of_run)
    assert found is not None
    assert found.count == 200


def test_the_rate_of_steps_is_that_of_a_rank_and_the_rate_of_requests_a_sum() -> None:
    steps = document(ranks=[0, 1]).units
    requests = document(ranks=[0, 1], unit="request").units
    assert steps is not None
    assert requests is not None
    assert steps.per_s == pytest.approx(1000 / 101)
    assert requests.per_s == pytest.approx(2000 / 101)


def test_a_run_without_units() -> None:
    found = DOCUMENTS["without units"].to_json()
    assert (found["ledger"], found["units"], found["phases"]) == (None, None, [])
    assert ledger_rows(None) is None


def test_scopes_by_name() -> None:
    spans = [IndexedSpan(name="rollout", start_ns=0, end_ns=ns * MS, rank=1) for ns in range(1, 21)]
    spans += [IndexedSpan(name="save", start_ns=0, end_ns=S), IndexedSpan(name="open", start_ns=5)]
    found = scope_rows(enumerate(spans))
    assert found == [
        ScopeRow("save", 1, S, S, S),
        ScopeRow("rollout", 20, 210 * MS, 10 * MS, 19 * MS, [1]),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_percentages_add_up_to_100(seed: int) -> None:
    random = np.random.default_rng(seed)
    for decimals in (0, 1, 2):
        values = random.integers(0, 10 ** random.integers(1, 18), random.integers(1, 30)).tolist()
        values[0] += 1
        texts = percentages(values, decimals)
        assert sum(round(float(text) * 10**decimals) for text in texts) == 100 * 10**decimals
        for text, value in zip(texts, values, strict=True):
            assert abs(float(text) - 100 * value / sum(values)) < 10**-decimals


def test_percentages_of_nothing() -> None:
    assert percentages([]) == []
    assert percentages([0, 0]) == ["0.0", "0.0"]


def test_a_healthy_document_has_no_problem() -> None:
    assert isinstance(DOCUMENTS["healthy"], Document)
    assert not DOCUMENTS["healthy"].has_problem
    assert DOCUMENTS["failed"].has_problem
