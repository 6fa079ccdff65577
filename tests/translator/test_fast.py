"""The fast ways give what the exact ways give, byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel import exactjson
from cirron_otel.pipeline.light import light
from cirron_otel.pipeline.sessions import SessionIndex
from cirron_otel.translator.encode import Options, encode_batch
from cirron_otel.translator.fast_encode import fast_encode, typed_batch
from cirron_otel.translator.typed import FallbackError

SPOOLS = Path(__file__).parent.parent / "testdata" / "spools"


def files(name: str) -> list[Path]:
    return sorted((SPOOLS / name / ".cirron" / "spool").glob("*.json"))


def index_of(paths: list[Path]) -> SessionIndex:
    index = SessionIndex()
    for path in paths:
        index.observe(light(path.read_bytes()))
    return index


@pytest.mark.parametrize("spool", sorted(p.name for p in SPOOLS.iterdir()))
@pytest.mark.parametrize("layout", ["segmented", "session"])
def test_fast_encoder_gives_the_same_bytes(spool: str, layout: str) -> None:
    paths = files(spool)
    index = index_of(paths)
    options = Options(layout=layout)
    fast = 0
    for path in paths:
        data = path.read_bytes()
        plan = index.plan(light(data), layout == "segmented", "f" * 32)
        slow = TracesData(
            resource_spans=encode_batch(exactjson.loads(data), plan, path.name, options)
        )
        try:
            made = fast_encode(typed_batch(data), plan, path.name, options)
        except FallbackError:
            continue
        fast += 1
        assert made == slow.SerializeToString()
    if spool == "01_torch_basic":
        assert fast == len(paths), "01 must not need the slow way"
