"""A clock that was set wrong must not make what is new look old."""

from __future__ import annotations

import time
from pathlib import Path

from cirron_otel.collector.logs import Logging
from cirron_otel.collector.options import CollectorOptions
from cirron_otel.collector.steady import Steadiness
from cirron_otel.collector.worker import Worker
from cirron_otel.storage import Storage
from tests.spool.made import made, span
from tests.storage.helpers import column, sealed

from .away import until
from .configs import options

DAY_NS = 86_400 * 10**9


class Clocks:
    """A wall clock, and one that nobody sets."""

    def __init__(self) -> None:
        self.wall, self.passed = 1_000_000.0, 50.0

    def watched(self) -> Steadiness:
        return Steadiness(lambda: self.wall, lambda: self.passed)

    def go_on(self, seconds: float) -> None:
        self.wall += seconds
        self.passed += seconds


class TestSteadiness:
    def test_time_that_passes_is_no_jump(self) -> None:
        clocks = Clocks()
        found = clocks.watched()
        for _ in range(10):
            clocks.go_on(600.0)
            clocks.wall += 5.0
            assert found.is_steady() == (clocks.wall - clocks.passed - 999_950.0 <= 60.0)

    def test_an_hour_behind_a_jump_it_is_trusted_again(self) -> None:
        clocks = Clocks()
        found = clocks.watched()
        for jump in (86_400.0 * 365, -86_400.0 * 365):
            clocks.wall += jump
            assert not found.is_steady()
            clocks.go_on(3599.0)
            assert not found.is_steady()
            clocks.go_on(2.0)
            assert found.is_steady()

    def test_the_clocks_of_this_machine_agree(self) -> None:
        assert Steadiness().is_steady()


def test_nothing_is_removed_while_the_clock_is_not_trusted(tmp_path: Path) -> None:
    """Rows that are older than retention_days by the clock of this machine."""
    url = f"sqlite:///{tmp_path}/rows.db"
    with Storage.open(url) as storage:
        old = made(1, created_ns=time.time_ns() - 100 * DAY_NS, spans=[span(1)])
        storage.write([sealed(old)])
    config = {
        "spool": {"directory": str(tmp_path / "data")},
        "storage": {"url": url, "retention_days": 90},
    }
    wanted: CollectorOptions = options(tmp_path, config)

    def rows() -> int:
        with Storage.open(url) as storage:
            return int(column(storage, 'SELECT COUNT(*) FROM "TraceSpan"')[0])

    clocks = Clocks()
    with Logging(wanted.logs, []) as logs:
        worker = Worker(wanted, logs)
        worker._steadiness = clocks.watched()
        clocks.wall += 86_400.0 * 365
        worker._forget()
        clocks.go_on(600.0)
        worker._forget_at = 0.0
        worker._forget()
        assert not worker._senders._retaining.locked()
        assert rows() == 1
        clocks.go_on(3600.0)
        worker._forget_at = 0.0
        worker._forget()
        until(lambda: rows() == 0)
