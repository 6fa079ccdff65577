"""Sessions and counts, and the trees: from recordings, and where the chain of parents breaks."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from cirron_otel import exactjson
from cirron_otel.core.analysis.verify import verify_spool
from cirron_otel.core.run.load.errors import NotReducibleError
from cirron_otel.core.run.spool_summary import SpoolSummary, counted, read_counts, summarise
from cirron_otel.core.run.trees import Forest, TreeLimits, TreeNode, build_trees
from cirron_otel.core.spool.reader import SpoolReader
from cirron_otel.core.spool.writer import SpoolWriter
from cirron_otel.errors import InputError
from tests.core.run.spools import written
from tests.kit.examples import examples
from tests.kit.generators.ordered import ordered_spool
from tests.kit.generators.trees import random_spool, training
from tests.kit.spools.made import (
    EPOCH_NS,
    encoded,
    made,
    mark,
    snapshot,
    span,
    span_id,
)
from tests.kit.spools.mutations import batches
from tests.kit.spools.recorded import NAMES, SPOOLS, batch_files


def spool_of(root: Path, *found: dict[str, Any]) -> SpoolReader:
    writer = SpoolWriter(root, max_bytes=None)
    for batch in found:
        writer.write(encoded(batch))
    return SpoolReader(root)


class TestWays:
    """A recording whose scopes follow what is inside them is counted without being kept."""

    def test_a_training_is_counted(self, tmp_path: Path) -> None:
        assert_equal(written(tmp_path, training(3, 40)), is_counted=True)

    @pytest.mark.parametrize("name", NAMES)
    def test_recorded_spools_are_counted(self, name: str) -> None:
        assert_equal(SpoolReader(SPOOLS / name), is_counted=True)

    def test_seeded_spools_have_equal_counts_if_they_are_counted(self, tmp_path: Path) -> None:
        counts = [
            assert_equal(written(tmp_path / f"{number}", files))
            for number, files in enumerate(
                [*map(ordered_spool, range(200)), *(random_spool(each, 12) for each in range(50))]
            )
        ]
        assert sum(counts) > 60

    def test_a_mark_after_its_scope_is_read(self, tmp_path: Path) -> None:
        first, second = made(1, spans=[span(1)]), made(2, marks=[mark(2, 1)])
        reader = spool_of(tmp_path, first, second)
        with pytest.raises(NotReducibleError):
            counted(reader)
        [session] = summarise(reader).sessions
        assert (session.spans, session.marks) == (1, 1)


def assert_equal(reader: SpoolReader, *, is_counted: bool = False) -> bool:
    """Check that both ways have equal results; return whether the records can be counted."""
    try:
        found = counted(reader)
    except NotReducibleError:
        assert not is_counted
        return False
    expected = read_counts(reader)
    found.total.ranks.discard(None)
    found.total.pids.clear()
    assert found == expected
    return True


def nodes(trees: list[TreeNode]) -> list[TreeNode]:
    found = list(trees)
    for node in found:
        found.extend(node.children)
    return found


SESSION = {"name": "cirron.session", "index": None}


class TestRecorded:
    @pytest.mark.parametrize("name", NAMES)
    def test_counts(self, name: str) -> None:
        truth = [json.loads(path.read_bytes()) for path in batch_files(name)]
        found = summarise(SpoolReader(SPOOLS / name))
        assert found.files == len(truth)
        assert found.bytes == sum(path.stat().st_size for path in batch_files(name))
        for key in ("spans", "marks", "snapshots"):
            assert getattr(found, key) == sum(len(batch[key]) for batch in truth)
        spans = [each for batch in truth for each in batch["spans"]]
        assert found.first_ns == min(each["start_ns"] for each in spans)
        assert found.last_ns == max(each["end_ns"] for each in spans)
        assert found.ranks == sorted({each["rank"] for each in spans})
        assert sum(session.spans for session in found.sessions) == len(spans)
        assert sum(s.marks for s in found.sessions) + found.marks_unattached == found.marks
        assert found.sdk_versions == ["0.3.0"]
        json.dumps(found.to_json(), allow_nan=False)

    @pytest.mark.parametrize(
        ("name", "sessions", "states"),
        [("01_torch_basic", 1, {"closed"}), ("06_threads", 1, {"closed"}),
         ("07_ranks", 8, {"closed"}), ("23_sigkill_plus_stray_tmp", 1, {"unfinished"})],
    )  # fmt: skip
    def test_sessions(self, name: str, sessions: int, states: set[str]) -> None:
        found = summarise(SpoolReader(SPOOLS / name))
        assert len(found.sessions) == found.session_count == sessions
        assert {session.state for session in found.sessions} == states

    def test_the_ranks_of_each_session(self) -> None:
        found = summarise(SpoolReader(SPOOLS / "07_ranks"))
        assert [s.ranks for s in found.sessions] == [[0], [1], [2], [3], [5], [0], [-3], [0]]
        assert all(s.spans == 13 and s.marks == 10 and len(s.pids) == 1 for s in found.sessions)

    def test_skipped_files_are_counted(self) -> None:
        assert summarise(SpoolReader(SPOOLS / "23_sigkill_plus_stray_tmp")).skipped == 1

    @pytest.mark.parametrize("name", NAMES)
    def test_trees_hold_every_span_below_its_parent(self, name: str) -> None:
        truth = {
            each["id"]: each
            for path in batch_files(name)
            for each in json.loads(path.read_bytes())["spans"]
        }
        marks = [m for path in batch_files(name) for m in json.loads(path.read_bytes())["marks"]]
        forest = build_trees(SpoolReader(SPOOLS / name), limits=TreeLimits(marks=100_000))
        found = nodes(forest.trees)
        assert {node.id for node in found if node.recorded} == set(truth)
        assert forest.shown == forest.spans == len(truth)
        for node in found:
            for child in node.children:
                assert child.id is not None
                assert truth[child.id]["parent_id"] == node.id
            if node.recorded and node.id is not None:
                each = truth[node.id]
                assert node.duration_ns == each["end_ns"] - each["start_ns"]
                assert (node.rank, node.pid) == (each["rank"], each["pid"])
        shown = sum(len(node.marks) for node in found) + len(forest.marks_unattached)
        assert shown == len(marks)
        json.dumps(forest.to_json(), allow_nan=False)

    def test_the_killed_run_hangs_on_placeholders(self) -> None:
        forest = build_trees(SpoolReader(SPOOLS / "23_sigkill_plus_stray_tmp"))
        assert [(tree.recorded, len(tree.children), len(tree.marks)) for tree in forest.trees] == [
            (False, 9, 0),
            (False, 0, 1),
        ]

    def test_one_session(self) -> None:
        reader = SpoolReader(SPOOLS / "07_ranks")
        third = summarise(reader).sessions[2]
        forest = build_trees(reader, session=third.id)
        assert (forest.spans, forest.shown, len(forest.trees)) == (13, 13, 1)
        assert {node.rank for node in nodes(forest.trees)} == {2}
        with pytest.raises(InputError, match="no session 'x' in this spool"):
            build_trees(reader, session="x")


class TestSessions:
    def only(self, summary: SpoolSummary) -> Any:
        [session] = summary.sessions
        return session

    def test_spans_without_a_parent_belong_to_their_process(self, tmp_path: Path) -> None:
        batch = made(1, spans=[span(1, **SESSION), span(2), span(3, 2)], marks=[mark(1, 3)])
        session = self.only(summarise(spool_of(tmp_path, batch)))
        assert (session.id, session.spans, session.marks) == (span_id(1), 3, 1)

    def test_an_open_session_is_known_by_its_epochs(self, tmp_path: Path) -> None:
        spans = [span(2, 1, name="epoch"), span(3, 2), span(4, 9), span(5, 1, name="forward")]
        marks = [mark(1, 1), mark(2, "root"), mark(3, 77)]
        batch = made(1, spans=spans, marks=marks, snapshots=[snapshot(1, 2)])
        found = summarise(spool_of(tmp_path, batch))
        session = self.only(found)
        assert (session.id, session.state) == (span_id(1), "unfinished")
        # 4 lies in a step that never ended; its process has one session.
        assert (session.spans, session.marks, session.snapshots) == (4, 1, 1)
        assert found.marks_unattached == 2

    def test_time_decides_between_two_sessions_of_a_process(self, tmp_path: Path) -> None:
        def at(number: int, start: int, end: int, **changes: Any) -> dict[str, Any]:
            return span(number, start_ns=EPOCH_NS + start, end_ns=EPOCH_NS + end, **changes)

        spans = [
            at(1, 0, 100, **SESSION), at(2, 200, 300, **SESSION),
            at(3, 50, 60), at(4, 250, 260), at(5, 260, 270), at(6, 150, 160),
        ]  # fmt: skip
        found = summarise(spool_of(tmp_path, made(1, spans=spans)))
        assert [(s.id, s.state, s.spans) for s in found.sessions] == [
            (span_id(1), "closed", 2),
            (span_id(2), "closed", 3),
            (None, "none", 1),
        ]

    def test_spans_without_a_session_are_grouped_by_process(self, tmp_path: Path) -> None:
        spans = [span(number, pid=number % 3) for number in range(30)]
        found = summarise(spool_of(tmp_path, made(1, spans=spans)))
        assert [(s.id, s.state, s.spans, s.pids) for s in found.sessions] == [
            (None, "none", 10, [0]), (None, "none", 10, [1]), (None, "none", 10, [2]),
        ]  # fmt: skip


class TestTrees:
    def build(self, root: Path, *spans: dict[str, Any], **limits: int) -> Forest:
        return build_trees(spool_of(root, made(1, spans=list(spans))), limits=TreeLimits(**limits))

    def test_children_are_in_order_of_start(self, tmp_path: Path) -> None:
        forest = self.build(tmp_path, span(3, 1), span(2, 1), span(4, 1), span(1))
        [root] = forest.trees
        assert [child.index for child in root.children] == ["2", "3", "4"]

    def test_spans_over_the_limits_are_counted(self, tmp_path: Path) -> None:
        spans = [span(1), *(span(n, 1) for n in range(2, 12)), *(span(n, 2) for n in range(12, 20))]
        [root] = self.build(tmp_path / "a", *spans, children=3).trees
        assert ([c.index for c in root.children], root.children_left_out) == (["2", "3", "4"], 7)
        assert root.children[0].children_left_out == 5
        [root] = self.build(tmp_path / "b", *spans, depth=2).trees
        assert [child.children_left_out for child in root.children] == [8] + [0] * 9
        forest = self.build(tmp_path / "c", *spans, spans=6)
        assert (forest.shown, forest.spans) == (6, 19)
        assert forest.trees[0].children_left_out == 5

    def test_marks_over_the_limit_are_counted(self, tmp_path: Path) -> None:
        marks = [mark(number, 1, value=float(number)) for number in range(10)]
        reader = spool_of(tmp_path, made(1, spans=[span(1)], marks=marks))
        [root] = build_trees(reader, limits=TreeLimits(marks=4)).trees
        assert [each.value for each in root.marks] == ["0.0", "1.0", "2.0", "3.0"]
        assert root.marks_left_out == 6

    def test_too_many_trees_are_counted(self, tmp_path: Path) -> None:
        forest = self.build(tmp_path, *(span(number) for number in range(20)), spans=5)
        assert (len(forest.trees), forest.trees_left_out, forest.shown) == (5, 15, 5)

    def test_a_circle_of_parents_and_repeated_ids_end(self, tmp_path: Path) -> None:
        circle = [span(1, 2), span(2, 1), span(3, 3)]
        forest = self.build(tmp_path / "a", *circle, span(4))
        assert (forest.shown, forest.spans) == (1, 4)
        assert summarise(SpoolReader(tmp_path / "a")).spans == 4
        # The first of the two spans 5 has no parent: the circle through the other is reached.
        forest = self.build(tmp_path / "b", span(5), span(5, 6), span(6, 5))
        assert forest.shown == 3

    def test_a_deep_chain(self, tmp_path: Path) -> None:
        spans = [span(number, number - 1 if number else None) for number in range(3000)]
        forest = self.build(tmp_path, *spans)
        assert forest.shown == 64
        json.dumps(forest.to_json())
        assert summarise(SpoolReader(tmp_path)).sessions[0].spans == 3000


@settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(batches(), batches())
def test_no_batch_is_too_odd(tmp_path_factory: pytest.TempPathFactory, one: Any, two: Any) -> None:
    root = tmp_path_factory.mktemp("odd")
    writer = SpoolWriter(root, max_bytes=None, durable=False)
    writer.write(exactjson.dumps(one), "1.json")
    writer.write(exactjson.dumps(two), "2.json")
    reader = SpoolReader(root)
    files = len(list(reader))
    found = summarise(reader)
    assert found.files == files
    assert sum(session.spans for session in found.sessions) <= found.spans
    json.dumps(found.to_json()).encode()
    forest = build_trees(reader)
    assert forest.shown <= forest.spans == found.spans
    json.dumps(forest.to_json()).encode()
    assert all(str(finding) for finding in verify_spool(reader))


def test_memory_does_not_grow_with_the_spool(tmp_path: Path) -> None:
    """Ten times the spool: the same peak of Python's own memory, without SQLite's bounded cache.

    A summary, and trees, take a bounded number of bytes for each span that is not shown.
    """
    peaks = []
    for count in (10, 100):
        root = tmp_path / str(count)
        writer = SpoolWriter(root, max_bytes=None, durable=False)
        for number in range(count):
            first = number * 200
            spans = [span(first + n, 10**6) for n in range(200)]
            writer.write(encoded(made(number, spans=spans)))
        reader = SpoolReader(root)
        tracemalloc.start()
        list(verify_spool(reader))
        same = tracemalloc.get_traced_memory()[1]
        summarise(reader)
        build_trees(reader, limits=TreeLimits(spans=10))
        peaks.append((same, tracemalloc.get_traced_memory()[1]))
        tracemalloc.stop()
    assert peaks[1][0] < peaks[0][0] * 1.2
    assert peaks[1][1] - peaks[0][1] < 800 * 90 * 200
