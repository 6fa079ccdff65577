"""Several collectors remove old rows from one database while others store into it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from cirron_otel.core.targets.sql.storage import Storage

from .helpers import column
from .test_received import (
    Request,
    assert_whole,
    batch,
    expected_names,
    names,
)

OLD_NS, NEW_NS = 1_790_000_000 * 10**9, 1_791_000_000 * 10**9
LIMIT_NS = 1_790_500_000 * 10**9
WRITERS, REMOVERS = 4, 3
OLD: list[Request] = [(n, n + 10) for n in range(5)]
NEW: list[Request] = [(n, n + 10) for n in range(5, 10)]


def test_removing_and_storing_at_once(url: str) -> None:
    """Each writer stores all requests, the old ones among the new ones; none fails."""
    with Storage.open(url):
        pass
    errors: list[BaseException] = []
    is_over = threading.Event()

    def write(number: int) -> None:
        with Storage.open(url) as storage:
            for old, new in zip(OLD, NEW, strict=True):
                storage.write([batch(number, [old], OLD_NS), batch(number, [new], NEW_NS)])

    def remove(_: int) -> None:
        with Storage.open(url) as storage:
            while not is_over.is_set():
                storage.retain(LIMIT_NS)

    def guarded(work: Callable[[int], None], number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    writers = [threading.Thread(target=guarded, args=(write, n)) for n in range(WRITERS)]
    removers = [threading.Thread(target=guarded, args=(remove, n)) for n in range(REMOVERS)]
    for thread in (*removers, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    is_over.set()
    for thread in removers:
        thread.join()
    assert errors == []
    with Storage.open(url) as storage:
        storage.retain(LIMIT_NS)
        assert names(storage) == expected_names(NEW)
        assert_whole(storage)
        kept = 'SELECT "batchKey" FROM "TraceBatch"'
        left = f'SELECT COUNT(*) FROM "TraceDigest" WHERE "batchKey" NOT IN ({kept})'
        assert column(storage, left) == [0]
