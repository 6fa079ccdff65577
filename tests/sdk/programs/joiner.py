"""A process that joins what its environment names: `joiner.py DIRECTORY`; prints what it found."""

import json
import sys

from opentelemetry import baggage, trace

import cirron_otel as ci


def main() -> None:
    profiler = ci.profile(frameworks=[], output_dir=sys.argv[1])
    session = profiler.session
    assert session is not None
    with ci.scope("work") as work:
        found = {
            "session": session.id,
            "trace_id": f"{session.context.trace_id:032x}",
            "work_trace_id": f"{work.context.trace_id:032x}",
            "parent": f"{session.parent.span_id:016x}" if session.parent else None,
            "sampled": session.context.trace_flags.sampled,
            "trace_state": session.context.trace_state.to_header(),
            "baggage": dict(baggage.get_all()),
            "current": trace.get_current_span() is work,
            "carrier": dict(ci.inject(environ=True)),
        }
    found["done"] = ci.shutdown()
    found["errors"] = ci.health()["swallowed_errors"]
    print(json.dumps(found))


main()
