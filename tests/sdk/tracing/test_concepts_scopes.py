"""Cirron's concepts page, "Scope tree": docs/conformance.md says which sentence each test holds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
from pathlib import Path

import pytest

import cirron_otel as ci
from cirron_otel.sdk.tracing.scope import drops
from tests.kit.sessions.opened import in_threads, opened, recorded
from tests.kit.sessions.spool_trees import Node, read_spool


def names(node: Node) -> list[str]:
    return [child.name for child in node.children]


def test_a_scope_is_a_named_span_with_times_index_attributes_parent_and_marks(
    tmp_path: Path,
) -> None:
    def act() -> None:
        with ci.scope("epoch", 3, dataset="imagenet"):
            ci.mark("loss", 0.5)
            with ci.scope("plain"):
                pass

    spool = recorded(tmp_path, act)
    epoch = spool.session.one("epoch")
    record = epoch.record
    assert (record["index"], record["attrs"]) == (3, {"dataset": "imagenet"})
    assert record["start_ns"] <= epoch.one("plain").record["start_ns"]
    assert epoch.one("plain").record["end_ns"] <= record["end_ns"]
    assert record["parent_id"] == spool.session.record["id"]
    assert epoch.mark("loss")["id"] in record["mark_ids"]
    plain = epoch.one("plain").record
    assert (plain["index"], plain["attrs"], plain["parent_id"]) == (None, {}, record["id"])


def test_marks_go_to_the_innermost_open_scope(tmp_path: Path) -> None:
    def act() -> None:
        with ci.scope("outer"):
            ci.mark("before", 1)
            with ci.scope("inner"):
                ci.mark("inside", 2)
            ci.mark("behind", 3)

    session = recorded(tmp_path, act).session
    assert session.one("outer").values == [("before", 1), ("behind", 3)]
    assert session.one("inner").values == [("inside", 2)]


def test_threads_have_separate_trees_tagged_with_the_thread(tmp_path: Path) -> None:
    def act(number: int) -> None:
        with ci.scope("work", number), ci.scope("part", number):
            ci.mark("number", number)

    def run() -> None:
        with ci.scope("main"):
            in_threads(4, act)

    session = recorded(tmp_path, run).session
    assert names(session.one("main")) == []
    works = session.find("work")
    assert sorted(work.record["index"] for work in works) == [0, 1, 2, 3]
    for work in works:
        (part,) = work.children
        number = work.record["index"]
        assert (part.record["index"], part.values) == (number, [("number", number)])
        assert work.record["parent_id"] == session.record["id"]
    threads = {work.record["thread_id"] for work in works}
    assert len(threads) == 4
    assert session.one("main").record["thread_id"] == threading.get_ident() not in threads


def test_a_mark_of_one_thread_does_not_see_the_scope_of_another(tmp_path: Path) -> None:
    def run() -> None:
        with ci.scope("main"):
            in_threads(1, lambda _: ci.mark("elsewhere", 1))
            ci.mark("here", 2)

    session = recorded(tmp_path, run).session
    assert session.values == [("elsewhere", 1)]
    assert session.one("main").values == [("here", 2)]


@pytest.mark.parametrize("rank", [0, 3])
def test_a_rank_is_in_every_record(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", "8")
    spool = recorded(tmp_path, lambda: [None for _ in ci.batches(range(3))])
    assert [span["rank"] for span in spool.spans] == [rank] * 4
    assert {span["pid"] for span in spool.spans} == {os.getpid()}


def test_concurrent_coroutines_have_separate_trees(tmp_path: Path) -> None:
    async def handle(number: int, entered: asyncio.Barrier) -> None:
        with ci.scope("request", number):
            await entered.wait()  # all of them are open now
            with ci.scope("model", number):
                await entered.wait()
                ci.mark("number", number)
            await entered.wait()
            ci.mark("done", number)

    async def serve() -> None:
        entered = asyncio.Barrier(5)
        await asyncio.gather(*(handle(number, entered) for number in range(5)))

    session = recorded(tmp_path, lambda: asyncio.run(serve())).session
    assert names(session) == ["request"] * 5
    for request in session.children:
        number = request.record["index"]
        (model,) = request.children
        assert (model.record["index"], model.values) == (number, [("number", number)])
        assert request.values == [("done", number)]


def test_loops_open_the_canonical_shape(tmp_path: Path) -> None:
    def train() -> None:
        for _ in ci.epochs(range(2)):
            for _ in ci.batches(range(3)):
                for name in ("data_load", "forward", "backward", "optimizer_step"):
                    with ci.scope(name):
                        pass

    session = recorded(tmp_path, train).session
    assert names(session) == ["epoch", "epoch"]
    assert [epoch.record["index"] for epoch in session.children] == [0, 1]
    for epoch in session.children:
        assert names(epoch) == ["step"] * 3
        assert [step.record["index"] for step in epoch.children] == [0, 1, 2]
        for step in epoch.children:
            assert names(step) == ["data_load", "forward", "backward", "optimizer_step"]


def test_epochs_are_siblings_however_the_previous_loop_ended(tmp_path: Path) -> None:
    def train() -> None:
        for epoch in ci.epochs(range(5)):
            if epoch == 1:
                break
        with contextlib.suppress(ValueError):
            for _ in ci.epochs(range(5)):
                raise ValueError
        unfinished = ci.epochs(range(5))
        next(unfinished)
        del unfinished
        for _ in ci.epochs(range(1)):
            pass

    session = recorded(tmp_path, train).session
    assert names(session) == ["epoch"] * 5
    assert not any(epoch.children for epoch in session.children)


def test_scopes_ahead_of_the_first_epoch_are_children_of_the_session(tmp_path: Path) -> None:
    def train() -> None:
        with ci.scope("forward"):
            pass
        for _ in ci.epochs(range(1)):
            with ci.scope("forward"):
                pass

    spool = recorded(tmp_path, train)
    first, second = (found.record for found in spool.session.find("forward"))
    assert first["parent_id"] == spool.session.record["id"]
    assert second["parent_id"] == spool.session.one("epoch").record["id"]


def test_scopes_beyond_depth_64_are_dropped_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drops, "too_deep", 0)  # the warning comes once a process
    with caplog.at_level(logging.WARNING, "cirron_otel"), opened(tmp_path) as profiler:
        before = profiler.health()["drops"]["scopes_too_deep"]
        with contextlib.ExitStack() as stack:
            for level in range(70):
                stack.enter_context(ci.scope("level", level))
            ci.mark("at the bottom", 1)
        with ci.scope("after"):
            ci.mark("at the top", 2)
        assert profiler.health()["drops"]["scopes_too_deep"] == before + 6
        assert profiler.health()["scope_drop_count"] >= 6
    session = read_spool(tmp_path).session
    node, depth = session, 0
    while inside := node.find("level")[1 if node.name == "level" else 0 :]:
        node, depth = inside[0], depth + 1
    assert depth == 64
    assert [level.record["index"] for level in session.find("level")] == list(range(64))
    assert node.values == [("at the bottom", 1)]
    assert session.one("after").record["parent_id"] == session.record["id"]
    assert "deeper than 64" in caplog.text


def test_profile_opens_the_session_and_shutdown_closes_it(tmp_path: Path) -> None:
    with opened(tmp_path) as profiler:
        assert profiler.session is not None
        session_id = profiler.session.id
        assert ci.profile(output_dir="elsewhere") is profiler
        profiler.flush()
        assert read_spool(tmp_path).sessions == []
    spool = read_spool(tmp_path)
    record = spool.session.record
    assert (record["id"], record["parent_id"], record["index"]) == (session_id, None, None)
    assert record["name"] == "cirron.session"


def test_the_top_scope_of_a_call_of_inference_is_request(tmp_path: Path) -> None:
    @ci.inference
    def predict(number: int) -> int:
        with ci.scope("model"):
            return number + 1

    def serve() -> None:
        assert [predict(number) for number in range(2)] == [1, 2]

    session = recorded(tmp_path, serve).session
    assert names(session) == ["request", "request"]
    assert [names(request) for request in session.children] == [["model"], ["model"]]
