"""The entry points of OpenTelemetry, by the real `opentelemetry-instrument` and by hand."""

from __future__ import annotations

import json
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.kit.servers.server import OtlpServer

from .running import BIN, spool_of, start_to_end

INSTRUMENT = [str(BIN / "opentelemetry-instrument"), sys.executable, "-c"]
SPAN = """
import os
from opentelemetry import trace
tracer = trace.get_tracer("app")
@tracer.start_as_current_span("decorated")
def work():
    with tracer.start_as_current_span("inner"):
        pass
"""


@pytest.mark.parametrize("kind", ["configurator", "instrumentor", "id_generator"])
def test_the_entry_points_are_there(kind: str) -> None:
    (found,) = entry_points(group=f"opentelemetry_{kind}", name="cirron")
    assert found.load().__module__.startswith("cirron_otel.")


def test_the_first_span_finds_the_session_open(tmp_path: Path) -> None:
    """So it is a child of it, in the trace that the environment names."""
    trace = "0af7651916cd43dd8448eb211c80319c"
    env = {"TRACEPARENT": f"00-{trace}-b7ad6b7169203331-01"}
    done = start_to_end([*INSTRUMENT, f"{SPAN}\nwork(); work()"], tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    spool = spool_of(tmp_path)
    assert spool.session.record["otel"]["parent_span_id"] == "b7ad6b7169203331"
    assert [each.name for each in spool.session.children] == ["decorated"] * 2
    assert [each.children[0].name for each in spool.session.children] == ["inner"] * 2
    assert {span["id"][16:] for span in spool.spans} == {trace[16:]}
    assert {batch["otel"]["trace_id"] for batch in spool.batches} == {trace}


def test_a_process_without_a_span_leaves_nothing(tmp_path: Path) -> None:
    assert start_to_end([*INSTRUMENT, SPAN], tmp_path).returncode == 0
    assert list(tmp_path.iterdir()) == []


def test_a_forked_childs_first_span_opens_its_session(tmp_path: Path) -> None:
    program = f"{SPAN}\nimport sys\nwork()\nchild = os.fork()\nwork()"
    program += "\nif child: sys.exit(os.waitpid(child, 0)[1])"
    done = start_to_end([*INSTRUMENT, program], tmp_path)
    assert done.returncode == 0, done.stderr
    trees = [[each.name for each in found.children] for found in spool_of(tmp_path).sessions]
    assert sorted(trees, key=len) == [["decorated"], ["decorated", "decorated"]]


@pytest.mark.parametrize("disabled", [None, "requests, cirron", "*"])
def test_the_hooks_can_be_left_out(disabled: str | None, tmp_path: Path) -> None:
    """Spans are recorded all the same; a package of torch's name will do."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("")
    program = f"{SPAN}\nimport torch\nwork()"
    env = {} if disabled is None else {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": disabled}
    done = start_to_end([*INSTRUMENT, program], tmp_path, env=env)
    assert ("cirron-otel: hooks: " in done.stderr) == (disabled is None), "it is no real torch"
    assert [each.name for each in spool_of(tmp_path).session.children] == ["decorated"]


def test_without_a_place_for_a_spool_no_hook_stays(tmp_path: Path) -> None:
    """The first scope finds that there is none; from then on nothing waits for anybody."""
    program = """
import sys
before = list(sys.meta_path)
import cirron_otel as ci
from cirron_otel.sdk.session.instrumentor import CirronInstrumentor
CirronInstrumentor().instrument()
assert sys.meta_path != before
for _ in range(3):
    with ci.scope("work"): pass
assert sys.meta_path == before
assert not ci.health()["enabled"]
"""
    (tmp_path / "file").write_text("")
    env = {"CIRRON_OUTPUT_DIR": "file"}
    done = start_to_end([sys.executable, "-c", program], tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1
    assert "is not a directory" in done.stderr


def test_console_and_otlp_exporters_both_receive_all_spans(tmp_path: Path) -> None:
    """OTLP is the spool's to send, all else OpenTelemetry's; what is not sampled is spooled."""
    with OtlpServer() as server:
        env = {"OTEL_TRACES_EXPORTER": "console,otlp", **server.environ}
        program = f"{SPAN}\nwork(); assert os.environ['OTEL_TRACES_EXPORTER'] == 'console,otlp'"
        done = start_to_end([*INSTRUMENT, program], tmp_path, env=env)
        assert done.returncode == 0, done.stderr
        recorded = {span["id"][:16] for span in spool_of(tmp_path).spans}
        assert len(recorded) == 3
        assert recorded <= {span.hex() for span in server.span_ids()}
        decoder, shown, text = json.JSONDecoder(), [], done.stdout.strip()
        while text:
            span, end = decoder.raw_decode(text)
            shown.append(span["context"]["span_id"].removeprefix("0x"))
            text = text[end:].strip()
        assert sorted(shown) == sorted(recorded)


def test_unsampled_spans_are_spooled_but_not_exported(tmp_path: Path) -> None:
    with OtlpServer() as server:
        env = {"OTEL_TRACES_SAMPLER": "always_off", **server.environ}
        assert start_to_end([*INSTRUMENT, f"{SPAN}\nwork()"], tmp_path, env=env).returncode == 0
        assert len(spool_of(tmp_path).spans) == 3
        assert server.span_ids() == []


def test_instrumentor_records_only_between_instrument_and_uninstrument(tmp_path: Path) -> None:
    program = """
import sys
from cirron_otel.sdk.session.instrumentor import CirronInstrumentor
import cirron_otel as ci
before = list(sys.meta_path)
instrumentor = CirronInstrumentor()
instrumentor.instrument()
assert len(sys.meta_path) == len(before) + 1
instrumentor.uninstrument()
assert sys.meta_path == before
with ci.scope("unrecorded"): pass
instrumentor.instrument()
with ci.scope("work"): pass
instrumentor.uninstrument()
assert sys.meta_path == before
with ci.scope("after"): pass
"""
    done = start_to_end([sys.executable, "-c", program], tmp_path)
    assert done.returncode == 0, done.stderr
    assert [each.name for each in spool_of(tmp_path).session.children] == ["work"]
