"""Deliveries of several owners in one directory, dead and alive, and what they leave behind."""

from __future__ import annotations

import gc
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from cirron_otel.core.delivery.backlog import Backlog
from cirron_otel.core.delivery.retry_policy import RetryPolicy
from cirron_otel.core.spool.cursor import cursor_path
from cirron_otel.core.spool.lease import claim_delivery
from tests.kit.servers.cirron_server import CirronServer, Fault
from tests.kit.spools.deliveries import (
    QUICK,
    Process,
    child,
    cirron_target,
    until,
)


def test_a_process_killed_while_it_sends_is_finished_by_another(tmp_path: Path) -> None:
    held = threading.Event()
    with CirronServer().running() as server:
        server.faults = [*[lambda _: None] * 3, Fault(hold=held)]
        with child(server.url, tmp_path, "killed", 10) as one:
            assert one.stdout is not None
            ids = one.stdout.readline().split()
            until(lambda: len(server.posts()) == 4)
            one.send_signal(signal.SIGKILL)
            one.wait()
        held.set()
        until(lambda: len(server.accepted) == 4)
        process = Process(tmp_path)
        delivery = process.delivery(cirron_target(server.url, "second"))
        delivery.start()
        until(lambda: len(set(server.accepted)) == 10)
        assert delivery.finish(120)
    assert sorted(server.batches) == sorted(ids)
    twice = [each for each in ids if server.accepted.count(each) > 1]
    assert twice in ([], [ids[3]])  # that request was in flight
    assert server.senders[ids[-1]] == "second"


def test_processes_send_only_batches_of_themselves_and_dead_owners(tmp_path: Path) -> None:
    dead = Process(tmp_path)
    sending = dead.delivery(cirron_target("http://127.0.0.1:1"))
    sending.start()
    left = [dead.seal() for _ in range(5)]
    assert not sending.finish(0.05)
    dead.owner.release()
    assert len(left) == 5
    stranger = Process(tmp_path)  # it lives, and sends to nobody: its batches are not ours
    stranger.seal()
    with CirronServer().running() as server:
        # What the dead one left was for another URL: only who goes there takes it up.
        key = cirron_target(server.url).key
        cursor_path(dead.paths.state, sending._target.key, dead.owner.prefix).unlink()
        leave_cursor(dead, key)
        with child(server.url, tmp_path, "a", 20) as a, child(server.url, tmp_path, "b", 20) as b:
            ids = {}
            for name, process in (("a", a), ("b", b)):
                assert process.stdout is not None
                ids[name] = process.stdout.readline().split()
            until(lambda: len(server.accepted) >= 45)
            for process in (a, b):
                assert process.communicate("end\n", timeout=60)[0] == "True\n"
    assert sorted(server.accepted) == sorted([*ids["a"], *ids["b"], *dead.sealed])
    for name, own in ids.items():
        assert {server.senders[each] for each in own} == {name}


def test_rescan_sends_batches_recovered_after_the_start(tmp_path: Path) -> None:
    with CirronServer().running() as server:
        target = cirron_target(server.url)
        delivery = Process(tmp_path).delivery(target, replace(QUICK, sweep=3600.0))
        delivery.start()
        # It looks for the dead at its start, and again in an hour.
        until(lambda: delivery._sweep_at > delivery._clock() + 3000 and delivery._is_idle)
        dead = Process(tmp_path)
        leave_cursor(dead, target.key)
        dead.seal()
        dead.owner.release()
        delivery.rescan()
        until(lambda: server.accepted == dead.sealed)
        assert delivery.finish(120)


def test_many_dead_owners_are_claimed_a_few_at_a_time(tmp_path: Path) -> None:
    left = []
    with CirronServer().running() as server:
        for _ in range(11):
            dead = Process(tmp_path)
            leave_cursor(dead, cirron_target(server.url).key)
            dead.seal()
            dead.seal()
            left += dead.sealed
            dead.owner.release()
        process = Process(tmp_path)
        slow = RetryPolicy(QUICK.backoff, sweep=3600)
        delivery = process.delivery(cirron_target(server.url), slow)
        delivery.start()
        until(lambda: len(server.accepted) == 22)
        assert len(delivery._leftovers.claimed) <= 4
        assert delivery.finish(120)
    assert sorted(server.accepted) == sorted(left)


