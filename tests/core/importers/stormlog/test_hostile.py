"""Generated recordings, hostile ones included, come back; limits are small so that all are met."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cirron_otel.core.importers.stormlog import phase_store, prepared, sorting
from cirron_otel.core.importers.stormlog.marks import (
    ARRAY,
    LINES,
    MarkWriter,
    bytes_of_json,
    is_text_of,
    text_json,
    text_of,
)

from .conftest import EVENTS
from .returning import (
    files_of,
    imported,
    records_in,
    written,
)

SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=6)
    | st.sampled_from(["\ud800", "\x00", "é", "\u2028", "1e5", ", ", '": ', "}", "]"])
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
EVENT_TYPES = st.sampled_from(
    ["sample", "peak", "start", "stop", "error", "warning", "phase_enter", "phase_exit", "x y"]
)


@st.composite
def records(draw: st.DrawFn) -> dict[str, Any]:
    """A record of schema 3 or 4 with any metadata, boundaries and origins among it."""
    record: dict[str, Any] = json.loads(EVENTS[0])
    kind = draw(EVENT_TYPES)
    scope = draw(st.sampled_from(["a", "b", "c"]))
    metadata = draw(st.dictionaries(st.text(max_size=4), VALUES, max_size=3))
    if kind.startswith("phase") and draw(st.booleans()):
        metadata["phase_scope"] = {
            "action": kind.removeprefix("phase_"), "name": scope, "path": ["p", scope], "depth": 2,
            "scope_id": scope, "parent_scope_id": None, "thread_name": "t",
            "thread_id": draw(st.integers(0, 2)), "sequence": draw(st.integers(0, 9)),
            "attributes": draw(st.dictionaries(st.sampled_from(["epoch", "a"]), VALUES)),
        }  # fmt: skip
    if draw(st.booleans()):
        metadata["origin_thread_id"] = draw(st.integers(0, 2) | VALUES)
    if draw(st.booleans()):
        metadata["oom_reason"] = draw(VALUES)
    version = draw(st.sampled_from([3, 4]))
    counters = st.integers(0, 2**66) | (st.none() if version == 4 else st.nothing())
    return record | {
        "schema_version": version,
        "timestamp_ns": draw(st.integers(0, 30) | st.integers(2**63 - 2, 2**63 - 1)),
        "event_type": kind,
        "session_id": draw(st.sampled_from(["s1", "5f0c54a5-6a6f-4b8e-8d5a-0f5f3f1a2b3c"])),
        "rank": draw(st.integers(0, 1)),
        "world_size": 2,
        "context": draw(st.none() | st.text(max_size=5)),
        "allocator_allocated_bytes": draw(counters),
        "allocator_change_bytes": draw(st.integers(-(2**66), 2**66)),
        "device_total_bytes": None,
        "metadata": metadata,
    }


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every list is spilled into a temporary file after a few entries."""
    monkeypatch.setattr(prepared, "BATCH_MARKS", 4)
    monkeypatch.setattr(prepared, "DOCUMENT_PART", 50)
    monkeypatch.setattr(prepared, "CHUNK_MEMORY", 3000)
    monkeypatch.setattr(phase_store, "ROWS_IN_MEMORY", 2)
    monkeypatch.setattr(phase_store, "SLACK_NS", 3)
    monkeypatch.setattr(sorting, "IDS_IN_MEMORY", 3)


def lines_of(found: list[dict[str, Any]]) -> bytes:
    """Records as lines, also those that JSON has no number or text for."""
    return b"".join(json.dumps(each, sort_keys=True).encode() + b"\n" for each in found)


@settings(max_examples=60, deadline=None)
@given(
    found=st.lists(records() | st.sampled_from([json.loads(e) for e in EVENTS[:9]]), max_size=14),
    torn=st.binary(max_size=5).filter(lambda data: b"\n" not in data),
    is_array=st.booleans(),
)
def test_any_recording_comes_back(found: list[dict[str, Any]], torn: bytes, is_array: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if is_array:
            path = folder / "events.json"
            path.write_text(json.dumps(found, indent=2))
        else:
            path = folder / "sink"
            path.mkdir()
            (path / "segment-000001.jsonl").write_bytes(lines_of(found) + torn)
            (path / "notes.txt").write_bytes(torn * 100)
        spool, _ = imported(path, folder)
        assert len(records_in(spool, "marks")) == len(found)
        assert written(spool, path, folder) == files_of(path)
        _, again = imported(path, folder)
        assert again.written == 0


@given(record=records())
def test_texts_are_those_that_python_writes(record: dict[str, Any]) -> None:
    line = json.dumps(record, sort_keys=True).encode()
    element = json.dumps(record, indent=2).replace("\n", "\n  ").encode()
    assert text_of(record, LINES) == line
    assert text_of(record, ARRAY) == element
    assert is_text_of(record, line, LINES)
    assert not is_text_of(record, line + b" ", LINES)


@given(data=st.binary(max_size=30))
def test_any_bytes_have_a_json_value(data: bytes) -> None:
    value = json.loads(json.dumps(text_json(data)))
    assert bytes_of_json(value) == data


def test_cached_strings_do_not_grow_without_limit() -> None:
    writer = MarkWriter()
    for number in range(10_000):
        writer.write(1, "x", 1, (0, *[None] * 7), "c", 0, f"context {number}", "")
    assert len(writer._strings) <= 4096
