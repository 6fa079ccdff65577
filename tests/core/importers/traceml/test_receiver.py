"""The collector receives TraceML's frames: stored as their import, limited, and forwarded."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cirron_otel.collector.receiver.traceml_forwarding import ForwardLimits, TracemlForwarder
from cirron_otel.core.importers.traceml.framing import frame_of
from tests.collector.service.test_disk_full import Disk, running
from tests.collector.service.test_figures import samples
from tests.kit.backends.process import free_port
from tests.kit.servers.away import until
from tests.kit.servers.serving import PROGRAM, Serving, serving

from .recording_proxy import RecordingProxy
from .sending import (
    connect,
    finished,
    imported,
    is_closed,
    send,
    steps,
    stored,
    stored_steps,
    stream,
)

LOCAL = ("--traceml", "127.0.0.1:0")


def count(here: Serving, name: str, *labels: str) -> float:
    return samples(here).get((name, *labels), 0)


def refused(here: Serving, reason: str) -> float:
    return count(here, "refused_requests_total", reason, "traceml", "traceml")


def received(here: Serving) -> float:
    return count(here, "received_requests_total", "traceml", "traceml")


def configured(folder: Path, text: str) -> tuple[str, str]:
    file = folder / "collector.yaml"
    file.write_text(text)
    return "--config", str(file)


def memory_bytes(pid: int) -> int:
    """The most memory that a process has had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(pid)


