"""Snapshot files that reach a collector after their batch went on: they go on, too."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

from cirron_otel.collector.service.header_forwarding import ForwardingCirronTarget
from cirron_otel.core.delivery import blobs
from cirron_otel.core.delivery.blobs import LONGEST_WAIT_S, AwaitedBlobs, BlobQueue
from cirron_otel.core.spool.blobs import BlobKey
from tests.kit.servers.cirron_server import CirronServer
from tests.kit.servers.serving import Serving, serving
from tests.kit.spools.deliveries import KEY, Process, until
from tests.kit.spools.made import (
    encoded,
    made,
    snapshot,
    span,
    span_id,
)

from .test_handing_on import configuration

FILE = "weights.safetensors"
NAME = f"snapshots/{span_id(1)}/{FILE}"


def post(here: Serving) -> None:
    uri = f"file:///x/{NAME}"
    records = [snapshot(1, 1, mode="full", blob_uri=uri)]
    body = encoded(made(1, spans=[span(1)], snapshots=records))
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{here.http}/v1/traces", body, headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status < 300


def put(here: Serving) -> None:
    request = urllib.request.Request(f"{here.http}/v1/traces/blobs/{NAME}", b"late", method="PUT")
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 201


@pytest.mark.parametrize("is_killed", [False, True])
def test_file_arriving_after_its_batch_reaches_the_next_hop(
    tmp_path: Path, is_killed: bool
) -> None:
    with CirronServer().running() as server:
        target = f"{{type: cirron, endpoint: '{server.url}', api_key: {KEY}}}"
        options = ("--config", configuration(tmp_path, target))
        with serving(tmp_path / "data", *options) as here:
            post(here)
            until(lambda: server.accepted)
            if is_killed:
                here.kill()
            else:
                put(here)
                until(lambda: server.blobs)
                assert here.end() == 0
        if is_killed:
            with serving(tmp_path / "data", *options) as here:
                put(here)
                until(lambda: server.blobs)
                assert here.end() == 0
    assert server.blobs == {NAME: b"late"}
    assert len(server.accepted) == 1


def test_a_file_that_never_comes_holds_up_nothing(tmp_path: Path) -> None:
    with CirronServer().running() as server:
        target = f"{{type: cirron, endpoint: '{server.url}', api_key: {KEY}}}"
        with serving(tmp_path / "data", "--config", configuration(tmp_path, target)) as here:
            post(here)
            until(lambda: server.accepted)
            assert here.end() == 0
    assert server.blobs == {}


def test_of_too_many_the_oldest_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "_AWAITED", 2)
    process = Process(tmp_path)
    with CirronServer().running() as server:
        delivery = process.delivery(
            ForwardingCirronTarget(server.url, "/v1/traces", KEY, "t", timeout=20.0)
        )
        records = [process.snapshot(name, b"x") for name in "abc"]
        files = [process.paths.snapshots / name / FILE for name in "abc"]
        for file in files:
            file.unlink()
        delivery.start()
        delivery.notify(process.seal(records))
        until(lambda: delivery.stats()["lost_blobs"])
        assert (delivery.stats()["lost_blobs"], delivery.stats()["waiting_blobs"]) == (1, 0)
        for file in files:
            file.write_bytes(b"x")
        until(lambda: len(server.blobs) == 2)
        assert delivery.finish(120)
    assert sorted(server.blobs) == [f"snapshots/b/{FILE}", f"snapshots/c/{FILE}"]


def test_awaited_files_outlive_the_process(tmp_path: Path) -> None:
    tmp_path.joinpath("state").mkdir()
    queue = BlobQueue(tmp_path / "state", "target", "none")
    here, missing = BlobKey("a", "f"), BlobKey("b", "f")
    queue.add([here, missing])
    assert queue.await_file(missing, 0.0) is None
    assert (list(queue), queue.is_empty) == ([here], False)
    assert not queue.add([missing])
    queue.save()
    assert list(BlobQueue(tmp_path / "state", "target", "none")) == [here, missing]
    queue.finish(here)
    assert (list(queue), queue.is_empty) == ([], False)
    queue.finish(missing)
    assert queue.is_empty


def test_it_is_looked_for_less_and_less_often() -> None:
    awaited, now, waits = AwaitedBlobs(10), 0.0, []
    for _ in range(8):
        assert awaited.add(BlobKey("a", "f"), now) is None
        waits.append(awaited.opens() - now)
        assert awaited.take_due(awaited.opens() - 0.1) == []
        now = awaited.opens()
        assert awaited.take_due(now) == [BlobKey("a", "f")]
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_WAIT_S, LONGEST_WAIT_S, LONGEST_WAIT_S]
    assert awaited.opens() == float("inf")
