"""What is fuzzed: each target takes any bytes, and raises where something is wrong.

What a collector does with a request, without its servers: measured, read, and made the text of a
batch. Bad input may end in InputError, in one line; nothing else may be raised, and what was taken
must be what it was.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel import exactjson
from cirron_otel.collector.receiver.consumer import ReceivedSignal, RefusalError
from cirron_otel.collector.receiver.http.bodies import json_signal
from cirron_otel.collector.receiver.inflating import CODINGS, inflater
from cirron_otel.collector.receiver.measure import measure
from cirron_otel.collector.receiver.reading import check_json
from cirron_otel.core.importers.dgrr.checking import check_trace
from cirron_otel.core.importers.dgrr.comparing import (
    first_divergence,
    records_of,
    replay_differences,
)
from cirron_otel.core.importers.dgrr.importing import TraceImport
from cirron_otel.core.importers.dgrr.layout import TraceHeader, require_trace
from cirron_otel.core.importers.dgrr.restoring import CollectedTrace
from cirron_otel.core.importers.traceml.collected_frames import CollectedFrames
from cirron_otel.core.importers.traceml.framing import FrameDecoder, frame_of
from cirron_otel.core.importers.traceml.stream import TraceMLStream
from cirron_otel.core.otlp.json_codec import json_losses, traces_from_json, traces_to_json
from cirron_otel.core.records.check import check_batch, check_value_of
from cirron_otel.core.translator.foreign.batch_header import drop_headers
from cirron_otel.core.translator.foreign.fast import ForeignText
from cirron_otel.core.translator.foreign.messages import RECEIVED, decode_foreign
from cirron_otel.core.translator.own.fast_decode import fast_decode
from cirron_otel.core.translator.translate import FromOtlp, encode_foreign
from cirron_otel.core.translator.typed import NotCanonicalError
from cirron_otel.errors import InputError
from cirron_otel.ids import uuid4_shaped
from tests.core.importers.dgrr.traces import SMALL, opened, slow_findings

BATCH_ID = uuid4_shaped(bytes(range(16)))
MOST_ELEMENTS = 20_000
MOST_INFLATED = 4 << 20


def told(error: Exception) -> None:
    """An error is one line for people, however hostile what it is about."""
    text = str(error)
    assert text
    assert "\n" not in text
    assert len(text) < 1000, len(text)


def binary(data: bytes) -> None:
    """OTLP in protobuf, as gRPC and HTTP bring it, up to the batch; and back."""
    signal = (ReceivedSignal.TRACES, ReceivedSignal.LOGS, ReceivedSignal.METRICS)[len(data) % 3]
    try:
        found = measure(data, signal, MOST_ELEMENTS)
    except InputError as error:
        told(error)
        return
    if signal is ReceivedSignal.TRACES:
        message = TracesData.FromString(data)  # what is measured as valid must parse
        assert found.spans == sum(
            len(scope.spans) for each in message.resource_spans for scope in each.scope_spans
        )
        _translated(data, message)


def _translated(data: bytes, message: TracesData) -> None:
    made = ForeignText()
    try:
        made.add(data)
    except InputError as error:
        told(error)
        return
    stored = made.text(BATCH_ID, 1)
    assert check_batch(stored) is None
    back = encode_foreign(exactjson.loads(stored))
    if not message.resource_spans:
        assert back is None
        return
    assert back is not None, "a batch that was born in OTLP is not known as such"
    came = TracesData(resource_spans=back)
    assert drop_headers(came.resource_spans)
    assert [each.SerializeToString(deterministic=True) for each in came.resource_spans] == [
        each.SerializeToString(deterministic=True) for each in message.resource_spans
    ]


def born_in_cirron(data: bytes) -> None:
    """OTLP that may have been made from Cirron's batches."""
    try:
        measure(data, ReceivedSignal.TRACES, MOST_ELEMENTS)
        reader = FromOtlp()
        if reader.feed_whole(data) is None:
            list(reader.feed(TracesData.FromString(data).resource_spans))
            list(reader.finish())
    except InputError as error:
        told(error)


def wire(data: bytes) -> None:
    """What the manual readers of the wire accept, protobuf accepts; the records are the same.

    Nothing measured it before, as a conversion of a file does not.
    """
    try:
        whole = fast_decode(data)
    except NotCanonicalError:
        whole = None
    made = ForeignText()
    try:
        made.add(data)
    except InputError as error:
        told(error)
        assert whole is None
        return
    message = TracesData.FromString(data)
    expected = decode_foreign(list(message.resource_spans))
    expected["batch_id"], expected["created_ns"] = BATCH_ID, 1
    expected["otel"][RECEIVED] = 1
    assert exactjson.equal(exactjson.loads(made.text(BATCH_ID, 1)), expected)
    if whole is not None:
        (decoded,) = FromOtlp().feed(message.resource_spans)
        assert decoded.complete
        assert exactjson.equal(decoded.batch, exactjson.loads(whole.data))


