"""The event stream: lines on standard output, as the platform's kernel reads them."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cirron_otel.core.delivery.batch_target import SealedBatch
from cirron_otel.core.delivery.errors import RefusedError, StoppedError, UnreachableError
from cirron_otel.core.targets.event_stream import EventStreamTarget
from tests.kit.spools.deliveries import Process, until


def test_a_line_a_batch(tmp_path: Path) -> None:
    """In a real process, whose standard output is a pipe and cannot carry other than ASCII."""
    code = """if True:
        import sys
        from pathlib import Path
        from cirron_otel.core.targets.event_stream import EventStreamTarget
        from tests.kit.spools.deliveries import Process
        process = Process(Path(sys.argv[1]))
        delivery = process.delivery(EventStreamTarget("0.3.0+x"))
        print("the program's own")
        delivery.start()
        delivery.notify(process.seal([process.snapshot("s", b"abc")]))
        delivery.notify(process.seal())
        assert delivery.finish(120)
        print(*process.sealed)
    """
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        timeout=60,
        check=True,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    first, *events, last = run.stdout.decode("ascii").splitlines()
    assert first == "the program's own"
    batches = [json.loads(line) for line in events if "trace_batch" in line]
    assert [each["payload"]["batch_id"] for each in batches] == last.split()
    for each, path in zip(batches, sorted((tmp_path / "spool").iterdir()), strict=True):
        payload = json.loads(path.read_bytes())
        assert each == {
            "__cirron_event__": "trace_batch",
            "schema_version": 1,
            "sdk_version": payload["sdk_version"],
            "payload": payload,
        }
    (blob,) = [json.loads(line) for line in events if "trace_blob" in line]
    assert blob == {
        "__cirron_event__": "trace_blob",
        "schema_version": 1,
        "sdk_version": "0.3.0+x",
        "payload": {
            "remote_key": "snapshots/s/weights.safetensors",
            "local_path": str(tmp_path / "snapshots/s/weights.safetensors"),
        },
    }


@pytest.mark.parametrize(
    "batch",
    [
        '{"schema_version":1,"sdk_version":"0.3.0","name":"é 🙂 \\u2028 \\ud800 \u2028"}',
        '{\n  "schema_version": 1,\r\n "sdk_version": "\\"\\n", "x": 1e400}\n',
        '{"n":12345678901234567890123, "n":-0.0}',
    ],
)
def test_a_batch_is_said_exactly_in_one_line_of_ascii(batch: str) -> None:
    stream = io.StringIO()
    EventStreamTarget("v", stream).send([SealedBatch("x.json", batch.encode())])
    line = stream.getvalue()
    assert line.isascii()
    assert len(line.splitlines()) == 1
    assert line.endswith("}\n")
    payload = line.partition(',"payload":')[2].removesuffix("}\n")
    assert json.loads(payload, object_pairs_hook=list) == json.loads(batch, object_pairs_hook=list)
    assert json.loads(line)["__cirron_event__"] == "trace_batch"


def test_invalid_batches_are_refused() -> None:
    for data in (b"{", b"[]", b'{"sdk_version":1}', b'{"sdk_version":"\xff"}'):
        with pytest.raises(RefusedError):
            EventStreamTarget("v", io.StringIO()).send([SealedBatch("x.json", data)])


def test_closed_pipe_is_reported_as_unreachable() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    broken = os.fdopen(writer, "w")
    with pytest.raises(UnreachableError, match="event stream"):
        EventStreamTarget("v", broken).send([SealedBatch("x.json", b"{}")])
    with pytest.raises(BrokenPipeError):
        broken.close()


def test_a_stream_that_cannot_be_written_loses_nothing(tmp_path: Path) -> None:
    closed = io.StringIO()
    closed.close()
    process = Process(tmp_path)
    delivery = process.delivery(EventStreamTarget("v", closed))
    delivery.start()
    delivery.notify(process.seal())
    assert not delivery.finish(0.1)
    assert "event stream" in delivery.stats()["last_error"]
    stream = io.StringIO()
    process.owner.release()
    later = Process(tmp_path)
    second = later.delivery(EventStreamTarget("v", stream))
    second.start()
    second.notify(later.seal())
    until(lambda: process.sealed[0] in stream.getvalue())
    assert second.finish(120)
    assert stream.getvalue().count("trace_batch") == 2


def test_interrupted() -> None:
    target = EventStreamTarget("v", io.StringIO())
    target.interrupt()
    with pytest.raises(StoppedError):
        target.send([SealedBatch("x.json", b"{}")])