def test_batches_are_sent_once_while_the_cursor_cannot_be_written(tmp_path: Path) -> None:
    """With `state/` not writable for a while, neither this process nor the next sends twice."""
    process = Process(tmp_path)
    with CirronServer().running() as server:
        delivery = process.delivery(cirron_target(server.url))
        delivery.start()
        cursor = cursor_path(process.paths.state, delivery._target.key, process.owner.prefix)
        in_the_way = cursor.with_name(cursor.name + ".tmp")
        in_the_way.mkdir()
        for _ in range(3):
            delivery.notify(process.seal())
        until(lambda: len(server.accepted) == 3)
        assert "cannot be written" in delivery.stats()["last_error"]
        in_the_way.rmdir()
        assert delivery.finish(120)
        process.owner.release()
        later = Process(tmp_path)
        second = later.delivery(cirron_target(server.url))
        second.start()
        until(lambda: process.owner.prefix in second._leftovers.settled)
        assert second.finish(120)
    assert server.accepted == process.sealed


def leave_cursor(process: Process, target: str) -> None:
    """Leave a cursor for `target`, as a process does that was to send there and could not."""
    backlog = Backlog.claim(process.paths, target, process.owner.prefix, print)
    assert backlog is not None
    backlog.release()


def test_the_cursor_of_an_owner_without_batches_is_removed(tmp_path: Path) -> None:
    gone = Process(tmp_path)
    with CirronServer().running() as server:
        first = gone.delivery(cirron_target(server.url))
        first.start()
        name = gone.seal()
        first.notify(name)
        assert first.finish(120)
        gone.owner.release()
        path = cursor_path(gone.paths.state, first._target.key, gone.owner.prefix)
        later = Process(tmp_path)
        second = later.delivery(cirron_target(server.url))
        second.start()
        until(lambda: second._leftovers.settled)
        assert path.exists()  # it tells that its batch was sent
        assert second.finish(120)
        (gone.paths.spool / name).unlink()
        third = later.delivery(cirron_target(server.url))
        third.start()
        until(lambda: not path.exists())
        assert third.finish(120)
    assert server.accepted == gone.sealed


def test_damaged_state_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    process = Process(tmp_path)
    with CirronServer().running() as server:
        delivery = process.delivery(cirron_target(server.url))
        cursor = cursor_path(process.paths.state, delivery._target.key, process.owner.prefix)
        cursor.write_text("{broken")
        cursor.with_name(cursor.name.replace("cursor-", "blobs-")).write_text("[]")
        delivery.start()
        delivery.notify(process.seal())
        assert delivery.finish(120)
    assert server.accepted == process.sealed
    assert len(list(process.paths.state.glob("*.bad"))) == 2
    assert "cannot be read" in caplog.text


def test_a_forked_child_leaves_the_parent_s_alone(tmp_path: Path) -> None:
    """Forked in the middle of a request, while a thread of the parent holds the lock."""
    process, held = Process(tmp_path), threading.Event()
    with CirronServer().running() as server:
        server.faults = [lambda _: None, Fault(hold=held)]
        delivery = process.delivery(cirron_target(server.url))
        delivery.start()
        for _ in range(2):
            delivery.notify(process.seal())
        until(lambda: len(server.posts()) == 2)
        done, tell = os.pipe()
        go, hold = os.pipe()
        with delivery._changed:
            child_pid = os.fork()
            if child_pid == 0:
                try:
                    delivery.abandon()
                    gc.collect()
                    delivery.notify("00000000000000000001-x.json")
                    os.write(tell, b"no" if not delivery.finish(1) else b"yes")
                    os.close(hold)
                    os.read(go, 1)
                finally:
                    os._exit(0)
        try:
            assert os.read(done, 10) == b"no"
            held.set()
            delivery.notify(process.seal())
            assert delivery.finish(120)
            # The child lives, and does not keep the lease.
            assert claim_delivery(process.paths, delivery._target.key, process.owner.prefix)
        finally:
            os.close(hold)
            os.waitpid(child_pid, 0)
            for descriptor in (done, tell, go):
                os.close(descriptor)
    assert server.accepted == process.sealed
