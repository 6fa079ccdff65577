"""Three collectors on one PostgreSQL: killed while they store, migrate, create and remove days."""

from __future__ import annotations

import random
import subprocess
import time
from collections import Counter

from cirron_otel.core.delivery.batch_target import SealedBatch
from cirron_otel.core.durations import DAY_NS
from cirron_otel.core.targets.sql.storage import Storage
from tests.kit.spools.deliveries import until
from tests.kit.spools.made import made, mark, span

from .helpers import column, sealed, stored
from .test_crash import python
from .test_days import PATIENCE_S, is_removed
from .test_received import batch, names

MEMBERS, REQUESTS, OLD_REQUESTS, PROGRAMS = 3, 60, 12, 40
EXPIRED_DAYS = 8
_STORE = """
import sys
from cirron_otel.core.targets.sql.storage import Storage
from tests.core.targets.sql.test_days_crash import groups
url, member, now_ns = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with Storage.open(url) as storage:
    for number, group in enumerate(groups(member, now_ns)):
        print(number, flush=True)
        storage.write(group)
print("done", flush=True)
"""
_REMOVE = """
import sys
from cirron_otel.core.targets.sql.storage import Storage
print("ready", flush=True)
while True:
    with Storage.open(sys.argv[1]) as storage:
        storage.retain(int(sys.argv[2]))
        print("removed", flush=True)
"""


def groups(member: int, now_ns: int) -> list[list[SealedBatch]]:
    """The batches that a collector stores, in groups; the same whenever it starts again.

    All collectors receive all requests, in another order, in other batches and on other days; the
    batches of programs are the same ones.
    """
    chance = random.Random(member)
    batches = []
    left = chance.sample(range(REQUESTS), REQUESTS)
    while left:
        some = [(content,) for content in left[: chance.randrange(1, 4)]]
        del left[: len(some)]
        days_ago = chance.choice((0, 0, 1, 2, EXPIRED_DAYS - 1))
        at_ns = now_ns - days_ago * DAY_NS + len(left)
        batches.append(batch(member, some, at_ns))
    for content in range(1000, 1000 + OLD_REQUESTS):
        at_ns = now_ns - (EXPIRED_DAYS + 1 + content % 3 + 60 * (content % 4 == 0)) * DAY_NS
        batches.append(batch(member, [(content,)], at_ns))
    for number in range(PROGRAMS):
        at_ns = now_ns - number % 4 * DAY_NS
        batches.append(
            sealed(made(number, created_ns=at_ns, spans=[span(number)], marks=[mark(number, 1)]))
        )
    chance.shuffle(batches)
    return [batches[start : start + 2] for start in range(0, len(batches), 2)]


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    """The next lines of a process; fewer if it ends."""
    assert process.stdout is not None
    return [line for line in (process.stdout.readline() for _ in range(count)) if line]


def test_every_request_is_stored_once(postgres_url: str) -> None:
    now_ns = time.time_ns() // DAY_NS * DAY_NS + DAY_NS // 2
    before_ns = now_ns - EXPIRED_DAYS * DAY_NS
    chance = random.Random(5)
    writers = {
        member: python(_STORE, postgres_url, str(member), str(now_ns)) for member in range(MEMBERS)
    }
    removers = [python(_REMOVE, postgres_url, str(before_ns)) for _ in range(2)]
    for turn in range(2 * MEMBERS):
        member = turn % MEMBERS
        lines(writers[member], chance.randrange(1, 30))
        time.sleep(chance.uniform(0, 0.01))
        writers[member].kill()
        writers[member].communicate()
        writers[member] = python(_STORE, postgres_url, str(member), str(now_ns))
        if turn in (2, 4):
            lines(removers[0], 2)
            removers[0].kill()
            removers[0].communicate()
            removers[0] = python(_REMOVE, postgres_url, str(before_ns))
    for writer in writers.values():
        output, _ = writer.communicate()
        assert output.split()[-1] == "done"
    for remover in removers:
        remover.kill()
        remover.communicate()
    with Storage.open(postgres_url) as storage:
        # The server may still work for a process that was killed.
        until(lambda: is_removed(storage, before_ns), PATIENCE_S)
        found = names(storage)
        expected = Counter({f"content {c}": c % 3 + 1 for c in range(REQUESTS)})
        assert found == expected + Counter(step=PROGRAMS)
        ids = column(storage, 'SELECT "id" FROM "TraceMark"')
        assert Counter(ids) == Counter(mark(number, 1)["id"] for number in range(PROGRAMS))
        batches = stored(storage)
        assert len(batches) == len({name for name, _ in batches})
        assert_received(storage)
        # What anyone sends again is known.
        for member in range(MEMBERS):
            for group in groups(member, now_ns):
                recent = [each for each in group if int(each.name[:20]) >= before_ns]
                assert storage.write(recent).new == 0
        assert names(storage) == found
        keys = column(storage, 'SELECT "batchKey" FROM "TraceBatch"')
        for table in ("TraceSpan", "TraceMark", "TraceDigest", "TraceName"):
            assert set(column(storage, f'SELECT "batchKey" FROM "{table}"')) <= set(keys), table


def assert_received(storage: Storage) -> None:
    """The resources of the batches of requests count as many spans as the batches have."""
    for _, value in stored(storage):
        if "otel" in value:
            counts = [s["spans"] for r in value["otel"]["resource_spans"] for s in r["scope_spans"]]
            assert sum(counts) == len(value["spans"])
