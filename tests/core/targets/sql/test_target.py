"""The storage as a target of deliveries, and what happens when the database is away."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from cirron_otel.core.delivery.batch_target import BatchTarget, SealedBatch
from cirron_otel.core.delivery.delivery import Delivery
from cirron_otel.core.delivery.errors import (
    MisconfiguredError,
    RefusedError,
    StoppedError,
    UnreachableError,
)
from cirron_otel.core.spool.owner import Owner
from cirron_otel.core.spool.paths import SpoolPaths
from cirron_otel.core.spool.writer import SpoolWriter
from cirron_otel.core.targets.sql.ownership import OwnerContext
from cirron_otel.core.targets.sql.storage import Storage
from cirron_otel.core.targets.sql.target import StorageTarget
from tests.kit.backends.process import free_endpoints
from tests.kit.spools.made import made, mark, span

from .helpers import assert_stored, column, sealed


def write_spool(directory: Path, owner: Owner, count: int) -> list[SealedBatch]:
    writer = SpoolWriter(directory)
    batches = []
    for number in range(count):
        batch_id = f"{owner.prefix}{number:020x}"
        batch = sealed(made(number, batch_id=batch_id, spans=[span(number)], marks=[mark(1, 1)]))
        writer.write(batch.data, batch.name)
        batches.append(batch)
    return batches


def test_a_delivery_brings_a_spool_there(url: str, tmp_path: Path) -> None:
    paths = SpoolPaths.under(tmp_path / "spool-root")
    owner = Owner.acquire(paths)
    batches = write_spool(paths.root, owner, 30)
    refused = sealed(made(99, batch_id=owner.prefix + "f" * 20))
    (paths.spool / refused.name).write_bytes(b"{}")
    target: BatchTarget = StorageTarget(url, OwnerContext(defaults={"cirron.run.id": "r"}))
    delivery = Delivery(paths, owner, target)
    delivery.start()
    for batch in (*batches, refused):
        delivery.notify(batch.name)
    assert delivery.finish(30)
    stats = delivery.stats()
    assert (stats["sent_batches"], stats["refused"]) == (30, 1)
    with Storage.open(url) as storage:
        assert_stored(storage, batches)
        assert set(column(storage, 'SELECT "runId" FROM "TraceSpan"')) == {"r"}


def test_the_same_batches_again(url: str) -> None:
    target = StorageTarget(url)
    batches = [sealed(made(number, spans=[span(number)])) for number in range(3)]
    target.send(batches)
    target.send(batches[1:])
    target.close()
    target.send(batches[:1])
    target.close()
    with Storage.open(url) as storage:
        assert_stored(storage, batches)


def test_invalid_batches_are_refused(url: str) -> None:
    target = StorageTarget(url)
    with pytest.raises(RefusedError, match="is not a batch"):
        target.send([SealedBatch("x.json", b"[]")])
    with pytest.raises(RefusedError, match="path separator"):
        target.send([SealedBatch("a/x.json", sealed(made(1)).data)])
    target.close()


def test_after_an_interrupt_nothing_is_sent(url: str) -> None:
    target = StorageTarget(url)
    target.send([sealed(made(1))])
    target.interrupt()
    with pytest.raises(StoppedError):
        target.send([sealed(made(2))])
    target.close()


def test_send_waiting_for_a_lock_can_be_interrupted(postgres_url: str) -> None:
    target = StorageTarget(postgres_url)
    target.send([sealed(made(1))])
    raised: list[BaseException] = []

    def send() -> None:
        try:
            target.send([sealed(made(2))])
        except BaseException as error:
            raised.append(error)

    with Storage.open(postgres_url) as other, other.database.transaction():
        other.database.run('LOCK TABLE "TraceBatch" IN ACCESS EXCLUSIVE MODE')
        thread = threading.Thread(target=send)
        thread.start()
        while not _waits(other):
            time.sleep(0.01)
        target.interrupt()
        thread.join(180)
    assert [type(error) for error in raised] == [StoppedError]
    target.close()


def _waits(storage: Storage) -> bool:
    return bool(storage.database.rows("SELECT 1 FROM pg_locks WHERE NOT granted"))


def test_a_server_that_is_not_there() -> None:
    [endpoint] = free_endpoints(1)
    target = StorageTarget(f"postgresql://me:secret-word@{endpoint}/db")
    with pytest.raises(UnreachableError) as caught:
        target.send([sealed(made(1))])
    assert not isinstance(caught.value, MisconfiguredError)
    assert endpoint in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("wrong", ["password", "database", "user"])
def test_who_may_not_come_in(postgres_server: Any, postgres_url: str, wrong: str) -> None:
    name = postgres_url.rpartition("/")[2]
    if wrong == "password":
        url = postgres_server.url(name, password="wr0ng/word")
    elif wrong == "user":
        url = postgres_server.url(name, user="nobody-here")
    else:
        url = postgres_server.url("nothing-here")
    with pytest.raises(MisconfiguredError, match="check the user, the password") as caught:
        StorageTarget(url).send([sealed(made(1))])
    assert "wr0ng" not in str(caught.value)
    assert postgres_server.url("x") not in str(caught.value)


def test_lost_connection_is_reopened(postgres_server: Any, postgres_url: str) -> None:
    target = StorageTarget(postgres_url)
    target.send([sealed(made(1))])
    with Storage.open(postgres_server.url("postgres")) as other:
        other.database.rows(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = ?",
            postgres_url.rpartition("/")[2],
        )
    with pytest.raises(UnreachableError):
        target.send([sealed(made(2))])
    target.send([sealed(made(2))])
    target.close()
    with Storage.open(postgres_url) as storage:
        assert len(list(storage.batches())) == 2


def test_a_password_is_shown_nowhere(postgres_server: Any, postgres_url: str) -> None:
    from tests.kit.backends.postgres import PASSWORD

    target = StorageTarget(postgres_url)
    target.send([sealed(made(1))])
    with Storage.open(postgres_url) as storage:
        shown = [repr(storage), storage.shown, repr(storage._location)]
    shown += [repr(target), target.shown, target.key]
    assert not [text for text in shown if PASSWORD in text or quote(PASSWORD, safe="") in text]
    assert target.key == StorageTarget(postgres_url.replace("cirron:", "other:x")).key
    assert target.key != StorageTarget(postgres_server.url("other")).key
    target.close()


def test_an_sqlite_file_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("this is no database, and longer than its header " * 50)
    (tmp_path / "directory").mkdir()
    for name in ("text", "directory", "text/below"):
        with pytest.raises(MisconfiguredError, match=name):
            StorageTarget(f"sqlite:///{tmp_path}/{name}").send([sealed(made(1))])


def test_a_forked_child_lets_go(url: str) -> None:
    target = StorageTarget(url)
    target.send([sealed(made(1))])
    child = os.fork()
    if child == 0:
        target.abandon()
        del target
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    target.send([sealed(made(2))])
    target.close()
    with Storage.open(url) as storage:
        assert len(list(storage.batches())) == 2
