"""The fast paths give what the exact ones give, for batches of the shapes that people write."""

from __future__ import annotations

from collections.abc import Callable
from cProfile import Profile
from random import Random
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel import exactjson
from cirron_otel.core.placement.batch_outline import read_outline
from cirron_otel.core.placement.batch_placement import Plan
from cirron_otel.core.placement.session_index import SessionIndex
from cirron_otel.core.translator.codec import encode
from cirron_otel.core.translator.own.encode import Options, encode_batch
from cirron_otel.core.translator.own.fast_decode import fast_decode
from cirron_otel.core.translator.own.fast_encode import fast_encode, typed_batch
from cirron_otel.core.translator.own.own import plan_of
from cirron_otel.core.translator.translate import FromOtlp
from cirron_otel.core.translator.typed import NotCanonicalError
from tests.kit.generators.strategies import SESSION_ID
from tests.perf.bench import workload
from tests.perf.bench.shapes import SHAPES

from .shapes import Shapes, mutated

BATCHES = 160
PIECES = 2
EXACT = {"read_span", "read_mark", "read_snapshot", "write_span", "write_mark", "write_snapshot"}


def message_of(batch: dict[str, Any], options: Options) -> bytes:
    plan = plan_of(batch) or Plan(SESSION_ID)
    return TracesData(resource_spans=encode_batch(batch, plan, None, options)).SerializeToString()


def assert_as_exact(data: bytes) -> bool:
    """Whether the fast path takes a message; the exact one then gives the same of it."""
    try:
        whole = fast_decode(data)
    except NotCanonicalError:
        return False
    (decoded,) = FromOtlp().feed(TracesData.FromString(data).resource_spans)
    assert decoded.complete
    assert decoded.name == whole.name
    assert exactjson.equal(decoded.batch, exactjson.loads(whole.data))
    return True


def check(seed: int, changes: int) -> bool:
    """Compare both directions for the batch of a seed; whether the fast path takes its message."""
    random = Random(-seed)
    batch = Shapes(seed).batch()
    options = Options(layout=random.choice(("segmented", "segmented", "session")))
    data = exactjson.dumps(batch)
    batch = exactjson.loads(data)
    message = message_of(batch, options)
    try:
        plan = plan_of(batch) or Plan(SESSION_ID)
        assert fast_encode(typed_batch(data), plan, None, options) == message
    except NotCanonicalError:
        pass
    taken = assert_as_exact(message)
    if taken:
        assert exactjson.equal(exactjson.loads(fast_decode(message).data), batch)
    for _ in range(changes):
        other = mutated(message, random)
        try:
            TracesData.FromString(other)
        except DecodeError:
            with pytest.raises(NotCanonicalError):
                fast_decode(other)
            continue
        assert_as_exact(other)
    return taken


@pytest.mark.parametrize("piece", range(PIECES))
def test_batches_and_changed_messages(piece: int) -> None:
    for seed in range(piece * BATCHES // PIECES, (piece + 1) * BATCHES // PIECES):
        check(seed, 8)


def exact_calls(work: Callable[[], object]) -> int:
    """How often an exact mapper reads or writes a record."""
    profile = Profile()
    profile.runcall(work)
    return sum(
        entry.callcount
        for entry in profile.getstats()
        if getattr(entry.code, "co_name", "") in EXACT
    )


@pytest.mark.parametrize("load", [*workload.LOADS, *SHAPES], ids=lambda load: load.label)
def test_no_load_needs_the_exact_mappers(load: workload.Load) -> None:
    """Each of them would cost 20 to 60 times the floor."""
    for native in (True, False):
        files = list(workload.batches(2, 40, native=native, load=load))
        index = SessionIndex()
        for name, data in files:
            index.observe(read_outline(data), name)
        messages: list[bytes] = []

        def convert() -> None:
            for name, data in files:  # noqa: B023
                messages.append(encode(name, data, index, Options()).data)  # noqa: B023

        assert exact_calls(convert) == 0, "to OTLP"
        back: list[Any] = []
        calls = exact_calls(lambda: back.extend(map(FromOtlp().feed_whole, messages)))  # noqa: B023
        assert calls == 0, "from OTLP"
        for whole, (name, data) in zip(back, files, strict=True):
            assert whole.name == name
            assert exactjson.equal(exactjson.loads(whole.data), exactjson.loads(data))
