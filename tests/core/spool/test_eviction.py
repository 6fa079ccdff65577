"""Below the cap: the oldest go first, their snapshot files with them, and all is counted."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.spool import eviction
from cirron_otel.core.spool.blobs import BlobKey, blob_keys
from cirron_otel.core.spool.paths import file_name
from cirron_otel.core.spool.reader import SpoolReader
from cirron_otel.core.spool.writer import SpoolWriter
from cirron_otel.errors import TargetError
from tests.kit.spools.made import (
    EPOCH_NS,
    batch_id,
    encoded,
    made,
    snapshot,
    span_id,
)

SIZE = 1000
PADDING = SIZE - len(encoded(made(0)))


def sized(number: int, **changes: Any) -> bytes:
    """A batch of 1,000 bytes, or more with `changes`."""
    return encoded(made(number, padding=PADDING, **changes))


def name(number: int) -> str:
    return file_name(EPOCH_NS + number * 10**9, batch_id(number))


def kept(root: Path) -> list[str]:
    return [batch.name for batch in SpoolReader(root)]


def used(root: Path) -> int:
    """Bytes of all files below `root`."""
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())


def blob(root: Path, number: int, file: str = "weights.safetensors", size: int = 3000) -> Path:
    """A snapshot file of the span of that number, as old as the batch of that number."""
    path = root / "snapshots" / span_id(number) / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"b" * size)
    seconds = EPOCH_NS // 10**9 + number
    os.utime(path, (seconds, seconds))
    return path


def with_blob(number: int, *owners: int, uri: str = "file:///moved/.cirron/snapshots") -> bytes:
    """A batch whose snapshots name the blobs of the spans `owners`."""
    snapshots = [
        snapshot(owner, owner, mode="full", blob_uri=f"{uri}/{span_id(owner)}/weights.safetensors")
        for owner in owners
    ]
    return encoded(made(number, snapshots=snapshots))


def test_the_oldest_go_first(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, max_bytes=10 * SIZE)
    for number in range(25):
        writer.write(sized(number))
        assert used(tmp_path) <= 10 * SIZE
    assert kept(tmp_path) == [name(number) for number in range(15, 25)]
    assert (writer.drops.batches, writer.drops.bytes) == (15, 15 * SIZE)


def test_nothing_goes_up_to_the_cap_and_without_one(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path / "a", max_bytes=10 * SIZE)
    free = SpoolWriter(tmp_path / "b", max_bytes=None)
    for number in range(10):
        writer.write(sized(number))
        free.write(sized(number))
    free.write(sized(11))
    assert len(kept(tmp_path / "a")) == 10
    assert len(kept(tmp_path / "b")) == 11
    assert writer.drops.batches == free.drops.batches == 0


def test_age_is_by_name_in_whatever_order_they_come(tmp_path: Path) -> None:
    numbers = list(range(60))
    random.Random(1).shuffle(numbers)
    writer = SpoolWriter(tmp_path, max_bytes=20 * SIZE)
    expected: list[int] = []
    for number in numbers:
        writer.write(sized(number))
        expected = [*sorted(expected)[-19:], number]
    assert kept(tmp_path) == [name(number) for number in sorted(expected)]


def test_new_writer_counts_existing_batches(tmp_path: Path) -> None:
    for number in range(10):
        SpoolWriter(tmp_path, max_bytes=None).write(sized(number))
    writer = SpoolWriter(tmp_path, max_bytes=5 * SIZE)
    writer.write(sized(10))
    assert kept(tmp_path) == [name(number) for number in range(6, 11)]
    assert writer.drops.batches == 6


def test_a_batch_over_the_cap_is_refused_and_evicts_nothing(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, max_bytes=5 * SIZE)
    writer.write(sized(1))
    with pytest.raises(TargetError, match="over the spool's cap of 5000"):
        writer.write(encoded(made(2, padding=6 * SIZE)))
    assert kept(tmp_path) == [name(1)]


def test_the_directory_is_not_scanned_at_each_write(tmp_path: Path) -> None:
    cap = 1000 * SIZE
    writer = SpoolWriter(tmp_path, max_bytes=cap)
    for number in range(1200):
        writer.write(sized(number))
    assert used(tmp_path) <= cap
    assert writer.drops.batches == 200
    control = writer._eviction
    assert control is not None
    # Once at first, then after each 64th of the cap.
    assert control.scans <= 1 + 1200 * SIZE // (cap // 64)


def test_only_some_names_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction, "_KNOWN", 8)
    for number in range(100):
        SpoolWriter(tmp_path, max_bytes=None).write(sized(number))
    writer = SpoolWriter(tmp_path, max_bytes=50 * SIZE)
    for number in (*range(100, 130), 5):
        writer.write(sized(number))
        assert used(tmp_path) <= 50 * SIZE
    assert kept(tmp_path) == [name(5), *(name(number) for number in range(81, 130))]


def test_two_writers_of_one_spool_both_respect_the_cap(tmp_path: Path) -> None:
    """Two writers of one spool, each at its own pace: both hold the cap, within their slack."""
    cap = 200 * SIZE
    one, other = (SpoolWriter(tmp_path, max_bytes=cap) for _ in range(2))
    for number in range(0, 1000, 2):
        one.write(sized(number))
        other.write(sized(number + 1))
        assert used(tmp_path) <= cap + 2 * (cap // 64 + SIZE)
    left = kept(tmp_path)
    assert left == [name(number) for number in range(1000 - len(left), 1000)]
    assert one.drops.batches + other.drops.batches == 1000 - len(left)
    assert len(left) >= 190


class TestBlobs:
    def test_they_count_and_go_with_the_batch_that_names_them(self, tmp_path: Path) -> None:
        writer = SpoolWriter(tmp_path, max_bytes=10 * SIZE)
        old = blob(tmp_path, 1)
        writer.write(with_blob(1, 1))
        for number in range(2, 7):
            writer.write(sized(number))
        assert old.exists()
        assert writer.drops.batches == 0
        writer.write(sized(7))
        writer.write(sized(8))
        assert not old.exists()
        assert not old.parent.exists()
        assert kept(tmp_path) == [name(number) for number in range(2, 9)]
        assert (writer.drops.batches, writer.drops.blobs) == (1, 1)
        assert writer.drops.bytes == 3000 + len(with_blob(1, 1))

    def test_they_stay_while_a_later_batch_names_them(self, tmp_path: Path) -> None:
        shared = blob(tmp_path, 1, size=1000)
        writer = SpoolWriter(tmp_path, max_bytes=6 * SIZE)
        writer.write(with_blob(1, 1))
        writer.write(with_blob(2, 1))
        for number in range(3, 7):
            writer.write(sized(number))
        assert name(1) not in kept(tmp_path)
        assert name(2) in kept(tmp_path)
        assert shared.exists()
        writer.write(sized(8))
        assert name(2) not in kept(tmp_path)
        assert not shared.exists()

    def test_a_clock_that_is_set_back_hides_no_batch_that_names_them(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The writer took stock while the clock was ahead; then another one wrote a batch."""
        now_ns = time.time_ns
        monkeypatch.setattr(eviction, "_SLACK_NS", 0)  # all happens within two seconds here
        for ahead_s in (3600, 30):  # the clock passes again what was seen, or not
            root = tmp_path / str(ahead_s)
            path = blob(root, 1)
            writer = SpoolWriter(root, max_bytes=12 * SIZE)
            with monkeypatch.context() as clock:
                clock.setattr(eviction.time, "time_ns", lambda a=ahead_s: now_ns() + a * 10**9)
                writer.write(sized(2))
            SpoolWriter(root, max_bytes=None).write(with_blob(20, 1))
            for number in range(3, 13):
                writer.write(sized(number))
            assert writer.drops.batches
            assert path.exists()

    def test_a_new_writer_knows_who_names_them(self, tmp_path: Path) -> None:
        shared = blob(tmp_path, 1, size=1000)
        free = SpoolWriter(tmp_path, max_bytes=None)
        for data in (with_blob(1, 1), sized(2), with_blob(3, 1), sized(4)):
            free.write(data)
        writer = SpoolWriter(tmp_path, max_bytes=used(tmp_path))
        writer.write(sized(5))
        assert kept(tmp_path)[0] == name(3)
        assert shared.exists()
        writer.write(sized(6))
        assert kept(tmp_path)[0] == name(4)
        assert not shared.exists()

    @pytest.mark.parametrize("uri", ["s3://bucket/traces", "https://host/x"])
    def test_uploaded_ones_go_by_their_span(self, tmp_path: Path, uri: str) -> None:
        old = blob(tmp_path, 1)
        writer = SpoolWriter(tmp_path, max_bytes=6 * SIZE)
        writer.write(with_blob(1, 1, uri=uri))
        for number in range(2, 6):
            writer.write(sized(number))
        assert not old.exists()
        assert writer.drops.blobs == 1

    def test_unreferenced_blob_older_than_every_batch_is_evicted(self, tmp_path: Path) -> None:
        orphan, fresh = blob(tmp_path, 1), blob(tmp_path, 30)
        writer = SpoolWriter(tmp_path, max_bytes=10 * SIZE)
        for number in range(2, 20):
            writer.write(sized(number))
        assert not orphan.exists()
        # The batch that will name it is not sealed yet.
        assert fresh.exists()
        assert writer.drops.blobs == 1
        assert used(tmp_path) <= 10 * SIZE

    def test_blob_referenced_by_the_next_batch_is_retained(self, tmp_path: Path) -> None:
        writer = SpoolWriter(tmp_path, max_bytes=10 * SIZE)
        for number in range(1, 10):
            writer.write(sized(number))
        fresh = blob(tmp_path, 10)
        writer.write(with_blob(10, 10))
        assert fresh.exists()
        assert used(tmp_path) <= 10 * SIZE
        assert name(10) in kept(tmp_path)

    @pytest.mark.parametrize(
        "uri",
        [
            "file:///x/snapshots/../../precious",
            "file:///x/snapshots/../precious",
            "../precious",
            "file://",
            "",
            "\0",
            "file:///x/snapshots/./..",
        ],
    )
    def test_no_uri_leads_out_of_the_snapshots(self, tmp_path: Path, uri: str) -> None:
        precious = tmp_path / "precious"
        precious.write_bytes(b"p" * 100)
        (tmp_path / "c" / "snapshots").mkdir(parents=True)
        writer = SpoolWriter(tmp_path / "c", max_bytes=4 * SIZE)
        odd = snapshot(1, 1, span_id="..", mode="full", blob_uri=uri)
        writer.write(encoded(made(1, snapshots=[odd, odd | {"blob_uri": "s3://x"}])))
        for number in range(2, 9):
            writer.write(sized(number))
        assert precious.read_bytes() == b"p" * 100

    def test_files_of_a_record_with_a_value_of_another_type_are_known(self) -> None:
        uri = f"file:///x/snapshots/{span_id(1)}/weights.safetensors"
        odd = snapshot(1, 1, tensor_name=5, mode="full", blob_uri=uri)
        known = {BlobKey(span_id(1), "weights.safetensors")}
        assert blob_keys(encoded(made(1, snapshots=[odd]))) == known

    def test_a_linked_directory_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        precious = tmp_path / "elsewhere" / "weights.safetensors"
        precious.write_bytes(b"p" * 3000)
        (tmp_path / "c" / "snapshots").mkdir(parents=True)
        (tmp_path / "c" / "snapshots" / span_id(1)).symlink_to(tmp_path / "elsewhere")
        writer = SpoolWriter(tmp_path / "c", max_bytes=100 * SIZE)
        writer.write(with_blob(1, 1))
        writer.write(encoded(made(2, padding=99 * SIZE + 500)))
        assert kept(tmp_path / "c") == [name(2)]
        assert precious.exists()
