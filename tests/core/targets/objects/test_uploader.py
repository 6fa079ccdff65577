"""What becomes of the snapshot files of a spool: real files, a real database, a real store."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.collector.receiver.tenancy import tenant_of
from cirron_otel.collector.service.blob_sender import BlobSender
from cirron_otel.core.delivery.batch_target import SealedBatch
from cirron_otel.core.spool.blobs import BlobKey, tenant_key
from cirron_otel.core.spool.paths import SpoolPaths
from cirron_otel.core.spool.writer import SpoolWriter
from cirron_otel.core.targets.objects import BlobStore, open_store
from cirron_otel.core.targets.objects.target import BlobTarget
from cirron_otel.core.targets.sql.ownership import OwnerContext
from cirron_otel.core.targets.sql.storage import Storage
from cirron_otel.semconv import RUN_ID, WORKSPACE_ID
from tests.core.targets.sql.helpers import assert_stored, sealed
from tests.kit.backends.process import free_endpoints
from tests.kit.backends.versitygw import versitygw
from tests.kit.spools.made import (
    made,
    snapshot,
    span,
    span_id,
)

from .made import file_of, noise, written

WEIGHT, BIAS = ("F32", [2, 4], noise(32)), ("BF16", [4], noise(8, 2))
FILE = file_of({"weight": WEIGHT, "bias": BIAS})


class Place:
    """A spool with its database and its store."""

    def __init__(self, folder: Path, blobs: str = "", headers: tuple[tuple[str, str], ...] = ()):
        self.paths = SpoolPaths.under(folder / "spool-root")
        self.database = f"sqlite:///{folder / 'rows.db'}"
        self.url = blobs or str(folder / "store")
        self.headers = headers
        self.writer = SpoolWriter(self.paths.root)
        self.batches: list[SealedBatch] = []

    def seal(self, *snapshots: dict[str, Any], stored: bool = True, **changes: Any) -> SealedBatch:
        batch = sealed(made(len(self.batches) + 1, snapshots=list(snapshots), **changes))
        self.writer.write(batch.data, batch.name)
        self.batches.append(batch)
        if stored:
            self.store_rows(batch)
        return batch

    def store_rows(self, *batches: SealedBatch) -> None:
        with Storage.open(self.database) as storage:
            storage.write(list(batches))

    def file(self, owner: int, data: bytes = FILE, name: str = "weights") -> Path:
        key = BlobKey(span_id(owner), f"{name}.safetensors")
        key = tenant_key(key, tenant_of(self.headers))
        return written(self.paths.snapshots / key.directory / key.file, data)

    def sender(self, *batches: SealedBatch, rows: bool = True) -> BlobSender:
        """A collector's second process, as far as blobs go: it was told of these batches."""
        sender, target = self.started(rows=rows)
        if batches:
            target.send(batches)
        return sender

    def started(self, *, rows: bool = True) -> tuple[BlobSender, BlobTarget]:
        """The same, and what tells it of batches."""
        sender = BlobSender(
            self.url, self.database if rows else None, OwnerContext(), lambda _: self.headers
        )
        return sender, sender.start(self.paths)

    def run(self, *batches: SealedBatch, rows: bool = True) -> dict[str, Any]:
        """Upload what is there; where it stands."""
        sender = self.sender(*batches, rows=rows)
        sender.finish(120)
        return sender.stats()

    @property
    def store(self) -> BlobStore:
        return open_store(self.url)

    def uris(self) -> list[str | None]:
        """Of the rows, in order."""
        with Storage.open(self.database) as storage:
            rows = storage.database.rows(
                'SELECT "blobUri" FROM "TraceSnapshot" ORDER BY "batchKey", "ordinal"'
            )
            assert_stored(storage, self.batches)  # whatever was written there, all comes back
        return [row[0] for row in rows]

    def read(self, uri: str | None) -> bytes:
        assert uri is not None
        root = f"{self.store.place.shown}/"
        assert uri.startswith(root)
        return b"".join(self.store.get(uri.removeprefix(root)))


