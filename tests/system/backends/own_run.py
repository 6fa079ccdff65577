"""A run of our own SDK with everything that a record can hold: `own_run.py DIRECTORY`."""

from __future__ import annotations

import contextlib
import sys
import threading

from opentelemetry import trace

import cirron_otel as ci

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def main(directory: str) -> None:
    ci.profile(
        frameworks=[], output_dir=directory, flush_interval=3600, segment_records=60, parent=CALLER
    )
    tracer = trace.get_tracer("a.client", "1.2", attributes={"kind": "test"})
    for epoch in ci.epochs(range(3)):
        ci.mark("lr", 0.1 / (1 + epoch))
        for step in ci.batches(range(8)):
            with ci.scope("forward", layer=f"block.{step}", size=2**70) as scope:
                ci.mark("loss", float("nan") if step == 3 else 1 / (1 + step))
                scope.add_event("checkpoint", {"n": step})
            with tracer.start_as_current_span("request", kind=trace.SpanKind.CLIENT) as span:
                span.set_attribute("http.url", "http://example")
                with ci.scope("inside"):
                    ci.mark("big", 10**30)
            with contextlib.suppress(ValueError), ci.scope("backward"):
                if step == 5:
                    raise ValueError("gradient \ud800 is odd")
            if step % 4 == 3:
                ci.flush()  # marks and children before their epoch
        ci.mark("epoch_loss", epoch, kind="summary")
        ci.flush()  # the epoch is open, and stands in another trace than its last steps
    with ci.scope("linked") as scope, tracer.start_as_current_span("elsewhere") as span:
        scope.add_link(span.get_span_context(), {"why": "test"})
    with tracer.start_as_current_span(
        "alone", context=trace.set_span_in_context(trace.INVALID_SPAN)
    ):
        pass
    thread = threading.Thread(target=lambda: [None for _ in ci.batches(range(3))])
    thread.start()
    thread.join()
    if not ci.shutdown():
        sys.exit("not all was sent")
    if ci.health()["swallowed_errors"]:
        sys.exit(str(ci.health()["last_errors"]))


if __name__ == "__main__":
    main(sys.argv[1])
