"""Spans created with the OpenTelemetry API are parents in the tree, as scopes are."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest
import torch
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.trace import INVALID_SPAN, NonRecordingSpan, SpanContext, TraceFlags

import cirron_otel as ci

from .judging import faults
from .loops import Loop, parts
from .loops.parts import Training
from .tools import Ours, Untraced, run
from .trees import Node, read, time_faults

LOOPS: dict[str, Loop] = {}

PLAIN = """
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
"""


def loop(tree: str) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    def register(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        LOOPS[function.__name__] = Loop(function.__name__, function, tree)
        return function

    return register


def span(name: str) -> Any:
    return trace.get_tracer("program").start_as_current_span(name)


@loop("""
cirron.session
  my-epoch
    epoch[0]
      step[0-2]
        data_load
        my-step
          forward
          loss
          backward
          optimizer_step
  my-epoch
    epoch[1]
      step[0-2]
        data_load
        my-step
          forward
          loss
          backward
          optimizer_step
""")
def around_epochs_and_steps(ci: Any) -> Any:
    training = Training()
    loader = parts.loader()
    for _ in range(2):
        with span("my-epoch"):
            for batch in loader:
                with span("my-step"):
                    training.step(batch)
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0-2]
      data_load
      outer
        inner
          forward
        loss
      backward
      my-optimizer
        optimizer_step
""")
def around_phases(ci: Any) -> Any:
    training = Training()
    for x, y in parts.loader():
        with span("outer"):
            with span("inner"):
                out = training.model(x)
            loss = training.criterion(out, y)
        loss.backward()
        training.losses.append(loss.item())
        with span("my-optimizer"):
            training.optimizer.step()
        training.optimizer.zero_grad()
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0-2]
      data_load
      span
        scope
          forward
          loss
          backward
      scope
        span
          optimizer_step
          inner-scope
""")
def with_scopes(ci: Any) -> Any:
    training = Training()
    for batch in parts.loader():
        with span("span"), ci.scope("scope"):
            training.backward(batch)
        with ci.scope("scope"), span("span"):
            training.update()
            with ci.scope("inner-scope"):
                pass
    return training.losses


@loop("""
cirron.session
  my-step x3
    step[0]
      forward
      loss
      backward
      optimizer_step
""")
def without_a_loader(ci: Any) -> Any:
    training = Training()
    points = parts.points()
    for batch in (points[0:2], points[2:4], points[4:6]):
        with span("my-step"):
            training.step(batch)
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0-1]
      data_load
      forward
      loss
      backward
      optimizer_step
    validate
      eval[0]
        data_load
        forward
        loss
        data_load
        forward
        loss
    step[2]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def evaluation_in_a_span(ci: Any) -> Any:
    training = Training()
    held_out = parts.loader(4)
    for number, batch in enumerate(parts.loader()):
        training.step(batch)
        if number == 1:
            with span("validate"), torch.no_grad():
                training.evaluate(held_out)
    return training.losses


@loop("""
cirron.session
  validate
    eval[0]
      data_load
      my-batch
        forward
        loss
      data_load
      my-batch
        forward
        loss
""")
def batches_of_an_evaluation(ci: Any) -> Any:
    training = Training()
    with span("validate"), torch.no_grad():
        for batch in parts.loader(4):
            with span("my-batch"):
                training.losses.append(training.loss(batch).item())
    return training.losses


@loop(PLAIN)
def remote_parent(ci: Any) -> Any:
    training = Training()
    remote = SpanContext(0x1234 << 64, 0x5678, True, TraceFlags(1))
    for _ in range(2):
        for batch in parts.loader():
            with trace.use_span(NonRecordingSpan(remote)):
                training.step(batch)
    return training.losses


@loop(PLAIN)
def spans_of_an_unrecorded_provider(ci: Any) -> Any:
    training = Training()
    tracer = TracerProvider().get_tracer("elsewhere")
    for _ in range(2):
        for batch in parts.loader():
            with tracer.start_as_current_span("not in the spool"):
                training.step(batch)
    return training.losses


@loop(PLAIN)
def invalid_span(ci: Any) -> Any:
    training = Training()
    for _ in range(2):
        for batch in parts.loader():
            with trace.use_span(INVALID_SPAN):
                training.step(batch)
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0-2]
      data_load
      io
      forward
      loss
      backward
      optimizer_step
""")
def span_that_is_not_current(ci: Any) -> Any:
    training = Training()
    tracer = trace.get_tracer("program")
    for x, y in parts.loader():
        io = tracer.start_span("io")
        io.end()
        training.step((x, y))
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0]
      data_load
      my-step
        forward
        loss
        backward
        optimizer_step
    step[1]
      data_load
      forward
      loss
      backward
      optimizer_step
    step[2]
      data_load
      my-step
        forward
        loss
        backward
        optimizer_step
