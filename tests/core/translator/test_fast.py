"""The fast ways give what the exact ways give, byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, TracesData

from cirron_otel import exactjson, semconv
from cirron_otel.core.placement.batch_outline import read_outline
from cirron_otel.core.placement.batch_placement import Plan
from cirron_otel.core.placement.session_index import SessionIndex
from cirron_otel.core.translator.codec import encode
from cirron_otel.core.translator.own.encode import Options, encode_batch
from cirron_otel.core.translator.own.fast_decode import fast_decode
from cirron_otel.core.translator.own.fast_encode import fast_encode, typed_batch
from cirron_otel.core.translator.translate import FromOtlp
from cirron_otel.core.translator.typed import NotCanonicalError
from tests.kit.examples import examples
from tests.kit.generators import strategies as gen

from .test_lossless import PHASES, SLOW, tampered

SPOOLS = Path(__file__).parents[2] / "testdata" / "spools"


def files(name: str) -> list[Path]:
    return sorted((SPOOLS / name / ".cirron" / "spool").glob("*.json"))


def index_of(paths: list[Path]) -> SessionIndex:
    index = SessionIndex()
    for path in paths:
        index.observe(read_outline(path.read_bytes()))
    return index


@pytest.mark.parametrize("spool", sorted(p.name for p in SPOOLS.iterdir() if p.is_dir()))
@pytest.mark.parametrize("layout", ["segmented", "session"])
def test_fast_encoder_gives_the_same_bytes(spool: str, layout: str) -> None:
    paths = files(spool)
    index = index_of(paths)
    options = Options(layout=layout)
    fast = 0
    for path in paths:
        data = path.read_bytes()
        plan = index.plan(read_outline(data), layout == "segmented", "f" * 32)
        slow = TracesData(
            resource_spans=encode_batch(exactjson.loads(data), plan, path.name, options)
        )
        try:
            made = fast_encode(typed_batch(data), plan, path.name, options)
        except NotCanonicalError:
            continue
        fast += 1
        assert made == slow.SerializeToString()
    if spool == "01_torch_basic":
        assert fast == len(paths), "01 must not need the slow way"


@pytest.mark.parametrize("spool", sorted(p.name for p in SPOOLS.iterdir() if p.is_dir()))
def test_fast_decoder_gives_the_batch(spool: str) -> None:
    paths = files(spool)
    index = index_of(paths)
    taken = 0
    for path in paths:
        data = path.read_bytes()
        plan = index.plan(read_outline(data), True, "f" * 32)
        message = TracesData(resource_spans=encode_batch(exactjson.loads(data), plan, path.name))
        try:
            whole = fast_decode(message.SerializeToString())
        except NotCanonicalError:
            continue
        taken += 1
        assert whole.name == path.name
        assert exactjson.equal(exactjson.loads(whole.data), exactjson.loads(data))
    if spool == "01_torch_basic":
        assert taken, "a whole batch needs the exact way only where something rests beside it"


def plain_batches() -> st.SearchStrategy[dict[str, Any]]:
    """Batches that our own SDK could write: the fast ways must do these, and exactly."""
    times = st.integers(1, 40)
    attrs = st.dictionaries(
        st.text(max_size=4), st.integers(0, 5) | st.text(max_size=4), max_size=2
    )

    @st.composite
    def batch(draw: st.DrawFn) -> dict[str, Any]:
        spans, marks = [], []
        for number in range(1, draw(st.integers(1, 6))):
            mark_ids = []
            own = f"{number:016x}{gen.LOWER}"
            for _ in range(draw(st.integers(0, 2))):
                mark = f"{len(marks) + 100:016x}{gen.LOWER}"
                mark_ids.append(mark)
                value = draw(st.floats(allow_nan=False, allow_infinity=False) | st.integers(0, 9))
                marks.append(
                    {"id": mark, "span_id": own, "name": draw(st.text(max_size=5)),
                     "value_type": "float" if isinstance(value, float) else "int",
                     "value": value, "attrs": draw(attrs), "ts_ns": draw(times),
                     "kind": draw(st.sampled_from(["point", "summary", "odd"]))}
                )  # fmt: skip
            spans.append(
                {"id": own, "name": draw(st.text(max_size=5)),
                 "parent_id": draw(st.none() | st.just(gen.SESSION_ID) | st.just("b" * 32)),
                 "index": draw(st.none() | st.integers(-2, 9)), "start_ns": draw(times),
                 "end_ns": draw(times), "cpu_ns": draw(st.none() | times), "gpu_ns": None,
                 "memory_peak_bytes": None, "thread_id": draw(st.integers(1, 2)), "pid": 1,
                 "rank": draw(st.integers(0, 1)), "attrs": draw(attrs), "mark_ids": mark_ids}
            )  # fmt: skip
        return {"schema_version": 1, "sdk_version": "0.3.0", "batch_id": "c" * 32,
                "created_ns": 7, "spans": spans, "marks": marks, "snapshots": []}  # fmt: skip

    return batch()


@settings(max_examples=examples(1500), deadline=None, suppress_health_check=SLOW, phases=PHASES)
@given(messages=tampered() | tampered(plain_batches))
def test_fast_decoder_accepts_only_data_the_exact_decoder_accepts(
    messages: list[ResourceSpans],
) -> None:
    data = TracesData(resource_spans=messages).SerializeToString()
    try:
        whole = fast_decode(data)
    except NotCanonicalError:
        return
    reader = FromOtlp()
    (decoded,) = reader.feed(TracesData.FromString(data).resource_spans)
    assert decoded.complete
    assert decoded.name == whole.name
    assert exactjson.equal(decoded.batch, exactjson.loads(whole.data))


@pytest.mark.parametrize("size", [0, semconv.REST_PIECE])
def test_an_empty_piece_of_a_rest_is_not_ours(size: int) -> None:
    """The encoder writes none: the attribute is kept."""
    span = {
        "id": f"{1:016x}{gen.LOWER}", "name": "step", "parent_id": None, "index": None,
        "start_ns": 1, "end_ns": 2, "cpu_ns": None, "gpu_ns": None, "memory_peak_bytes": None,
        "thread_id": 1, "pid": 1, "rank": 0, "attrs": {},
        "mark_ids": ["x" * (size - len('{"set":{"mark_ids":[""]}}'))] if size else [],
    }  # fmt: skip
    batch = {"schema_version": 1, "sdk_version": "0.3.0", "batch_id": "c" * 32, "created_ns": 7,
             "spans": [span], "marks": [], "snapshots": []}  # fmt: skip
    (message,) = encode_batch(batch, Plan(gen.SESSION_ID))
    key = f"{semconv.REST}.1" if size else semconv.REST
    message.scope_spans[0].spans[0].attributes.add(key=key).value.string_value = ""
    with pytest.raises(NotCanonicalError):
        fast_decode(TracesData(resource_spans=[message]).SerializeToString())


@settings(max_examples=examples(1500), deadline=None, suppress_health_check=SLOW, phases=PHASES)
@given(batch=plain_batches())
def test_fast_and_exact_agree(batch: dict[str, Any]) -> None:
    data = msgspec.json.encode(batch)
    plan = Plan(gen.SESSION_ID)
    exact = TracesData(resource_spans=encode_batch(exactjson.loads(data), plan))
    message = exact.SerializeToString()
    try:
        assert fast_encode(typed_batch(data), plan, None) == message
    except NotCanonicalError:
        assert not batch["spans"]
    try:
        whole = fast_decode(message)
    except NotCanonicalError:
        return
    assert exactjson.equal(exactjson.loads(whole.data), exactjson.loads(data))


@pytest.mark.parametrize("field", ["pid", "rank"])
@pytest.mark.parametrize("otel", [{}, {"otel": {"session": gen.SESSION_ID}}], ids=["", "named"])
@pytest.mark.parametrize("layout", ["segmented", "session"])
def test_number_beyond_64_bits_survives_the_otlp_round_trip(
    field: str, otel: dict[str, Any], layout: str
) -> None:
    span = {
        "id": f"{1:016x}{gen.LOWER}", "name": "step", "parent_id": gen.SESSION_ID, "index": None,
        "start_ns": 1, "end_ns": 2, "cpu_ns": None, "gpu_ns": None, "memory_peak_bytes": None,
        "thread_id": 1, "pid": 1, "rank": 0, "attrs": {}, "mark_ids": [],
    }  # fmt: skip
    batch = {"schema_version": 1, "sdk_version": "0.3.0", "batch_id": "c" * 32, "created_ns": 7,
             "spans": [span | {field: 2**64}], "marks": [], "snapshots": []} | otel  # fmt: skip
    index = SessionIndex()
    data = msgspec.json.encode(batch)
    index.observe(read_outline(data))
    message = encode("x.json", data, index, Options(layout=layout)).data
    (decoded,) = FromOtlp().feed(TracesData.FromString(message).resource_spans)
    assert exactjson.equal(decoded.batch, batch)
