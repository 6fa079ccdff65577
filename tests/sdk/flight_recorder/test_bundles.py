"""The bundles: what they contain, what both releases of Stormlog make of them, and their place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

import cirron_otel as ci
from cirron_otel.core.spool.oom_bundles import bundles_in, remove_unfinished, write_bundle
from cirron_otel.core.spool.paths import SpoolPaths
from cirron_otel.core.spool.writer import SpoolWriter
from cirron_otel.errors import TargetError
from cirron_otel.sdk.flight_recorder import allocators
from cirron_otel.sdk.flight_recorder.bundle import files_of
from cirron_otel.sdk.flight_recorder.recognition import OutOfMemory
from cirron_otel.sdk.flight_recorder.report import OomReport, SessionFacts
from cirron_otel.tools.cli.pruning import plan, remove
from tests.core.importers.stormlog.peers import STORMLOG, Peer
from tests.kit.sessions.opened import opened
from tests.kit.sessions.spool_trees import read_spool
from tests.kit.spools.made import (
    EPOCH_NS,
    batch_id,
    encoded,
    made,
)

from .reading import (
    REQUESTED,
    bundles,
    oom_nodes,
    read_bundle,
    torch_oom,
)

SECRET = "sk-very-secret"
FIRST_NS = 1_795_000_000_000_000_000


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two errors, sampled, with a secret in its environment."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("bundles")
    os.environ |= {"WANDB_API_KEY": SECRET, "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}
    try:
        with opened(folder, sample_interval=0.02) as profiler:
            deadline = time.monotonic() + 180
            while ci.health()["sampling"]["samples"] < 3:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            for number in range(2):
                with pytest.raises(RuntimeError), ci.scope("step", number), ci.scope("forward"):
                    torch_oom()
            assert profiler.enabled
    finally:
        del os.environ["WANDB_API_KEY"], os.environ["PYTORCH_CUDA_ALLOC_CONF"]
    return folder


def test_the_manifest_and_the_metadata(directory: Path) -> None:
    spool = read_spool(directory)
    session_id = str(UUID(spool.session.record["id"]))
    nodes = oom_nodes(spool)
    assert {each.name for each in bundles(directory)} == {node.record["id"] for node in nodes}
    for node in nodes:
        bundle = directory / "oom" / node.record["id"]
        files = read_bundle(bundle)
        manifest, metadata = files["manifest.json"], files["metadata.json"]
        assert manifest["schema_version"] == 2
        assert manifest["bundle_name"] == node.record["id"]
        assert manifest["reason"] == metadata["reason"] == "DefaultCPUAllocator"
        assert manifest["backend"] == metadata["backend"] == "cpu"
        assert manifest["event_count"] == len(files["events.json"])
        assert sorted(manifest["files"]) == sorted(each.name for each in bundle.iterdir())
        for each in (manifest, metadata):
            assert each["session_id"] == each["session"]["session_id"] == session_id
            assert each["session_status"] == each["session"]["status"] == "running"
            assert each["session"]["started_at_ns"] == spool.session.record["start_ns"]
            assert each["session"]["pid"] == os.getpid()
        assert metadata["exception_type"] == "RuntimeError"
        assert str(REQUESTED) in metadata["exception_message"]
        custom = metadata["custom_metadata"]
        assert custom["requested_bytes"] == REQUESTED
        assert custom["span_id"] == node.record["id"]
        context = metadata["context"]
        assert context == f"cirron.session / step {nodes.index(node)} / forward"


def test_the_events_are_the_samples_and_the_error(directory: Path) -> None:
    spool = read_spool(directory)
    sampled = {mark["value"] for mark in spool.marks if mark["name"] == "memory"}
    for node in oom_nodes(spool):
        bundle = directory / "oom" / node.record["id"]
        events = read_bundle(bundle)["events.json"]
        times = [event["timestamp_ns"] for event in events]
        assert times == sorted(times)
        samples = [event for event in events if event["event_type"] == "sample"]
        assert len(samples) >= 3
        for event in samples:
            # The mark of a sample that was taken while its scope ended has the time of that end.
            assert event["allocator_allocated_bytes"] in sampled
            assert event["sampling_interval_ms"] == 20
        (error,) = [event for event in events if event["event_type"] == "error"]
        assert error["timestamp_ns"] == node.mark("oom")["ts_ns"]
        assert error["metadata"]["oom_reason"] == "DefaultCPUAllocator"
        assert error["metadata"]["oom_dump_path"] == node.record["attrs"]["oom_bundle"]
        assert error["allocator_allocated_bytes"] > 0


def test_the_environment_has_no_secrets(directory: Path) -> None:
    for bundle in bundles(directory):
        environment = read_bundle(bundle)["environment.json"]
        assert environment["pid"] == os.getpid()
        assert environment["system"]["torch_available"] is True
        assert environment["system"]["memory_total"] > environment["system"]["memory_available"] > 0
        assert environment["variables"]["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64"
        for file in bundle.iterdir():
            assert SECRET.encode() not in file.read_bytes()


@pytest.mark.parametrize("version", ["0.3.9", "0.4.3"])
def test_stormlog_lists_and_loads_them(version: str, directory: Path) -> None:
    peer = Peer(version)
    session_id = str(UUID(read_spool(directory).session.record["id"]))
    try:
        for bundle in bundles(directory):
            path = str(bundle / "events.json")
            answer = peer.ask("sessions", path)
            (session,) = answer["sessions"]
            assert session["session_id"] == session_id
            written = read_bundle(bundle)["events.json"]
            assert session["event_count"] == len(written)
            (timeline,) = peer.ask("timeline", path)
            kinds = [marker["kind"] for marker in timeline["markers"]]
            assert kinds.count("oom") == 1
            for event in written:
                assert peer.ask("verify", event) is True, event
    finally:
        peer.close()
    stormlog = STORMLOG[f"stormlog-{version}"].home / "bin" / "stormlog"
    done = subprocess.run(
        [stormlog, "query", "ooms", "--json", str(directory)],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    rows = json.loads(done.stdout)
    listed = rows if isinstance(rows, list) else rows["rows"]
    assert {Path(row["bundle_path"]).name for row in listed} == {
        bundle.name for bundle in bundles(directory)
    }
    for row in listed:
        assert (row["session_id"], row["backend"]) == (session_id, "cpu")
        assert row["exception_type"] == "RuntimeError"


# --- without a device -------------------------------------------------------------------------


def report(**oom: Any) -> OomReport:
    known = OutOfMemory(**({"reason": "torch.OutOfMemoryError", "backend": "cuda"} | oom))
    return OomReport("ab" * 16, "cd" * 16, "step 1", FIRST_NS, known, "OutOfMemoryError", "torch",
                     "CUDA out of memory.")  # fmt: skip


FACTS = SessionFacts("ef" * 16, FIRST_NS - 10**9, "host", 7, 1, 1, 4, "job-1", 0.5)


def events_of(files: dict[str, bytes] | None) -> Any:
    assert files is not None
    return json.loads(files["events.json"])


def test_bundle_without_a_reading_has_no_events() -> None:
    files = files_of(report(device_id=0), FACTS, [], None)
    assert events_of(files) == []
    assert files is not None
    assert json.loads(files["manifest.json"])["event_count"] == 0


def test_the_error_has_the_last_reading_of_its_device() -> None:
    samples = [
        {"ts_ns": FIRST_NS - 3, "allocated_bytes": 10, "backend": "cuda", "device_id": 0,
         "allocator_reserved_bytes": 20, "device_used_bytes": 30, "device_free_bytes": 70,
         "device_total_bytes": 100},
        {"ts_ns": FIRST_NS - 2, "allocated_bytes": 11, "backend": "cuda", "device_id": 1},
    ]  # fmt: skip
    events = events_of(files_of(report(device_id=0), FACTS, samples, None))
    assert [event["event_type"] for event in events] == ["sample", "sample", "error"]
    assert events[2]["allocator_allocated_bytes"] == 10
    assert events[2]["device_total_bytes"] == 100
    assert "telemetry_partial" not in events[2]["metadata"]
    # What the schema requires and no reading has is the allocated bytes, and is named.
    assert events[1]["device_used_bytes"] == events[1]["allocator_reserved_bytes"] == 11
    assert events[1]["metadata"]["collector_partial_fields"] == [
        "allocator_reserved_bytes", "device_used_bytes",
    ]  # fmt: skip
    assert (events[1]["rank"], events[1]["world_size"], events[1]["job_id"]) == (1, 4, "job-1")


@pytest.mark.parametrize("is_torch", [True, False])
def test_a_torch_that_cannot_be_examined_costs_no_bundle(
    is_torch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an error of CUDA every call of it may fail; programs also replace modules."""

    def fail(*_: Any) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    cuda = SimpleNamespace(
        is_initialized=lambda: True, device_count=lambda: 1, memory_stats=fail,
        get_device_name=fail,
    )  # fmt: skip
    known = {"__version__": "2.0", "version": SimpleNamespace(cuda="12", hip=None)}
    stub = SimpleNamespace(cuda=cuda, **(known if is_torch else {"version": None}))
    monkeypatch.setitem(sys.modules, "torch", stub)  # type: ignore[arg-type]
    files = files_of(report(device_id=0), FACTS, [], None)
    assert files is not None
    system = json.loads(files["environment.json"])["system"]
    assert system["cpu_count_logical"] == os.cpu_count()
    assert system.get("torch_version") == ("2.0" if is_torch else None)


