"""Deliveries of sealed batches against real servers that fail in every way."""

from __future__ import annotations

import io
import json
import logging
import shutil
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, get_value

from cirron_otel.core.delivery.backlog import Backlog
from cirron_otel.core.delivery.batch_target import Receipt, SealedBatch
from cirron_otel.core.delivery.delivery import Delivery
from cirron_otel.core.delivery.errors import MisconfiguredError, UnreachableError
from cirron_otel.core.delivery.retry_policy import Backoff, RetryGate, RetryPolicy
from cirron_otel.core.spool.lease import claim_delivery
from cirron_otel.core.spool.paths import file_name
from cirron_otel.core.targets.event_stream import EventStreamTarget
from tests.kit.backends.process import free_port
from tests.kit.servers.cirron_server import CirronServer, Fault, Received
from tests.kit.spools.deliveries import (
    KEY,
    QUICK,
    Process,
    cirron_target,
    until,
)


def assert_in_order(accepted: list[str], sealed: list[str]) -> None:
    """Each batch once, in order, except the first that is accepted after an outage.

    Several batches are tried during an outage, so the first one that is accepted may be any.
    """
    first, *others = accepted
    assert first in sealed
    assert others == [each for each in sealed if each != first]


def test_batches_arrive_in_order_and_once(tmp_path: Path) -> None:
    process = Process(tmp_path)
    with CirronServer().running() as server:
        delivery = process.delivery(cirron_target(server.url))
        delivery.start()
        names = [process.seal() for _ in range(20)]
        for name in names:
            delivery.notify(name)
        assert delivery.finish(120)
    assert server.accepted == process.sealed
    stats = delivery.stats()
    on_disk = [(process.paths.spool / name).read_bytes() for name in names]
    assert stats["sent_batches"] == 20
    assert stats["sent_bytes"] == sum(map(len, on_disk))
    assert (stats["waiting"], stats["refused"], stats["errors"]) == (0, 0, 0)
    assert stats["last_success_ns"] > 0
    assert stats["last_error"] == ""
    assert not stats["is_running"]
    assert [server.batches[each] for each in server.accepted] == [json.loads(d) for d in on_disk]


def test_a_server_that_comes_up_late_gets_everything(tmp_path: Path) -> None:
    process, port = Process(tmp_path), free_port()
    delivery = process.delivery(cirron_target(f"http://127.0.0.1:{port}"))
    delivery.start()
    for _ in range(30):
        delivery.notify(process.seal())
    until(lambda: "Connection refused" in delivery.stats()["last_error"])
    assert delivery.stats()["waiting"] == 30
    with CirronServer().running(port) as server:
        assert delivery.finish(120)
    assert_in_order(server.accepted, process.sealed)


def test_batches_that_move_to_the_queue_count_as_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go_on, take = threading.Event(), threading.Event(), Backlog.take

    def late_take(backlog: Backlog, names: list[str]) -> int:
        entered.set()
        go_on.wait(60)
        return take(backlog, names)

    process = Process(tmp_path)
    delivery = process.delivery(cirron_target(f"http://127.0.0.1:{free_port()}"))
    for _ in range(10):
        delivery.notify(process.seal())
    monkeypatch.setattr(Backlog, "take", late_take)
    delivery.start()
    assert entered.wait(60)
    threading.Timer(0.3, go_on.set).start()
    assert delivery.stats()["waiting"] == 10
    delivery.finish(0.0)


