"""The contract of a delivery target, checked for every target; the rules are in `__init__.py`."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from cirron_otel import exactjson
from cirron_otel.core.delivery.batch_target import Receipt, SealedBatch
from cirron_otel.core.delivery.delivery import Delivery
from cirron_otel.core.delivery.delivery_stats import DeliveryStats
from cirron_otel.core.delivery.errors import RefusedError, StoppedError, UnreachableError
from cirron_otel.core.delivery.foreground import ForegroundDelivery
from cirron_otel.core.spool.blobs import BlobKey
from cirron_otel.core.spool.dead_letters import DeadLetters
from cirron_otel.core.spool.owner import Owner
from cirron_otel.core.spool.paths import SpoolPaths, file_name
from cirron_otel.core.spool.writer import SpoolWriter
from tests.kit.spools.deliveries import QUICK, batch_of
from tests.kit.spools.made import EPOCH_NS, snapshot

from .destinations import SECRET, Destination
from .objects.made import file_of, noise, written

NO_BATCH = SealedBatch(file_name(EPOCH_NS, "f" * 32), b"[]")
TENSORS = file_of({"weight": ("F32", [2, 4], noise(32))})


def sealed(number: int, paths: SpoolPaths, batch_id: str | None = None) -> SealedBatch:
    """Put a batch of one span with a snapshot file into the spool, and return it."""
    batch_id, created_ns = batch_id or f"{number:032x}", EPOCH_NS + number
    batch: dict[str, Any] = batch_of(batch_id, created_ns, number)
    span_id = batch["spans"][0]["id"]
    path = written(paths.snapshots / span_id / "weights.safetensors", TENSORS)
    uri = {"span_id": span_id, "mode": "full", "blob_uri": f"file://{path}"}
    batch["snapshots"] = [snapshot(number, 0, **uri)]
    data = exactjson.dumps(batch)
    return SealedBatch(SpoolWriter(paths.root, durable=False).write(data).name, data)


def numbers(destination: Destination) -> list[int]:
    return sorted(set(destination.arrived()) - {0})


def test_target_key_is_distinct_and_contains_no_secret(destination: Destination) -> None:
    """Rule 1."""
    one, again, other = destination.target(), destination.target(), destination.unavailable()
    assert one.key == again.key != ""
    if one.shown != other.shown:
        assert one.key != other.key
    for target in (one, other):
        assert SECRET not in f"{target.key} {target.shown} {target!r}"
        target.close()


def test_an_accepted_batch_has_arrived(destination: Destination, paths: SpoolPaths) -> None:
    """Rules 2 and 4."""
    target = destination.target()
    for number in (1, 2, 2, 3, 1):
        assert target.send([sealed(number, paths)]) == Receipt()
    target.close()
    assert numbers(destination) == [1, 2, 3]


def test_a_group_arrives_together(destination: Destination, paths: SpoolPaths) -> None:
    """Rule 3."""
    target = destination.target()
    if target.request_bytes:
        batches = [sealed(number, paths) for number in range(1, 11)]
        assert sum(len(batch.data) for batch in batches) <= target.request_bytes
        assert target.send(batches) == Receipt()
        assert numbers(destination) == list(range(1, 11))
    target.close()


def test_a_refusal_ends_nothing(destination: Destination, paths: SpoolPaths) -> None:
    """Rules 5 and 6."""
    target = destination.target()
    if destination.reads_batches:
        with pytest.raises(RefusedError) as refusal:
            target.send([NO_BATCH])
        assert SECRET not in str(refusal.value)
        if target.request_bytes:
            with pytest.raises(RefusedError):
                target.send([sealed(1, paths), NO_BATCH])
        assert numbers(destination) == []
    target.send([sealed(2, paths)])
    target.close()
    assert numbers(destination) == [2]


def test_unavailable_target_raises_unreachable_error_without_secrets(
    destination: Destination, paths: SpoolPaths
) -> None:
    """Rule 7."""
    target = destination.unavailable()
    for _ in range(2):
        with pytest.raises(UnreachableError) as failure:
            target.send([sealed(1, paths)])
        assert SECRET not in str(failure.value)
    target.close()


def test_nothing_is_sent_after_an_interruption(destination: Destination, paths: SpoolPaths) -> None:
    """Rule 8."""
    target = destination.target()
    interrupter = threading.Thread(target=target.interrupt)
    interrupter.start()
    interrupter.join()
    with pytest.raises(StoppedError):
        target.send([sealed(1, paths)])
    target.close()
    assert numbers(destination) == []


def test_connections_may_be_given_up(destination: Destination, paths: SpoolPaths) -> None:
    """Rule 9."""
    used, unused = destination.target(), destination.target()
    used.send([sealed(1, paths)])
    for target in (used, unused):
        target.close()
        target.close()
    abandoned = destination.target()
    abandoned.send([sealed(2, paths)])
    abandoned.abandon()
    assert numbers(destination) == [1, 2]


def test_snapshot_files_arrive(destination: Destination, paths: SpoolPaths) -> None:
    """Rule 10."""
    target = destination.target()
    sink = target.blobs
    assert (sink is None) == (destination.files() is None)
    if sink is not None:
        batch = sealed(1, paths)
        (key,) = sink.keys_of(batch.name, batch.data)
        while not sink.upload(paths.snapshots, key):
            pass
        assert destination.files() == [TENSORS]
        with pytest.raises(FileNotFoundError):
            sink.upload(paths.snapshots, BlobKey("0" * 32, "weights.safetensors"))
    target.close()


def filled(paths: SpoolPaths, owner: Owner, count: int) -> list[str]:
    """Seal batches 1 to `count` of an owner; return their names and that of a damaged file."""
    ids = {number: f"{owner.prefix}{number:020x}" for number in range(1, count + 1)}
    names = [sealed(number, paths, batch_id).name for number, batch_id in ids.items()]
    damaged = file_name(EPOCH_NS + count + 1, f"{owner.prefix}{'f' * 20}")
    (paths.spool / damaged).write_bytes(NO_BATCH.data)
    return [*names, damaged]


def test_a_thread_delivers_a_spool(destination: Destination, paths: SpoolPaths) -> None:
    """Rule 11."""
    owner = Owner.acquire(paths)
    names = filled(paths, owner, 12)
    for _ in range(2):  # the second one has nothing to send
        delivery = Delivery(paths, owner, destination.target(), policy=QUICK)
        delivery.start()
        for name in names:
            delivery.notify(name)
        assert delivery.finish(30)
    arrived = Counter(destination.arrived())
    assert sorted(arrived.keys() - {0}) == list(range(1, 13))
    assert max(arrived.values()) == 1
    letters = DeadLetters(paths, destination.target().key, "").names()
    assert letters == (names[-1:] if destination.reads_batches else [])
    files = destination.files()
    assert files is None or files == [TENSORS] * 12


def test_a_caller_delivers_a_spool(destination: Destination, paths: SpoolPaths) -> None:
    """Rule 11."""
    owner = Owner.acquire(paths)
    names = filled(paths, owner, 12)
    for sent in (12, 0):
        target = destination.target()
        stats = DeliveryStats(target.shown)
        delivery = ForegroundDelivery(
            paths, target, stats, stop=threading.Event(), patience=10.0, say=print
        )
        backlog = delivery.claim(owner.prefix)
        assert backlog is not None
        delivery.take(backlog, names)
        delivery.finish()
        delivery.upload(backlog)
        delivery.close()
        target.close()
        assert stats.sent_batches == (sent if destination.reads_batches or not sent else 13)
    assert numbers(destination) == list(range(1, 13))
