"""The Trace Event Format: every scope, on tracks that nest, and every mark."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cirron_otel.core.run.load.scopes import Scopes
from cirron_otel.core.run.perfetto import trace_events
from cirron_otel.core.spool.reader import BatchFile, SpoolReader
from tests.tools.conftest import SPOOLS

from .test_run_report import _START, mark, span

NAMES = [path.name for path in sorted(SPOOLS.iterdir()) if path.is_dir()]


def events(*batches: BatchFile) -> list[dict[str, Any]]:
    text = "".join(trace_events(Scopes(batches, once=True)))
    assert text.isascii()
    found: list[dict[str, Any]] = json.loads(text, parse_float=Decimal)["traceEvents"]
    return found


def batch(spans: list[dict[str, Any]], marks: list[dict[str, Any]] | None = None) -> BatchFile:
    data = {"spans": spans, "marks": marks or [], "snapshots": [], "batch_id": "b"}
    return BatchFile("b", Path("b"), json.dumps(data).encode())


def assert_nested(found: list[dict[str, Any]]) -> None:
    """On every track a scope lies in the one before it, or behind it."""
    tracks: dict[Any, list[Decimal]] = {}
    for event in found:
        if event["ph"] == "X":
            ends = tracks.setdefault((event["pid"], event["tid"]), [])
            while ends and ends[-1] <= event["ts"]:
                ends.pop()
            assert not ends or event["ts"] + event["dur"] <= ends[-1]
            ends.append(event["ts"] + event["dur"])


@pytest.mark.parametrize("name", NAMES)
def test_recordings(name: str) -> None:
    batches = list(SpoolReader(SPOOLS / name))
    found = events(*batches)
    records = [json.loads(each.data) for each in batches]
    spans = {span["id"]: span for each in records for span in each["spans"]}
    scopes = [event for event in found if event["ph"] == "X"]
    assert sorted(event["args"]["id"] for event in scopes) == sorted(spans)
    first = min([s["start_ns"] for s in spans.values()] + [
        m["ts_ns"] for r in records for m in r["marks"] if m["name"] != "cirron.overhead_ns"
    ])  # fmt: skip
    for event in scopes:
        of = spans[event["args"]["id"]]
        assert event["ts"] * 1000 == of["start_ns"] - first
        assert event["dur"] * 1000 == of["end_ns"] - of["start_ns"]
    marks = [m for r in records for m in r["marks"] if m["name"] != "cirron.overhead_ns"]
    assert len([event for event in found if event["ph"] in "Ci"]) == len(marks)
    assert_nested(found)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(0, 20))))
def test_whatever_overlaps_nests_on_its_track(
    scopes: list[tuple[int, int, int]],
) -> None:
    found = events(
        batch([
            span("s", ns, at=_START + at, id=str(number), thread_id=thread)
            for number, (thread, at, ns) in enumerate(scopes)
        ])
    )  # fmt: skip
    assert len([event for event in found if event["ph"] == "X"]) == len(scopes)
    assert_nested(found)


def test_tracks_have_names_and_marks_their_forms() -> None:
    found = events(
        batch(
            [
                span("a", 10, id="a", thread_id=7, rank=2, pid=5, index=3),
                span("b", 10, at=_START + 5, id="b", thread_id=7, rank=2, pid=5),
            ],
            [
                mark("loss", 0.5, 1, "a"),
                mark("note", "warm", 2, "a"),
                {**mark("loss", None, 3, "a"), "value_nonfinite": "inf"},
                mark("early", 1, -3, "nobody"),
            ],
        )
    )
    named = [event["args"]["name"] for event in found if event["name"].endswith("_name")]
    assert named == ["rank 2, process 5", "thread 7", "thread 7 (2)", "no scope"]
    assert [(e["name"], e["ts"], e["args"].get("index")) for e in found if e["ph"] == "X"] == [
        ("a 3", Decimal("0.003"), "3"),
        ("b", Decimal("0.008"), None),
    ]
    assert [(e["ph"], e["name"], e["pid"], e["args"]["value"]) for e in found[-4:]] == [
        ("C", "early", 2, 1),
        ("C", "loss", 1, Decimal("0.5")),
        ("i", "note", 1, "warm"),
        ("i", "loss", 1, "inf"),
    ]


def test_an_empty_spool() -> None:
    assert events() == []


def test_duplicate_records_are_exported_once() -> None:
    one = batch([span("a", 10)], [mark("loss", 1, 2, "a")])
    assert [event["ph"] for event in events(one, one)].count("X") == 1
    assert [event["ph"] for event in events(one, one)].count("C") == 1


@pytest.mark.parametrize("is_first", [True, False])
def test_of_scopes_of_the_same_times_the_parent_is_outside(is_first: bool) -> None:
    spans = [span("step", 100), span("forward", 100, "step")]
    found = events(batch(spans if is_first else spans[::-1]))
    assert [event["name"] for event in found if event["ph"] == "X"] == ["step", "forward"]
