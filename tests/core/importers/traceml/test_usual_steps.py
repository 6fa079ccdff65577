"""The fast path for the rows of steps gives what the general one does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cirron_otel.core.importers.traceml import records
from cirron_otel.core.importers.traceml.framing import FrameDecoder
from cirron_otel.core.importers.traceml.step_rows import PHASES, STEP_EVENT, usual_step_of
from cirron_otel.core.importers.traceml.stream import TraceMLStream

from .sending import meta, row

RECORDINGS = Path(__file__).parents[3] / "testdata" / "traceml"
MS = st.one_of(
    st.floats(allow_nan=True), st.floats(0, 1e4), st.integers(-5, 5), st.none(), st.text(max_size=2)
)
FIGURES = st.fixed_dictionaries(
    {"duration_ms": MS, "n_calls": st.one_of(st.integers(-1, 3), st.floats(0, 2), st.booleans())},
    optional={
        "is_gpu": st.sampled_from([False, True, None, 0]),
        "gpu_ms": st.one_of(st.none(), st.floats(0, 5)),
        "cpu_ms": st.floats(0, 5),
        "more": st.integers(0, 1),
    },
)
DEVICES = st.one_of(
    st.dictionaries(st.sampled_from(["cpu", "cuda:0"]), FIGURES, max_size=2), st.integers(0, 1)
)
EVENTS = st.dictionaries(st.sampled_from([*PHASES, STEP_EVENT, "other"]), DEVICES, max_size=7)
ROWS = st.fixed_dictionaries(
    {"seq": st.integers(0, 9), "timestamp": st.one_of(st.floats(0, 2e9), st.none()),
     "events": EVENTS},
    optional={"step": st.one_of(st.integers(-1, 9), st.floats(0, 3)), "more": st.integers(0, 1)},
)  # fmt: skip


def batches(payloads: list[bytes]) -> list[tuple[str, bytes]]:
    stream = TraceMLStream()
    made = [batch for payload in payloads for batch in stream.feed(payload)]
    return [(batch.name, batch.data) for batch in [*made, *stream.finish()]]


def both(payloads: list[bytes]) -> tuple[Any, Any]:
    fast = batches(payloads)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "usual_step_of", lambda _: None)
        return fast, batches(payloads)


def recorded() -> Iterator[Path]:
    yield from sorted(RECORDINGS.rglob("*.frames"))


@pytest.mark.parametrize("path", [*recorded()], ids=lambda path: f"{path.parts[-3]}-{path.name}")
def test_recordings(path: Path) -> None:
    payloads = [each for each in FrameDecoder().feed(path.read_bytes()) if isinstance(each, bytes)]
    fast, general = both(payloads)
    assert fast == general
    rows = [
        each
        for payload in payloads
        for part in msgspec.msgpack.decode(payload)
        for each in part.get("body", {}).get("tables", {}).get("StepTimeTable", ())
    ]
    assert all(usual_step_of(each) is not None for each in rows)


@given(st.lists(ROWS, min_size=1, max_size=4))
def test_any_rows(rows: list[dict[str, Any]]) -> None:
    message = [{"meta": meta(0, 1.0), "body": {"tables": {"StepTimeTable": [row(1, 0), *rows]}}}]
    fast, general = both([msgspec.msgpack.encode(message)])
    assert fast == general
