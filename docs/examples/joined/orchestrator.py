"""The orchestrator: `python orchestrator.py COMMAND …` runs a job as part of a trace."""

import os
import subprocess
import sys

from opentelemetry import propagate, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

provider = TracerProvider(resource=Resource.create({"service.name": "orchestrator"}))
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)

with trace.get_tracer("orchestrator").start_as_current_span("nightly training") as span:
    # The job reads its parent from the environment: TRACEPARENT, TRACESTATE, BAGGAGE.
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    environment = os.environ | {name.upper(): value for name, value in carrier.items()}
    code = subprocess.run(sys.argv[1:], env=environment, check=False).returncode
    if code:
        span.set_status(trace.StatusCode.ERROR, f"the job ended with {code}")
    trace_id = f"{span.get_span_context().trace_id:032x}"

provider.shutdown()
print(f"trace {trace_id}")
sys.exit(code)
