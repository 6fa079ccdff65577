"""Causes in some of the units, or on some of the ranks."""

from __future__ import annotations

from dataclasses import replace

from .. import special
from ..building import Family, family
from ..causes import first_batches, growing, interval, moving, spikes, straggler
from ..clearness import are_slow_batches, are_slow_units, are_spikes, is_growing, is_interval
from ..drawing import Setting
from ..plan import BETWEEN
from ..settings import (
    APART,
    DDP,
    DDP_DEVICE,
    FOREIGN,
    FSDP,
    HOOKS,
    HOOKS_DDP,
    MANUAL,
    MANUAL_DDP,
    ONE,
    ONE_DEVICE,
    REQUESTS,
    TRACEML,
    TRACEML_DDP,
    at_least,
    without_spikes,
)
from .usual import DEVICE, NO_INPUT, OURS, THEIRS, with_h2d


def in_some_units() -> list[Family]:
    """Causes in some of the units: first batches, spikes, intervals, slower and slower units."""
    families = [
        family(f"slow first batches, {name}", replace(at_least(setting, 30), epochs=(2, 8)),
               first_batches, kind="SLOW_FIRST_BATCH", producer=producer, second=second,
               is_clear=are_slow_batches)
        for name, setting, producer, second in (
            ("one rank", ONE, "cirron-otel", ("wait", "checkpoint", "evaluation")),
            ("DDP", DDP, "cirron-otel", ("wait", "checkpoint", "evaluation")),
            ("cirron-sdk hooks", HOOKS, "hooks", ("wait",)),
            ("cirron-sdk batches", HOOKS, "batches", ()),
            ("cirron-sdk manual", MANUAL, "manual", ("wait",)),
        )
    ]  # fmt: skip
    families += [
        family(f"spikes, {name}", without_spikes(setting, 40),
               spikes(segment, regular=is_regular, kind=kind, **shown),
               kind=kind, producer=producer, second=second, is_clear=are_spikes)
        for name, setting, segment, is_regular, kind, producer, second, shown in (
            ("forward, one rank", ONE, "forward", False, "SPIKES", "cirron-otel", OURS, {}),
            ("forward, every N, DDP", DDP, "forward", True, "SPIKES", "cirron-otel", OURS, {}),
            ("optimizer, DDP", DDP, "optimizer_step", False, "SPIKES", "cirron-otel", OURS, {}),
            ("backward, every N, one rank", ONE, "backward", True, "SPIKES", "cirron-otel", OURS,
             {}),
            ("waiting in units, one rank", ONE, "~end", False, "SPIKES", "cirron-otel",
             ("input", "checkpoint"), {}),
            ("input, one rank", ONE, "data_load", False, "INPUT_SPIKES", "cirron-otel", NO_INPUT,
             {}),
            ("input, every N, one rank", ONE, "data_load", True, "INPUT_SPIKES", "cirron-otel",
             NO_INPUT, {}),
            ("input, every N, DDP", DDP, "data_load", True, "INPUT_SPIKES", "cirron-otel",
             NO_INPUT, {}),
            ("input, FSDP", FSDP, "data_load", False, "INPUT_SPIKES", "cirron-otel", NO_INPUT,
             {}),
            ("input, cirron-sdk hooks", HOOKS, "data_load", False, "INPUT_SPIKES", "hooks",
             ("wait", "between"), {}),
            ("forward, cirron-sdk batches", HOOKS, "forward", True, "SPIKES", "batches",
             ("input",), {}),
            ("forward, cirron-sdk manual", MANUAL, "forward", False, "SPIKES", "manual",
             THEIRS, {}),
            ("input, every N, TraceML", TRACEML, "data_load", True, "INPUT_SPIKES", "traceml",
             ("wait",), {}),
            ("forward, requests", REQUESTS, "forward", False, "SPIKES", "requests", (),
             {"phase": "model"}),
            ("every N, inference of cirron-sdk", REQUESTS, "forward", True, "SPIKES", "inference",
             (), {"phase": "model"}),
            ("foreign spans", FOREIGN, "forward", False, "SPIKES", "foreign", (),
             {"phase": "transform"}),
        )
    ]  # fmt: skip
    families += [
        family(f"slow interval, {name}", at_least(setting, 50), interval(segment),
               kind="SLOW_INTERVAL", producer=producer, second=second, is_clear=is_interval)
        for name, setting, segment, producer, second in (
            ("forward, one rank", ONE, "forward", "cirron-otel", OURS),
            ("input, DDP", DDP, "data_load", "cirron-otel", NO_INPUT),
            ("optimizer, FSDP", FSDP, "optimizer_step", "cirron-otel", OURS),
            ("forward, DDP", DDP, "forward", "cirron-otel", OURS),
            ("forward, cirron-sdk batches", HOOKS, "forward", "batches", ("input",)),
            ("forward, TraceML", TRACEML, "forward", "traceml", ("input",)),
        )
    ]  # fmt: skip
    families += [
        family(f"slower and slower, {name}", at_least(setting, 40), growing(segment, shown),
               kind="SLOWING_DOWN", producer=producer, second=second, is_clear=is_growing)
        for name, setting, segment, producer, second, shown in (
            ("forward, one rank", ONE, "forward", "cirron-otel", OURS, None),
            ("input, DDP", DDP, "data_load", "cirron-otel", NO_INPUT, None),
            ("between units, one rank", ONE, BETWEEN, "cirron-otel", ("input", "checkpoint"), None),
            ("forward, device", ONE_DEVICE, "forward", "cirron-otel", DEVICE, None),
            ("forward, cirron-sdk hooks", HOOKS, "forward", "hooks", ("input", "wait"), None),
            ("optimizer, cirron-sdk manual", MANUAL, "optimizer_step", "manual", THEIRS, None),
            ("forward, TraceML", TRACEML, "forward", "traceml", ("input",), None),
            ("requests", REQUESTS, "forward", "requests", (), "model"),
            ("foreign spans", FOREIGN, "forward", "foreign", (), "transform"),
        )
    ]  # fmt: skip
    return families


