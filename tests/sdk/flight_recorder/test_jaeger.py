"""A real out-of-memory error of the CPU allocator is on its step in a real Jaeger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.backends import run
from tests.kit.forked_scripts import ForkedScripts
from tests.kit.sessions.spool_trees import read_spool

from .reading import ERROR, REQUESTED, oom_nodes
from .test_programs import PROGRAMS

torch = pytest.importorskip("torch")


def values_of(attributes: list[dict[str, Any]]) -> dict[str, Any]:
    return {pair["key"]: next(iter(pair["value"].values())) for pair in attributes}


@pytest.mark.parametrize("where", ["step", "forward"])
def test_the_error_is_on_its_scope(
    where: str, jaeger: run.Jaeger, scripts: ForkedScripts, tmp_path: Path
) -> None:
    variables = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{jaeger.otlp_grpc}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "CIRRON_EXIT_TIMEOUT": "120",
    }
    done = scripts.script(PROGRAMS / "training.py", tmp_path, where, "uncaught", env=variables)
    assert done.returncode == 1
    spool = read_spool(tmp_path)
    (node,) = oom_nodes(spool)
    recorded = {each["id"][:16] for each in spool.spans}
    shown = jaeger.wait_for_trace(spool.session.record["id"], recorded)
    ((span, event),) = [
        (span, event)
        for span in shown
        for event in span.get("events", ())
        if event["name"] == "oom"
    ]
    assert span["name"] == where
    assert span["spanId"] == node.record["id"][:16]
    assert span["status"]["code"] in (ERROR, "STATUS_CODE_ERROR")
    assert values_of(span["attributes"])["oom_bundle"] == f"oom/{node.record['id']}"
    told = values_of(event["attributes"])
    assert int(told["cirron.mark.value"]) == REQUESTED
    assert told["reason"] == "DefaultCPUAllocator"
    (exception,) = [each for each in span["events"] if each["name"] == "exception"]
    told = values_of(exception["attributes"])
    assert told["exception.type"] == "RuntimeError"
    assert str(REQUESTED) in told["exception.message"]
