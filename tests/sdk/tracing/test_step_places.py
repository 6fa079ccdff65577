"""Each step's record has its epoch and its global step: a query needs no structure."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import cirron_otel as ci
from cirron_otel.sdk.tracing.scope import NO_SESSION
from cirron_otel.sdk.tracing.step_places import StepPlaces
from tests.kit.sessions.spool_trees import read_spool
from tests.sdk.conftest import OpenSession

Place = tuple[Any, Any]


def places(rows: list[Any], name: str = "step") -> list[Place]:
    """The epoch and the global step of the steps, in order of their end."""
    found = [(row.attrs.get("epoch"), row.attrs.get("global_step")) for row in rows
             if row.name == name]  # fmt: skip
    assert all(isinstance(row.attrs, dict) for row in rows)
    return found


def train(epochs: int = 2, steps: int = 3, name: str = "step") -> None:
    for _ in ci.epochs(range(epochs)):
        for _ in ci.batches(range(steps), name=name):
            with ci.scope("forward", 0):
                pass


@pytest.mark.parametrize("name", ["step", "batch"])
def test_the_steps_of_all_epochs(session: OpenSession, name: str) -> None:
    train(name=name)
    rows, _ = session.rows()
    expected = [(0, 0), (0, 1), (0, 2), (1, 3), (1, 4), (1, 5)]
    assert places(rows, name) == expected
    assert not [row for row in rows if row.name != name and row.attrs]


def test_steps_of_several_flushes(session: OpenSession) -> None:
    found = []
    for epoch in ci.epochs(range(3)):
        for _ in ci.batches(range(2)):
            if epoch == 1:
                found += places(session.rows()[0])
    found += places(session.rows()[0])
    assert found == [(0, 0), (0, 1), (1, 2), (1, 3), (2, 4), (2, 5)]


def test_without_an_epoch(session: OpenSession) -> None:
    for _ in ci.batches(range(2)):
        pass
    for _ in ci.batches(range(2)):
        pass
    assert places(session.rows()[0]) == [(None, 0), (None, 1), (None, 2), (None, 3)]


def test_user_attributes_and_numbers_are_preserved(session: OpenSession) -> None:
    with ci.scope("epoch", 7):
        for number in (100, 101):
            with ci.scope("step", number, epoch="mine"):
                pass
        with ci.scope("step"):
            pass
        with ci.scope("step", "odd"):
            pass
    rows, _ = session.rows()
    assert places(rows) == [("mine", 100), ("mine", 101), (None, None), (None, None)]


def test_a_step_within_a_step(session: OpenSession) -> None:
    for _ in ci.batches(range(2)):
        for _ in ci.batches(range(2)):
            pass
    assert sorted(places(session.rows()[0]), key=str) == [
        (None, 0), (None, 1), *[(None, None)] * 4,
    ]  # fmt: skip


def test_a_step_that_failed(session: OpenSession) -> None:
    with pytest.raises(ZeroDivisionError), ci.scope("epoch", 3), ci.scope("step", 0):
        raise ZeroDivisionError
    (row,) = [row for row in session.rows()[0] if row.name == "step"]
    assert (row.attrs["epoch"], row.attrs["global_step"]) == (3, 0)
    assert row.otel["status"]["code"] == 2


def test_a_step_that_is_open_has_them_in_the_journal(session: OpenSession) -> None:
    with ci.scope("epoch", 3), ci.scope("step", 0):
        pass
    with ci.scope("epoch", 4), ci.scope("step", 0):
        (row,) = [row for row in session.collect().open if row.name == "step"]
        assert (row.attrs["epoch"], row.attrs["global_step"]) == (4, 1)
    assert places(session.rows()[0]) == [(4, 1)]


def test_a_flush_that_is_tried_again_counts_once(
    session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(1, 2)
    collector = session.collector
    tell_open = collector._add_open
    monkeypatch.setattr(collector, "_add_open", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        session.collect()
    monkeypatch.setattr(collector, "_add_open", tell_open)
    train(1, 1)
    assert places(session.rows()[0]) == [(0, 0), (0, 1)]
    assert places(session.rows()[0]) == [(0, 2)]


def numbers(indexes: list[list[int]]) -> list[int]:
    """The global steps of steps that have these numbers, a list an epoch."""
    counted = StepPlaces()
    found = []
    for number, epoch in enumerate(indexes):
        above = SimpleNamespace(_name="epoch", _index=number, _above=NO_SESSION)
        for index in epoch:
            scope = SimpleNamespace(_name="step", _index=index, _above=above)
            found.append(counted.place(scope, scope._index)["global_step"])
    return found


@pytest.mark.parametrize(
    ("indexes", "expected"),
    [
        ([[0, 1, 4], [0, 2]], [0, 1, 4, 5, 7]),
        ([[1, 2], [1, 2]], [1, 2, 3, 4]),
        ([[0, 1], [2, 3]], [0, 1, 2, 3]),
        ([[50, 51], [0, 1]], [50, 51, 52, 53]),
        ([[3], [0]], [3, 4]),
        ([[-5, -4], [0]], [-5, -4, -3]),
    ],
    ids=["dropped", "from 1", "going on", "resumed", "one each", "negative"],
)
def test_numbers(indexes: list[list[int]], expected: list[int]) -> None:
    assert numbers(indexes) == expected


def test_other_processors_get_them(tmp_path: Path) -> None:
    provider, memory = TracerProvider(shutdown_on_exit=False), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    ci.profile(provider=provider, output_dir=str(tmp_path), frameworks="none")
    try:
        train()
    finally:
        ci.shutdown()
    expected = [(0, 0), (0, 1), (0, 2), (1, 3), (1, 4), (1, 5)]
    sent = [span.attributes or {} for span in memory.get_finished_spans() if span.name == "step"]
    assert [(each["epoch"], each["global_step"]) for each in sent] == expected
    recorded = [span["attrs"] for span in read_spool(tmp_path).spans if span["name"] == "step"]
    assert [(each["epoch"], each["global_step"]) for each in recorded] == expected
