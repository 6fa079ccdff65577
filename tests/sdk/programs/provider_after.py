"""Sets a TracerProvider after `profile()`: `provider_after.py OUTPUT_DIR OTLP_ENDPOINT`.

It prints, as JSON, the spans that the provider's own exporter has: name, span id, parent's id.
"""

from __future__ import annotations

import json
import sys

import torch
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from torch.utils.data import DataLoader, TensorDataset

import cirron_otel as ci

directory, endpoint = sys.argv[1:]
session = ci.profile(output_dir=directory, handle_signals=False).session
early = trace.get_tracer("made early")
with ci.scope("before"), early.start_as_current_span("before, by a tracer"):
    pass

memory = InMemorySpanExporter()
provider = TracerProvider(resource=Resource({"service.name": "the program"}))
trace.set_tracer_provider(provider)
provider.add_span_processor(SimpleSpanProcessor(memory))
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{endpoint}/v1/traces")))
assert trace.get_tracer_provider() is provider

tracer = trace.get_tracer("program")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    for (x,) in DataLoader(TensorDataset(torch.ones(6, 4)), batch_size=2):
        with tracer.start_as_current_span("my-step"):
            model(x).sum().backward()
            optimizer.step()
with early.start_as_current_span("after, by a tracer made early"):
    pass
ci.shutdown()
spans = memory.get_finished_spans()
provider.shutdown()
told = [
    (
        each.name,
        f"{each.context.span_id:016x}",
        f"{each.parent.span_id:016x}" if each.parent else "",
    )
    for each in spans
]
print(json.dumps({"trace": f"{session.context.trace_id:032x}", "spans": told}))
