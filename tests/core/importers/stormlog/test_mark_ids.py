"""`mark_ids` has every mark of a span, in order, in bounded memory."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from cirron_otel.core.importers.stormlog.mark_ids import MAX_LIST_BYTES, MarkIds
from cirron_otel.tools.convert.convert import ConvertRequest, convert
from tests.perf.bench.stormlog_cost import repeated

from .conftest import RECORDINGS

_SEGMENT = "segment-000001.jsonl"
_ID = "{:032x}".format


@pytest.mark.parametrize(
    ("place", "events"),
    [("v039/cli_track/sink", 65_536), ("v039/sim_gpu/sink", 5_000)],
    ids=["one span with 65,536 marks", "phases"],
)
def test_mark_ids_has_every_mark_in_the_order_of_the_marks(
    tmp_path: Path, place: str, events: int
) -> None:
    path = tmp_path / _SEGMENT
    count = repeated(RECORDINGS / place / _SEGMENT, path, events)
    convert(ConvertRequest(f"stormlog:{path}", str(tmp_path / "out")))
    expected: dict[str, list[str]] = defaultdict(list)
    listed: dict[str, list[str]] = {}
    for file in sorted((tmp_path / "out" / "spool").glob("*.json")):
        batch = json.loads(file.read_bytes())
        for mark in batch["marks"]:
            expected[mark["span_id"]].append(mark["id"])
        listed |= {span["id"]: span["mark_ids"] for span in batch["spans"]}
    assert sum(map(len, listed.values())) == count
    assert {span_id: ids for span_id, ids in listed.items() if ids} == expected
    assert 65_536 * len(json.dumps(_ID(0))) * 2 < MAX_LIST_BYTES


def test_lists_beyond_the_memory_go_to_a_file(tmp_path: Path) -> None:
    ids = MarkIds(tmp_path / "ids", in_memory_bytes=200)
    expected: dict[str, list[str]] = defaultdict(list)
    for number in range(300):
        span_id, mark_id = f"span {number % 7}", _ID(number)
        expected[span_id].append(mark_id)
        ids.add({span_id: [mark_id]})
    assert (tmp_path / "ids").stat().st_size > 0
    assert ids.in_memory_bytes <= 300
    assert {span_id: json.loads(ids.take(span_id)) for span_id in expected} == expected
    assert ids.take("span 0") == "[]"
    ids.close()


@pytest.mark.parametrize("step", [1, 4, 5], ids=["one by one", "in two parts", "at once"])
def test_a_list_that_is_too_long_is_empty(tmp_path: Path, step: int) -> None:
    ids = MarkIds(tmp_path / "ids", max_list_bytes=4 * 35)
    for begin in range(0, 5, step):
        ids.add({"long": [_ID(number) for number in range(begin, min(begin + step, 5))]})
    for number in range(4):
        ids.add({"fits": [_ID(number)]})
    assert ids.take("long") == "[]"
    assert json.loads(ids.take("fits")) == [_ID(number) for number in range(4)]
    assert ids.in_memory_bytes == 0
