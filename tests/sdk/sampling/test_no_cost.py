"""With or without samples, a scope executes the same code in the training thread."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import cirron_otel as ci


def instructions(directory: Path, interval: float | None) -> int:
    """Return the number of bytecode instructions of a step of four scopes with a mark each."""
    ci.profile(
        output_dir=directory, exporters="none", join="none", handle_signals=False, frameworks=[],
        sample_interval=interval, flush_interval=600,
    )  # fmt: skip
    counts: list[int] = []

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        frame.f_trace_opcodes = True
        counts[-1] += event == "opcode"
        return trace

    try:
        for _ in range(20):
            before = sys.gettrace()
            counts.append(0)
            sys.settrace(trace)
            with ci.scope("step"):
                for name in ("data_load", "forward", "backward", "optimizer_step"):
                    with ci.scope(name):
                        ci.mark("loss", 1.0)
            sys.settrace(before)
        assert ci.flush()
        assert bool(ci.health()["sampling"]["samples"]) is (interval is not None)
    finally:
        ci.shutdown()
    # Now and then a step draws ids or finds a full buffer; most steps do not.
    return sorted(counts)[len(counts) // 2]


@pytest.mark.parametrize("interval", [1.0, 0.01])
def test_a_scope_costs_the_same_instructions(tmp_path: Path, interval: float) -> None:
    plain = instructions(tmp_path / "plain", None)
    assert plain > 200
    assert instructions(tmp_path / "sampled", interval) == plain