class TestStoring:
    @pytest.mark.parametrize("chunk", [None, 1000, 37])
    def test_live_connections_are_stored_as_their_import(
        self, tmp_path: Path, chunk: int | None
    ) -> None:
        streams = [stream(400, rank=0), stream(400, rank=1, each=3)]
        with serving(tmp_path / "data", *LOCAL) as here:
            threads = [
                threading.Thread(target=send, args=(here.traceml, data, chunk)) for data in streams
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            until(lambda: received(here) == 41 + 135)
            assert here.end() == 0
        assert stored(tmp_path / "data") == imported(tmp_path / "recorded", *streams)
        assert stored_steps(tmp_path / "data") == [(r, n) for r in (0, 1) for n in range(1, 401)]

    def test_frames_in_json_are_stored_too(self, tmp_path: Path) -> None:
        frames = [b'[{"meta":{"rank":0,"pid":7,"timestamp":1.79e9},"body":{"tables":{}}}]'] * 3
        data = b"".join(map(frame_of, frames))
        with serving(tmp_path / "data", *LOCAL) as here:
            send(here.traceml, data)
            until(lambda: received(here) == 3)
            assert here.end() == 0
        assert stored(tmp_path / "data") == imported(tmp_path / "recorded", data)

    def test_a_batch_is_stored_while_its_connection_is_open(self, tmp_path: Path) -> None:
        with serving(tmp_path / "data", *LOCAL) as here, connect(here.traceml) as connection:
            connection.sendall(steps(1, 300))
            until(lambda: stored_steps(tmp_path / "data") != [])

    def test_an_open_connection_ends_with_the_collector(self, tmp_path: Path) -> None:
        data = steps(1, 30)
        with serving(tmp_path / "data", *LOCAL) as here, connect(here.traceml) as connection:
            connection.sendall(data)
            until(lambda: received(here) == 3)
            assert here.end() == 0
        assert stored(tmp_path / "data") == imported(tmp_path / "recorded", data)

    def test_connections_without_a_frame_leave_no_trace(self, tmp_path: Path) -> None:
        """TraceML's launcher connects once to see whether its aggregator listens."""
        with serving(tmp_path / "data", *LOCAL) as here:
            for _ in range(3):
                connect(here.traceml).close()
            assert here.end() == 0
            assert not stored(tmp_path / "data")
            assert "warning" not in here.log.read_text()

    def test_the_address_is_listed_if_it_is_configured(self, tmp_path: Path) -> None:
        with serving(tmp_path / "data") as without:
            assert without.traceml is None
        with serving(tmp_path / "with", *LOCAL) as here:
            assert here.traceml is not None


class TestKills:
    def test_nothing_is_lost_with_the_second_process(self, tmp_path: Path) -> None:
        data = stream(200)
        assert len(data) > 50_000  # three kills
        with serving(tmp_path / "data", *LOCAL) as here, connect(here.traceml) as connection:
            for at in range(0, len(data), 7000):
                connection.sendall(data[at : at + 7000])
                time.sleep(0.1)
                if at % 21_000 == 0 and (translator := here.translator()) is not None:
                    with contextlib.suppress(ProcessLookupError):  # it just ended
                        os.kill(translator, signal.SIGKILL)
            connection.close()
            until(lambda: received(here) == 21)
            assert here.end() == 0
        assert stored(tmp_path / "data") == imported(tmp_path / "recorded", data)

    def test_steps_between_two_collectors_are_reported(self, tmp_path: Path) -> None:
        with serving(tmp_path / "data", *LOCAL) as here, connect(here.traceml) as connection:
            connection.sendall(steps(1, 100))
            until(lambda: received(here) == 10)
            here.kill()
        with serving(tmp_path / "data", *LOCAL) as here:
            send(here.traceml, steps(151, 300) + finished())
            until(lambda: count(here, "missing_steps_total") == 50)
            assert here.end() == 0
            log = here.log.read_text()
        assert "steps 101 to 150 did not arrive" in log
        assert "ended because the collector was killed" in log
        expected = [(0, step) for step in [*range(1, 101), *range(151, 301)]]
        assert stored_steps(tmp_path / "data") == expected
        spans = [
            span
            for data in stored(tmp_path / "data").values()
            for span in msgspec.json.decode(data)["spans"]
            if span["name"] == "cirron.session"
        ]
        assert sorted("incomplete" in span["attrs"] for span in spans) == [False, True]

    def test_a_collector_without_the_receiver_ends_the_sessions_of_a_killed_one(
        self, tmp_path: Path
    ) -> None:
        data = steps(1, 20)
        with serving(tmp_path / "data", *LOCAL) as here, connect(here.traceml) as connection:
            connection.sendall(data)
            until(lambda: received(here) == 2)
            here.kill()
        with serving(tmp_path / "data") as here:
            until(lambda: (0, 20) in stored_steps(tmp_path / "data"))
            assert here.end() == 0
        assert stored(tmp_path / "data") == imported(tmp_path / "recorded", data)

    def test_frames_wait_while_the_disk_is_full(self, disk: Disk, tmp_path: Path) -> None:
        data = stream(400)
        half = len(steps(1, 200))
        with running(disk, *LOCAL) as here, connect(here.traceml) as connection:
            connection.sendall(data[:half])
            until(lambda: received(here) == 20)
            disk.fill()
            connection.sendall(data[half:])
            connection.close()
            until(lambda: "frames wait in memory" in here.log.read_text())
            assert received(here) == 20
            disk.clear()
            until(lambda: received(here) == 41)
            assert here.end() == 0
            assert stored(disk.place) == imported(tmp_path / "recorded", data)


class TestBadConnections:
    def test_torn_frame_is_counted_once_and_earlier_frames_are_stored(self, tmp_path: Path) -> None:
        data = stream(40)[:-10]
        with serving(tmp_path / "data", *LOCAL) as here:
            send(here.traceml, data)
            until(lambda: refused(here, "torn") == 1)
            assert here.end() == 0
        assert stored(tmp_path / "data") == imported(tmp_path / "recorded", data)

    def test_hostile_bytes_disturb_no_other_connection(self, tmp_path: Path) -> None:
        data = stream(200)
        with serving(tmp_path / "data", *LOCAL) as here, connect(here.traceml) as good:
            half = len(data) // 2
            good.sendall(data[:half])
            with connect(here.traceml) as bad:
                bad.sendall(b"\xff\xff\xff\xff" + bytes(100_000))
                assert is_closed(bad)
            with connect(here.traceml) as http:
                http.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
                assert is_closed(http)
            until(lambda: refused(here, "too_large") == 2)
            send(here.traceml, frame_of(b"") + frame_of(b"\xa3abc") + frame_of(b"\x00"))
            until(lambda: refused(here, "invalid") == 3)
            good.sendall(data[half:])
            good.close()
            until(lambda: received(here) == 21)
            assert here.end() == 0
        assert stored(tmp_path / "data") == imported(tmp_path / "recorded", data)

    def test_random_frames_are_stored_or_counted(self, tmp_path: Path) -> None:
        source = random.Random(22)
        valid = [frame[4:] for frame in (steps(1, 5), finished())]
        frames = [frame_of(valid[1])]
        for _ in range(300):
            body = bytearray(source.choice(valid))
            for _ in range(source.randrange(1, 9)):
                body[source.randrange(1, len(body))] = source.randrange(256)
            frames.append(frame_of(bytes(body)))
        data = b"".join(frames)
        with serving(tmp_path / "data", *LOCAL) as here:
            send(here.traceml, data)
            until(lambda: received(here) == 301)
            assert here.end() == 0
            assert count_of_files(tmp_path / "data" / "state" / "intake", "refused-*") == 0
        assert stored(tmp_path / "data") == imported(tmp_path / "recorded", data)

    def test_memory_is_bounded(self, tmp_path: Path) -> None:
        """Frames of millions of empty lists, and many frames that do not end."""
        file = configured(tmp_path, "limits: {request_bytes: 16MiB, in_flight_bytes: 64MiB}\n")
        lists = b"\xdd" + (8_000_000).to_bytes(4, "big") + b"\x90" * 8_000_000
        with serving(tmp_path / "data", *file, *LOCAL) as here:
            before = memory_bytes(here.process.pid)
            unfinished = [connect(here.traceml) for _ in range(20)]
            for connection in unfinished:
                connection.sendall((15_000_000).to_bytes(4, "big") + bytes(7_000_000))
            send(here.traceml, frame_of(lists) * 3)
            until(lambda: received(here) + refused(here, "busy") >= 3 + 10)
            for connection in unfinished:
                connection.close()
            send(here.traceml, stream(20))
            until(lambda: (0, 20) in stored_steps(tmp_path / "data"))
            assert memory_bytes(here.process.pid) - before < 200_000_000
            translator = here.translator()
            assert translator is not None
            assert memory_bytes(translator) < 600_000_000
            assert here.end() == 0

    def test_connections_are_limited(self, tmp_path: Path) -> None:
        file = configured(tmp_path, "receivers: {traceml: {max_connections: 5}}\n")
        data = stream(60)
        with serving(tmp_path / "data", *file, *LOCAL) as here, connect(here.traceml) as good:
            good.sendall(data[:8000])
            until(lambda: received(here) > 0)
            flood = [connect(here.traceml) for _ in range(50)]
            until(lambda: refused(here, "connections") == 46)
            good.sendall(data[8000:])
            good.close()
            until(lambda: received(here) == 7)
            for connection in flood:
                connection.close()
            assert here.end() == 0
        assert stored(tmp_path / "data") == imported(tmp_path / "recorded", data)

    def test_slow_and_silent_connections_are_closed(self, tmp_path: Path) -> None:
        file = configured(
            tmp_path, "limits: {request_seconds: 1}\nreceivers: {traceml: {idle_s: 3}}\n"
        )
        with serving(tmp_path / "data", *file, *LOCAL) as here:
            with connect(here.traceml) as slow, connect(here.traceml) as silent:
                slow.sendall(steps(1, 10)[:100])
                silent.sendall(steps(1, 10))
                assert is_closed(slow)
                assert is_closed(silent)
            until(lambda: refused(here, "slow") == 1 and refused(here, "idle") == 1)
            assert refused(here, "torn") == 0

    def test_excess_frames_are_dropped_and_counted(self, tmp_path: Path) -> None:
        """The collector holds 1 MiB; a sender that does not wait sends 40 MB."""
        file = configured(tmp_path, "limits: {request_bytes: 2MiB, in_flight_bytes: 2MiB}\n")
        frames = 400
        data = steps(1, frames, each=1, padding=100_000) + finished()
        with serving(tmp_path / "data", *file, *LOCAL) as here:
            begun = time.monotonic()
            send(here.traceml, data)
            sent_s = time.monotonic() - begun
            until(lambda: received(here) + refused(here, "busy") == frames + 1)
            dropped = refused(here, "busy")
            assert dropped > 0, sent_s
            assert here.end() == 0
            log = here.log.read_text()
        present = [number for _, number in stored_steps(tmp_path / "data")]
        assert frames - len(present) in (dropped, dropped - 1)
        assert log.count("too much data is waiting for the disk") <= 2
        assert "missing" in log


def count_of_files(folder: Path, pattern: str) -> int:
    return len(list(folder.glob(pattern)))


class TestNetworks:
    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", PROGRAM, "collector", "--check", *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    def test_an_address_for_other_hosts_needs_the_networks_that_may_send(
        self, tmp_path: Path
    ) -> None:
        done = self.run("--traceml", "0.0.0.0:29765")
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert "--traceml is 0.0.0.0:29765, which other hosts can reach" in line
        assert "receivers.traceml.allow" in line
        file = configured(tmp_path, "receivers: {traceml: {allow: [10.0.0.0/8]}}\n")
        assert self.run("--traceml", "0.0.0.0:29765", *file).returncode == 0

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("{traceml: {allow: [10.0.0.1/8]}}", "receivers.traceml.allow is a list"),
            ("{traceml: {address: 'localhost:4317'}}", "which is also that of grpc"),
            ("{traceml: {address: 'a:0', allow: ['::/0'], forward: 'a:0'}}", "forward is a:0"),
            ("{traceml: {address: 'localhost:9', forward: '127.0.0.1:9'}}", "forward is 127.0.0.1"),
            ("{traceml: {address: '[::1]:9', forward: 'localhost:9'}}", "forward is localhost:9"),
            (
                "{traceml: {address: '0.0.0.0:9', allow: ['::/0'], forward: '127.0.0.2:9'}}",
                "forward is 127.0.0.2:9",
            ),
        ],
    )
    def test_contradictions_are_usage_errors(self, tmp_path: Path, text: str, message: str) -> None:
        done = self.run(*configured(tmp_path, f"receivers: {text}\n"))
        assert done.returncode == 2
        assert message in done.stderr

    def test_clients_of_other_networks_are_refused(self, tmp_path: Path) -> None:
        file = configured(tmp_path, "receivers: {traceml: {allow: [127.0.0.3, '::1']}}\n")
        with serving(tmp_path / "data", *file, "--traceml", "0.0.0.0:0") as here:
            port = str(here.traceml).rpartition(":")[2]
            with connect(f"127.0.0.1:{port}") as other:
                assert is_closed(other)
            until(lambda: refused(here, "network") == 1)
            with socket.create_connection(
                ("127.0.0.1", int(port)), 30, source_address=("127.0.0.3", 0)
            ) as allowed:
                allowed.sendall(stream(10))
            until(lambda: received(here) == 2)

    def test_a_reload_changes_the_networks(self, tmp_path: Path) -> None:
        file = configured(tmp_path, "receivers: {traceml: {allow: [127.0.0.3]}}\n")
        with serving(tmp_path / "data", *file, *LOCAL) as here:
            with connect(here.traceml) as other:
                assert is_closed(other)
            configured(tmp_path, "receivers: {traceml: {allow: [127.0.0.0/8]}}\n")
            os.kill(here.process.pid, signal.SIGHUP)
            until(lambda: "were reloaded: receivers.traceml.allow" in here.log.read_text())
            send(here.traceml, stream(10))
            until(lambda: received(here) == 2)