def full(number: int, owner: int, name: str = "weight", **changes: Any) -> dict[str, Any]:
    uri = f"file:///gone/snapshots/{span_id(owner)}/weights.safetensors"
    return snapshot(number, owner, tensor_name=name, mode="full", **{"blob_uri": uri} | changes)


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 180
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_one_object_a_record(place: Place) -> None:
    batch = place.seal(full(1, 5), full(2, 5, "bias"), snapshot(3, 5), spans=[span(5, 4)])
    place.file(5)
    stats = place.run(batch)
    root = f"{place.store.place.shown}/traces/default/{span_id(4)}/{span_id(5)}"
    uris = place.uris()
    assert uris == [f"{root}/{1:032x}.safetensors", f"{root}/{2:032x}.safetensors", None]
    assert place.read(uris[0]) == file_of_one("weight", WEIGHT)
    assert place.read(uris[1]) == file_of_one("bias", BIAS)
    assert {key: stats[key] for key in ("sent_objects", "sent_blobs", "lost_blobs", "waiting")} == {
        "sent_objects": 2, "sent_blobs": 1, "lost_blobs": 0, "waiting": 0,
    }  # fmt: skip


def file_of_one(name: str, tensor: tuple[str, list[int], bytes]) -> bytes:
    """As we write it: compact."""
    dtype, shape, data = tensor
    said = f'{{"{name}":{{"dtype":"{dtype}","shape":{str(shape).replace(" ", "")},'
    said += f'"data_offsets":[0,{len(data)}]}}}}'
    text = said.encode() + b" " * (-len(said) % 8)
    return len(text).to_bytes(8, "little") + text + data


def test_a_file_that_comes_late_while_others_go_on(place: Place) -> None:
    late, other = place.seal(full(1, 5)), place.seal(full(2, 6))
    place.file(6)
    sender = place.sender(late, other)
    until(lambda: sender.stats()["sent_blobs"] == 1 and sender.stats()["waiting"] == 1)
    place.file(5)
    until(lambda: sender.stats()["waiting"] == 0)
    sender.finish(120)
    assert all("/store/traces/" in str(uri) for uri in place.uris())


def test_file_arriving_after_a_restart_is_uploaded(place: Place) -> None:
    batch = place.seal(full(1, 5))
    assert place.run(batch)["waiting"] == 1
    assert place.uris() == [full(1, 5)["blob_uri"]]
    place.file(5)
    assert place.run()["waiting"] == 0
    assert place.read(place.uris()[0]) == file_of_one("weight", WEIGHT)


def test_a_file_that_never_comes_is_waited_for_as_long_as_its_batch_is_there(place: Place) -> None:
    batch = place.seal(full(1, 5))
    for _ in range(3):
        stats = place.run(batch)
        assert (stats["waiting"], stats["lost_blobs"]) == (1, 0)
    (place.paths.spool / batch.name).unlink()
    stats = place.run()
    assert (stats["waiting"], stats["lost_blobs"]) == (0, 1)
    assert "it did not arrive before its batch left the spool" in stats["last_error"]
    assert place.uris() == [full(1, 5)["blob_uri"]]


def test_an_upload_that_fails_unexpectedly_does_not_block_others(place: Place) -> None:
    broken, other = place.seal(full(1, 5)), place.seal(full(2, 6))
    place.file(5)
    place.file(6)

    def headers_of(name: str) -> tuple[tuple[str, str], ...]:
        if name == broken.name:
            raise RuntimeError("the tenant cannot be determined")
        return ()

    sender = BlobSender(place.url, None, OwnerContext(), headers_of)
    sender.start(place.paths).send([broken, other])
    until(lambda: sender.stats()["sent_objects"] == 1)
    sender.finish(120)
    stats = sender.stats()
    assert (stats["waiting"], stats["lost_blobs"]) == (1, 0)
    assert "the tenant cannot be determined" in stats["last_error"]


def test_existing_objects_are_not_uploaded_again(place: Place) -> None:
    """All is told anew, as behind a lost state: the same objects are found."""
    batch = place.seal(full(1, 5), full(2, 5, "bias"))
    place.file(5)
    assert place.run(batch)["sent_objects"] == 2
    before = {path: path.stat().st_mtime_ns for path in Path(place.url).rglob("*.safetensors")}
    stats = place.run(batch)
    assert (stats["sent_objects"], stats["known_objects"], stats["waiting"]) == (0, 2, 0)
    assert before == {p: p.stat().st_mtime_ns for p in Path(place.url).rglob("*.safetensors")}


