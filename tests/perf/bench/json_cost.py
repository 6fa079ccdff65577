"""The cost of reading OTLP/JSON, beside its floor, and the share of the search for repeated keys.

The floor is `orjson.loads`, and writing the messages as protobuf.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel.core.otlp.json_codec import traces_from_json, traces_to_json
from cirron_otel.core.otlp.json_keys import check_keys
from cirron_otel.core.placement.batch_outline import read_outline
from cirron_otel.core.placement.session_index import SessionIndex
from cirron_otel.core.translator.translate import to_otlp

from . import workload
from .measure import Case, interleave

SHARE_BAR = 0.1
"""The maximum share of reading that the search for repeated keys takes."""


@dataclass(frozen=True)
class JsonSizes:
    """How much is measured."""

    batches: int = 20
    blocks: int = 15


TINY = JsonSizes(1, 2)
"""Enough to see that everything runs."""

_WRITERS: dict[str, Callable[[Any], bytes]] = {
    "compact": orjson.dumps,
    "with spaces": lambda value: json.dumps(value).encode(),
    "indented": lambda value: json.dumps(value, indent=2).encode(),
    "with an escaped colon": lambda value: orjson.dumps(value)[:-1] + rb',"x":"\u003a"}',
}


def section(sizes: JsonSizes = JsonSizes()) -> None:
    """Print the cost of reading a span, for each load and each way to write JSON."""
    print("OTLP/JSON -> messages, CPU time of one span")
    for load in workload.LOADS:
        documents = _documents(sizes.batches, load)
        for label, write in _WRITERS.items():
            texts = [write(document) for document in documents]
            name = f"{load.label}, {label}"
            print(f"  {name:<53} {_cost(texts, sizes.blocks)} (bar: {SHARE_BAR:.0%})", flush=True)


def _documents(number: int, load: workload.Load) -> list[Any]:
    index, found = SessionIndex(), []
    for name, data in workload.batches(number, load=load):
        outline = read_outline(data)
        index.observe(outline, name)
        messages = to_otlp(orjson.loads(data), index.plan(outline, True, "f" * 32), name)
        found.append(orjson.loads(traces_to_json(TracesData(resource_spans=messages))))
    return found


def _cost(texts: list[bytes], blocks: int) -> str:
    messages = [traces_from_json(text)[0] for text in texts]
    parsed = [orjson.loads(text) for text in texts]
    spans = sum(
        len(scope.spans)
        for message in messages
        for group in message.resource_spans
        for scope in group.scope_spans
    )

    def floor(_: int) -> None:
        for text, message in zip(texts, messages, strict=True):
            orjson.loads(text)
            message.SerializeToString()

    def keys(_: int) -> None:
        for text, document in zip(texts, parsed, strict=True):
            check_keys(text, document)

    def reading(_: int) -> None:
        for text in texts:
            traces_from_json(text)

    cases = Case("floor", floor), Case("keys", keys), Case("reading", reading)
    interleave(cases, spans, blocks)
    lowest, share = (
        statistics.median(part / read for part, read in zip(a, b, strict=True))
        for a, b in (
            (cases[0].cpu_seconds, cases[2].cpu_seconds),
            (cases[1].cpu_seconds, cases[2].cpu_seconds),
        )
    )
    read_us = cases[2].cpu_us(spans)
    return f"{read_us:6.2f} µs, {1 / lowest:5.2f} x floor, repeated keys {share:5.1%}"