class TestForwarding:
    @pytest.fixture
    def target(self) -> Iterator[socket.socket]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            yield listener

    def test_the_aggregator_gets_the_same_bytes_by_connection(self, tmp_path: Path) -> None:
        streams = [stream(200, rank=0), stream(150, rank=1) + frame_of(b"\x00unknown")]
        with (
            RecordingProxy(tmp_path / "passed", None) as aggregator,
            serving(
                tmp_path / "data", *LOCAL, "--traceml-forward", f"127.0.0.1:{aggregator.port}"
            ) as here,
        ):
            for data in streams:
                send(here.traceml, data, 999)
            until(lambda: count(here, "forwarded_frames_total", "sent") == 21 + 17)
            assert here.end() == 0
        passed = [path.read_bytes() for path in aggregator.recordings]
        assert sorted(passed) == sorted(streams)

    def test_an_aggregator_may_start_later_and_again(self, tmp_path: Path) -> None:
        port = free_port()
        data = stream(300)
        forward = ("--traceml-forward", f"127.0.0.1:{port}")
        with serving(tmp_path / "data", *LOCAL, *forward) as here, connect(here.traceml) as peer:
            peer.sendall(data)
            until(lambda: received(here) == 31)
            with socket.create_server(("127.0.0.1", port)) as listener:
                listener.settimeout(120)
                first, _ = listener.accept()
                with first:
                    got = first.recv(1000, socket.MSG_WAITALL)
                    assert data.startswith(got)
                # The rest of the first connection is lost with it: the protocol has no answer.
            with socket.create_server(("127.0.0.1", port)) as listener:
                listener.settimeout(120)
                peer.sendall(steps(301, 400))
                peer.close()
                second, _ = listener.accept()
                with second:
                    rest = b"".join(iter(lambda: second.recv(65536), b""))
            assert rest.endswith(steps(391, 400))
            assert here.end() == 0
        assert (0, 400) in stored_steps(tmp_path / "data")

    def test_an_aggregator_that_does_not_read_delays_no_job(
        self, tmp_path: Path, target: socket.socket
    ) -> None:
        frames = 150
        data = steps(1, frames, each=1, padding=200_000)
        forward = ("--traceml-forward", "{}:{}".format(*target.getsockname()))
        with serving(tmp_path / "data", *LOCAL, *forward) as here:
            before = memory_bytes(here.process.pid)
            send(here.traceml, data, 65536)
            connection, _ = target.accept()
            with connection:
                until(lambda: received(here) + refused(here, "busy") == frames)
                assert count(here, "forwarded_frames_total", "dropped") > 0
                assert memory_bytes(here.process.pid) - before < 200_000_000
                assert here.end() == 0
            assert "the aggregator reads too slowly" in here.log.read_text()
        assert len(stored_steps(tmp_path / "data")) == frames

    def test_frames_of_many_connections_are_bounded(self) -> None:
        port = free_port()
        dropped: list[int] = []

        async def run() -> None:
            limits = ForwardLimits(waiting_bytes=10_000, connection_bytes=4_000)
            forwarder = TracemlForwarder(
                "127.0.0.1", port, lambda _sent, number, _why: dropped.append(number), limits
            )
            connections = [forwarder.open() for _ in range(50)]
            for connection in connections * 3:
                connection.send(bytes(1_000))
                assert forwarder.waiting_bytes <= 10_000
            assert sum(dropped) + forwarder.waiting_bytes // 1_000 == 150
            await forwarder.stop(0.0)
            assert forwarder.waiting_bytes == 0

        asyncio.run(run())
        assert sum(dropped) == 150

    def test_frames_for_an_absent_aggregator_are_bounded_and_counted(self, tmp_path: Path) -> None:
        port = free_port()
        frames = 60
        data = steps(1, frames, each=1, padding=200_000)
        forward = ("--traceml-forward", f"127.0.0.1:{port}")
        with serving(tmp_path / "data", *LOCAL, *forward) as here:
            before = memory_bytes(here.process.pid)
            send(here.traceml, data, 65536)
            until(lambda: received(here) + refused(here, "busy") == frames)
            assert count(here, "forwarded_frames_total", "dropped") >= frames - 45
            assert memory_bytes(here.process.pid) - before < 200_000_000
            assert here.end() == 0
            assert "were not forwarded to TraceML's aggregator" in here.log.read_text()
        assert len(stored_steps(tmp_path / "data")) == frames
