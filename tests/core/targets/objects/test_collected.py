"""From an SDK through a real collector into a store: objects, rows, and back."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import safetensors

from cirron_otel.core.targets.objects import open_store
from cirron_otel.core.targets.sql.storage import Storage
from cirron_otel.errors import InputError
from tests.collector.service.test_handing_on import send
from tests.kit.servers.away import until
from tests.kit.servers.serving import Serving, serving
from tests.kit.spools.comparing import (
    RECORDED,
    assert_same,
    batches,
    cirron_otel,
)

SPOOL = RECORDED / "18_http_wire"
on_disk = pytest.mark.parametrize("url", ["directory"], indirect=True)
in_s3 = pytest.mark.parametrize(
    "url", [pytest.param("s3", marks=pytest.mark.backends)], indirect=True
)


def upload(spool: Path, here: Serving, pattern: str = "*") -> int:
    """PUT the snapshot files of a spool, as cirron-sdk does; how many they are."""
    files = [path for path in sorted(spool.rglob("*.safetensors")) if path.match(pattern)]
    for path in files:
        url = f"{here.http}/v1/traces/blobs/snapshots/{path.parent.name}/{path.name}"
        request = urllib.request.Request(url, path.read_bytes(), method="PUT")
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 201
    return len(files)


def tensors_of(data: bytes) -> dict[str, tuple[str, list[int], bytes]]:
    return {
        name: (told["dtype"], told["shape"], bytes(told["data"]))
        for name, told in safetensors.deserialize(data)
    }


def rows_of(url: str) -> dict[str, tuple[str | None, str]]:
    """By a snapshot's id: where its row says it is, and its tensor's name."""
    with Storage.open(url, create=False) as storage:
        rows = storage.database.rows('SELECT "id", "blobUri", "tensorName" FROM "TraceSnapshot"')
    return {row[0]: (row[1], row[2]) for row in rows}


def stored_in(url: str) -> int:
    """The number of batches in a database; 0 if it cannot be opened yet."""
    with contextlib.suppress(InputError), Storage.open(url, create=False) as storage:
        return len(storage.database.rows('SELECT 1 FROM "TraceBatch"'))
    return 0


def see_all_is_there(url: str, database: str, spool: Path, *, run: str | None = None) -> int:
    """Every record's object is its tensor, exactly, and its row says where; how many they are."""
    store, rows, count = open_store(url), rows_of(database), 0
    root = store.place.shown
    for batch in batches(spool).values():
        session = run or next(s["id"] for s in _spans(spool) if s["name"] == "cirron.session")
        for record in batch["snapshots"]:
            if record["blob_uri"] is None:
                assert rows[record["id"]][0] is None
                continue
            key = f"traces/default/{session}/{record['span_id']}/{record['id']}.safetensors"
            assert rows[record["id"]] == (f"{root}/{key}", record["tensor_name"])
            [(name, found)] = tensors_of(b"".join(store.get(key))).items()
            assert name == record["tensor_name"]
            path = next(spool.rglob("/".join(record["blob_uri"].rsplit("/", 2)[-2:])))
            original = tensors_of(path.read_bytes())
            assert found == original.get(name, original.get(name.removesuffix(".grad")))
            assert found[1] == record["shape"]
            count += 1
    return count


def _spans(spool: Path) -> list[dict[str, Any]]:
    return [span for batch in batches(spool).values() for span in batch["spans"]]


def test_a_recording_with_snapshots(url: str, tmp_path: Path) -> None:
    """The files come behind the batches, some of them not at all before a restart."""
    database = f"sqlite:///{tmp_path / 'runs.db'}"
    options = ("--storage", database, "--blobs", url)
    spool = tmp_path / "recorded"
    _with_snapshots(spool)
    with serving(tmp_path / "data", *options) as here:
        assert send(spool, here) > 1
        assert upload(spool, here, "weights.*")
        assert here.end() == 0  # no client has sent the others
    for uri, name in rows_of(database).values():  # what is not there is not said to be
        is_there = str(uri).startswith(f"{open_store(url).place.shown}/traces/")
        assert is_there == (uri is not None and not name.endswith(".grad"))
    with serving(tmp_path / "data", *options) as here:
        assert upload(spool, here, "gradients.*")
        assert here.end() == 0
    assert see_all_is_there(url, database, spool) >= 8
    assert_same(batches(tmp_path / "data"), batches(spool))
    cirron_otel("convert", database, tmp_path / "back")
    assert_same(batches(tmp_path / "back"), batches(spool))


