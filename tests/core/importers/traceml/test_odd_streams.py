"""Generated streams: whatever the bytes are, they come back, and records stay valid."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cirron_otel.core.importers.traceml import payloads as payload_module
from cirron_otel.core.importers.traceml.collected_frames import CollectedFrames
from cirron_otel.core.importers.traceml.framing import FrameDecoder, OversizedFrame, frame_of
from cirron_otel.core.importers.traceml.payloads import payload_of, read_payload
from cirron_otel.core.importers.traceml.stream import TraceMLStream
from cirron_otel.core.records.check import check_batch
from cirron_otel.errors import InputError
from cirron_otel.tools.convert.convert import ConvertRequest, convert
from tests.kit.examples import examples
from tests.kit.spools.comparing import assert_same, batches

from .recordings import (
    SHORT,
    envelope,
    event,
    files_of,
    frames_folder,
    imported,
    meta,
    packed,
    step_row,
    stream_file,
    streamed,
    written,
)

_NUMBERS = st.one_of(
    st.floats(),
    st.integers(-(2**63), 2**64 - 1),
    st.sampled_from([0, -0.0, 1e-320, 1795197971.1950085, 1e300, math.nan, math.inf, -math.inf]),
)
_SCALARS = st.one_of(st.none(), st.booleans(), _NUMBERS, st.text(max_size=8), st.binary(max_size=8))
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.text(max_size=6), st.integers(0, 9)), inner, max_size=4),
    ),
    max_leaves=12,
)
_TIMES = st.one_of(st.floats(0, 4e9), st.floats(), _SCALARS)
_EVENTS = st.dictionaries(
    st.sampled_from([
        "_traceml_internal:dataloader_next", "_traceml_internal:h2d_time",
        "_traceml_internal:forward_time", "_traceml_internal:step_time", "mine", "",
    ]),
    st.one_of(
        st.dictionaries(
            st.sampled_from(["cpu", "cuda:0", "cuda:1"]),
            st.fixed_dictionaries(
                {"is_gpu": st.booleans(), "duration_ms": st.one_of(st.floats(0, 1e4), _SCALARS)},
                optional={"gpu_ms": _NUMBERS, "n_calls": _SCALARS, "new": _VALUES},
            ),
            max_size=3,
        ),
        _VALUES,
    ),
    max_size=5,
)  # fmt: skip
_ROWS = st.one_of(
    st.fixed_dictionaries({
        "seq": _SCALARS, "timestamp": _TIMES, "step": st.one_of(st.integers(0, 9), _SCALARS),
        "events": st.one_of(_EVENTS, _VALUES),
    }),
    st.fixed_dictionaries({
        "ts": _TIMES, "step": st.one_of(st.integers(0, 9), _SCALARS), "peak_alloc": _NUMBERS,
        "peak_resv": _SCALARS, "device": _SCALARS,
    }),
    st.fixed_dictionaries({
        "ts": _TIMES, "cpu": _SCALARS, "cpu_cores": _SCALARS, "ram_used": _NUMBERS,
        "gpu": st.one_of(st.none(), st.dictionaries(
            st.sampled_from(["device", "mem_used", "mem_total"]), _SCALARS)),
        "gpus": st.lists(st.one_of(_SCALARS, st.lists(_SCALARS, max_size=7)), max_size=2),
    }),
    _VALUES,
)  # fmt: skip
_TABLES = st.dictionaries(
    st.sampled_from(
        ["StepTimeTable", "step_memory", "ProcessTable", "SystemTable", "RuntimeEnvironmentTable",
         "LayerMemoryTable", ""]
    ),
    st.one_of(st.lists(_ROWS, max_size=3), _VALUES),
    max_size=3,
)  # fmt: skip
_META = st.one_of(
    st.just(meta()),
    st.dictionaries(
        st.sampled_from([
            "rank", "global_rank", "pid", "hostname", "timestamp", "world_size", "session_id",
            "run_nonce",
        ]),
        _SCALARS,
    ),
)  # fmt: skip
_MESSAGES = st.one_of(
    st.builds(lambda m, tables: {"meta": m, "body": {"tables": tables}}, _META, _TABLES),
    st.builds(lambda m, tables: m | {"tables": tables}, _META, _TABLES),
    st.builds(lambda m, name: m | {"_traceml_control": name}, _META, _SCALARS),
    _VALUES,
)
_DECODED = st.one_of(st.lists(_MESSAGES, max_size=3), _MESSAGES)


def _json_payload(value: Any) -> bytes:
    return json.dumps(value, default=repr, skipkeys=True).encode()


_PAYLOADS = st.one_of(
    _DECODED.map(msgspec.msgpack.encode),
    _DECODED.map(_json_payload),
    st.binary(max_size=60),
    st.sampled_from([
        b"", b"\xc1", b"{", b"[1", b"{}", b"[]", b"\x81\xa1a\xcd\x00\x01",  # an int of two bytes
        b"\x82\xa1a\x01\xa1a\x02",  # a repeated key
        b"\x81\xa1a\xca\x3f\x80\x00\x00",  # a float of four bytes
        b"\xd6\xff\x00\x00\x00\x01", b"\xc7\x03\x05abc",  # a timestamp, and another extension
        b"\xc4\x02ab", b"\xdd\xff\xff\xff\xff", b"\x91" * 2000, b"\xa2\xff\xfe",
        b'{"a":1,"a":2}', b'[1e400, NaN, -0]', b'{"a": "\\ud800"}', b"[" * 2000 + b"]" * 2000,
    ]),
)  # fmt: skip


@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_PAYLOADS)
def test_every_payload_is_written_again_exactly(payload: bytes) -> None:
    decoded = read_payload(payload)
    assert payload_of(json.loads(decoded.text)) == payload


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_PAYLOADS, min_size=1, max_size=6), st.binary(max_size=3))
def test_every_stream_comes_back_and_its_batches_are_valid(
    payloads: list[bytes], rest: bytes
) -> None:
    found, _ = streamed(payloads, rest)
    assert found
    ids: list[str] = []
    for batch in found:
        problem = check_batch(batch.data)
        assert problem is None, problem
        document = json.loads(batch.data)
        ids += [record["id"] for record in document["spans"] + document["marks"]]
    assert len(ids) == len(set(ids))
    assert streamed(payloads, rest)[0] == found
    assert _frames(found) == b"".join(map(frame_of, payloads)) + rest


def _frames(found: list[Any]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        collected = CollectedFrames(Path(folder))
        for batch in reversed(found):  # in any order
            collected.add(json.loads(batch.data)["traceml"])
        (stream,) = collected.streams()
        assert collected.missing(stream) == 0
        data = b"".join(collected.data(stream))
        collected.close()
    return data


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_PAYLOADS, min_size=1, max_size=4))
def test_a_stream_comes_back_through_otlp(payloads: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first = packed(envelope("StepTimeTable", step_row(1, 1000.0, step_time=event(1))))
        path = stream_file(folder / "in", [first, *payloads])
        spool, _ = imported(path, folder)
        for suffix in ("jsonl", "binpb"):
            convert(ConvertRequest(str(spool), f"{folder}/traces.{suffix}"))
            convert(ConvertRequest(f"{folder}/traces.{suffix}", f"{folder}/back-{suffix}/"))
            assert_same(batches(folder / f"back-{suffix}"), batches(spool))
            files, _ = written(folder / f"back-{suffix}", folder, f"frames-{suffix}")
            assert files == files_of(path.parent)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200), st.lists(st.integers(1, 40), min_size=1, max_size=9))
def test_any_bytes_are_cut_the_same_way(data: bytes, sizes: list[int]) -> None:
    whole, parts = FrameDecoder(30), FrameDecoder(30)
    expected = list(whole.feed(data))
    found, at = [], 0
    for size in sizes:
        found += parts.feed(data[at : at + size])
        at += size
    found += parts.feed(data[at:])
    assert found == expected
    assert parts.rest == whole.rest
    assert parts.is_skipping == whole.is_skipping
    assert len(parts.rest) <= 34


def test_a_length_of_four_gigabytes_is_not_buffered() -> None:
    decoder = FrameDecoder()
    assert list(decoder.feed(b"\xff\xff\xff\xff" + b"x" * 100)) == [OversizedFrame(2**32 - 1)]
    for _ in range(100):
        assert not list(decoder.feed(b"x" * 10_000))
    assert decoder.rest == b""
    assert decoder.is_skipping


def test_a_frame_after_an_oversized_one_is_read() -> None:
    decoder = FrameDecoder(10)
    data = frame_of(b"x" * 11) + frame_of(b"\x90")
    assert list(decoder.feed(data[:9])) == [OversizedFrame(11)]
    assert list(decoder.feed(data[9:])) == [b"\x90"]


@pytest.mark.parametrize(
    "payload",
    [b"\x80" * 1_200_000, b"[" + b"[]," * 600_000 + b"[]]"],
    ids=["msgpack", "json"],
)
def test_too_many_containers_are_not_decoded(payload: bytes) -> None:
    if payload[:1] == b"\x80":
        payload = b"\xdd" + (1_200_000).to_bytes(4, "big") + payload
    decoded = read_payload(payload)
    assert decoded.value is None
    assert str(payload_module.MAX_CONTAINERS) in decoded.problem
    assert payload_of(json.loads(decoded.text)) == payload


def test_the_state_of_a_stream_is_bounded() -> None:
    """Steps without peaks and peaks without steps, for ever."""
    stream = TraceMLStream()
    sizes = []
    for number in range(6000):
        step = envelope("StepTimeTable", step_row(2 * number, 1000.0 + number))
        peak = {"ts": 1000.0, "step": 2 * number + 1, "peak_alloc": 5.0, "peak_resv": 7.0}
        stream.feed(packed(step, envelope("step_memory", peak), {f"k{number}": 1}))
        if number % 1500 == 1499:
            sizes.append(len(stream.state()))
    assert sizes[-1] < 1.1 * sizes[1]
    assert sizes[-1] < 400_000


def test_long_names_are_cut_in_records_and_state_and_not_in_frames() -> None:
    long = "\n" + "x" * 100_000
    message = envelope(long, {"ts": 1000.0}, hostname=long, session_id=long, run_nonce=long)
    environment = envelope("RuntimeEnvironmentTable", {"ts": 1000.0, "topology": long})
    peak = {"ts": 1000.0, "step": 1, "peak_alloc": 5.0, "device": long}
    findings: list[Any] = []
    stream = TraceMLStream(on_finding=findings.append)
    payload = packed(message, environment, envelope("step_memory", peak), {long: 1})
    found = [*stream.feed(payload), *stream.finish()]
    assert len(stream.state()) < 5_000
    assert sum(len(batch.data) for batch in found) < 1.6 * len(payload)  # its base64, and one mark
    assert findings
    assert all("\n" not in str(each) and len(str(each)) < 200 for each in findings)
    assert _frames(found) == frame_of(payload)


def test_a_torn_last_frame_is_reported_and_comes_back(tmp_path: Path) -> None:
    data = next(frames_folder(SHORT).iterdir()).read_bytes()
    path = tmp_path / "in" / "rank0_pid19149.frames"
    path.parent.mkdir()
    source = (frames_folder(SHORT) / path.name).read_bytes()
    path.write_bytes(source[:-7])
    spool, report = imported(path, tmp_path)
    assert report.exit_code == 1
    assert [finding.code for finding in report.skipped] == ["torn"]
    assert written(spool, tmp_path)[0] == files_of(path.parent)
    assert data


def test_an_oversized_frame_is_reported_in_both_directions(tmp_path: Path) -> None:
    first = packed(envelope("StepTimeTable", step_row(1, 1000.0)))
    path = stream_file(tmp_path / "in", [first, b"\x90" * (16 * 2**20 + 1), first])
    spool, report = imported(path, tmp_path)
    assert [finding.code for finding in report.skipped] == ["too-long"]
    files, back = written(spool, tmp_path)
    assert back.exit_code == 1
    assert "1 frames are not in the source" in back.incomplete[0]
    assert files[path.name] == frame_of(first) * 2


@pytest.mark.parametrize("content", [b"", b"\x00", b"\x00\x00\x00\x01\xc1", b"no recording at all"])
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file.frames"
    path.write_bytes(content)
    with pytest.raises(InputError, match="is not a recording of TraceML's: expected"):
        imported(path, tmp_path)