def test_announced_batches_that_are_queued_in_portions_arrive_in_order_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory is scanned for the batches after them."""
    taken, take = [], Backlog.take

    def noted_take(backlog: Backlog, names: list[str]) -> int:
        taken.append(len(names))
        return take(backlog, names)

    monkeypatch.setattr("cirron_otel.core.delivery.delivery._MOST_TAKEN", 3)
    process = Process(tmp_path)
    with CirronServer().running() as server:
        delivery = process.delivery(cirron_target(server.url), most_noted=10)
        for _ in range(20):
            delivery.notify(process.seal())
        assert delivery.stats()["waiting"] == 20
        monkeypatch.setattr(Backlog, "take", noted_take)
        delivery.start()
        assert delivery.finish(120)
    assert server.accepted == process.sealed
    assert sum(count for count in taken if count <= 3) == 10
    stats = delivery.stats()
    assert (stats["waiting"], stats["evicted"], stats["errors"]) == (0, 0, 0)


def test_a_server_that_never_comes_up_loses_nothing(tmp_path: Path) -> None:
    process, port = Process(tmp_path), free_port()
    delivery = process.delivery(cirron_target(f"http://127.0.0.1:{port}"))
    delivery.start()
    for _ in range(3):
        delivery.notify(process.seal())
    assert not delivery.finish(0.2)
    process.owner.release()
    later = Process(tmp_path)
    with CirronServer().running(port) as server:
        next_one = later.delivery(cirron_target(server.url))
        next_one.start()
        until(lambda: len(server.accepted) == 3)
        next_one.notify(later.seal())
        assert next_one.finish(120)
    assert server.accepted == process.sealed + later.sealed


@pytest.mark.parametrize(
    "fault",
    [
        Fault(503),
        Fault(500),
        Fault(429, {"Retry-After": "0"}),
        Fault(raw=b"\x16\x03\x01garbage\r\n"),
        Fault(401),
        Fault(404),
    ],
    ids=["503", "500", "429", "garbage", "401", "404"],
)
def test_failed_batches_are_retried_in_order_until_accepted(tmp_path: Path, fault: Fault) -> None:
    process = Process(tmp_path)
    with CirronServer().running() as server:
        server.faults = [fault] * 7
        delivery = process.delivery(cirron_target(server.url))
        delivery.start()
        for _ in range(4):
            delivery.notify(process.seal())
        until(lambda: len(server.accepted) == 4)
        assert delivery.finish(120)
    assert_in_order(server.accepted, process.sealed)
    assert len(server.posts()) == 4 + 7
    stats = delivery.stats()
    assert stats["last_error"]
    assert stats["last_success_ns"] > stats["last_error_ns"] > 0
    assert not stats["is_misconfigured"]


def test_wrong_key_is_reported_and_loses_no_batches(tmp_path: Path) -> None:
    process = Process(tmp_path)
    with CirronServer().running() as server:
        server.faults = [lambda _: Fault(403)] * 1000
        delivery = process.delivery(cirron_target(server.url))
        delivery.start()
        delivery.notify(process.seal())
        until(lambda: delivery.stats()["is_misconfigured"])
        assert "CIRRON_API_KEY" in delivery.stats()["last_error"]
        server.faults = []
        assert delivery.finish(120)
    assert server.accepted == process.sealed


def test_a_refused_batch_does_not_keep_up_the_next(tmp_path: Path) -> None:
    process = Process(tmp_path)
    with CirronServer().running() as server:
        server.faults = [lambda _: None, Fault(422, body=b"broken")]
        delivery = process.delivery(cirron_target(server.url))
        delivery.start()
        for _ in range(3):
            delivery.notify(process.seal())
        assert delivery.finish(120)
    assert server.accepted == [process.sealed[0], process.sealed[2]]
    assert delivery.stats()["refused"] == 1
    assert "422" in delivery.stats()["last_error"]
    later = Process(tmp_path)  # what was refused is not sent by the next process either
    process.owner.release()
    with CirronServer().running(server.port) as server:
        another = later.delivery(cirron_target(server.url))
        another.start()
        another.notify(later.seal())
        assert another.finish(120)
    assert server.accepted == later.sealed


def test_a_batch_that_the_server_chokes_on_does_not_keep_up_all_others(tmp_path: Path) -> None:
    process = Process(tmp_path)
    poison = process.seal()
    good = [process.seal() for _ in range(3)]

    def choke(received: Received) -> Fault | None:
        return Fault(500) if received.batch["batch_id"] == process.sealed[0] else None

    with CirronServer().running() as server:
        server.faults = [choke] * 1000
        delivery = process.delivery(cirron_target(server.url))
        delivery.start()
        for name in [poison, *good]:
            delivery.notify(name)
        until(lambda: len(server.accepted) == 3)
        server.faults = []
        assert delivery.finish(120)
    assert server.accepted == [*process.sealed[1:], process.sealed[0]]


def test_a_lost_acknowledgement_costs_one_request(tmp_path: Path) -> None:
    process = Process(tmp_path)
    with CirronServer().running() as server:
        server.faults = [Fault(is_lost=True)]
        delivery = process.delivery(cirron_target(server.url))
        delivery.start()
        for _ in range(5):
            delivery.notify(process.seal())
        assert delivery.finish(120)
    # The others do not wait for it, and keep their order.
    first, *others = server.accepted
    assert first == process.sealed[0]
    assert others.count(first) == 1
    assert [each for each in others if each != first] == process.sealed[1:]


def test_slow_answers_do_not_hold_up_the_end(tmp_path: Path) -> None:
    process = Process(tmp_path)
    held = threading.Event()
    with CirronServer().running() as server:
        server.faults = [Fault(hold=held)]
        delivery = process.delivery(cirron_target(server.url, timeout=3600))
        delivery.start()
        delivery.notify(process.seal())
        until(server.posts)
        assert not delivery.finish(0.1)
        until(lambda: not delivery.stats()["is_running"])
        held.set()
    assert claim_delivery(process.paths, delivery._target.key, process.owner.prefix)


def test_retry_after_is_honoured() -> None:
    now = [1000.0]
    gate = RetryGate(
        RetryPolicy(Backoff(first=1, longest=8, jitter=0), misconfigured=60), lambda: now[0]
    )
    waits = []
    for _ in range(5):
        gate.failed(UnreachableError("busy"))
        waits.append(gate.opens - now[0])
    assert waits == [1, 2, 4, 8, 8]
    gate.passed()
    assert gate.is_open
    gate.failed(UnreachableError("busy", retry_after=100))
    assert 100 <= gate.opens - now[0] <= 101
    gate.shorten_waits()  # the end of the process is no reason to ask before that
    assert gate.opens - now[0] == 100
    gate.passed()
    gate.failed(MisconfiguredError("wrong key"))
    assert gate.opens - now[0] == 60
    gate.shorten_waits()
    assert gate.is_open


def test_finish_does_not_wait_for_a_long_retry_after(tmp_path: Path) -> None:
    process = Process(tmp_path)
    with CirronServer().running() as server:
        server.faults = [Fault(429, {"Retry-After": "7200"})]
        delivery = process.delivery(cirron_target(server.url))
        delivery.start()
        delivery.notify(process.seal())
        until(lambda: delivery.stats()["last_error"])
        assert not delivery.finish(3600)
        assert len(server.posts()) == 1


def test_batches_evicted_while_unsent_are_counted(tmp_path: Path) -> None:
    process, port = Process(tmp_path, max_bytes=20_000), free_port()
    delivery = process.delivery(cirron_target(f"http://127.0.0.1:{port}"))
    delivery.start()
    for _ in range(50):
        delivery.notify(process.seal(size=1000))
    with CirronServer().running(port) as server:
        assert delivery.finish(120)
    assert process.writer.drops.batches > 0
    stats = delivery.stats()
    assert stats["evicted"] + stats["sent_batches"] == 50
    assert_in_order(server.accepted, process.sealed[stats["evicted"] :])


def test_nothing_counts_as_evicted_while_batches_are_on_their_way(tmp_path: Path) -> None:
    """A collector reads the counts all the time and exports them; a counter never goes back."""
    process, interval = Process(tmp_path), sys.getswitchinterval()
    with CirronServer().running() as server:
        delivery = process.delivery(cirron_target(server.url))
        delivery.start()
        is_over, seen = threading.Event(), set()

        def read() -> None:
            while not is_over.is_set():
                seen.add(delivery.stats()["evicted"])

        reader = threading.Thread(target=read)
        sys.setswitchinterval(1e-6)
        try:
            reader.start()
            for _ in range(300):
                delivery.notify(process.seal())
            assert delivery.finish(60)
        finally:
            sys.setswitchinterval(interval)
            is_over.set()
            reader.join()
    assert seen == {0}
    assert_in_order(server.accepted, process.sealed)


def test_batches_beyond_the_name_limit_are_rediscovered_and_sent(tmp_path: Path) -> None:
    process, port = Process(tmp_path, max_bytes=60_000), free_port()
    delivery = process.delivery(cirron_target(f"http://127.0.0.1:{port}"), most_names=5)
    delivery.start()
    for _ in range(80):
        delivery.notify(process.seal(size=1000))
    assert len(delivery._noted) <= 5
    assert delivery._unnoted > 0
    until(lambda: sum(delivery.stats()[each] for each in ("waiting", "evicted")) == 80)
    with CirronServer().running(port) as server:
        assert delivery.finish(120)
    stats = delivery.stats()
    assert stats["evicted"] == process.writer.drops.batches > 0
    assert_in_order(server.accepted, process.sealed[stats["evicted"] :])


def test_batches_that_may_be_noted_wait_for_room_in_the_queue(tmp_path: Path) -> None:
    """The directory is not scanned for them: a batch that was not announced stays until the end."""
    process, port = Process(tmp_path), free_port()
    target = cirron_target(f"http://127.0.0.1:{port}")
    delivery = process.delivery(target, most_names=5, most_noted=100)
    delivery.start()
    for _ in range(40):
        delivery.notify(process.seal())
    until(lambda: len(delivery._noted) == 35)
    assert (delivery._unnoted, delivery.stats()["waiting"]) == (0, 40)
    process.seal()
    with CirronServer().running(port) as server:
        until(lambda: len(server.accepted) >= 40 and not delivery.stats()["waiting"])
        assert_in_order(server.accepted, process.sealed[:40])
        assert delivery.finish(120)
    assert_in_order(server.accepted, process.sealed)
    assert delivery.stats()["evicted"] == 0


def test_the_spool_removed_while_it_runs(tmp_path: Path) -> None:
    process = Process(tmp_path / "cirron")
    with CirronServer().running() as server:
        delivery = process.delivery(cirron_target(server.url))
        delivery.start()
        delivery.notify(process.seal())
        until(lambda: delivery.stats()["sent_batches"] == 1 and delivery._is_idle)  # all is written
        shutil.rmtree(tmp_path / "cirron")
        delivery.notify("00000000000000000001-gone.json")
        process.owner.ensure()
        delivery.notify(process.seal())
        assert delivery.finish(120)
    assert server.accepted == process.sealed
    assert delivery.stats()["evicted"] == 1


def test_nothing_is_raised_out_of_the_thread(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever a target raises; the same cause is logged once."""

    class Broken:
        key = shown = "broken"
        request_bytes = 0
        blobs = None
        calls = 0

        def send(self, batches: list[SealedBatch]) -> None:
            self.calls += len(batches)
            raise ZeroDivisionError(f"call {self.calls}")

        def interrupt(self) -> None:
            pass

        def close(self) -> None:
            raise OSError("no end")

    process, target = Process(tmp_path), Broken()
    delivery = Delivery(process.paths, process.owner, target, policy=QUICK)  # type: ignore[arg-type]
    delivery.start()
    delivery.notify(process.seal())
    until(lambda: target.calls >= 5)
    assert delivery.stats()["is_running"]
    assert not delivery.finish(0.1)
    assert delivery.stats()["errors"] >= 5
    assert caplog.text.count("broken: ZeroDivisionError: call") == 1
    assert "Traceback" in caplog.text


