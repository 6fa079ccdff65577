"""Snapshot files behind their batches: what goes, in what parts, and what never does."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from cirron_otel.core.delivery.blobs import local_blobs, open_blob
from cirron_otel.core.delivery.errors import RefusedError
from cirron_otel.core.delivery.retry_policy import Backoff, RetryPolicy
from cirron_otel.core.spool.blobs import BlobKey
from cirron_otel.core.targets.cirron import blob_upload
from tests.kit.servers.cirron_server import CirronServer, Fault
from tests.kit.spools.deliveries import (
    KEY,
    Process,
    cirron_target,
    until,
)

PART = 100_000


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob_upload, "PART_BYTES", PART)


def content(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def test_small_files_are_uploaded_in_one_request_after_their_batch(tmp_path: Path) -> None:
    process = Process(tmp_path)
    with CirronServer().running() as server:
        delivery = process.delivery(cirron_target(server.url, "9"))
        delivery.start()
        weights = process.snapshot("ab" * 16, content(3000))
        gradients = process.snapshot("ab" * 16, content(4000), "gradients")
        delivery.notify(process.seal([weights, weights, gradients]))
        delivery.notify(process.seal([weights]))
        assert delivery.finish(120)
    assert [each.method for each in server.requests[:1]] == ["POST"]
    place = f"snapshots/{'ab' * 16}"
    assert server.blobs == {
        f"{place}/weights.safetensors": content(3000),
        f"{place}/gradients.safetensors": content(4000),
    }
    assert len(server.puts()) == 2
    assert server.puts()[0].path == f"/v1/traces/blobs/{place}/weights.safetensors"
    assert {
        "authorization": f"Bearer {KEY}",
        "content-type": "application/octet-stream",
        "x-cirron-sdk-version": "9",
        "x-cirron-blob-key": f"{place}/weights.safetensors",
    }.items() <= server.puts()[0].headers.items()
    assert delivery.stats()["sent_blobs"] == 2
    assert delivery.stats()["waiting_blobs"] == 0


def test_large_files_go_in_parts(tmp_path: Path) -> None:
    process = Process(tmp_path)
    with CirronServer().running() as server:
        delivery = process.delivery(cirron_target(server.url))
        delivery.start()
        delivery.notify(process.seal([process.snapshot("s", content(350_000))]))
        assert delivery.finish(120)
    assert server.blobs["snapshots/s/weights.safetensors"] == content(350_000)
    assert [put.headers["content-range"] for put in server.puts()] == [
        "bytes 0-99999/350000",
        "bytes 100000-199999/350000",
        "bytes 200000-299999/350000",
        "bytes 300000-349999/350000",
    ]
    assert sum(each.method == "HEAD" for each in server.requests) == 1


def test_interrupted_upload_resumes_at_the_last_stored_byte(tmp_path: Path) -> None:
    process = Process(tmp_path)
    with CirronServer().running() as server:
        ok = Fault(hold=None)
        server.blob_faults = [ok, ok, Fault(keep_bytes=30_000), Fault(503), Fault(raw=b"?\r\n")]
        delivery = process.delivery(cirron_target(server.url))
        delivery.start()
        delivery.notify(process.seal([process.snapshot("s", content(350_000))]))
        assert delivery.finish(120)
    assert server.blobs["snapshots/s/weights.safetensors"] == content(350_000)
    ranges = [put.headers["content-range"] for put in server.puts()]
    assert ranges[:3] == [
        "bytes 0-99999/350000",
        "bytes 100000-199999/350000",
        "bytes 130000-229999/350000",
    ]
    assert server.accepted == process.sealed


def test_the_next_process_goes_on_with_an_upload(tmp_path: Path) -> None:
    process = Process(tmp_path)
    with CirronServer().running() as server:
        server.blob_faults = [Fault(hold=None)] * 2 + [Fault(503)] * 100_000
        delivery = process.delivery(cirron_target(server.url, "first"))
        delivery.start()
        done = process.snapshot("done", content(10))
        delivery.notify(process.seal([process.snapshot("s", content(250_000))]))
        until(lambda: len(server.puts()) >= 2)
        assert not delivery.finish(0.05)
        process.owner.release()
        server.blob_faults = []
        assert server.blobs["snapshots/s/weights.safetensors"] == content(250_000)[:PART]
        later = Process(tmp_path)
        second = later.delivery(cirron_target(server.url, "second"))
        second.start()
        until(lambda: server.is_whole("snapshots/s/weights.safetensors"))
        second.notify(later.seal([done]))
        assert second.finish(120)
        third = later.delivery(cirron_target(server.url, "third"))
        third.start()
        assert third.finish(120)
    assert server.blobs["snapshots/s/weights.safetensors"] == content(250_000)
    sent = [put for put in server.puts() if put.headers["x-cirron-sdk-version"] != "first"]
    assert [put.headers.get("content-range") for put in sent] == [
        "bytes 100000-199999/250000",
        "bytes 200000-249999/250000",
        None,
    ]
    assert server.accepted == process.sealed + later.sealed


def test_server_without_part_support_receives_files_in_one_request(tmp_path: Path) -> None:
    """As cirron-sdk 0.3.0 sends them; what is there already is not sent again."""
    process = Process(tmp_path)
    with CirronServer(takes_parts=False).running() as server:
        delivery = process.delivery(cirron_target(server.url))
        delivery.start()
        delivery.notify(process.seal([process.snapshot("s", content(350_000))]))
        there = process.snapshot("there", content(340_000))
        server.blobs["snapshots/there/weights.safetensors"] = bytearray(content(340_000))
        delivery.notify(process.seal([there]))
        assert delivery.finish(120)
    assert server.blobs["snapshots/s/weights.safetensors"] == content(350_000)
    (put,) = server.puts()
    assert "content-range" not in put.headers


def test_a_server_without_a_place_for_files_gets_the_batches(tmp_path: Path) -> None:
    process = Process(tmp_path)
    with CirronServer(has_blobs=False).running() as server:
        delivery = process.delivery(cirron_target(server.url))
        delivery.start()
        for number in range(5):
            delivery.notify(process.seal([process.snapshot(f"s{number}", content(10))]))
        until(lambda: delivery.stats()["waiting_blobs"] == 5)
        until(lambda: delivery.stats()["is_misconfigured"])
        assert not delivery.finish(0.1)  # the files are still to go
        assert delivery.stats()["waiting_blobs"] == 5
    assert server.accepted == process.sealed


def test_files_that_are_gone_or_refused_are_counted(tmp_path: Path) -> None:
    process = Process(tmp_path)
    with CirronServer().running() as server:
        server.blob_faults = [Fault(422)]
        delivery = process.delivery(cirron_target(server.url))
        gone = process.snapshot("gone", b"x")
        (process.paths.snapshots / "gone/weights.safetensors").unlink()
        records = [gone, process.snapshot("bad", b"x"), process.snapshot("good", b"x")]
        delivery.start()
        delivery.notify(process.seal(records))
        assert delivery.finish(120)
    assert list(server.blobs) == ["snapshots/good/weights.safetensors"]
    assert delivery.stats()["lost_blobs"] == 2
    assert delivery.stats()["sent_blobs"] == 1


def test_nothing_outside_the_snapshots_is_ever_sent(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    process = Process(tmp_path / "root")
    process.paths.snapshots.mkdir(parents=True)
    (tmp_path / "snapshots" / "d").mkdir(parents=True)
    (tmp_path / "snapshots" / "d" / "f").write_text("secret")
    (process.paths.snapshots / "linked").symlink_to(tmp_path / "snapshots" / "d")
    (process.paths.snapshots / "s").mkdir()
    (process.paths.snapshots / "s" / "link").symlink_to(secret)
    os.mkfifo(process.paths.snapshots / "s" / "pipe")
    uris = [
        f"file://{secret}",
        f"file://{tmp_path}/snapshots/d/f",
        f"file://{process.paths.snapshots}/linked/f",
        f"file://{process.paths.snapshots}/s/link",
        f"file://{process.paths.snapshots}/s/pipe",
        f"file://{process.paths.snapshots}/s/../../../secret",
        f"{process.paths.snapshots}/../secret",
        "s3://bucket/snapshots/s/link",
        "file://snapshots//x",
    ]
    with CirronServer().running() as server:
        delivery = process.delivery(cirron_target(server.url))
        delivery.start()
        delivery.notify(
            process.seal([{"span_id": "s", "tensor_name": "w", "blob_uri": uri} for uri in uris])
        )
        assert delivery.finish(120)
    assert server.accepted == process.sealed
    assert server.puts() == []
    assert delivery.stats()["lost_blobs"] == 4
    with pytest.raises(RefusedError), open_blob(process.paths.snapshots, BlobKey("linked", "f")):
        pass


def test_the_files_that_a_batch_names() -> None:
    assert local_blobs(b'{"snapshots":[{"blob_uri":null},{}]}') == []
    assert local_blobs(b'{"snapshots":[{"blob_uri":"file:///a/snapshots/b/c"},') == []
    assert local_blobs(b'{"snapshots":[{"blob_uri":"file:///a/snapshots/b/c"}]}') == [
        BlobKey("b", "c")
    ]
    lone = b'{"x":"\\ud800","snapshots":[{"blob_uri":"/a/snapshots/b/c"},{"blob_uri":1},2]}'
    assert local_blobs(lone) == [BlobKey("b", "c")]


def test_damaged_file_list_is_rebuilt(tmp_path: Path) -> None:
    process = Process(tmp_path)
    with CirronServer(has_blobs=False).running() as server:
        delivery = process.delivery(cirron_target(server.url))
        delivery.start()
        delivery.notify(process.seal([process.snapshot("s", b"x")]))
        until(lambda: delivery.stats()["waiting_blobs"])
        assert not delivery.finish(0.05)
        process.owner.release()
        (path,) = process.paths.state.glob("blobs-*.json")
        path.write_text("{")
        server.has_blobs = True
        later = Process(tmp_path)
        second = later.delivery(cirron_target(server.url))
        second.start()
        until(lambda: server.blobs)
        assert second.finish(120)
    assert server.accepted == process.sealed


@pytest.mark.parametrize("status", [403, 500])
def test_a_failed_upload_delays_only_the_files_of_its_tenant(tmp_path: Path, status: int) -> None:
    """The next try of the first tenant's file is two minutes away."""
    process = Process(tmp_path)
    first, second = (f"{'ab' * 16}~{tenant}" for tenant in ("aa", "bb"))
    with CirronServer().running() as server:
        server.blob_faults = [Fault(status) for _ in range(20)]
        delivery = process.delivery(cirron_target(server.url), RetryPolicy(Backoff(first=120.0)))
        delivery.start()
        delivery.notify(process.seal([process.snapshot(first, content(300))]))
        until(lambda: len(server.blob_faults) < 20)
        failed = delivery.stats()["waiting_blobs"]
        server.blob_faults = []
        delivery.notify(process.seal([process.snapshot(second, content(400), "gradients")]))
        until(lambda: f"snapshots/{'ab' * 16}/gradients.safetensors" in server.blobs)
        assert (failed, delivery.finish(120)) == (1, True)
    assert len(server.blobs) == 2