def test_no_statistics_without_an_initialised_device() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_initialized():
        pytest.skip("a device is in use")
    assert allocators.statistics() == {}
    assert allocators.history() is None
    assert not torch.cuda.is_initialized()


# --- the files --------------------------------------------------------------------------------


def test_a_bundle_is_complete_or_absent(tmp_path: Path) -> None:
    oom = tmp_path / "oom"
    with pytest.raises(TargetError, match="cannot be written"):
        write_bundle(oom, "ab" * 16, "0" * 12, {"manifest.json": b"{}", "no/such": b""})
    assert not list(oom.iterdir())
    assert write_bundle(oom, "ab" * 16, "0" * 12, {"manifest.json": b"{}"}) == 2
    assert write_bundle(oom, "ab" * 16, "0" * 12, {"manifest.json": b"other"}) == 0
    assert (oom / ("ab" * 16) / "manifest.json").read_bytes() == b"{}"


def test_unfinished_bundles_of_a_dead_process_are_removed(tmp_path: Path) -> None:
    oom = tmp_path / "oom"
    left, other = oom / f".{'0' * 12}-{'ab' * 16}.tmp", oom / f".{'1' * 12}-{'ab' * 16}.tmp"
    for each in (left, other):
        each.mkdir(parents=True)
        (each / "events.json").write_bytes(b"[")
    remove_unfinished(oom, "0" * 12)
    assert not left.exists()
    assert other.exists(), "its process may be alive"


