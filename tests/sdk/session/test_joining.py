"""What a session joins: an explicit parent or link, the current span, the environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

import cirron_otel as ci
from cirron_otel.sdk.tracing.scope import NO_SESSION
from cirron_otel.sdk.tracing.state import state
from tests.kit.sessions.reading import SESSION, Recorded, recorded

PROGRAMS = Path(__file__).parents[1] / "programs"
FAR = SpanContext(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, True, TraceFlags(1))
NEAR = SpanContext(0x1BF7651916CD43DD8448EB211C80319C, 0xC7AD6B7169203331, True, TraceFlags(1))
OTHER = SpanContext(0x2CF7651916CD43DD8448EB211C80319C, 0xD7AD6B7169203331, True, TraceFlags(1))


def header(span: SpanContext, flags: str = "01") -> str:
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{flags}"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("TRACEPARENT", "TRACESTATE", "BAGGAGE"):
        monkeypatch.delenv(name, raising=False)
    yield
    ci.shutdown()
    assert state.session is NO_SESSION
    assert not trace.get_current_span().get_span_context().is_valid


def session_of(tmp_path: Path, **options: Any) -> Recorded:
    """A session with one scope, as it stands in the spool."""
    options.setdefault("provider", TracerProvider(shutdown_on_exit=False))
    ci.profile(frameworks=[], output_dir=tmp_path, flush_interval=60, **options)
    with ci.scope("work"):
        ci.mark("loss", 1)
    assert ci.shutdown()
    return recorded(tmp_path)


def joined(found: Recorded) -> tuple[str, str, list[str]]:
    """Trace, wire parent and links of the session."""
    session = found.one(SESSION)
    assert session["parent_id"] is None
    assert found.parent(found.one("work")) == SESSION
    assert found.trace_id(found.one("work")) == found.trace_id(session)
    assert session["id"][16:] == found.trace_id(session)[16:]
    links = [link["span_id"] for link in session.get("otel", {}).get("links", [])]
    return found.trace_id(session), found.wire_parent(session), links


def of(span: SpanContext) -> tuple[str, str, list[str]]:
    return f"{span.trace_id:032x}", f"{span.span_id:016x}", []


def current(span: SpanContext) -> Any:
    return trace.use_span(NonRecordingSpan(span))


def test_session_without_a_parent_starts_a_new_trace(tmp_path: Path) -> None:
    found = session_of(tmp_path)
    assert joined(found) == (found.one(SESSION)["id"], "", [])


@pytest.mark.parametrize(
    "form",
    [
        NEAR,
        NonRecordingSpan(NEAR),
        trace.set_span_in_context(NonRecordingSpan(NEAR), context.Context()),
        {"traceparent": header(NEAR)},
        {"TRACEPARENT": header(NEAR)},
        header(NEAR),
    ],
    ids=["span context", "span", "context", "carrier", "environment", "text"],
)
def test_an_explicit_parent_in_every_form_comes_first(
    form: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPARENT", header(FAR))
    with current(OTHER):
        assert joined(session_of(tmp_path / "parent", parent=form)) == of(NEAR)
        found = session_of(tmp_path / "link", link=form)
    trace_id, parent, links = joined(found)
    assert (parent, links) == ("", [f"{NEAR.span_id:016x}"])
    assert trace_id == found.one(SESSION)["id"]


def test_a_parent_and_links_together(tmp_path: Path) -> None:
    found = session_of(tmp_path, parent=NEAR, link=[FAR, header(OTHER)])
    assert joined(found) == (*of(NEAR)[:2], [of(FAR)[1], of(OTHER)[1]])


@pytest.mark.parametrize("wrong", [7, "", "00-zz", {}, {"traceparent": "x"}, object(), [NEAR]])
def test_invalid_parent_is_reported_and_ignored(wrong: object, tmp_path: Path) -> None:
    found = session_of(tmp_path, parent=wrong)
    assert joined(found) == (found.one(SESSION)["id"], "", [])
    assert set(ci.health()["swallowed_errors"]) == {"join"}


def test_current_span_takes_precedence_over_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPARENT", header(FAR))
    with current(NEAR):
        assert joined(session_of(tmp_path)) == of(NEAR)
        assert trace.get_current_span().get_span_context() == NEAR
    assert joined(session_of(tmp_path / "environment")) == of(FAR)


@pytest.mark.parametrize("where", ["current", "environment"])
@pytest.mark.parametrize("how", ["link", "none"])
def test_parent_by_default_and_link_or_nothing_on_request(
    how: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where == "environment":
        monkeypatch.setenv("TRACEPARENT", header(NEAR))
        found = session_of(tmp_path, join=how)
    else:
        with current(NEAR):
            found = session_of(tmp_path, join=how)
    links = [of(NEAR)[1]] if how == "link" else []
    assert joined(found) == (found.one(SESSION)["id"], "", links)


def test_span_of_the_application_provider_is_the_sessions_parent(tmp_path: Path) -> None:
    provider, memory = TracerProvider(shutdown_on_exit=False), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    with provider.get_tracer("app").start_as_current_span("job") as job:
        found = session_of(tmp_path, provider=provider)
    assert joined(found) == of(job.get_span_context())
    spans = {span.name: span for span in memory.get_finished_spans()}
    assert spans["work"].parent.span_id == int(found.one(SESSION)["id"][:16], 16)
    assert spans["work"].context.trace_id == job.get_span_context().trace_id


MALFORMED = [
    "", "garbage", "00", header(NEAR)[:-1], header(NEAR) + "-more",
    header(NEAR).replace("00-", "ff-", 1),
    f"00-{'0' * 32}-{'1' * 16}-01", f"00-{'1' * 32}-{'0' * 16}-01", "00-é-é-é", "x" * 70_000,
    header(NEAR).upper().replace("A", "G"),
]  # fmt: skip


@pytest.mark.parametrize("text", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_traceparent_is_ignored(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPARENT", text)
    monkeypatch.setenv("TRACESTATE", "=,=;\x01")
    monkeypatch.setenv("BAGGAGE", "=;;,%%%")
    found = session_of(tmp_path)
    assert joined(found) == (found.one(SESSION)["id"], "", [])


def test_tracestate_and_baggage_come_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEPARENT", header(NEAR))
    monkeypatch.setenv("TRACESTATE", "vendor=a1,other=b2")
    monkeypatch.setenv("BAGGAGE", "run=7,who=me%20too")
    ci.profile(frameworks=[], output_dir=tmp_path, provider=TracerProvider(shutdown_on_exit=False))
    with ci.scope("work") as work:
        assert baggage.get_all() == {"run": "7", "who": "me too"}
        assert work.context.trace_state == TraceState([("vendor", "a1"), ("other", "b2")])
        carrier = ci.inject()
        assert carrier["tracestate"] == "vendor=a1,other=b2"
        assert carrier["baggage"] == "run=7,who=me+too"
    for _ in ci.batches([1]):
        assert baggage.get_baggage("run") == "7"


@pytest.mark.parametrize("why", ["parent", "sampler"])
def test_unsampled_spans_are_spooled_and_not_exported(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    if why == "parent":
        monkeypatch.setenv("TRACEPARENT", header(NEAR, "00"))
    else:
        provider.sampler = ALWAYS_OFF
    provider.add_span_processor(SimpleSpanProcessor(memory))
    ci.profile(frameworks=[], output_dir=tmp_path, provider=provider)
    for step in ci.batches(range(50)):
        with ci.scope("forward") as scope:
            ci.mark("loss", step)
            assert not scope.context.trace_flags.sampled
            assert ci.inject()["traceparent"].endswith("-00")
    assert ci.shutdown()
    found = recorded(tmp_path)
    assert len(found.named("step")) == len(found.named("forward")) == len(found.marks) == 50
    assert not any(map(found.is_sampled, found.spans.values()))
    assert memory.get_finished_spans() == ()


@pytest.mark.parametrize("mostly", ["near", "own"])
def test_each_span_records_the_sampling_of_its_trace(mostly: str, tmp_path: Path) -> None:
    unsampled = SpanContext(NEAR.trace_id, NEAR.span_id, True, TraceFlags(0))
    ci.profile(frameworks=[], output_dir=tmp_path, provider=TracerProvider(shutdown_on_exit=False))
    for number in range(10):
        with ci.scope("own" if number or mostly == "own" else "other"):
            pass
        if mostly == "near" or not number:
            for _ in range(10 if mostly == "near" else 1):
                with current(unsampled), ci.scope("near"):
                    pass
    ci.shutdown()
    found = recorded(tmp_path)
    assert {found.is_sampled(span) for span in found.named("own")} == {True}
    assert {found.is_sampled(span) for span in found.named("near")} == {False}
    assert {found.trace_id(span) for span in found.named("near")} == {of(NEAR)[0]}


def test_inject_in_every_form(tmp_path: Path) -> None:
    assert ci.inject() == {}
    ci.profile(frameworks=[], output_dir=tmp_path, provider=TracerProvider(shutdown_on_exit=False))
    session = state.session.context
    assert ci.inject() == {"traceparent": header(session)}
    with ci.scope("work") as work:
        assert ci.inject() == {"traceparent": header(work.context)}
        headers = {"kept": "yes"}
        assert ci.inject(headers) is headers
        assert headers == {"kept": "yes", "traceparent": header(work.context)}
        assert ci.inject(environ=True) == {"TRACEPARENT": header(work.context)}
        with current(FAR):
            assert ci.inject() == {"traceparent": header(FAR)}


def run_joiner(directory: Path, environment: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, PROGRAMS / "joiner.py", directory],
        env=os.environ | environment, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["done"]
    assert found["current"]
    return found


def test_a_subprocess_joins_the_step_that_started_it(tmp_path: Path) -> None:
    ci.profile(frameworks=[], output_dir=tmp_path, provider=TracerProvider(shutdown_on_exit=False))
    token = context.attach(baggage.set_baggage("run", "8"))
    with ci.scope("launch") as launch:
        found = run_joiner(tmp_path, dict(ci.inject(environ=True)))
    context.detach(token)
    assert found["trace_id"] == found["work_trace_id"] == f"{launch.context.trace_id:032x}"
    assert found["parent"] == f"{launch.context.span_id:016x}"
    assert found["sampled"]
    assert found["baggage"] == {"run": "8"}
    assert found["errors"] == {}
    assert found["carrier"]["TRACEPARENT"].startswith(f"00-{found['trace_id']}-")
    ci.shutdown()
    both = recorded(tmp_path)
    inner = both.spans[found["session"]]
    assert inner["otel"]["parent_span_id"] == both.one("launch")["id"][:16]
    assert inner["parent_id"] is None
    assert both.parent(both.one("work")) == SESSION


def test_provider_created_in_a_subprocess_obeys_the_samplers(tmp_path: Path) -> None:
    off = run_joiner(tmp_path / "off", {"OTEL_TRACES_SAMPLER": "always_off"})
    assert not off["sampled"]
    unsampled = run_joiner(tmp_path / "parent", {"TRACEPARENT": header(NEAR, "00")})
    assert not unsampled["sampled"]
    for name in ("off", "parent"):
        found = recorded(tmp_path / name)
        assert {s["name"] for s in found.spans.values()} == {SESSION, "work"}
        assert not any(map(found.is_sampled, found.spans.values()))


@pytest.mark.parametrize("world_size", [1, 4])
def test_ranks_that_share_a_trace_each_take_their_part_of_it(
    world_size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPARENT", header(NEAR))
    monkeypatch.setenv("WORLD_SIZE", str(world_size))
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("RANK", "0")
    limit = 400
    ci.profile(
        frameworks=[], output_dir=tmp_path, segment_records=limit,
        provider=TracerProvider(shutdown_on_exit=False),
    )  # fmt: skip
    for _ in ci.epochs(range(2)):
        for step in ci.batches(range(300)):
            ci.mark("loss", step)
    ci.shutdown()
    found = recorded(tmp_path)
    records = Counter(found.trace_id(span) for span in found.spans.values())
    assert records[of(NEAR)[0]] * 2 <= limit // world_size + 4
    assert records[of(NEAR)[0]] * 2 >= limit // world_size // 2
    for trace_id, count in records.items():
        # The first segment of a session alone is the joined one: the others are its own.
        part = limit if trace_id != of(NEAR)[0] else limit // world_size
        assert count * 2 <= part + 4
    assert sum(records.values()) == 603
    assert {found.parent(step) for step in found.named("step")} == {"epoch"}


def test_propagators_are_read_from_the_environment(tmp_path: Path) -> None:
    told = {"TRACEPARENT": header(NEAR), "BAGGAGE": "run=9", "OTEL_PROPAGATORS": "baggage"}
    found = run_joiner(tmp_path, told)
    assert found["parent"] is None
    assert found["trace_id"] == found["session"]
    assert found["baggage"] == {"run": "9"}
    assert found["carrier"] == {"BAGGAGE": "run=9"}
