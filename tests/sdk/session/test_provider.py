"""The provider that is ours: ids, limits, sampling."""

from __future__ import annotations

import random
import subprocess
import sys

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Decision

from cirron_otel.sdk.session.provider import RecordAll, make_provider
from tests.tools.conftest import environment


def test_id_generator_is_loaded_by_its_name() -> None:
    """Two processes that seed `random` alike, as ranks do, make other ids."""
    program = (
        "import random; random.seed(42)\n"
        "from opentelemetry import trace\n"
        "from opentelemetry.sdk._configuration import _initialize_components\n"
        "_initialize_components()\n"
        "span = trace.get_tracer('x').start_span('x').get_span_context()\n"
        "print(f'{span.trace_id:032x}{span.span_id:016x}')\n"
    )
    variables = environment(
        OTEL_PYTHON_ID_GENERATOR="cirron", OTEL_TRACES_EXPORTER="none",
        OTEL_METRICS_EXPORTER="none", OTEL_LOGS_EXPORTER="none",
    )  # fmt: skip
    ids = set()
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", program], env=variables, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        assert done.stderr == ""
        ids.add(done.stdout)
    assert len(ids) == 2


def test_seeding_does_not_repeat_ids() -> None:
    provider = make_provider(Resource.get_empty(), {})
    tracer = provider.get_tracer("x")
    found = set()
    for _ in range(2):
        random.seed(42)
        found.add(tracer.start_span("x").get_span_context().span_id)
    assert len(found) == 2


def test_nothing_is_truncated_unless_the_environment_sets_a_limit(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    def kept(environ: dict[str, str]) -> tuple[int, int]:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        span = make_provider(Resource.get_empty(), environ).get_tracer("x").start_span("x")
        for number in range(300):
            span.add_event("e", {"n": number})
            span.set_attribute(f"a{number}", number)
        return len(span.events), len(span.attributes)  # type: ignore[attr-defined]

    assert kept({}) == (300, 300)
    assert kept({"OTEL_SPAN_EVENT_COUNT_LIMIT": "10"}) == (10, 300)


def test_spans_dropped_by_a_sampler_are_still_recorded() -> None:
    result = RecordAll(ALWAYS_OFF).should_sample(None, 1, "x")
    assert result.decision is Decision.RECORD_ONLY
