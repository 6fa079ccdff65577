"""Workers of a DataLoader record nothing by default, and a tree each with `workers=True`."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.spool.paths import target_spool
from cirron_otel.core.spool.recovery import recover
from tests.conftest import leave_out
from tests.kit.forked_scripts import ForkedScripts
from tests.kit.servers.backend import Backend
from tests.kit.sessions.processes import environment
from tests.kit.sessions.spool_trees import Node, Spool, read_spool

from .programs import PROGRAMS
from .programs.loading_workers import BATCH, ROWS

PROGRAM = PROGRAMS / "loading_workers.py"
CASES = ["forked", "forked=off", "spawned", "streamed", "single_rows", "in_this_process",
         "failing", "killed", "stateful"]  # fmt: skip
LOADED = ["fetch", "collate"]


class Ran:
    """What all cases left."""

    def __init__(self, scripts: ForkedScripts, directory: Path) -> None:
        self.directory = directory
        has_torchdata = importlib.util.find_spec("torchdata") is not None
        self.cases = [case for case in CASES if case != "stateful" or has_torchdata]
        self.results = scripts.result(PROGRAM, directory, *self.cases)

    def sessions(self, case: str) -> tuple[Node, list[Node]]:
        """The session of the process, and those of its workers."""
        spool = read_spool(self.directory / case)
        assert len(spool.roots) == len(spool.sessions)
        assert spool.lost == []
        pid = self.results[case]["pid"]
        (own,) = [each for each in spool.sessions if each.record["pid"] == pid]
        return own, [each for each in spool.sessions if each is not own]


@pytest.fixture(scope="module")
def ran(scripts: ForkedScripts, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return Ran(scripts, tmp_path_factory.mktemp("workers"))


def names(node: Node) -> list[Any]:
    """Names and indexes of what is below, fetches with what they hold."""
    return [(each.name, each.record["index"], names(each)) for each in node.children]


def fetches(count: int) -> list[Any]:
    return [("fetch", index, [("collate", None, [])]) for index in range(count)]


def rows(node: Node) -> list[int]:
    """The rows of a worker's fetches, in order."""
    return [m["value"] for each in node.children for m in each.marks if m["name"] == "row"]


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("forked", {0: [2, 2], 1: [2, 2]}),
        ("spawned", {0: [2 * ROWS // BATCH]}),
        ("streamed", {0: [4], 1: [4]}),
        ("single_rows", {0: [ROWS]}),
        ("stateful", {0: [ROWS // BATCH]}),
    ],
)
def test_each_worker_has_a_session_with_its_fetches(
    ran: Ran, case: str, expected: dict[int, list[int]]
) -> None:
    if case not in ran.cases:
        leave_out("torchdata is not installed")
    own, workers = ran.sessions(case)
    found: dict[int, list[int]] = {}
    for each in workers:
        worker = each.record["attrs"]["worker"]
        assert names(each) == fetches(len(each.children))
        assert {fetch.record["attrs"]["worker"] for fetch in each.children} == {worker}
        assert len({span.record["pid"] for span in [each, *each.children]}) == 1
        (link,) = each.record["otel"]["links"]
        assert link["span_id"] == own.record["id"][:16]
        assert each.record["rank"] == own.record["rank"]
        assert "status" not in each.record["otel"]
        found.setdefault(worker, []).append(len(each.children))
    assert found == expected
    pids = {row[0] for row in ran.results[case]["rows"]}
    assert {each.record["pid"] for each in workers} == pids
    assert {row[1] for row in ran.results[case]["rows"]} == {1}, (
        "one thread of ours, the flush thread"
    )
    fetched = sorted(row for each in workers for row in rows(each))
    assert fetched == sorted(row[3] for row in ran.results[case]["rows"])


def test_marks_in_a_custom_collate_function_attach_to_the_collate_span(ran: Ran) -> None:
    _, workers = ran.sessions("streamed")
    collates = [found for each in workers for found in each.find("collate")]
    assert [each.mark("collated")["value"] for each in collates] == [BATCH] * len(collates)


def test_worker_tracing_does_not_change_the_spans_of_the_main_process(ran: Ran) -> None:
    own, _ = ran.sessions("forked")
    untraced, workers = ran.sessions("forked=off")
    assert workers == []
    assert names(own) == names(untraced)


def test_by_default_nothing_happens_in_a_worker(ran: Ran) -> None:
    results, spool = ran.results["forked=off"], read_spool(ran.directory / "forked=off")
    assert {span["pid"] for span in spool.spans} == {results["pid"]}
    assert {row[1] for row in results["rows"]} == {0}, "no thread"
    assert len({row[0] for row in results["rows"]}) == 4
    assert [mark for mark in spool.marks if mark["name"] == "row"] == []
    assert len(owners_of(spool)) == 1


def test_worker_tracing_does_not_change_random_draws_in_workers(ran: Ran) -> None:
    drawn = [[row[2:] for row in ran.results[case]["rows"]] for case in ("forked", "forked=off")]
    assert drawn[0] == drawn[1]


def test_a_loader_without_workers_has_no_fetches(ran: Ran) -> None:
    own, workers = ran.sessions("in_this_process")
    assert workers == []
    assert len(own.find("data_load")) == ROWS // BATCH
    assert own.find("fetch") == own.find("collate") == []


def test_a_row_that_cannot_be_had(ran: Ran) -> None:
    own, (worker,) = ran.sessions("failing")
    assert ran.results["failing"]["rows"] == ROWS - BATCH
    statuses = [each.record.get("otel", {}).get("status", {}) for each in worker.children]
    assert [status.get("code", 0) for status in statuses] == [0, 0, 2, 0]
    assert statuses[2]["message"] == "ValueError: no such row"
    assert [len(each.children) for each in worker.children] == [1, 1, 0, 1]
    assert "status" not in worker.record["otel"]
    assert "status" not in own.record.get("otel", {})


def test_killed_worker_loses_only_unflushed_records(ran: Ran) -> None:
    assert ran.results["killed"]["rows"] == ["DataLoader worker"]
    directory = ran.directory / "killed"
    before = read_spool(directory)
    assert len(before.sessions) == 1
    recover(target_spool(directory))
    own, (worker,) = ran.sessions("killed")
    assert worker.record["attrs"]["incomplete"] is True
    assert worker.record["attrs"]["worker"] == 0
    assert [len(each.children) for each in worker.children] == [1, 1, 0]
    assert worker.children[2].record["attrs"]["incomplete"] is True
    assert rows(worker) == [0, 1, 2, 3, 4]
    assert own.record["end_ns"]


def test_the_others_ended_by_themselves(ran: Ran) -> None:
    """Torch terminates a worker that takes too long: that would have left a lock and a journal."""
    for case in ran.cases:
        if case != "killed":
            assert list((ran.directory / case / "state").iterdir()) == [], case
    assert ran.results["said"] == []


def test_worker_spans_are_delivered_to_the_backend(scripts: ForkedScripts, tmp_path: Path) -> None:
    with Backend.running() as backend:
        scripts.result(PROGRAM, tmp_path, "forked", **backend.cirron())
        # Torch gives a worker little time to end: what it could not send is in the spool.
        flush = [sys.executable, "-m", "cirron_otel", "spool", "flush", str(tmp_path / "forked")]
        subprocess.run(flush, env=environment(**backend.cirron()), timeout=180, check=True)
    spool = read_spool(tmp_path / "forked")
    assert len(spool.sessions) == 5
    assert sorted(backend.span_ids) == sorted(span["id"] for span in spool.spans)


def owners_of(spool: Spool) -> set[str]:
    """The first parts of the batches' ids: their writers'."""
    return {batch["batch_id"][:12] for batch in spool.batches}