def test_delivery_thread_suppresses_instrumentation(tmp_path: Path) -> None:
    """An instrumented HTTP client would else record each export as a span to be exported."""
    seen = []

    class Target(EventStreamTarget):
        def send(self, batches: Sequence[SealedBatch]) -> Receipt:
            seen.append(get_value(_SUPPRESS_INSTRUMENTATION_KEY))
            return super().send(batches)

    process = Process(tmp_path)
    delivery = process.delivery(Target("v", io.StringIO()))
    delivery.start()
    delivery.notify(process.seal())
    assert delivery.finish(120)
    assert seen == [True]
    assert get_value(_SUPPRESS_INSTRUMENTATION_KEY) is None


def test_the_key_is_neither_logged_nor_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    process = Process(tmp_path)
    echo = f"who is {KEY}?".encode()
    with CirronServer().running() as server:
        server.faults = [Fault(status, body=echo) for status in (401, 500, 400)]
        delivery = process.delivery(cirron_target(server.url))
        delivery.start()
        for _ in range(2):
            delivery.notify(process.seal())
        assert delivery.finish(120)
    kept = [path.read_text() for path in process.paths.state.iterdir() if path.is_file()]
    assert "who is ***?" in caplog.text
    for text in (caplog.text, str(delivery.stats()), repr(delivery._target), *kept):
        assert KEY not in text


def test_missing_batch_files_are_counted_as_evicted(tmp_path: Path) -> None:
    process = Process(tmp_path)
    with CirronServer().running() as server:
        delivery = process.delivery(cirron_target(server.url))
        delivery.start()
        name = process.seal()
        delivery.notify(name)
        until(lambda: server.accepted)
        delivery.notify(file_name(1, "f" * 32))
        assert delivery.finish(120)
    assert server.accepted == process.sealed
    assert delivery.stats()["evicted"] == 1