def bundle_at(root: Path, number: int, size: int) -> Path:
    """A bundle as old as the batch of that number."""
    name = f"{number:032x}"
    write_bundle(root / "oom", name, "0" * 12, {"manifest.json": b"x" * size})
    file = root / "oom" / name / "manifest.json"
    os.utime(file, (EPOCH_NS // 10**9 + number,) * 2)
    return file.parent


def test_bundles_count_towards_the_cap_and_the_oldest_goes_first(tmp_path: Path) -> None:
    old, new = bundle_at(tmp_path, 0, 3000), bundle_at(tmp_path, 5, 3000)
    writer = SpoolWriter(tmp_path, 7000)
    for number in range(1, 4):
        data = encoded(made(number, padding=500))
        writer.write(data, f"{EPOCH_NS + number * 10**9:020d}-{batch_id(number)}.json")
    assert not old.exists()
    assert new.exists()
    assert (writer.drops.blobs, writer.drops.batches) == (1, 0)
    assert writer.drops.bytes == 3000


def test_prune_removes_bundles_in_the_order_of_time(tmp_path: Path) -> None:
    old, new = bundle_at(tmp_path, 0, 3000), bundle_at(tmp_path, 5, 3000)
    writer = SpoolWriter(tmp_path, None)
    data = encoded(made(1, padding=500))
    writer.write(data, f"{EPOCH_NS + 10**9:020d}-{batch_id(1)}.json")
    paths = SpoolPaths.under(tmp_path)
    chosen = plan(paths, max_bytes=4500 + len(data) - 500, before_ns=None)
    assert [removal.files for removal in chosen.removals] == [[f"oom/{old.name}/"]]
    assert (chosen.blobs, chosen.bundles, chosen.dropped_bytes) == (0, 1, 3000)
    for removal in chosen.removals:
        remove(paths, removal)
    assert [each.name for each in bundles_in(paths.oom)] == [new.name]
