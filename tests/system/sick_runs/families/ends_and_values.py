"""Starts, restarts, failures, values and memory."""

from __future__ import annotations

from dataclasses import replace

from .. import special
from ..building import Family, family
from ..causes import start_up, warm_up
from ..settings import DDP, HOOKS, ONE, STORMLOG, TRACEML, at_least, long
from .usual import NO_INPUT, OURS, checkpoints, slow_input, with_parts


def ends() -> list[Family]:
    """Start, first units, restarts and failures."""
    families = [
        family(f"start-up, {name}", long(setting), start_up, kind="START_UP", producer=producer,
               second=second)
        for name, setting, producer, second in (
            ("one rank", ONE, "cirron-otel", NO_INPUT[2:]),
            ("DDP", DDP, "cirron-otel", NO_INPUT[2:]),
            ("cirron-sdk hooks", HOOKS, "hooks", ()),
        )
    ]  # fmt: skip
    families += [
        family("slow first units, one rank", at_least(long(ONE), 30),
               warm_up("WARM_UP", "forward"), kind="WARM_UP", second=OURS),
        family("slow first units, DDP", at_least(long(DDP), 30),
               warm_up("WARM_UP", "forward"), kind="WARM_UP", second=OURS),
        family("compilation in the first units, one rank",
               at_least(long(with_parts(ONE, "compile")), 30),
               warm_up("COMPILATION", "compile"), kind="COMPILATION", second=OURS),
        family("compilation in the first units, DDP",
               at_least(long(with_parts(DDP, "compile")), 30),
               warm_up("COMPILATION", "compile"), kind="COMPILATION", second=OURS),
        family("restarted, one rank", at_least(ONE, 20), special.pause, kind="RESTARTED",
               of_plan=special.restarted, second=("input", "checkpoint")),
        family("restarted, DDP", at_least(DDP, 20), special.pause, kind="RESTARTED",
               of_plan=special.restarted, second=("input", "checkpoint")),
        family("killed and restarted, DDP", at_least(DDP, 20), special.pause, kind="RESTARTED",
               of_plan=special.restarted, change=special.preempted),
        family("failed, one rank", ONE, kind="FAILED", change=special.fails, second=OURS),
        family("failed, one of many ranks", DDP, kind="FAILED", change=special.fails, second=OURS),
        family("failed, with slow input, DDP", DDP, slow_input, kind="FAILED",
               change=special.fails),
        family("killed, one rank", ONE, kind="KILLED", change=special.is_killed, second=OURS),
        family("killed, one of many ranks", DDP, kind="KILLED", change=special.is_killed,
               second=OURS),
        family("out of memory, one rank", ONE, kind="OUT_OF_MEMORY",
               change=special.runs_out_of_memory, second=OURS),
        family("out of memory, one of many ranks", DDP, kind="OUT_OF_MEMORY",
               change=special.runs_out_of_memory, second=OURS),
        family("stalled, one rank", ONE, kind="STALLED", change=special.stalled),
        family("stalled, DDP", DDP, kind="STALLED", change=special.stalled),
        family("missing ranks, DDP", DDP, kind="RANK_MISSING", change=special.is_missing,
               second=OURS),
    ]  # fmt: skip
    return families


def values() -> list[Family]:
    """Values, memory, and missing records."""
    values = at_least(ONE, 40)
    return [
        family("loss not finite, one rank", values, kind="NON_FINITE", change=special.not_finite,
               second=OURS),
        family("loss not finite, DDP", at_least(DDP, 40), kind="NON_FINITE",
               change=special.not_finite, second=OURS),
        family("loss not finite, with checkpoints", values, checkpoints, kind="NON_FINITE",
               change=special.not_finite),
        family("loss not finite, cirron-sdk hooks", at_least(HOOKS, 40), kind="NON_FINITE",
               producer="hooks", change=special.not_finite),
        family("loss not finite, DGRR", at_least(STORMLOG, 40), kind="NON_FINITE", producer="dgrr",
               change=special.not_finite),
        family("loss diverges, one rank", values, kind="DIVERGING", change=special.diverging,
               second=OURS),
        family("loss diverges, DDP", at_least(DDP, 40), kind="DIVERGING",
               change=special.diverging, second=OURS),
        family("gradient explodes, one rank", at_least(ONE, 150), kind="EXPLODING_GRADIENT",
               change=special.exploding),
        family("gradient explodes, DDP", at_least(DDP, 150), kind="EXPLODING_GRADIENT",
               change=special.exploding),
        family("device memory grows, one rank", at_least(ONE, 60), kind="CREEP_CONFIRMED",
               change=special.memory(device=True)),
        family("device memory grows, DDP", at_least(DDP, 60), kind="CREEP_CONFIRMED",
               change=special.memory(device=True)),
        family("host memory grows, one rank", at_least(ONE, 60), kind="CREEP_CONFIRMED",
               change=special.memory(device=False)),
        family("device memory grows, TraceML", at_least(TRACEML, 60), kind="CREEP_CONFIRMED",
               producer="traceml", change=special.memory(device=True)),
        family("device memory nearly full, one rank", at_least(ONE, 60), kind="HIGH_PRESSURE",
               change=special.is_nearly_full),
        family("device memory nearly full, DDP", at_least(DDP, 60), kind="HIGH_PRESSURE",
               change=special.is_nearly_full),
        family("device memory differs between ranks, DDP",
               replace(at_least(DDP, 60), ranks=(3, 16)), kind="IMBALANCE",
               change=special.differs_between_ranks),
        family("dropped records, one rank", ONE, kind="INCOMPLETE", change=special.has_drops),
    ]  # fmt: skip
