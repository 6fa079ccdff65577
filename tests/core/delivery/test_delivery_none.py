"""Batches whose writer left nothing behind, as a collector stores them: they are found as well."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.core.delivery import backlog as backlog_module
from cirron_otel.core.delivery import delivery as delivery_module
from cirron_otel.core.delivery.delivery import Delivery
from cirron_otel.core.spool.ledger import owned
from cirron_otel.core.spool.owner import NONE, Owner
from cirron_otel.core.spool.paths import target_spool
from cirron_otel.core.spool.writer import SpoolWriter
from cirron_otel.core.targets.sql.storage import Storage
from cirron_otel.core.targets.sql.target import StorageTarget
from tests.kit.servers.cirron_server import CirronServer
from tests.kit.spools.deliveries import (
    QUICK,
    batch_of,
    cirron_target,
    until,
)


class Nobodys:
    prefix = NONE


def sealed(root: Path, count: int) -> list[str]:
    """Names of so many batches with ids of another program's making."""
    writer = SpoolWriter(root, durable=False)
    batches = [batch_of(f"{7 * number:032x}", 10**18 + number, number) for number in range(count)]
    return [writer.write(json.dumps(batch).encode()).name for batch in batches]


def delivery_to(root: Path, target: Any) -> Delivery:
    nobodys: Any = Nobodys()
    return Delivery(target_spool(root), nobodys, target, policy=QUICK)


def test_batches_with_an_owner_are_not_listed_as_ownerless(tmp_path: Path) -> None:
    paths = target_spool(tmp_path)
    owner = Owner.acquire(paths)
    names = sealed(tmp_path, 3)
    own = json.dumps(batch_of(owner.new_batch_id(), 5, 9)).encode()
    named = SpoolWriter(tmp_path).write(own).name
    for asked in ({NONE}, {owner.prefix}, {NONE, owner.prefix}):
        found = {key: sorted(value) for key, value in owned(paths, asked).items()}
        assert found == {key: names if key == NONE else [named] for key in asked}
    owner.release()


def test_final_attempt_sends_batches_without_notification(tmp_path: Path) -> None:
    sealed(tmp_path, 5)
    with CirronServer().running() as server:
        delivery = delivery_to(tmp_path, cirron_target(server.url))
        delivery.start()
        assert delivery.finish(120)
        assert sorted(server.accepted) == [f"{7 * number:032x}" for number in range(5)]


def test_more_than_is_remembered_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What there was no room for is found again in the directory, once the others are sent."""
    monkeypatch.setattr(delivery_module, "MOST_NAMES", 100)
    monkeypatch.setattr(backlog_module, "MOST_NAMES", 100)
    names = sealed(tmp_path, 250)
    url = f"sqlite:///{tmp_path}/rows.db"
    delivery = delivery_to(tmp_path, StorageTarget(url))
    for name in names:
        delivery.notify(name)
    delivery.start()
    until(lambda: delivery.stats()["sent_batches"] == len(names))
    assert delivery.finish(120)
    with Storage.open(url, create=False) as storage:
        assert storage.database.rows('SELECT count(*) FROM "TraceBatch"') == [(len(names),)]
