"""The real Jaeger shows every span of a recording, with its parent."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.kit.backends import run
from tests.kit.backends.process import get
from tests.kit.sessions.processes import environment
from tests.kit.spools.comparing import RECORDED, cirron_otel, spans_of


@pytest.mark.parametrize("name", ["01_torch_basic", "06_threads", "07_ranks"])
@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_jaeger_shows_every_span_with_its_parent(
    name: str, protocol: str, jaeger: run.Jaeger, tmp_path: Path
) -> None:
    spool, file = RECORDED / name, tmp_path / "traces.binpb"
    cirron_otel("convert", spool, file)
    endpoint = f"http://{jaeger.otlp_grpc}" if protocol == "grpc" else jaeger.otlp_http
    report = cirron_otel(
        "export",
        spool,
        OTEL_EXPORTER_OTLP_ENDPOINT=endpoint,
        OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
    )
    sent: dict[str, dict[str, str]] = defaultdict(dict)
    for span in spans_of(file):
        sent[span.trace_id.hex()][span.span_id.hex()] = span.parent_span_id.hex()
    assert report["accepted"] == sum(map(len, sent.values()))
    for trace_id, parents in sent.items():
        shown = jaeger.wait_for_trace(trace_id, len(parents))
        found = {span["spanId"]: span.get("parentSpanId", "") for span in shown}
        assert found == parents
        names = {span["name"] for span in shown}
        assert "cirron.session" in names
        dangling = {parent for parent in parents.values() if parent} - parents.keys()
        assert not dangling, "a parent is not in its trace"
        keys = {pair["key"] for span in shown for pair in span.get("attributes", ())}
        assert "@jaeger@warnings" not in keys, "Jaeger takes a span for a broken one"


def test_jaeger_finds_the_steps_with_a_loss(jaeger: run.Jaeger, tmp_path: Path) -> None:
    record = (
        "import math, cirron_otel as ci; ci.profile(frameworks=[])\n"
        "for step in ci.batches(range(3)):\n"
        "    with ci.scope('forward'): ci.mark('loss', math.nan if step == 1 else 0.5)\n"
        "print(ci.health()['session_id']); ci.shutdown()"
    )
    variables = {"OTEL_SERVICE_NAME": "losses", "CIRRON_QUIET": "true",
                 "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{jaeger.otlp_grpc}",
                 "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", record], env=environment(**variables), cwd=tmp_path,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    session = done.stdout.strip()
    jaeger.wait_for_trace(session, 7)
    for tags, count in (({"loss": "nan"}, 1), ({"loss": "0.5"}, 1), ({"loss": "0.25"}, 0)):
        asked = urlencode({"service": "losses", "tags": json.dumps(tags), "lookback": "1h"})
        status, body = get(f"{jaeger.query}/api/traces?{asked}")
        assert status == 200
        assert [each["traceID"] for each in json.loads(body)["data"] or []] == [session] * count