@on_disk
def test_store_configured_later_receives_existing_snapshots(url: str, tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'runs.db'}"
    spool = tmp_path / "recorded"
    _with_snapshots(spool)
    with serving(tmp_path / "data") as here:
        send(spool, here)
        upload(spool, here)
        assert here.end() == 0
    with serving(tmp_path / "data", "--storage", database, "--blobs", url) as here:
        assert here.end() == 0
    assert see_all_is_there(url, database, spool) >= 8


@in_s3
def test_a_collector_that_is_killed_while_it_uploads(url: str, tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'runs.db'}"
    options = ("--storage", database, "--blobs", url)
    spool = tmp_path / "recorded"
    _with_snapshots(spool)
    with serving(tmp_path / "data", *options) as here:
        send(spool, here)
        upload(spool, here)
        translator = here.translator()
        assert translator is not None
        os.kill(translator, signal.SIGKILL)
        here.kill()
    with serving(tmp_path / "data", *options) as here:
        assert here.end() == 0
    assert see_all_is_there(url, database, spool) >= 8


def test_a_server_that_never_answers_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = f"sqlite:///{tmp_path / 'runs.db'}"
    config = tmp_path / "collector.yaml"
    config.write_text("drain_s: 3\nblobs: {url: s3://bucket}\n")
    spool = tmp_path / "recorded"
    _with_snapshots(spool)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://{}:{}".format(*silent.getsockname()))
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        with serving(tmp_path / "data", "--config", str(config), "--storage", database) as here:
            count = send(spool, here)
            upload(spool, here)
            connection, _ = silent.accept()  # it is being asked, and all else goes on
            count += send(SPOOL, here)  # the same ids with other content: each is kept
            until(lambda: stored_in(database) == count)
            assert here.end() == 7
            connection.close()
    assert rows_of(database)
    cirron_otel("convert", database, tmp_path / "back")
    assert batches(tmp_path / "back").keys() == batches(tmp_path / "data").keys()
    assert len(batches(tmp_path / "back")) == count


@in_s3
@pytest.mark.torch
def test_snapshots_of_a_live_training_reach_the_object_store(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from safetensors.torch import load

    import cirron_otel as ci
    from tests.kit.sessions.opened import opened
    from tests.sdk.snapshots.training import epochs, model, train

    database = f"sqlite:///{tmp_path / 'runs.db'}"
    run = tmp_path / "run"
    monkeypatch.delenv("CIRRON_RUN_ID", raising=False)
    with serving(tmp_path / "data", "--storage", database, "--blobs", url) as here:
        monkeypatch.setenv("CIRRON_API_KEY", "key")
        monkeypatch.setenv("CIRRON_API_ENDPOINT", here.http)
        with opened(run, snapshots="full"):
            seen = train(ci.watch(model()))
            assert ci.shutdown()
        assert here.end() == 0
    (made,) = ci.runs(run)
    assert see_all_is_there(url, database, run, run=made.id) == 16
    ids = [span["id"] for span in epochs(run)]
    root = f"{open_store(url).place.shown}/"
    for uri, name in rows_of(database).values():
        key = str(uri).removeprefix(root)
        found = load(b"".join(open_store(url).get(key)))[name]
        assert torch.equal(found, seen[ids.index(key.split("/")[3])][name])
    cirron_otel("convert", database, tmp_path / "back")
    assert_same(batches(tmp_path / "back"), batches(run))


def _with_snapshots(directory: Path) -> None:
    """The recording, its snapshot records naming the files that lie beside it."""
    (directory / "spool").mkdir(parents=True)
    for path in sorted((SPOOL / ".cirron" / "spool").glob("*.json")):
        batch = json.loads(path.read_bytes())
        for record in batch["snapshots"]:
            name = "gradients" if record["tensor_name"].endswith(".grad") else "weights"
            file = f"snapshots/{record['span_id']}/{name}.safetensors"
            if (original := SPOOL / ".cirron" / file).exists():
                record["blob_uri"] = f"file:///elsewhere/.cirron/{file}"
                copy = directory / file
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(original.read_bytes())
        (directory / "spool" / path.name).write_text(json.dumps(batch))
