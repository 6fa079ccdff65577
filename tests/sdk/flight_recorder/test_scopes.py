"""Real out-of-memory errors in scopes: one mark and one bundle each, on the innermost scope."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import threading
import traceback
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import cirron_otel as ci
from cirron_otel.sdk.flight_recorder.recorder import MOST_BUNDLES
from cirron_otel.sdk.tracing.state import ignore_failure, state
from tests.kit.sessions.opened import opened, recorded

from .reading import (
    FILES,
    REQUESTED,
    assert_failed,
    bundles,
    oom_nodes,
    ooms_of,
    read_bundle,
    torch_oom,
)

torch = pytest.importorskip("torch")


def python_oom() -> None:
    bytearray(1 << 62)


def test_a_scope_that_fails_has_the_mark_and_the_bundle(tmp_path: Path) -> None:
    def act() -> None:
        with pytest.raises(RuntimeError, match="DefaultCPUAllocator"), ci.scope("step", 7, lr=0.1):
            torch_oom()

    spool = recorded(tmp_path, act)
    (node,) = oom_nodes(spool)
    assert (node.name, node.record["index"]) == ("step", 7)
    assert_failed(node, "RuntimeError")
    (mark,) = ooms_of(node)
    assert (mark["value"], mark["value_type"], mark["kind"]) == (REQUESTED, "int", "point")
    assert mark["attrs"] == {"reason": "DefaultCPUAllocator", "backend": "cpu"}
    span_id = node.record["id"]
    attrs = {key: node.record["attrs"][key] for key in ("global_step", "lr", "oom_bundle")}
    assert attrs == {"global_step": 7, "lr": 0.1, "oom_bundle": f"oom/{span_id}"}
    assert node.record["start_ns"] <= mark["ts_ns"] <= node.record["end_ns"]
    (bundle,) = bundles(tmp_path)
    assert bundle == tmp_path / node.record["attrs"]["oom_bundle"]
    files = read_bundle(bundle)
    assert list(files) == FILES
    assert sorted(files["manifest.json"]["files"]) == FILES


def test_an_error_passes_through_nested_scopes_once(tmp_path: Path) -> None:
    def act() -> None:
        with pytest.raises(RuntimeError), ci.scope("epoch", 0):
            inner()

    def inner() -> None:
        with ci.scope("step", 0), ci.scope("forward"):
            try:
                with ci.scope("layer"):
                    torch_oom()
            finally:
                with ci.scope("cleanup"):
                    gc.collect()

    spool = recorded(tmp_path, act)
    (node,) = oom_nodes(spool)
    assert (node.name, len(ooms_of(node))) == ("layer", 1)
    for name in ("epoch", "step", "forward", "layer"):
        assert_failed(spool.session.one(name), "RuntimeError")
    assert len(bundles(tmp_path)) == 1


@pytest.mark.parametrize("fail", [torch_oom, python_oom])
def test_an_error_that_is_caught_and_retried_counts_each_time(tmp_path: Path, fail: Any) -> None:
    def act() -> None:
        with ci.scope("step", 0):
            for attempt in range(4):
                try:
                    with ci.scope("attempt", attempt):
                        fail()
                except (MemoryError, RuntimeError):
                    continue

    spool = recorded(tmp_path, act)
    nodes = oom_nodes(spool)
    assert [(node.name, node.record["index"]) for node in nodes] == [
        ("attempt", number) for number in range(4)
    ]
    assert not ooms_of(spool.session.one("step"))
    assert "status" not in spool.session.one("step").record.get("otel", {})
    assert len(bundles(tmp_path)) == 4


def test_a_second_error_in_the_scope_around_a_caught_one(tmp_path: Path) -> None:
    @ci.scope("step")
    def step() -> None:
        with contextlib.suppress(MemoryError), ci.scope("attempt"):
            python_oom()
        python_oom()

    def act() -> None:
        with pytest.raises(MemoryError):
            step()

    spool = recorded(tmp_path, act)
    assert [node.name for node in oom_nodes(spool)] == ["attempt", "step"]


def test_recursion_with_a_retry_at_each_level(tmp_path: Path) -> None:
    def halve(size: int) -> None:
        with ci.scope("try", size):
            with contextlib.suppress(MemoryError):
                python_oom()
            if size:
                halve(size - 1)
            else:
                python_oom()

    def act() -> None:
        with pytest.raises(MemoryError):
            halve(3)

    spool = recorded(tmp_path, act)
    assert [node.record["index"] for node in oom_nodes(spool)] == [0]
    assert sum(len(ooms_of(node)) for node in oom_nodes(spool)) == 1


def test_at_most_five_bundles_in_a_session(tmp_path: Path) -> None:
    def act() -> None:
        for number in range(MOST_BUNDLES + 3):
            with pytest.raises(MemoryError), ci.scope("step", number):
                python_oom()

    spool = recorded(tmp_path, act)
    nodes = oom_nodes(spool)
    assert len(nodes) == MOST_BUNDLES + 3
    with_bundle = [node for node in nodes if "oom_bundle" in node.record["attrs"]]
    assert with_bundle == nodes[:MOST_BUNDLES]
    assert {each.name for each in bundles(tmp_path)} == {n.record["id"] for n in with_bundle}


def test_an_unknown_size_is_not_a_number(tmp_path: Path) -> None:
    def act() -> None:
        with pytest.raises(MemoryError), ci.scope("step", 0):
            python_oom()

    (node,) = oom_nodes(recorded(tmp_path, act))
    (mark,) = ooms_of(node)
    assert (mark["value"], mark["value_type"]) == ("unknown", "string")
    (bundle,) = bundles(tmp_path)
    assert "requested_bytes" not in read_bundle(bundle)["metadata.json"]["custom_metadata"]


def test_other_errors_have_no_mark(tmp_path: Path) -> None:
    def act() -> None:
        for error in (ValueError("CUDA out of memory. Tried to allocate 2.00 GiB"),
                      RuntimeError("queue out of memory slots")):  # fmt: skip
            with pytest.raises(type(error)), ci.scope("step", 0):
                raise error

    spool = recorded(tmp_path, act)
    assert not oom_nodes(spool)
    assert not (tmp_path / "oom").exists()


def test_without_a_scope_the_error_is_not_seen(tmp_path: Path) -> None:
    def act() -> None:
        with ci.scope("step", 0), pytest.raises(MemoryError):
            python_oom()

    assert not oom_nodes(recorded(tmp_path, act))


def test_the_wrapped_error_of_a_library_is_on_the_scope_that_the_original_left(
    tmp_path: Path,
) -> None:
    @ci.scope("outer")
    def outer() -> None:
        try:
            with ci.scope("inner"):
                python_oom()
        except MemoryError as error:
            raise ValueError("training failed") from error

    def act() -> None:
        with pytest.raises(ValueError, match="training failed"):
            outer()

    assert [node.name for node in oom_nodes(recorded(tmp_path, act))] == ["inner"]


def test_generators(tmp_path: Path) -> None:
    @ci.scope("batches")
    def batches() -> Iterator[int]:
        yield 1
        torch_oom()

    @ci.scope("step")
    def step() -> None:
        with ci.scope("inside"):
            yielded = iter(batches())
            next(yielded)
        next(yielded)

    def act() -> None:
        with ci.scope("step", 0), pytest.raises(RuntimeError):
            list(batches())
        with pytest.raises(RuntimeError):
            step()

    nodes = oom_nodes(recorded(tmp_path, act))
    assert [node.name for node in nodes] == ["batches", "batches"]


def test_errors_of_each_thread_are_recorded_separately(tmp_path: Path) -> None:
    together = threading.Barrier(4)

    def work(number: int) -> None:
        with ci.scope("worker", number):
            together.wait()
            for attempt in range(20):
                with pytest.raises(MemoryError), ci.scope("attempt", attempt):
                    python_oom()

    def act() -> None:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))

    spool = recorded(tmp_path, act)
    assert len(oom_nodes(spool)) == 80
    assert len(bundles(tmp_path)) == MOST_BUNDLES


def test_a_future_raises_the_same_error_again(tmp_path: Path) -> None:
    def work() -> None:
        with ci.scope("worker"):
            python_oom()

    def act() -> None:
        with (
            ThreadPoolExecutor(1) as pool, pytest.raises(MemoryError), ci.scope("step", 0)
        ):  # fmt: skip
            pool.submit(work).result()

    spool = recorded(tmp_path, act)
    assert [node.name for node in oom_nodes(spool)] == ["worker"]
    assert_failed(spool.session.one("step"), "MemoryError")


def test_tasks(tmp_path: Path) -> None:
    async def work(number: int) -> None:
        async with ci.scope("task", number):
            await asyncio.sleep(0.001)
            if number % 2:
                torch_oom()

    async def together() -> None:
        async with ci.scope("epoch", 0):
            results = await asyncio.gather(*map(work, range(4)), return_exceptions=True)
            assert sum(isinstance(each, RuntimeError) for each in results) == 2

    spool = recorded(tmp_path, lambda: asyncio.run(together()))
    assert [node.record["index"] for node in oom_nodes(spool)] == [1, 3]


def test_an_exception_group_from_tasks(tmp_path: Path) -> None:
    async def bare() -> None:
        await asyncio.sleep(0)
        python_oom()

    async def scoped() -> None:
        async with ci.scope("task"):
            python_oom()

    async def group_of(work: Any) -> None:
        async with ci.scope("epoch", 0), asyncio.TaskGroup() as group:
            group.create_task(work())

    def act() -> None:
        for work in (bare, scoped):
            with pytest.raises(ExceptionGroup):
                asyncio.run(group_of(work))

    assert [node.name for node in oom_nodes(recorded(tmp_path, act))] == ["epoch", "task"]


def test_the_errors_of_a_group_share_the_bundle_of_their_scope(tmp_path: Path) -> None:
    def act() -> None:
        for number in range(MOST_BUNDLES):
            with pytest.raises(ExceptionGroup), ci.scope("step", number):
                raise ExceptionGroup("both", [MemoryError("1"), ValueError(), MemoryError("2")])
        ci.flush()
        found.update(ci.health()["out_of_memory"])

    found: dict[str, int] = {}
    nodes = oom_nodes(recorded(tmp_path, act))
    assert [len(ooms_of(node)) for node in nodes] == [2] * MOST_BUNDLES
    assert [node.record["attrs"]["oom_bundle"] for node in nodes] == [
        f"oom/{node.record['id']}" for node in nodes
    ]
    assert len(list(bundles(tmp_path))) == found["bundles"] == MOST_BUNDLES
    assert found["count"] == 2 * MOST_BUNDLES


def test_the_error_is_the_same_and_nothing_keeps_it(tmp_path: Path) -> None:
    class Batch:
        pass

    seen: list[BaseException] = []

    batches: list[weakref.ref[Batch]] = []

    def step() -> None:
        batch = Batch()
        batches.append(weakref.ref(batch))
        with ci.scope("step", 0), ci.scope("forward"):
            try:
                torch_oom()
            except RuntimeError as error:
                seen.append(error)
                raise

    def attempt() -> None:
        try:
            step()
        except RuntimeError as error:
            check(error)

    def check(error: RuntimeError) -> None:
        assert error is seen.pop()
        assert error.__context__ is None
        assert error.__cause__ is None
        assert not hasattr(error, "__notes__")
        assert not vars(error)
        frames = traceback.extract_tb(error.__traceback__)
        assert [each.name for each in frames][:2] == ["attempt", "step"]
        assert not [each for each in frames if "/cirron_otel/" in each.filename]

    with opened(tmp_path):
        gc.collect()
        gc.disable()
        try:
            attempt()
            (batch,) = batches
            assert batch() is None, "a cycle or a reference keeps the frames of the error"
        finally:
            gc.enable()
        assert ci.flush()
        assert len(bundles(tmp_path)) == 1
        assert batch() is None


def test_the_hook_is_removed(tmp_path: Path) -> None:
    with opened(tmp_path):
        assert state.failed is not ignore_failure
    assert state.failed is ignore_failure
    with pytest.raises(MemoryError), ci.scope("later"):
        python_oom()
    assert not (tmp_path / "oom").exists()


def test_no_spool_means_marks_only(tmp_path: Path) -> None:
    with opened(tmp_path, output="none", exporters="none") as profiler:
        with pytest.raises(MemoryError), ci.scope("step", 0):
            python_oom()
        assert profiler.enabled
        assert ci.health()["out_of_memory"] == {"count": 1, "bundles": 0, "bundle_bytes": 0}
    assert not list(tmp_path.iterdir())


def test_health_counts_them(tmp_path: Path) -> None:
    with opened(tmp_path):
        assert ci.health()["out_of_memory"] == {"count": 0, "bundles": 0, "bundle_bytes": 0}
        with pytest.raises(MemoryError), ci.scope("step", 0):
            python_oom()
        assert ci.flush()
        counts = ci.health()["out_of_memory"]
        size = sum(file.stat().st_size for file in bundles(tmp_path)[0].iterdir())
        assert counts == {"count": 1, "bundles": 1, "bundle_bytes": size}
        assert not ci.health()["swallowed_errors"]


def test_a_bundle_that_cannot_be_written_is_counted(tmp_path: Path) -> None:
    (tmp_path / "oom").write_text("in the way")
    with opened(tmp_path):
        with pytest.raises(MemoryError), ci.scope("step", 0):
            python_oom()
        ci.flush()
        assert ci.health()["swallowed_errors"] == {"out-of-memory bundle": 1}
        assert "oom" in ci.health()["last_errors"]["out-of-memory bundle"]
    assert json.loads(next((tmp_path / "spool").glob("*.json")).read_bytes())["spans"]


def test_bundle_exceeding_its_share_of_the_cap_is_not_written(tmp_path: Path) -> None:
    with opened(tmp_path, spool_max_bytes=20_000):
        with pytest.raises(MemoryError), ci.scope("step", 0):
            python_oom()
        ci.flush()
        assert "cap" in ci.health()["last_errors"]["out-of-memory bundle"]
    assert not bundles(tmp_path)
