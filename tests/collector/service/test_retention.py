"""A clock that was set wrong must not make what is new look old."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cirron_otel.collector.receiver.journal.files import Position
from cirron_otel.collector.service.clock_guard import FIRST_S, TRUST_S, ClockGuard
from cirron_otel.collector.service.logs import Logging
from cirron_otel.collector.service.options import CollectorOptions
from cirron_otel.collector.service.worker import Worker
from cirron_otel.core.targets.sql.storage import Storage
from tests.core.targets.sql.helpers import column, sealed
from tests.kit.servers.away import until
from tests.kit.spools.made import made, span

from .configs import options

DAY_NS = 86_400 * 10**9
YEAR_S = 365 * 86_400.0


class Machine:
    """A wall clock, one that is never set, and the file of a collector."""

    def __init__(self, directory: Path) -> None:
        self.wall, self.passed, self.boot = 1_000_000.0, 50.0, "first"
        self.path = directory / "clock.json"

    def process(self) -> ClockGuard:
        """What a process that starts now sees."""
        return ClockGuard(self.path, lambda: self.wall, lambda: self.passed, lambda: self.boot)

    def go_on(self, seconds: float) -> None:
        self.wall += seconds
        self.passed += seconds

    def reboot(self, off_s: float) -> None:
        self.wall += off_s
        self.passed, self.boot = 5.0, self.boot + "'"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


class TestClockGuard:
    def test_slow_clock_drift_is_not_a_jump(self, machine: Machine) -> None:
        guard = machine.process()
        for _ in range(10):
            machine.go_on(600.0)
            machine.wall += 5.0
            assert guard.is_trusted()
        for _ in range(2):
            machine.wall += 5.0
            assert guard.is_trusted()
        machine.wall += 5.0
        assert not guard.is_trusted()

    def test_the_first_minutes_trust_nothing(self, machine: Machine) -> None:
        guard = machine.process()
        assert not guard.is_trusted()
        machine.go_on(FIRST_S - 1)
        assert not guard.is_trusted()
        assert not guard.has_jumped
        machine.go_on(1)
        assert guard.is_trusted()

    @pytest.mark.parametrize("jump", [61.0, -61.0, YEAR_S, -YEAR_S])
    def test_an_hour_after_a_jump_it_is_trusted_again(self, jump: float, machine: Machine) -> None:
        guard = machine.process()
        machine.go_on(FIRST_S)
        for direction in (1, -1):
            machine.wall += direction * jump
            assert not guard.is_trusted()
            machine.go_on(TRUST_S - 1)
            assert not guard.is_trusted()
            machine.go_on(2.0)
            assert guard.is_trusted()

    @pytest.mark.parametrize("jump", [61.0, -61.0, 400 * 86_400.0, -YEAR_S])
    def test_a_process_that_starts_after_a_jump_finds_it_out(
        self, jump: float, machine: Machine
    ) -> None:
        machine.process()
        machine.go_on(3.0)
        machine.wall += jump
        for _ in range(3):  # each starts within the hour
            guard = machine.process()
            assert guard.has_jumped
            machine.go_on(FIRST_S + 1)
            assert not guard.is_trusted()
        machine.go_on(TRUST_S)
        assert guard.is_trusted()
        assert not machine.process().has_jumped

    @pytest.mark.parametrize(
        ("off_s", "is_odd"),
        [(0.0, False), (600.0, False), (80_000.0, False), (-100.0, True), (-YEAR_S, True),
         (90_000.0, True), (400 * 86_400.0, True)],
    )  # fmt: skip
    def test_after_a_reboot(self, off_s: float, is_odd: bool, machine: Machine) -> None:
        guard = machine.process()
        machine.go_on(FIRST_S)
        assert guard.is_trusted()
        machine.reboot(off_s)
        guard = machine.process()
        assert guard.has_jumped == is_odd
        machine.go_on(FIRST_S)
        assert guard.is_trusted() != is_odd
        machine.go_on(TRUST_S)
        assert guard.is_trusted()

    @pytest.mark.parametrize("jump", [YEAR_S, 36_000.0])
    def test_a_jump_that_a_reboot_follows(self, jump: float, machine: Machine) -> None:
        """Also one that is shorter than a machine may be off."""
        guard = machine.process()
        machine.wall += jump
        guard.look()
        machine.reboot(60.0)
        assert machine.process().has_jumped

    @pytest.mark.parametrize(
        "content", [b"", b"{", b"\xff", b"[]", b'{"boot": 1}', b"9" * 10_000, None]
    )
    def test_a_damaged_file_counts_as_none(self, content: bytes | None, machine: Machine) -> None:
        if content is None:
            machine.path.mkdir()
        else:
            machine.path.write_bytes(content)
        guard = machine.process()
        machine.go_on(FIRST_S)
        assert guard.is_trusted()

    def test_the_clocks_of_this_machine_agree(self, tmp_path: Path) -> None:
        for _ in range(2):
            assert not ClockGuard(tmp_path / "clock.json").has_jumped
        assert (tmp_path / "clock.json").stat().st_mode & 0o777 == 0o600


class Kept:
    """A worker with a database whose batches are some days old."""

    def __init__(self, directory: Path, ages: list[int], **storage: object) -> None:
        self.url = f"sqlite:///{directory}/rows.db"
        now_ns = time.time_ns()
        with Storage.open(self.url) as opened:
            opened.write(
                [
                    sealed(made(n, created_ns=now_ns - age * DAY_NS, spans=[span(n)]))
                    for n, age in enumerate(ages)
                ]
            )
        self.options: CollectorOptions = options(
            directory,
            {
                "spool": {"directory": str(directory / "data")},
                "storage": {"url": self.url, "retention_days": 90, **storage},
            },
        )

    def rows(self) -> int:
        with Storage.open(self.url) as storage:
            return int(column(storage, 'SELECT COUNT(*) FROM "TraceSpan"')[0])

    def look(self, worker: Worker) -> int:
        """How many rows there are after a removal, if there is one."""
        worker._forget_at = 0.0
        worker._forget()
        until(lambda: not worker._retention.is_running)
        return self.rows()


def test_nothing_is_removed_while_the_clock_is_not_trusted(
    tmp_path: Path, machine: Machine
) -> None:
    kept = Kept(tmp_path, [100, 1, 1])
    with Logging(kept.options.logs, []) as logs:
        worker = Worker(kept.options, logs)
        worker._clock = machine.process()
        assert kept.look(worker) == 3
        machine.go_on(FIRST_S + 1)
        machine.wall += YEAR_S
        assert kept.look(worker) == 3
        worker._translation._seen.add([(b"k", time.time_ns() - 50 * DAY_NS, Position(0, 0))])
        machine.go_on(600.0)
        assert kept.look(worker) == 3
        assert worker._translation._seen.is_known(b"k")
        machine.go_on(3600.0)
        assert kept.look(worker) == 2
        assert not worker._translation._seen.is_known(b"k")


def test_a_worker_keeps_a_jump_although_no_removal_is_due(tmp_path: Path, machine: Machine) -> None:
    kept = Kept(tmp_path, [1])
    with Logging(kept.options.logs, []) as logs:
        worker = Worker(kept.options, logs)
        worker._clock = machine.process()
        machine.wall += 36_000.0
        worker._figures()
        machine.reboot(60.0)
        assert machine.process().has_jumped


def test_more_than_a_share_at_once_waits_until_it_is_confirmed(
    tmp_path: Path, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    kept = Kept(tmp_path, [400, 100, 100, 1])
    with Logging(kept.options.logs, []) as logs:
        logging.getLogger().addHandler(caplog.handler)
        worker = Worker(kept.options, logs)
        worker._clock = machine.process()
        machine.go_on(FIRST_S)
        assert kept.look(worker) == 4
        [told] = [r.getMessage() for r in caplog.records if "retention_share" in r.getMessage()]
        assert "3 of 4 batches" in told
        asked = told.rpartition("retention_confirmed to ")[2].partition(" ")[0]
        wanted = datetime.now(UTC).timestamp() - 90 * 86_400
        assert abs(datetime.fromisoformat(asked).timestamp() - wanted) < 60
        # Confirmed up to a time: what is older goes, and the rest is below the share then.
        long_ago = datetime.fromtimestamp(time.time() - 200 * 86_400, UTC).isoformat()
        worker._apply(Kept(tmp_path, [], retention_confirmed=long_ago).options)
        assert kept.look(worker) == 3
        worker._apply(Kept(tmp_path, [], retention_confirmed=asked).options)
        assert kept.look(worker) == 1
        # A later time than asked for removes nothing that is not old enough.
        worker._apply(Kept(tmp_path, [], retention_confirmed="2100-01-01").options)
        assert kept.look(worker) == 1


def test_up_to_the_share_goes_at_once(tmp_path: Path, machine: Machine) -> None:
    kept = Kept(tmp_path, [100, 100, 1, 1], retention_share=0.5)
    with Logging(kept.options.logs, []) as logs:
        worker = Worker(kept.options, logs)
        worker._clock = machine.process()
        machine.go_on(FIRST_S)
        assert kept.look(worker) == 2
