"""An export budget holds for batches with any text of a program, also halves of surrogate pairs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cirron_otel.core.delivery.batch_target import SealedBatch
from cirron_otel.core.records.step_summaries import listed, text_of
from cirron_otel.core.targets.exported_part import exported_part
from cirron_otel.sdk.flush.export_budget import ExportBudget
from tests.perf.scale.batches import GeneratedRank, report_json, stated

ODD = [
    "\ud800",
    "a\udfffb",
    "\ud83d\ude00",
    "\\ud800",
    '"\\"\udc00',
    "\ufffd",
    "\ud83d\ud83d\ude00",
]


def changed(batch: SealedBatch, change: Any) -> SealedBatch:
    document = json.loads(batch.data)
    for record in (*document["spans"], *document["marks"]):
        change(record)
    return SealedBatch(batch.name, json.dumps(document, separators=(",", ":")).encode())


def in_attributes(text: str) -> Any:
    return lambda record: record["attrs"].update({"file": text, text: 1})


def in_names_of_marks(text: str) -> Any:
    return lambda record: "span_id" in record and record.update(name=text)


def in_names_of_scopes(text: str) -> Any:
    return lambda record: record.get("name") == "mine" and record.update(name=text)


@pytest.mark.parametrize("text", ODD)
@pytest.mark.parametrize("change", [in_attributes, in_names_of_marks, in_names_of_scopes])
def test_the_budget_counts_and_the_report_is_the_same(text: str, change: Any) -> None:
    rank, budget = GeneratedRank(5), ExportBudget(2, 2.0)
    batches, parts = [], []
    for _ in range(6):
        batch = changed(rank.batch(20), change(text))
        chosen = budget.decide(batch.data, rank.at_ns)
        batches.append(batch)
        parts.append(exported_part(stated(batch, chosen) if chosen else batch))
    recorded = sum(len(json.loads(batch.data)["spans"]) for batch in batches)
    sent = sum(len(json.loads(part.data)["spans"]) for part in parts)
    assert budget.counts.left_out > recorded / 3
    assert sent <= budget.counts.spans
    assert budget.counts.spans + budget.counts.left_out >= recorded
    assert budget.counts.grouped > 0
    assert report_json(parts) == report_json(batches)


@pytest.mark.parametrize("text", ODD)
def test_the_entries_of_a_group_are_json_for_every_parser(text: str) -> None:
    entries = [{"attrs": {text: [text, "ü"]}}]
    found = listed(text_of(entries))
    expected = json.dumps(entries, ensure_ascii=False).encode("utf-16", "surrogatepass")
    assert json.dumps(found, ensure_ascii=False) == expected.decode("utf-16", "replace")


def test_invalid_batch_text_is_not_counted() -> None:
    budget = ExportBudget(2, 2.0)
    for data in (b"{", b'{"spans": [{"id": "\\ud8', b'{"spans": 5}', b"\xff"):
        assert budget.decide(data, 1) == {}
    assert budget.counts.spans == 0
