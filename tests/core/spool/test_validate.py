"""Validation of one batch: each rule finds what it is for, and nothing in what is right."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from cirron_otel import exactjson
from cirron_otel.core.records.conform import conforms
from cirron_otel.core.records.validate import validate_batch
from cirron_otel.exactjson import Raw
from tests.kit.examples import examples
from tests.kit.spools.made import (
    EPOCH_NS,
    encoded,
    made,
    mark,
    snapshot,
    span,
)
from tests.kit.spools.mutations import batches
from tests.kit.spools.recorded import ALL_BATCHES

ERROR, NOTE = "error", "note"


def whole(**changes: Any) -> dict[str, Any]:
    """A batch with a record of each kind, `changes` made to the one whose kind is the key."""
    records = {"span": span(1), "mark": mark(2, 1), "snapshot": snapshot(3, 1)}
    for kind, change in changes.items():
        records[kind] = {k: v for k, v in (records[kind] | change).items() if v is not MISSING}
    return made(
        1, spans=[records["span"]], marks=[records["mark"]], snapshots=[records["snapshot"]]
    )


MISSING = object()


def test_a_right_batch_has_no_findings() -> None:
    assert conforms(encoded(whole())) is not None
    assert validate_batch(encoded(whole())) == []


@pytest.mark.parametrize(
    ("changes", "severity", "code", "path"),
    [
        ({"span": {"id": "x"}}, ERROR, "bad-id", "$.spans[0].id"),
        ({"span": {"id": "A" * 32}}, ERROR, "bad-id", "$.spans[0].id"),
        ({"span": {"id": "a" * 32 + "\n"}}, ERROR, "bad-id", "$.spans[0].id"),
        ({"span": {"parent_id": ""}}, ERROR, "bad-id", "$.spans[0].parent_id"),
        ({"span": {"mark_ids": ["a"]}}, ERROR, "bad-id", "$.spans[0].mark_ids[0]"),
        ({"span": {"mark_ids": None}}, ERROR, "wrong-type", "$.spans[0].mark_ids"),
        ({"span": {"start_ns": 1.5}}, ERROR, "wrong-type", "$.spans[0].start_ns"),
        ({"span": {"start_ns": -1}}, ERROR, "out-of-range", "$.spans[0].start_ns"),
        ({"span": {"start_ns": True}}, ERROR, "wrong-type", "$.spans[0].start_ns"),
        ({"span": {"end_ns": 0}}, ERROR, "end-before-start", "$.spans[0].end_ns"),
        ({"span": {"end_ns": 2**63}}, ERROR, "out-of-range", "$.spans[0].end_ns"),
        ({"span": {"end_ns": MISSING}}, ERROR, "missing-key", "$.spans[0]"),
        ({"span": {"cpu_ns": -5}}, ERROR, "out-of-range", "$.spans[0].cpu_ns"),
        ({"span": {"attrs": []}}, ERROR, "wrong-type", "$.spans[0].attrs"),
        ({"span": {"otel": 5}}, ERROR, "wrong-type", "$.spans[0].otel"),
        ({"span": {"name": 5}}, NOTE, "odd-type", "$.spans[0].name"),
        ({"span": {"index": "a"}}, NOTE, "odd-type", "$.spans[0].index"),
        ({"span": {"index": True}}, NOTE, "odd-type", "$.spans[0].index"),
        ({"span": {"new": 1}}, NOTE, "unknown-key", "$.spans[0].new"),
        ({"span": {"attrs": {"a": [float("nan")]}}}, NOTE, "nan-token", "$.spans[0].attrs.a[0]"),
        ({"span": {"attrs": {"a": 10**30}}}, NOTE, "big-number", "$.spans[0].attrs.a"),
        ({"span": {"name": "\ud800"}}, NOTE, "lone-surrogate", "$.spans[0].name"),
        ({"mark": {"span_id": "toor"}}, ERROR, "bad-id", "$.marks[0].span_id"),
        ({"mark": {"value_type": "x"}}, ERROR, "value-type", "$.marks[0].value_type"),
        ({"mark": {"value": "0.5"}}, ERROR, "value-type", "$.marks[0].value"),
        ({"mark": {"value": True}}, ERROR, "value-type", "$.marks[0].value"),
        ({"mark": {"value": None}}, ERROR, "value-type", "$.marks[0].value"),
        ({"mark": {"value_type": "int"}}, ERROR, "value-type", "$.marks[0].value"),
        ({"mark": {"value_nonfinite": "nan"}}, ERROR, "value-type", "$.marks[0].value"),
        ({"mark": {"value": None, "value_nonfinite": "x"}}, ERROR, "value-nonfinite",
         "$.marks[0].value_nonfinite"),
        ({"mark": {"value": 1}}, NOTE, "odd-type", "$.marks[0].value"),
        ({"mark": {"kind": "points"}}, ERROR, "kind", "$.marks[0].kind"),
        ({"mark": {"ts_ns": None}}, ERROR, "wrong-type", "$.marks[0].ts_ns"),
        ({"snapshot": {"span_id": "root"}}, ERROR, "bad-id", "$.snapshots[0].span_id"),
        ({"snapshot": {"mode": "none"}}, ERROR, "mode", "$.snapshots[0].mode"),
        ({"snapshot": {"shape": [2, -1]}}, ERROR, "out-of-range", "$.snapshots[0].shape[1]"),
        ({"snapshot": {"shape": "2x2"}}, ERROR, "wrong-type", "$.snapshots[0].shape"),
        ({"snapshot": {"blob_uri": "s3://x"}}, ERROR, "blob-uri", "$.snapshots[0].blob_uri"),
        ({"snapshot": {"blob_uri": 1}}, ERROR, "wrong-type", "$.snapshots[0].blob_uri"),
        ({"snapshot": {"stats": 5}}, ERROR, "wrong-type", "$.snapshots[0].stats"),
        ({"snapshot": {"dtype": None}}, ERROR, "wrong-type", "$.snapshots[0].dtype"),
    ],
)  # fmt: skip
def test_each_rule(changes: dict[str, Any], severity: str, code: str, path: str) -> None:
    found = {(f.severity, f.code, f.path) for f in validate_batch(encoded(whole(**changes)))}
    assert (severity, code, path) in found
    assert all(kind == severity for kind, _, _ in found)


@pytest.mark.parametrize(
    "changes",
    [
        {"span": {"thread_id": None, "pid": None, "rank": None, "parent_id": None, "index": -1}},
        {"span": {"cpu_ns": 1, "gpu_ns": 2, "memory_peak_bytes": 3, "otel": {"kind": 2}}},
        {"mark": {"span_id": "root"}},
        {"mark": {"value": None, "value_nonfinite": "-inf"}},
        {"mark": {"value": "x", "value_type": "string"}},
        {"mark": {"value": False, "value_type": "bool"}},
        {"mark": {"value": 3, "value_type": "int", "kind": "summary"}},
        {"snapshot": {"mode": "full", "blob_uri": "file:///x"}},
        {"snapshot": {"stats": None}},
    ],
)
def test_values_allowed_by_the_format_are_valid(changes: dict[str, Any]) -> None:
    assert validate_batch(encoded(whole(**changes))) == []


@pytest.mark.parametrize(
    ("stats", "severity", "code"),
    [
        ({"histogram": {"bins": [0.0] * 16, "counts": [1] * 16}}, ERROR, "histogram"),
        ({"histogram": {"bins": [0.0] * 17, "counts": [1] * 17}}, ERROR, "histogram"),
        ({"histogram": {"bins": [0.0] * 17}}, ERROR, "wrong-type"),
        ({"histogram": []}, ERROR, "wrong-type"),
        ({"histogram": None}, NOTE, "histogram"),
        ({"mean": "0"}, ERROR, "wrong-type"),
        ({"mean": None}, NOTE, "stats"),
        ({"median": 0.0}, NOTE, "unknown-key"),
    ],
)
def test_statistics(stats: dict[str, Any], severity: str, code: str) -> None:
    right = snapshot(3, 1)["stats"]
    found = validate_batch(encoded(whole(snapshot={"stats": right | stats})))
    assert [(finding.severity, finding.code) for finding in found] == [(severity, code)]


def test_the_batch_itself() -> None:
    batch = made(1, batch_id="x", created_ns="now", sdk_version=3, new=1)
    del batch["marks"]
    assert {(f.severity, f.code, f.path) for f in validate_batch(encoded(batch))} == {
        (ERROR, "bad-id", "$.batch_id"),
        (ERROR, "wrong-type", "$.created_ns"),
        (ERROR, "wrong-type", "$.sdk_version"),
        (ERROR, "missing-key", "$"),
        (NOTE, "unknown-key", "$.new"),
    }


def test_malformed_records_are_reported() -> None:
    data = encoded(made(1, spans=[5, None])).replace(b"null]", b'{"a":1,"a":2}]')
    assert [(f.code, f.path) for f in validate_batch(data) if f.severity == ERROR] == [
        ("wrong-type", "$.spans[0]"),
        ("repeated-key", "$.spans[1]"),
    ]


@pytest.mark.parametrize(
    ("name", "path"),
    [
        (f"{EPOCH_NS + 10**9:020d}-{1:032x}.json", None),
        ("batch.json", ""),
        (f"{EPOCH_NS:020d}-{1:032x}.json", "$.created_ns"),
        (f"{EPOCH_NS + 10**9:020d}-{2:032x}.json", "$.batch_id"),
    ],
)
@pytest.mark.parametrize("odd", [{}, {"new": 1}])
def test_the_file_name(name: str, path: str | None, odd: dict[str, Any]) -> None:
    found = validate_batch(encoded(made(1, **odd)), name)
    wrong = [f.path for f in found if f.code == "file-name"]
    assert wrong == ([] if path is None else [path])


def test_errors_are_limited_and_notes_summed_up() -> None:
    many = made(1, spans=[span(n, id="x", name=n) for n in range(300)])
    found = validate_batch(encoded(many))
    assert [f.code for f in found if f.severity == ERROR] == ["bad-id"] * 100 + ["more"]
    assert "200 more errors" in found[100].message
    assert [(f.code, f.message.partition("(")[2]) for f in found[101:]] == [
        ("odd-type", "299 more like it)")
    ]


@pytest.mark.parametrize("path", ALL_BATCHES, ids=lambda path: path.name)
def test_recorded_batches_have_no_errors(path: Any) -> None:
    found = validate_batch(path.read_bytes(), path.name)
    assert [finding for finding in found if finding.severity == ERROR] == []


def test_fast_path_accepts_most_recorded_batches() -> None:
    fast = sum(conforms(path.read_bytes()) is not None for path in ALL_BATCHES)
    assert fast / len(ALL_BATCHES) > 0.8


@settings(max_examples=examples(800), deadline=None)
@given(batches())
def test_no_batch_is_too_odd_to_be_validated(batch: Any) -> None:
    """And what the fast way lets pass, the thorough way has nothing to say about."""
    data = exactjson.dumps(batch)
    found = validate_batch(data)
    assert all(finding.message and str(finding) for finding in found)
    if conforms(data) is not None:
        pretty = data.replace(b"{", b"{ ", 1)
        assert conforms(pretty) is None
        assert validate_batch(pretty) == found == []


@pytest.mark.parametrize("depth", [150, 400, 3000])
def test_deep_nesting_does_not_crash(depth: int) -> None:
    deep = Raw("[" * depth + "]" * depth)
    data = exactjson.dumps(made(1, spans=[span(1, attrs={"deep": deep})]))
    assert {finding.code for finding in validate_batch(data)} <= {"deep", "not-json"}
