"""Every parent is right, in any nest of scopes, spans, threads, tasks and generators."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from opentelemetry.sdk.trace import TracerProvider

import cirron_otel as ci
from cirron_otel.sdk.tracing.scope import NO_SESSION
from cirron_otel.sdk.tracing.state import state
from tests.kit.sessions.reading import SESSION, Recorded, recorded

from .nests import (
    ASYNC,
    PROGRAMS,
    START,
    SYNC,
    Body,
    Run,
)


@contextmanager
def session() -> Iterator[tuple[Run, Path]]:
    directory = Path(tempfile.mkdtemp())
    provider = TracerProvider(shutdown_on_exit=False)
    try:
        ci.profile(frameworks=[], output_dir=directory, flush_interval=60, provider=provider)
        yield Run(provider.get_tracer("lib")), directory
        ci.shutdown()
        assert state.session is NO_SESSION
        assert ci.health()["swallowed_errors"] == {}
    finally:
        ci.shutdown()
        shutil.rmtree(directory, ignore_errors=True)


def marks(found: Recorded) -> dict[str, Any]:
    return {mark["name"]: found.spans[mark["span_id"]]["name"] for mark in found.marks}


def check(program: Body) -> None:
    with session() as (run, directory):
        run.run(program, START)
        ci.shutdown()
        found = recorded(directory)
    assert run.wrong == []
    assert found.edges() == run.edges
    assert marks(found) == run.marks
    for span in found.spans.values():
        above = found.spans.get(span["parent_id"] or "", span)
        if span["name"].startswith(("foreign", "used")) and not found.wire_parent(span):
            # In a thread of its own it has no parent for OpenTelemetry, and a trace of its own.
            assert found.parent(span) == SESSION
            continue
        assert found.trace_id(span) == found.trace_id(above)
        assert found.wire_parent(span) == (span["parent_id"] or "")[:16]
        assert span["start_ns"] <= span["end_ns"]


LEAF: Body = [("scope", [("mark", [], [])], [("mark", [], [])]), ("mark", [], [])]


@pytest.mark.parametrize("what", SYNC)
def test_each_kind_alone(what: str) -> None:
    check([(what, LEAF, LEAF), *LEAF])


@pytest.mark.parametrize("what", ASYNC)
def test_each_kind_in_a_task(what: str) -> None:
    check([("asyncio", [(what, LEAF, LEAF), *LEAF], [(what, LEAF, LEAF)])])


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@example([("generator", [("left generator", LEAF, LEAF)], [("dropped generator", LEAF, LEAF)])])
@given(PROGRAMS)
def test_any_nest(program: Body) -> None:
    check(program)


def test_generators_side_by_side_that_keep_a_scope_open() -> None:
    with session() as (_, directory):

        def source(name: str, length: int) -> Iterator[int]:
            with ci.scope(name):
                yield from range(length)

        for _ in zip(source("short", 1), source("long", 2), strict=False):
            pass
        with ci.scope("after"):
            pass
        ci.shutdown()
        found = recorded(directory)
    assert found.edges() == {"short": SESSION, "long": "short", "after": SESSION}


def test_shutdown_inside_of_scopes_leaves_no_state(tmp_path: Path) -> None:
    with session() as (_, directory):
        with ci.scope("outer"), ci.scope("inner"):
            ci.shutdown()
        found = recorded(directory)
    assert found.one("inner")["attrs"] == {"incomplete": True}
    assert found.one("outer")["otel"]["status"]["code"] == 2
    with session() as (_, directory):
        with ci.scope("next"):
            pass
        ci.shutdown()
        assert recorded(directory).edges() == {"next": SESSION}
