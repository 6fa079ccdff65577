"""A batch that comes late, by its name, is sent like any other, however much was sent before it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cirron_otel.collector.service import target_sender as batch_feed
from cirron_otel.collector.service.target_sender import OldestUnsent, UnsentBatches, unsent
from cirron_otel.core.delivery.backlog import Backlog
from cirron_otel.core.delivery.delivery import Delivery
from cirron_otel.core.spool.owner import NONE
from cirron_otel.core.spool.paths import SpoolPaths, file_name, target_spool
from cirron_otel.core.spool.writer import SpoolWriter
from cirron_otel.core.targets.otlp.config import target_key
from cirron_otel.core.targets.sql.storage import Storage
from cirron_otel.core.targets.sql.target import StorageTarget
from tests.kit.servers.cirron_server import CirronServer
from tests.kit.servers.servers import http_receiver
from tests.kit.spools.deliveries import (
    QUICK,
    batch_of,
    cirron_target,
    until,
)
from tests.kit.spools.following import Following, arrived, config_of
from tests.kit.spools.processes import Process

MANY = 40_001
"""One more than were once kept one by one."""
START_NS = 10**18


class Nobodys:
    prefix = NONE


def many_are_done(paths: SpoolPaths, key: str) -> None:
    """The target has that many newer batches, of which the newest still is in the spool."""
    backlog = Backlog.claim(paths, key, NONE, print)
    assert backlog is not None
    for number in range(MANY):
        backlog.cursor.acknowledge(file_name(START_NS + number, f"{number:032x}"))
    backlog.cursor.save()
    backlog.release()
    newest = MANY - 1
    write(paths, START_NS + newest, newest)


def write(paths: SpoolPaths, created_ns: int, number: int) -> str:
    batch = batch_of(f"{number:032x}", created_ns, number)
    return SpoolWriter(paths.root, durable=False).write(json.dumps(batch).encode()).name


def delivery_to(paths: SpoolPaths, target: Any) -> Delivery:
    nobodys: Any = Nobodys()
    return Delivery(paths, nobodys, target, policy=QUICK)


def test_a_batch_that_disappears_hides_no_other(tmp_path: Path) -> None:
    """The first by name is listed and its file is gone, as if it were evicted meanwhile."""
    paths = target_spool(tmp_path)
    names = [write(paths, START_NS + number, number) for number in range(3)]
    first = file_name(START_NS - 1, "f" * 32)
    (paths.spool / first).symlink_to("missing")
    unsent_here = UnsentBatches(paths, "key")
    assert unsent_here.look().waiting == unsent_here.count() == len(names) + 1
    assert unsent_here.look(lambda: names).age_s > 0


def test_an_old_batch_does_not_keep_the_names_of_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target refuses one lane for weeks and takes all others: only what it lacks is kept."""
    monkeypatch.setattr(batch_feed, "_CHECK_FROM", 10)
    paths = target_spool(tmp_path)
    late = write(paths, START_NS, 0)
    backlog = Backlog.claim(paths, "key", NONE, print)
    assert backlog is not None
    oldest = OldestUnsent(paths, UnsentBatches(paths, "key"), [late])
    for number in range(1, 40):
        name = file_name(START_NS + number, f"{number:032x}")
        if number % 2:  # the others are evicted
            backlog.cursor.acknowledge(write(paths, START_NS + number, number))
            backlog.cursor.save()
        oldest.add([name])
    backlog.release()
    assert len(oldest) <= 10
    assert oldest.age_s() > 0
    (paths.spool / late).unlink()
    assert oldest.age_s() == 0


@pytest.mark.parametrize("is_told", [True, False])
def test_it_is_stored(tmp_path: Path, is_told: bool) -> None:
    """By the delivery of a collector that runs, and by one that starts."""
    paths, url = target_spool(tmp_path), f"sqlite:///{tmp_path}/rows.db"
    target = StorageTarget(url)
    many_are_done(paths, target.key)
    delivery = delivery_to(paths, target)
    if is_told:
        delivery.start()
    late = write(paths, START_NS - 10**15, 99_999)
    assert unsent(paths, target) == [late]
    looking = UnsentBatches(paths, target.key)
    assert looking.lacks(late)
    assert looking.look().waiting == 1
    for name in [late] if is_told else unsent(paths, target):
        delivery.notify(name)
    if not is_told:
        delivery.start()
    until(lambda: not looking.lacks(late))
    assert delivery.finish(120)
    assert (delivery.stats()["sent_batches"], delivery.stats()["evicted"]) == (1, 0)
    with Storage.open(url, create=False) as storage:
        assert storage.database.rows('SELECT "name" FROM "TraceBatch"') == [(late,)]
    assert unsent(paths, StorageTarget(url)) == []


def test_it_is_sent_as_otlp(tmp_path: Path) -> None:
    paths = target_spool(tmp_path)
    with http_receiver() as server:
        config = config_of(server)
        many_are_done(paths, target_key(config))
        following = Following(tmp_path, config)
        with following.running():
            write(paths, START_NS - 10**15, 99_999)
            until(lambda: len(arrived(server)) == 1)
        write(paths, START_NS - 10**16, 99_998)
        again = Following(tmp_path, config)
        assert again.follower.unsent() == 1
        assert again.once().batches == 1
        assert again.follower.unsent() == 0
    assert [int.from_bytes(span) for span, _ in arrived(server)] == [99_999, 99_998]


SENDING = """
from tests.kit.spools.deliveries import QUICK, cirron_target
from cirron_otel.collector.service.target_sender import unsent
from cirron_otel.core.delivery.delivery import Delivery
class Nobodys:
    prefix = "none"
target = cirron_target(sys.argv[2])
delivery = Delivery(paths, Nobodys(), target, policy=QUICK)
names = unsent(paths, target)
delivery.start()
for name in names:
    delivery.notify(name)
say("told")
print(delivery.finish(60), flush=True)
"""


def test_after_kills_all_are_sent_and_none_for_long(tmp_path: Path) -> None:
    """Each comes again at the most once a kill: that whose answer was not noted."""
    paths, kills, count = target_spool(tmp_path), 3, 400
    names = {f"{n:032x}" for n in range(count)}
    with CirronServer().running() as server:
        for number in range(count):  # every one older than the one before
            write(paths, START_NS - number, number)
        for kill in range(kills):
            with Process(SENDING, paths.root, server.url) as process:
                until(lambda end=kill * 100 + 50: len(server.accepted) > end)
                process.kill()
        late = write(paths, START_NS - 10**9, count)
        assert late in unsent(paths, cirron_target(server.url))
        with Process(SENDING, paths.root, server.url) as process:
            assert [process.line(), process.line()] == ["told", "True"]
    assert set(server.accepted) == names | {f"{count:032x}"}
    assert len(server.accepted) <= count + 1 + kills