def test_a_file_that_two_batches_name(place: Place) -> None:
    first, second = place.seal(full(1, 5)), place.seal(full(2, 5, "bias"))
    place.file(5)
    place.run(first)
    place.run(second)
    uris = place.uris()
    assert [place.read(uri) for uri in uris] == [
        file_of_one("weight", WEIGHT), file_of_one("bias", BIAS),
    ]  # fmt: skip


def test_ids_that_are_there_twice(place: Place) -> None:
    """A forked child has its parent's ids: both tensors are kept, and each row has its own."""
    child = f"file:///child/snapshots/{span_id(6)}/weights.safetensors"
    batch = place.seal(full(1, 5), full(1, 5, blob_uri=child))
    other = ("F32", [2, 4], noise(32, 9))
    place.file(5)
    place.file(6, file_of({"weight": other}))
    assert place.run(batch)["waiting"] == 0
    first, second = place.uris()
    assert place.read(first) == file_of_one("weight", WEIGHT)
    assert place.read(second) == file_of_one("weight", other)


def test_unusable_files_are_counted_without_blocking_others(place: Place, tmp_path: Path) -> None:
    broken, lacking, link, right = (place.seal(full(number, number)) for number in (1, 2, 3, 4))
    place.file(1, b"no safetensors file")
    place.file(2, file_of({"another": WEIGHT}))
    place.file(4)
    outside = written(tmp_path / "secret.safetensors", FILE)
    path = place.paths.snapshots / span_id(3) / "weights.safetensors"
    path.parent.mkdir(parents=True)
    path.symlink_to(outside)
    stats = place.run(broken, lacking, link, right)
    assert (stats["waiting"], stats["lost_blobs"], stats["sent_objects"]) == (0, 3, 1)
    uris = place.uris()
    assert [str(uri).startswith("file:///gone/") for uri in uris] == [True, True, True, False]


def test_object_uploaded_ahead_of_its_rows_is_linked_later(place: Place) -> None:
    batch = place.seal(full(1, 5), stored=False)
    place.file(5)
    sender = place.sender(batch)
    until(lambda: sender.stats()["sent_objects"] == 1)
    assert sender.stats()["waiting"] == 1
    place.store_rows(batch)
    until(lambda: sender.stats()["waiting"] == 0)
    sender.finish(120)
    assert place.read(place.uris()[0]) == file_of_one("weight", WEIGHT)


def test_without_a_database(place: Place) -> None:
    batch = place.seal(full(1, 5), stored=False)
    place.file(5)
    assert place.run(batch, rows=False)["waiting"] == 0
    [path] = Path(place.url).rglob("*.safetensors")
    assert path.read_bytes() == file_of_one("weight", WEIGHT)
    # With a database later its rows say so, too; nothing is sent again.
    place.store_rows(batch)
    assert place.run(batch)["known_objects"] == 1
    assert place.uris() == [f"file://{path}"]


def test_another_store_later_keeps_the_first_uri(place: Place, tmp_path: Path) -> None:
    batch = place.seal(full(1, 5))
    place.file(5)
    place.run(batch)
    place.url = str(tmp_path / "another")
    place.run(batch)
    assert str(place.uris()[0]).startswith(f"file://{tmp_path}/another/traces/")


def test_object_paths_prefer_the_header_workspace_and_the_run_id(tmp_path: Path) -> None:
    """What a header says goes before what the resource says, and the run before the session."""
    resource = {"attributes": {"cirron.workspace.id": "lab", "cirron.run.id": "r/1"}}
    for headers, workspace in (((), "lab"), ((("x-cirron-workspace-id", "mine"),), "mine")):
        place = Place(tmp_path / workspace, headers=headers)
        batch = place.seal(full(1, 5), otel={"session": span_id(1), "resource": resource})
        place.file(5)
        place.run(batch)
        [path] = Path(place.url).rglob("*.safetensors")
        parts = path.relative_to(place.url).parts
        assert parts[:2] == ("traces", workspace)
        assert parts[2].startswith("r_1-")  # a slash is no part of a name
        assert str(place.uris()[0]).endswith("/".join(parts))


