"""What holds of a push over any transport."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from cirron_otel.core.delivery.errors import PushResult, StoppedError
from cirron_otel.core.delivery.retry_policy import Backoff
from cirron_otel.core.targets.otlp.config import OtlpConfig, OtlpProtocol
from cirron_otel.core.targets.otlp.pusher import Pusher
from cirron_otel.errors import InputError, MissingExtraError
from tests.kit.servers.servers import (
    Answer,
    RecordedStop,
    http_receiver,
    traces,
)


def test_backoff_grows_and_keeps_its_bounds() -> None:
    backoff = Backoff(first=1, longest=30, jitter=0.2)
    for attempt in (*range(8), 1000):
        waits = {backoff.wait(attempt) for _ in range(50)}
        middle = min(2**attempt, 30)
        assert all(0.8 * middle <= wait <= 1.2 * middle for wait in waits)
        assert len(waits) > 1


def test_the_waits_of_a_push_are_its_backoff() -> None:
    stop = RecordedStop()
    with http_receiver(*[Answer(503)] * 4) as server:
        config = OtlpConfig(OtlpProtocol.HTTP_PROTOBUF, server.url)
        with Pusher(config, stop=stop, backoff=Backoff(jitter=0)) as pusher:
            assert pusher.push(traces(1)).accepted_spans == 1
    assert stop.waits == [1, 2, 4, 8]


def test_the_deadline_begins_anew_with_each_request_accepted() -> None:
    """A long push over a busy endpoint goes on as long as it gets on."""
    stop = RecordedStop()
    busy = [Answer(503, headers={"Retry-After": "50"}), Answer()]
    with http_receiver(*busy * 20) as server:
        config = OtlpConfig(OtlpProtocol.HTTP_PROTOBUF, server.url)
        with Pusher(config, stop=stop, deadline=60, max_request_bytes=200) as pusher:
            assert pusher.push(traces(40)).accepted_spans == 40
    assert sum(stop.waits) > 200


def test_a_push_is_stopped_while_it_waits() -> None:
    stop = threading.Event()
    with http_receiver(Answer(), Answer(503, headers={"Retry-After": "3600"})) as server:
        config = OtlpConfig(OtlpProtocol.HTTP_PROTOBUF, server.url)
        with Pusher(config, stop=stop, deadline=None, max_request_bytes=300) as pusher:
            timer = threading.Timer(0.2, stop.set)
            timer.start()
            with pytest.raises(StoppedError, match="stopped before http://127") as caught:
                pusher.push(traces(20))
            timer.join()
            with pytest.raises(StoppedError):
                pusher.push(traces(1))
    assert len(server.posts) == 2
    assert caught.value.result.requests == 1


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_ctrl_c_while_it_waits_and_while_it_sends(protocol: str) -> None:
    """In a real process, which a real SIGINT hits; gRPC hangs on a port where nobody accepts."""
    code = (
        "import sys\n"
        "from cirron_otel.core.targets.otlp.config import OtlpConfig\n"
        "from cirron_otel.core.targets.otlp.pusher import Pusher\n"
        "try:\n"
        "    with Pusher(OtlpConfig.from_env(), deadline=None) as pusher:\n"
        "        print('pushing', flush=True)\n"
        "        pusher.push(bytes.fromhex(sys.argv[1]))\n"
        "except KeyboardInterrupt: print('interrupted')\n"
    )
    hold = threading.Event()
    came = threading.Event()

    def wait_for_ever(_: object) -> Answer:
        came.set()
        return Answer(503, headers={"Retry-After": "3600"})

    with http_receiver(wait_for_ever, Answer(hold=hold)) as server:
        environment = {
            **os.environ,
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.port}",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "3600",
        }
        with subprocess.Popen(
            [sys.executable, "-c", code, traces(1).hex()],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "pushing\n"
            if protocol != "grpc":
                assert came.wait(120)
            threading.Event().wait(0.3)
            child.send_signal(signal.SIGINT)
            assert child.stdout.read() == "interrupted\n"
            assert child.wait(120) == 0
        hold.set()


def test_a_transport_can_be_given() -> None:
    from cirron_otel.core.targets.otlp.http_transport import HttpTransport

    with http_receiver() as first, http_receiver() as second:
        config = OtlpConfig(OtlpProtocol.HTTP_PROTOBUF, first.url)
        transport = HttpTransport(replace(config, endpoint=second.url))
        with Pusher(config, transport=transport) as pusher:
            assert pusher.push(traces(2)) == PushResult(2, requests=1)
    assert (len(first.posts), len(second.posts)) == (0, 1)


def test_data_that_is_not_protobuf_cannot_be_split() -> None:
    with http_receiver() as server:
        config = OtlpConfig(OtlpProtocol.HTTP_PROTOBUF, server.url)
        with (
            Pusher(config, max_request_bytes=10) as pusher,
            pytest.raises(InputError, match="not a protobuf message"),
        ):
            pusher.push(b"\xff" * 100)
    assert server.posts == []


def run(code: str) -> str:
    child = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert child.returncode == 0, child.stderr
    return child.stdout.strip()


@pytest.mark.parametrize(
    ("missing", "protocol"), [("grpc", "GRPC"), ("certifi", "HTTP_JSON"), ("google.rpc", "GRPC")]
)
def test_a_missing_extra_is_named(missing: str, protocol: str) -> None:
    out = run(
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from cirron_otel.errors import MissingExtraError\n"
        "from cirron_otel.core.targets.otlp.config import OtlpConfig, OtlpProtocol\n"
        "from cirron_otel.core.targets.otlp.pusher import Pusher\n"
        f"try: Pusher(OtlpConfig(OtlpProtocol.{protocol}, 'http://x'))\n"
        "except MissingExtraError as error: print(error)\n"
    )
    assert "needs the extra 'otlp': run `pip install 'cirron-otel[otlp]'`" in out
    assert MissingExtraError("otlp", "x").extra == "otlp"


def test_the_extra_is_imported_only_when_it_is_used() -> None:
    out = run(
        "import sys, cirron_otel.core.targets.otlp.pusher, cirron_otel.core.otlp.files\n"
        "heavy = ('grpc', 'urllib3', 'certifi', 'requests', 'google.rpc')\n"
        "print([m for m in heavy if m in sys.modules])\n"
    )
    assert out == "[]"
