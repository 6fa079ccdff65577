"""The vectors of docs/otlp-mapping.md, both ways; and the document, by its vectors."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel import exactjson
from cirron_otel._version import SDK_VERSION
from cirron_otel.core.translator.own.decode import Decoded
from cirron_otel.core.translator.own.fast_encode import fast_encode, typed_batch
from cirron_otel.core.translator.translate import FromOtlp, to_otlp
from cirron_otel.core.translator.typed import NotCanonicalError

from .vectors.cases import (
    STEP,
    Vector,
    batch,
    mark,
    otlp_of,
    own_id,
    span,
)
from .vectors.make import (
    DOCUMENT,
    EXAMPLE,
    HERE,
    at,
    text_of,
    vars_of,
)
from .vectors.sessions_cases import places_of

ADRS = DOCUMENT.parent / "adr"
PATHS = sorted(HERE.glob("*.json"))
VECTORS: dict[str, Any] = {p.stem: exactjson.loads(p.read_text("utf-8")) for p in PATHS}
FAST = {"native", "sdk-ids", "mark-values", "overhead", "own", "own-session", "own-foreign"}
"""Ordinary batches, and our SDK's: the fast way must take them."""
TEXT = DOCUMENT.read_text("utf-8")


def of(key: str, *others: str) -> list[str]:
    return [n for n, v in VECTORS.items() if key in v and not any(o in v for o in others)]


def decode(vector: Vector) -> Decoded:
    reader = FromOtlp()
    for _ in range(vector.case.get("fed", 1)):
        found = reader.feed(vector.messages())
    (decoded,) = found + reader.finish()
    return decoded


@pytest.mark.parametrize("name", of("otlp", "one_way"))
def test_batch_to_otlp(name: str) -> None:
    vector = Vector(VECTORS[name])
    with vector.limits():
        messages = to_otlp(vector.case["batch"], vector.plan(), vector.name(), vector.options())
    assert exactjson.equal(otlp_of(messages), vector.case["otlp"])
    assert [m.SerializeToString() for m in messages] == [
        m.SerializeToString() for m in vector.messages()
    ]


@pytest.mark.parametrize("name", of("otlp", "one_way", "limits"))
def test_fast_path_gives_the_same_result(name: str) -> None:
    vector = Vector(VECTORS[name])
    truth = vector.case["batch"]
    data = TracesData(resource_spans=vector.messages()).SerializeToString()
    file = vector.name() or f"{truth['created_ns']:020d}-{truth['batch_id']}.json"
    try:
        batch = typed_batch(exactjson.dumps(truth))
        fast = fast_encode(batch, vector.plan(), file, vector.options())
    except NotCanonicalError:
        assert name not in FAST
    else:
        assert fast == data
    whole = FromOtlp().feed_whole(data)
    assert (whole is not None) >= (name in FAST)
    if whole is not None:
        assert exactjson.equal(exactjson.loads(whole.data), truth)
        assert whole.name == file


@pytest.mark.parametrize("name", of("otlp"))
def test_otlp_to_batch(name: str) -> None:
    vector = Vector(VECTORS[name])
    decoded = decode(vector)
    truth = vector.case["batch"]
    assert exactjson.equal(decoded.batch, truth), exactjson.dumps(decoded.batch)
    usual = f"{truth['created_ns']:020d}-{truth['batch_id']}.json"
    expected = vector.case.get("name", usual)
    if truth["batch_id"] is not None:
        assert decoded.name == expected


@pytest.mark.parametrize("name", of("one_way"))
def test_processed_otlp_gives_its_records(name: str) -> None:
    vector = Vector(VECTORS[name])
    decoded = decode(vector)
    assert vars_of(decoded) == vector.case["found"]
    reader = FromOtlp()
    (again,) = reader.feed(to_otlp(decoded.batch, vector.plan(), decoded.name))
    assert exactjson.equal(again.batch, decoded.batch)


@pytest.mark.parametrize("name", of("files"))
def test_places(name: str) -> None:
    vector = Vector(VECTORS[name])
    with vector.limits():
        assert places_of(vector.case) == vector.case["places"]


@pytest.mark.parametrize("told", VECTORS["digests"]["digests"], ids=lambda told: str(told["use"]))
def test_digest(told: Any) -> None:
    text = "\0".join(told["parts"]).encode("utf-8", "surrogatepass")
    found = bytearray(hashlib.sha256(text).digest())
    if told.get("uuid4"):
        found[6] = found[6] & 0x0F | 0x40
        found[8] = found[8] & 0x3F | 0x80
    gives = told["gives"]
    assert found.hex().startswith(gives[:16])
    assert found.hex().startswith(gives) or len(gives) == 32
    if told["vector"]:
        assert f'"{gives}"' in (HERE / f"{told['vector']}.json").read_text("utf-8")


def test_a_span_carries_a_thousand_events() -> None:
    marks = [mark(own_id(f"a{n:04x}"), STEP, "loss", n, n) for n in range(2_001)]
    truth = batch([span(STEP, "step", None, 0, 9, mark_ids=[m["id"] for m in marks])], marks)
    (message,) = to_otlp(truth, Vector({}).plan())
    spans = message.scope_spans[0].spans
    assert [len(s.events) for s in spans] == [1_000, 1_000, 1]
    (decoded,) = FromOtlp().feed([message])
    assert exactjson.equal(decoded.batch, truth)


def test_a_span_carries_a_megabyte() -> None:
    marks = [mark(own_id(f"a{n}"), STEP, "text", "z" * 200_000, n) for n in range(1, 8)]
    truth = batch([span(STEP, "step", None, 0, 9, mark_ids=[m["id"] for m in marks])], marks)
    (message,) = to_otlp(truth, Vector({}).plan())
    spans = message.scope_spans[0].spans
    assert [s.name for s in spans] == ["step", *["cirron.marks"] * (len(spans) - 1)]
    assert len(spans) > 1
    assert all(s.ByteSize() <= 1_000_000 for s in spans)
    (decoded,) = FromOtlp().feed([message])
    assert exactjson.equal(decoded.batch, truth)


def test_every_vector_is_in_the_document() -> None:
    missing = [
        name for name in VECTORS if f"vector: {name} " not in TEXT and f"`{name}`" not in TEXT
    ]
    assert missing == []


def test_every_example_is_its_vectors() -> None:
    examples = EXAMPLE.findall(TEXT)
    assert len(examples) == TEXT.count("```json")
    wrong = [
        f"{name} {pointer}"
        for _, name, pointer, example, _ in examples
        if not exactjson.equal(exactjson.loads(example), at(VECTORS[name], pointer))
    ]
    assert wrong == [], "run `python -m tests.core.translator.vectors.make` and read what changed"


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_of_the_document_leads_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", TEXT):
        path, _, anchor = target.partition("#")
        file = DOCUMENT.parent / path if path else DOCUMENT
        assert file.is_file(), target
        assert not anchor or anchor in anchors(file.read_text()), target
    assert len(list(ADRS.glob("*.md"))) >= 4


def test_the_foreign_vectors_are_of_this_version() -> None:
    assert VECTORS["foreign"]["batch"]["sdk_version"] == SDK_VERSION


def test_written_vectors_are_read_as_written() -> None:
    for path in PATHS:
        assert text_of(VECTORS[path.stem]) + "\n" == path.read_text("utf-8")