def test_another_context_counts_at_once(place: Place) -> None:
    """As for rows, what a reload says holds from then on, and a header still goes before it."""
    place.headers = (("x-cirron-run-id", "mine"),)
    sender, target = place.started()
    sender.set_context(OwnerContext({WORKSPACE_ID: "after", RUN_ID: "run"}))
    batch = place.seal(full(1, 5), otel={"session": span_id(1)})
    place.file(5)
    target.send([batch])
    sender.finish(120)
    [path] = Path(place.url).rglob("*.safetensors")
    assert path.relative_to(place.url).parts[:3] == ("traces", "after", "mine")


def test_hostile_records_stay_in_the_store(place: Place, tmp_path: Path) -> None:
    odd = ["../../../x", "", "a\0b", "x" * 5000, "\ud800", "..", "/etc/passwd", ".hidden", "ä b"]
    snapshots = [full(n, 5, id=text, span_id=text) for n, text in enumerate(odd)]
    snapshots += [full(50, 5, id=5), full(51, 5, span_id=None)]
    resource = {"attributes": {"cirron.workspace.id": "../..", "cirron.run.id": "."}}
    batch = place.seal(*snapshots, otel={"resource": resource})
    place.file(5)
    stats = place.run(batch)
    assert (stats["waiting"], stats["lost_blobs"]) == (0, 0)
    before = set(tmp_path.rglob("*.safetensors"))
    assert {p for p in before if Path(place.url) not in p.parents} == {
        place.paths.snapshots / span_id(5) / "weights.safetensors"
    }
    assert {place.read(uri) for uri in place.uris()} == {file_of_one("weight", WEIGHT)}


def test_damaged_pending_upload_list_is_rebuilt(place: Place) -> None:
    batch = place.seal(full(1, 5))
    place.run(batch)
    [path] = place.paths.state.glob("uploads-*.sqlite")
    for other in place.paths.state.glob("uploads-*.sqlite-*"):
        other.unlink()
    path.write_bytes(b"not a database" * 1000)
    assert path.stat().st_mode & 0o777 == 0o600
    place.file(5)
    assert place.run()["sent_objects"] == 1
    assert path.with_name(f"{path.name}.bad").exists()
    assert "/store/traces/" in str(place.uris()[0])


@pytest.mark.backends
def test_a_store_that_is_away(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [endpoint] = free_endpoints(1)
    batches = [place.seal(full(number, number)) for number in range(1, 9)]
    for number in range(1, 9):
        place.file(number)
    place.url = "s3://bucket/some where"
    with versitygw(tmp_path, endpoint) as server:
        server.make_bucket("bucket")
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
    sender = place.sender(*batches)
    until(lambda: bool(sender.stats()["last_error"]))
    assert "the connection was refused" in sender.stats()["last_error"]
    assert sender.stats()["waiting"] == 8
    with versitygw(tmp_path, endpoint) as server:
        until(lambda: sender.stats()["waiting"] == 0)
        sender.finish(120)
        assert len(server.objects("bucket")) == 8
        assert {place.read(uri) for uri in place.uris()} == {file_of_one("weight", WEIGHT)}


def test_a_store_that_does_not_take_one_tenants_files(tmp_path: Path) -> None:
    """They wait, and those of others are uploaded."""
    place = Place(tmp_path)
    store = tmp_path / "store" / "traces"
    store.mkdir(parents=True)
    (store / "bad").write_bytes(b"no directory")
    tenants: dict[str, str] = {}

    def put(number: int, tenant: str) -> SealedBatch:
        place.headers = (("x-scope-orgid", tenant),)
        place.file(number)
        batch = place.seal(full(number, number), stored=False)
        tenants[batch.name] = tenant
        return batch

    def uploaded() -> int:
        return len(list(store.rglob("*.safetensors")))

    sender = BlobSender(
        place.url, None, OwnerContext(), lambda name: (("x-scope-orgid", tenants[name]),)
    )
    target = sender.start(place.paths)
    target.send([put(number, "good" if number % 2 else "bad") for number in range(6)])
    until(lambda: uploaded() == 3)
    target.send([put(7, "good")])
    until(lambda: uploaded() == 4)
    assert sender.undelivered() == 3
    (store / "bad").unlink()
    sender.finish(120)
    assert (uploaded(), sender.undelivered()) == (7, 0)
