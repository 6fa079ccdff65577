"""Many records: what was made is in the spool or counted as dropped, once, where it belongs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.kit.sessions.processes import run
from tests.kit.sessions.whole import SESSION, batch_files


class Span(msgspec.Struct):
    id: str
    name: str
    parent_id: str | None
    mark_ids: list[str]


class Mark(msgspec.Struct):
    id: str
    span_id: str
    name: str


class Batch(msgspec.Struct):
    spans: list[Span]
    marks: list[Mark]


decoder = msgspec.json.Decoder(Batch)


def made(directory: Path, **options: Any) -> dict[str, Any]:
    done = run("volume", directory, json.dumps(options))
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    assert summary["is_done"]
    assert summary["health"]["swallowed_error_count"] == 0, summary["health"]["last_errors"]
    return summary


class Seen:
    """What a spool says, by name: names are unique."""

    def __init__(self, directory: Path) -> None:
        self.spans: dict[str, str] = {}
        """Ids by name."""
        self.parents: dict[str, str | None] = {}
        """Parents' ids, by name."""
        self.marks: dict[str, tuple[int, int]] = {}
        """(id, span's id) by name, as integers: there are many."""
        listed: set[int] = set()
        for path in batch_files(directory):
            batch = decoder.decode(path.read_bytes())
            for span in batch.spans:
                assert span.name not in self.spans, "twice"
                self.spans[span.name], self.parents[span.name] = span.id, span.parent_id
                before = len(listed)
                listed.update(int(mark_id, 16) for mark_id in span.mark_ids)
                assert len(listed) == before + len(span.mark_ids), "a mark on two spans"
            for mark in batch.marks:
                assert mark.name not in self.marks, "twice"
                self.marks[mark.name] = int(mark.id, 16), int(mark.span_id, 16)
        assert len(set(self.spans.values())) == len(self.spans)
        on_spans = {mark_id for mark_id, _ in self.marks.values()}
        assert (len(on_spans - listed), len(listed - on_spans)) == (0, 0)

    def check_parents(self) -> None:
        """Each hangs on the nearest recorded scope of those that it was made in."""
        for name, parent_id in self.parents.items():
            above = self.around(name)
            assert parent_id == (self.spans[above] if above is not None else None), name
        for name, (_, span_id) in self.marks.items():
            assert span_id == int(self.spans[name], 16), name

    def around(self, name: str) -> str | None:
        if name == SESSION:
            return None
        while "/" in name:
            name = name.rpartition("/")[0]
            if name in self.spans:
                return name
        return SESSION


def check(directory: Path, summary: dict[str, Any]) -> Seen:
    """See that nothing is missing, twice, or out of place."""
    seen = Seen(directory)
    health = summary["health"]
    assert len(seen.spans) + health["scope_drop_count"] == summary["scopes"]
    assert len(seen.marks) + health["mark_drop_count"] == summary["marks"]
    assert (health["recorded"]["spans"], health["recorded"]["marks"]) == (
        len(seen.spans),
        len(seen.marks),
    )
    seen.check_parents()
    return seen


@pytest.mark.slow
def test_eight_threads_and_200_tasks(tmp_path: Path) -> None:
    summary = made(tmp_path, threads=8, tasks=200, rounds=10_000, spool_max_bytes=4_000_000_000)
    assert summary["scopes"] > 160_000
    assert summary["health"]["drops"]["batches_evicted"] == 0
    check(tmp_path, summary)


def test_records_that_exceed_the_buffers_are_counted(tmp_path: Path) -> None:
    summary = made(
        tmp_path, threads=8, tasks=50, rounds=5_000, scope_capacity=4_000, mark_capacity=500,
        flush_interval=5.0,
    )  # fmt: skip
    drops = summary["health"]["drops"]
    assert drops["scopes_buffer_full"] > 0
    assert drops["marks_buffer_full"] > 0
    check(tmp_path, summary)


def test_memory_is_bounded_by_the_capacity_and_not_by_the_record_count(tmp_path: Path) -> None:
    small = {"threads": 4, "tasks": 10, "scope_capacity": 10_000, "mark_capacity": 5_000}
    few = made(tmp_path / "few", rounds=2_500, **small)
    many = made(tmp_path / "many", rounds=30_000, **small)
    assert many["scopes"] > 10 * few["scopes"]
    assert many["peak_bytes"] < few["peak_bytes"] + 60_000_000
    check(tmp_path / "many", many)


@pytest.mark.slow
def test_none_is_dropped_at_20_000_records_a_second(tmp_path: Path) -> None:
    """In 15 s, with half of the default buffers: a flush that is too slow still fills them."""
    options = {"scope_capacity": 131_072, "mark_capacity": 32_768}
    done = run("steady", tmp_path, "20000", "15", json.dumps(options))
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["is_done"]
    assert not any(summary["health"]["drops"].values())
    seen = check(tmp_path, summary)
    assert len(seen.spans) == summary["scopes"]
    assert len(seen.marks) == summary["marks"]