def _several(setting: Setting) -> Setting:
    """Three ranks or more: of two, one may be slow in most units by chance."""
    return replace(at_least(setting, 30), ranks=(3, setting.ranks[1]))


def on_some_ranks() -> list[Family]:
    """Causes on some of the ranks."""
    families = [
        family(f"straggler, {name}", setting, straggler(kind, *segments), kind=kind,
               producer=producer, second=second)
        for name, setting, kind, segments, producer, second in (
            ("input, DDP", DDP, "INPUT_STRAGGLER", ("data_load",), "cirron-otel", NO_INPUT),
            ("input, FSDP", FSDP, "INPUT_STRAGGLER", ("data_load",), "cirron-otel", NO_INPUT),
            ("input, DDP on devices", DDP_DEVICE, "INPUT_STRAGGLER", ("data_load",), "cirron-otel",
             ("evaluation", "checkpoint")),
            ("input, cirron-sdk hooks", HOOKS_DDP, "INPUT_STRAGGLER", ("data_load",), "hooks",
             ("wait", "between")),
            ("input, cirron-sdk manual", MANUAL_DDP, "INPUT_STRAGGLER", ("data_load",), "manual",
             ("wait", "between")),
            ("input, TraceML", TRACEML_DDP, "INPUT_STRAGGLER", ("data_load",), "traceml", ()),
            ("forward, DDP", DDP, "COMPUTE_STRAGGLER", ("forward",), "cirron-otel", OURS),
            ("loss, DDP", DDP, "COMPUTE_STRAGGLER", ("loss",), "cirron-otel", OURS),
            ("optimizer, DDP", DDP, "COMPUTE_STRAGGLER", ("optimizer_step",), "cirron-otel",
             OURS),
            ("optimizer, FSDP", FSDP, "COMPUTE_STRAGGLER", ("optimizer_step",), "cirron-otel",
             OURS),
            ("forward, TraceML", TRACEML_DDP, "COMPUTE_STRAGGLER", ("forward",), "traceml",
             ("input",)),
            ("transfer, DDP", with_h2d(DDP), "H2D_STRAGGLER", ("h2d",), "cirron-otel", OURS),
            ("waiting in units, DDP", DDP, "WAIT_STRAGGLER", ("~end",), "cirron-otel",
             ("input", "between", "evaluation", "checkpoint")),
            ("between units, DDP", DDP, "WAIT_STRAGGLER", (BETWEEN,), "cirron-otel",
             ("input", "wait", "evaluation", "checkpoint")),
            ("waiting in units, FSDP", FSDP, "WAIT_STRAGGLER", ("~end",), "cirron-otel",
             ("input", "between", "evaluation", "checkpoint")),
            ("input and forward, DDP", DDP, "STRAGGLER", ("data_load", "forward"), "cirron-otel",
             ("wait", "between", "evaluation", "checkpoint")),
        )
    ]  # fmt: skip
    families += [
        family(f"straggler in some units, {name}", at_least(setting, 40),
               straggler(kind, segment, part=True), kind=kind, producer=producer, second=second,
               is_clear=are_slow_units)
        for name, setting, kind, segment, producer, second in (
            ("input, DDP", DDP, "INPUT_STRAGGLER", "data_load", "cirron-otel", NO_INPUT),
            ("forward, DDP", DDP, "COMPUTE_STRAGGLER", "forward", "cirron-otel", OURS),
            ("optimizer, FSDP", FSDP, "COMPUTE_STRAGGLER", "optimizer_step", "cirron-otel", OURS),
            ("input, TraceML", TRACEML_DDP, "INPUT_STRAGGLER", "data_load", "traceml", ()),
        )
    ]  # fmt: skip
    families += [
        family(f"straggler that moves, {name}", _several(setting), moving(kind, segment),
               kind=kind, producer=producer, second=second, is_clear=are_slow_units)
        for name, setting, kind, segment, producer, second in (
            ("input, DDP", DDP, "INPUT_STRAGGLER", "data_load", "cirron-otel", NO_INPUT),
            ("forward, DDP", DDP, "COMPUTE_STRAGGLER", "forward", "cirron-otel", OURS),
            ("input, FSDP", FSDP, "INPUT_STRAGGLER", "data_load", "cirron-otel", NO_INPUT),
            ("input, cirron-sdk hooks", HOOKS_DDP, "INPUT_STRAGGLER", "data_load", "hooks",
             ("wait",)),
        )
    ]  # fmt: skip
    families += [
        family("straggler, input, clocks differ, DDP", DDP,
               straggler("INPUT_STRAGGLER", "data_load"), kind="INPUT_STRAGGLER",
               second=NO_INPUT, of_plan=special.clocks_differ),
        family("straggler, forward, late rank, DDP", DDP,
               straggler("COMPUTE_STRAGGLER", "forward"), kind="COMPUTE_STRAGGLER",
               second=OURS, of_plan=special.late_rank),
    ]  # fmt: skip
    measured = at_least(DDP, 20)
    families += [
        family(f"straggler, backward, {name}", measured,
               straggler("COMPUTE_STRAGGLER", "backward"), kind="COMPUTE_STRAGGLER",
               second=OURS, change=special.has_ddp_times, of_plan=of_plan)
        for name, of_plan in (("DDP", None), ("clocks differ, DDP", special.clocks_differ))
    ]  # fmt: skip
    families += [
        family("fewer units, ranks apart", APART, kind="UNEVEN", change=special.uneven),
        family("fewer units, DDP", DDP, kind="UNEVEN", change=special.uneven),
    ]
    return families