def text(data: bytes) -> None:
    """OTLP in JSON."""
    try:
        check_json(data, MOST_ELEMENTS)
        message, lines = traces_from_json(data)
    except InputError as error:
        told(error)
        return
    assert all("\n" not in line for line in lines)
    with contextlib.suppress(RecursionError):
        json.loads(data, object_pairs_hook=_without_repeats)
    written = message.SerializeToString(deterministic=True)
    measure(written, ReceivedSignal.TRACES, MOST_ELEMENTS * 100)
    assert TracesData.FromString(written).SerializeToString(deterministic=True) == written
    if not json_losses(message):
        again, _ = traces_from_json(traces_to_json(message))
        assert again.SerializeToString(deterministic=True) == written


def _without_repeats(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Check that no key is repeated in a JSON object that was read."""
    assert len(dict(members)) == len(members)
    return {}


def batch(data: bytes) -> None:
    """A Cirron batch: what the two checks say is the same, and what it is taken for."""
    try:
        check_json(data, MOST_ELEMENTS)
        json_signal(data)
    except InputError as error:
        told(error)
        return
    except RefusalError as error:
        told(error)
    quick, slow = check_batch(data), check_value_of(data)
    assert (quick is None) == (slow is None)
    if quick is not None:
        told(InputError(quick.message))
        return
    value = exactjson.loads(data)
    assert exactjson.equal(exactjson.loads(exactjson.dumps(value)), value)


def coded(data: bytes) -> None:
    """Content codings: what comes out is bounded, step by step."""
    for coding in CODINGS:
        codec = inflater(coding)
        assert codec is not None
        size = 0
        try:
            for piece in codec.feed(data):
                assert len(piece) <= 33 << 20
                size += len(piece)
                if size > MOST_INFLATED:
                    break
            else:
                if codec.remaining <= MOST_INFLATED - size:
                    codec.finish()
        except InputError as error:
            told(error)


def traceml(data: bytes) -> None:
    """The bytes of a connection of TraceML's: its batches are valid, and give the bytes again."""
    decoder, stream = FrameDecoder(), TraceMLStream(on_finding=lambda each: told_text(str(each)))
    kept = b""
    batches = []
    for payload in decoder.feed(data):
        batches += stream.feed(payload)
        kept += frame_of(payload) if isinstance(payload, bytes) else b""
    whole = not decoder.is_skipping and len(kept) + len(decoder.rest) == len(data)
    batches += stream.finish(decoder.rest)
    with tempfile.TemporaryDirectory() as folder:
        collected = CollectedFrames(Path(folder))
        for each in batches:
            assert check_batch(each.data) is None
            collected.add(exactjson.loads(each.data)["traceml"])
        written = b"".join(part for one in collected.streams() for part in collected.data(one))
        collected.close()
    assert written == (data if whole and batches else kept + decoder.rest if batches else b"")


def told_text(text: str) -> None:
    """A finding is one line for people, too."""
    told(InputError(text))


def dgrr(data: bytes) -> None:
    """A DGRR trace: its findings are those of the definition, its batches give the bytes again."""
    trace = opened(data)
    found = list(check_trace(trace))
    for each in found:
        told_text(each.message)
    checks = [(each.check, each.record) for each in found]
    assert checks == slow_findings(data)
    try:
        require_trace("input", trace.head)
    except InputError as error:
        told(error)
        assert found
        return
    rate = TraceHeader.parse(trace.head).learning_rate
    for record in records_of(trace):
        replay_differences(record, rate, 0)
    assert first_divergence(trace, trace, 0) is None
    first_divergence(trace, opened(SMALL), 1)
    reported: list[Any] = []
    batches = TraceImport(trace, sha256(data).digest(), reported.append).batches()
    texts = [batch.data for batch in batches]
    assert reported == found
    assert all(check_batch(text) is None for text in texts)
    assert _restored(texts) == data


def dgrr_batch(data: bytes) -> None:
    """A batch, which may be of a DGRR trace: it becomes a file, or is refused."""
    if check_batch(data) is not None:
        return
    try:
        _restored([data])
    except InputError as error:
        told(error)


def _restored(texts: list[bytes]) -> bytes:
    """The trace in batches. Raises InputError if there is not exactly one."""
    with tempfile.TemporaryDirectory() as folder:
        collected = CollectedTrace(Path(folder))
        try:
            for text in texts:
                collected.add(exactjson.loads(text))
            return b"".join(collected.pieces())
        finally:
            collected.close()


TARGETS: dict[str, Callable[[bytes], None]] = {
    "binary": binary,
    "born-in-cirron": born_in_cirron,
    "wire": wire,
    "text": text,
    "batch": batch,
    "coded": coded,
    "traceml": traceml,
    "dgrr": dgrr,
    "dgrr-batch": dgrr_batch,
}
