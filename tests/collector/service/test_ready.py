"""/ready says what requests meet, and what a configuration allows is taken."""

from __future__ import annotations

import asyncio
import os
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from cirron_otel.collector.receiver.journal.files import Position, intake_directory
from cirron_otel.collector.receiver.journal.writer import IntakeJournal
from cirron_otel.collector.service.readiness import FRAME_BYTES, Readiness, Untranslated
from cirron_otel.core.spool.paths import target_spool
from cirron_otel.core.spool.state import lock_named
from tests.collector.receiver.journalled import head
from tests.kit.servers.away import until
from tests.kit.servers.serving import Serving, serving, spans_of

from .test_running import post, request

PROTOBUF = "application/x-protobuf"
MIB = 1024**2


def ready(here: Serving, path: str = "/ready") -> int:
    try:
        with urllib.request.urlopen(here.http + path, timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def take(here: Serving, name: str) -> int:
    return post(f"{here.http}/v1/traces", request(name), PROTOBUF)[0]


def limited(folder: Path, request_bytes: int, journal_bytes: int) -> tuple[str, str]:
    config = folder / "collector.yaml"
    config.write_text(
        f"limits: {{request_bytes: {request_bytes}, journal_bytes: {journal_bytes}}}\n"
    )
    return "--config", str(config)


def test_while_the_journal_is_full(tmp_path: Path) -> None:
    with serving(tmp_path / "data", *limited(tmp_path, MIB, 32 * MIB)) as here:
        assert ready(here) == 200
        translator = here.translator()
        assert translator is not None
        os.kill(translator, signal.SIGSTOP)
        names = (f"{number}" + "x" * 900_000 for number in range(100))
        assert 503 in (take(here, name) for name in names)
        assert ready(here) == 503
        os.kill(translator, signal.SIGCONT)
        until(lambda: ready(here) == 200)
        assert take(here, "after") == 200


def test_while_nothing_is_translated(tmp_path: Path) -> None:
    """What was taken by then is stored when it is again."""
    lock_path = intake_directory(target_spool(tmp_path / "data").state) / "consumer.lock"
    with serving(tmp_path / "data") as here:
        translator = here.translator()
        assert translator is not None
        os.kill(here.process.pid, signal.SIGSTOP)  # it does not start another one yet
        os.kill(translator, signal.SIGKILL)
        locks: list[int] = []
        until(lambda: locks or locks.extend(filter(None, [lock_named(lock_path)])) or locks)
        os.kill(here.process.pid, signal.SIGCONT)
        until(lambda: ready(here) == 503)
        assert take(here, "one") == 200
        assert ready(here) == 503
        os.close(locks[0])
        until(lambda: ready(here) == 200)
        until(lambda: spans_of(here.folder))


def test_in_the_way_of_the_spool_is_not_in_the_way_of_requests(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as here:
        spool = here.folder / "spool"
        spool.write_text("in the way")
        assert take(here, "one") == 200
        until(lambda: "cannot be written" in here.log.read_text())
        assert (ready(here), take(here, "two")) == (200, 200)
        spool.unlink()
        until(lambda: len(spans_of(here.folder)) == 2)


def test_health_may_be_switched_off(tmp_path: Path) -> None:
    config = tmp_path / "collector.yaml"
    config.write_text("health: {enabled: false}\n")
    with serving(tmp_path / "data", "--config", str(config)) as here:
        assert (ready(here), ready(here, "/health"), ready(here, "/metrics")) == (404, 404, 200)


def test_the_smallest_journal_that_is_allowed_takes_the_largest_request(tmp_path: Path) -> None:
    size = 20 * MIB
    options = limited(tmp_path, size, 2 * (size + FRAME_BYTES))
    with serving(tmp_path / "data", *options) as here:
        over = len(request("x" * size)) - size
        for letter in "ab":
            name = letter * (size - over)
            assert len(request(name)) == size
            until(lambda name=name: take(here, name) == 200)  # type: ignore[misc]
        until(lambda: len(spans_of(here.folder)) == 2)


class TestReadiness:
    def test_not_ready_for_a_while_after_a_request_could_not_be_stored(
        self, tmp_path: Path
    ) -> None:
        now = [0.0]
        (tmp_path / "state").mkdir()
        journal = IntakeJournal(intake_directory(tmp_path / "state"))
        found = Readiness(journal, 2**30, lambda: True, lambda: now[0])
        assert found.problem(MIB) == ""
        found.note(is_kept=False)
        assert found.problem(MIB) == "the last request could not be stored"
        now[0] = 6.0
        assert found.problem(MIB) == ""
        found.note(is_kept=False)
        found.note(is_kept=True)
        assert found.problem(MIB) == ""

    def test_when_there_is_little_room(self, tmp_path: Path) -> None:
        """A quarter of all, or what a request of the largest size and a segment take."""
        (tmp_path / "state").mkdir()
        journal = IntakeJournal(intake_directory(tmp_path / "state"))

        async def fill(size: int) -> None:
            await journal.append(head(), bytes(size))

        async def test() -> None:
            await fill(40 * MIB)
            for max_mib, request_mib, is_short in (
                (1000, 64, False), (1000, 943, False), (1000, 944, True),
                (54, 0, True), (58, 0, False), (159, 64, False), (120, 64, True),
            ):  # fmt: skip
                found = Readiness(journal, max_mib * MIB, lambda: True)
                assert found.is_short(request_mib * MIB) is is_short, (max_mib, request_mib)
            await journal.close()

        asyncio.run(test())


class TestUntranslated:
    def test_untranslated_requests_and_their_age_are_counted(self) -> None:
        now = [0.0]
        found = Untranslated(lambda: now[0])
        for number in range(1, 5):
            now[0] = float(number)
            found.keep(Position(1, number), number * 10)
        assert (found.requests, found.age_s) == (40, 3.0)
        found.reach(Position(1, 2))
        assert (found.requests, found.age_s) == (20, 1.0)
        found.reach(Position(2, 0))
        assert (found.requests, found.age_s) == (0, 0.0)

    def test_backlog_at_start_ages_but_is_not_counted_as_requests(self) -> None:
        now = [5.0]
        found = Untranslated(lambda: now[0])
        assert not found.is_any
        found.begin(Position(3, 16))
        now[0] = 9.0
        found.keep(Position(3, 90), 1)
        assert (found.is_any, found.requests, found.age_s) == (True, 1, 4.0)
        found.reach(Position(3, 16))
        assert (found.is_any, found.requests, found.age_s) == (True, 1, 0.0)
        found.reach(Position(3, 90))
        assert (found.is_any, found.requests) == (False, 0)

    @pytest.mark.parametrize("count", [999, 5000])
    def test_it_takes_no_more_memory_the_longer_that_is(self, count: int) -> None:
        found = Untranslated()
        for number in range(1, count + 1):
            found.keep(Position(1, number), number)
        assert len(found._marks) <= 1000
        assert found.requests == count
        found.reach(Position(1, count))
        assert found.requests == 0
