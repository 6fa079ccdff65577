"""Batches of ours that name a file which nothing may be written under are stored all the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from cirron_otel.collector.receiver.consumer import ReceivedSignal
from cirron_otel.core.placement.batch_placement import Plan
from cirron_otel.core.translator.own.encode import encode_batch
from cirron_otel.semconv import BATCH_FILE
from tests.tools.convert.test_hostile_values import SESSION, batch_with

from .test_storing import journal, stored, translate

NAMES = (b"caf\xe9.json", b"n" * 300 + b".json", b"../up.json", b"nul\0.json", b"no-suffix", b"")


@pytest.mark.parametrize("tenant", [{}, {"x-scope-orgid": "a"}], ids=["no tenant", "a tenant"])
def test_they_are_stored_under_other_names(tenant: dict[str, str], tmp_path: Path) -> None:
    sent = []
    for number, name in enumerate(NAMES, 1):
        batch = json.loads(batch_with("1", number))
        data = TracesData(resource_spans=encode_batch(batch, Plan(SESSION), "other.json"))
        for attribute in data.resource_spans[0].scope_spans[0].scope.attributes:
            if attribute.key == BATCH_FILE:
                if name.isascii():
                    attribute.value.string_value = name.decode()
                else:
                    attribute.value.bytes_value = name
        sent.append((ReceivedSignal.TRACES, data.SerializeToString(), tenant))
    translate(tmp_path, journal(tmp_path, sent))
    found = [json.loads(data)["batch_id"] for data, _ in stored(tmp_path).values()]
    assert sorted(found) == [f"{number:032x}" for number in range(1, len(NAMES) + 1)]


def test_no_file_outside_the_spool_is_read(tmp_path: Path) -> None:
    """It could be a FIFO or /dev/zero, or be taken for the batch that came before."""
    sent = []
    outside = tmp_path / "outside.json"
    for number in (1, 2):
        batch = json.loads(batch_with(str(number)))
        messages = encode_batch(batch, Plan(SESSION), str(outside))
        data = TracesData(resource_spans=messages).SerializeToString()
        sent.append((ReceivedSignal.TRACES, data, {}))
        outside.write_text(json.dumps(batch))
    translate(tmp_path, journal(tmp_path, sent))
    found = [json.loads(data) for data, _ in stored(tmp_path).values()]
    assert len(found) == 2
    assert batch in found
