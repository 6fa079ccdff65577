"""A TracerProvider that the program sets after `profile()`: its processors see every span."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.kit.backends import run
from tests.kit.forked_scripts import ForkedScripts
from tests.sdk.instrumentation.torch.trees import read

PROGRAM = Path(__file__).parents[1] / "programs" / "provider_after.py"


def _run(
    scripts: ForkedScripts, directory: Path, endpoint: str, **variables: str
) -> dict[str, Any]:
    done = scripts.script(PROGRAM, directory, endpoint, env=variables)
    assert done.returncode == 0, done.stderr
    assert "Overriding" not in done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.backends
def test_jaeger_nests_phases_under_the_programs_span_inside_each_step(
    jaeger: run.Jaeger, scripts: ForkedScripts, tmp_path: Path
) -> None:
    """The program's exporter has every span, and so has Jaeger, each once.

    Our own exporter sends what ended before the provider was set, and nothing after that.
    """
    found = _run(
        scripts, tmp_path, jaeger.otlp_http,
        OTEL_EXPORTER_OTLP_ENDPOINT=jaeger.otlp_http,
        OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
    )  # fmt: skip
    names = Counter(name for name, _, _ in found["spans"])
    assert names == {
        "cirron.session": 1, "epoch": 2, "step": 6, "data_load": 6, "my-step": 6, "forward": 6,
        "backward": 6, "optimizer_step": 6, "after, by a tracer made early": 1,
    }  # fmt: skip
    recorded = [node.record for node in read(tmp_path)[0].root.walk()]
    shown = run.wait_for_shown(
        "Jaeger",
        lambda trace_id: [s for s in jaeger.get_trace(trace_id) if s["name"] != "cirron.running"],
        found["trace"], len(recorded), run.WAIT_SECONDS,
    )  # fmt: skip
    ids = Counter(span["spanId"] for span in shown)
    assert ids == Counter(record["id"][:16] for record in recorded)
    assert Counter(span["name"] for span in shown) == names + Counter(
        ["before", "before, by a tracer"]
    )
    for spans in (
        [(span["name"], span["spanId"], span.get("parentSpanId", "")) for span in shown],
        found["spans"],
    ):
        by_id = {span_id: name for name, span_id, _ in spans}
        for name, _, parent in spans:
            if name in ("forward", "backward", "optimizer_step"):
                assert by_id[parent] == "my-step"
            elif name == "my-step":
                assert by_id[parent] == "step"