""")
def detached_in_the_wrong_order(ci: Any) -> Any:
    """The context of step 0 is restored in step 1, whose phases are in step 1 all the same."""
    training = Training()
    tracer = trace.get_tracer("program")
    token: Any = None
    for number, batch in enumerate(parts.loader()):
        if number == 1:
            otel_context.detach(token)
            training.step(batch)
            continue
        own = tracer.start_span("my-step")
        token = otel_context.attach(trace.set_span_in_context(own))
        training.step(batch)
        own.end()
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0-1]
      micro_step[0]
        data_load
      my-batch
        forward
        loss
        backward
      micro_step[1]
        data_load
      my-batch
        forward
        loss
        backward
      optimizer_step
""")
def accumulation(ci: Any) -> Any:
    training = Training()
    for number, batch in enumerate(parts.loader(8)):
        with span("my-batch"):
            training.backward(batch, 2)
        if number % 2:
            training.update()
    return training.losses


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward
        inside
      loss
      backward
      optimizer_step
""")
def inside_a_forward(ci: Any) -> Any:
    class Traced(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = parts.network()

        def forward(self, x: Any) -> Any:
            with span("inside"):
                return self.network(x)

    training = Training(Traced())
    for _ in range(2):
        for batch in parts.loader():
            training.step(batch)
    return training.losses


@pytest.mark.parametrize("name", sorted(LOOPS))
def test_a_span_of_the_program_is_a_parent(name: str, tmp_path: Path) -> None:
    own = LOOPS[name]
    # In contexts of their own: one of the loops leaves its span current.
    bare = copy_context().run(run, own, Untraced(), tmp_path)
    traced = copy_context().run(run, own, Ours(), tmp_path)
    wrong = faults(own, traced, read(tmp_path)[0])
    assert not wrong, "\n".join(wrong)
    assert traced.result == bare.result


def test_a_span_over_several_steps_counts_in_each_for_as_long_as_that_runs(tmp_path: Path) -> None:
    def over_two_steps(ci: Any) -> Any:
        training = Training()
        tracer = trace.get_tracer("program")
        for number, batch in enumerate(parts.loader(8)):
            if number % 2 == 0:
                own = tracer.start_span("pair")
                token = otel_context.attach(trace.set_span_in_context(own))
            training.step(batch)
            if number % 2:
                otel_context.detach(token)
                own.end()
        return training.losses

    tree = """
cirron.session
  epoch[0]
    step[0]
      data_load
      pair
        forward
        loss
        backward
        optimizer_step
    step[1]
      data_load
      forward
      loss
      backward
      optimizer_step
"""
    pair = tree.partition("  epoch[0]\n")[2]
    tree += pair.replace("step[0]", "step[2]").replace("step[1]", "step[3]")
    own = Loop("over_two_steps", over_two_steps, tree)
    outcome = run(own, Ours(), tmp_path)
    recorded = read(tmp_path)[0]
    for node in [node for node in recorded.root.walk() if node.name == "step"]:
        for child in node.children:
            if child.name == "pair":
                assert child.record["end_ns"] > node.record["end_ns"]
                child.record["end_ns"] = node.record["end_ns"]
    wrong = faults(own, outcome, recorded)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", ["remote_parent", "spans_of_an_unrecorded_provider"])
def test_a_span_that_is_not_recorded_is_the_parent_on_the_wire(name: str, tmp_path: Path) -> None:
    run(LOOPS[name], Ours(), tmp_path)
    steps = [node for node in read(tmp_path)[0].root.walk() if node.name == "step"]
    assert len(steps) == 6
    for step in steps:
        parents = [_wire_parent(child) for child in step.children]
        own, *others = parents
        assert own is None
        assert len(set(others)) == 1
        assert others[0] not in (None, step.record["id"][:16])


def _wire_parent(node: Node) -> str | None:
    return node.record.get("otel", {}).get("parent_span_id")


def test_a_thinned_step_keeps_the_spans_of_the_program(tmp_path: Path) -> None:
    import cirron_otel as ci

    ci.profile(
        output_dir=tmp_path, frameworks=["torch"], exporters="none", detail_every=3,
        detail_slow_factor=1e6,
    )  # fmt: skip
    training = Training()
    for batch in parts.loader(12):
        with span("my-step"):
            training.step(batch)
    ci.shutdown()
    steps = [node for node in read(tmp_path)[0].root.walk() if node.name == "step"]
    assert [step.index for step in steps] == list(range(6))
    for step in steps:
        (own,) = [child for child in step.children if child.name == "my-step"]
        is_detailed = step.index % 3 == 0
        assert bool(own.children) == is_detailed
        if is_detailed:
            assert not time_faults(step)


def test_a_processor_sees_the_parent_of_a_phase_as_the_current_span(tmp_path: Path) -> None:
    """Without a loader, as OpenTelemetry's own SDK calls `on_start`."""
    seen = []

    class Starts(SpanProcessor):
        def on_start(self, span: Any, parent_context: Any = None) -> None:  # noqa: ARG002
            seen.append((span.name, getattr(trace.get_current_span(), "name", None)))

    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Starts())
    ci.profile(output_dir=tmp_path, provider=provider, exporters="none", join="none")
    try:
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    finally:
        ci.shutdown()
    phases = {name: current for name, current in seen if name not in ("cirron.session", "step")}
    assert phases == dict.fromkeys(
        ("zero_grad", "forward", "backward", "optimizer_step"), "cirron.session"
    )
