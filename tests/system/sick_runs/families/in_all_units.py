"""Causes in each unit of all ranks, and scopes that are not work."""

from __future__ import annotations

from .. import special
from ..building import Family, family
from ..causes import collective, scopes, single_rank_scope, steady
from ..settings import (
    APART,
    COLLECTIVE,
    DDP,
    DDP_DEVICE,
    FSDP,
    FSDP_COLLECTIVE,
    HOOKS,
    HOOKS_DDP,
    MANUAL,
    ONE,
    ONE_DEVICE,
    STORMLOG,
    TRACEML,
)
from .usual import (
    DEVICE,
    NO_INPUT,
    OURS,
    THEIRS,
    between_units,
    checkpoints,
    evaluations,
    logs,
    slow_input,
    slow_loss,
    slow_optimizer,
    slow_transfer,
    waiting,
    with_h2d,
    with_parts,
)


def in_units() -> list[Family]:
    """Causes in each unit of all ranks."""
    families = [
        family(f"input bound, {name}", setting, slow_input, kind="INPUT_BOUND", producer=producer,
               second=second)
        for name, setting, producer, second in (
            ("one rank", ONE, "cirron-otel", NO_INPUT),
            ("DDP", DDP, "cirron-otel", NO_INPUT),
            ("FSDP", FSDP, "cirron-otel", NO_INPUT),
            ("ranks apart", APART, "cirron-otel", NO_INPUT),
            ("device", ONE_DEVICE, "cirron-otel", ("evaluation", "checkpoint")),
            ("DDP on devices", DDP_DEVICE, "cirron-otel", ("evaluation", "checkpoint")),
            ("cirron-sdk hooks", HOOKS, "hooks", ("wait", "between")),
            ("cirron-sdk hooks, DDP", HOOKS_DDP, "hooks", ("wait", "between")),
            ("cirron-sdk batches", HOOKS, "batches", ("between",)),
            ("cirron-sdk manual", MANUAL, "manual", ("wait", "between", "evaluation")),
            ("cirron-sdk Trainer", HOOKS, "trainer", ("wait", "between")),
            ("TraceML", TRACEML, "traceml", ("wait",)),
            ("Stormlog", STORMLOG, "stormlog", ("wait", "between")),
        )
    ]  # fmt: skip
    families += [
        family("input bound, heavy forward", ONE, slow_input, kind="INPUT_BOUND", second=NO_INPUT,
               of_plan=special.heavy_forward),
        family("transfers, one rank", with_h2d(ONE), slow_transfer, kind="H2D_BOUND", second=OURS),
        family("transfers, DDP", with_h2d(DDP), slow_transfer, kind="H2D_BOUND", second=OURS),
        family("transfers, TraceML", with_h2d(TRACEML), slow_transfer, kind="H2D_BOUND",
               producer="traceml", second=("input",)),
        family("waiting in units, one rank", ONE, waiting, kind="WAIT_HEAVY",
               second=("input", "between", "evaluation", "checkpoint", "logging")),
        family("waiting in units, DDP", DDP, waiting, kind="WAIT_HEAVY",
               second=("input", "between", "evaluation", "checkpoint", "logging")),
        family("transform in the main thread, one rank", ONE, steady("WAIT_HEAVY", "~load"),
               kind="WAIT_HEAVY", second=NO_INPUT[1:]),
        family("transform in the main thread, DDP", DDP, steady("WAIT_HEAVY", "~load"),
               kind="WAIT_HEAVY", second=NO_INPUT[1:]),
        family("waiting in units, device", ONE_DEVICE, steady("WAIT_HEAVY", "~load"),
               kind="WAIT_HEAVY", second=DEVICE),
        family("waiting in units, cirron-sdk hooks", HOOKS, waiting, kind="WAIT_HEAVY",
               producer="hooks", second=("input", "between")),
        family("waiting in units, TraceML", TRACEML, waiting, kind="WAIT_HEAVY",
               producer="traceml", second=("input",)),
        family("between units, one rank", ONE, between_units, kind="BETWEEN_UNITS",
               second=("input", "wait", "evaluation", "checkpoint", "logging")),
        family("between units, DDP", DDP, between_units, kind="BETWEEN_UNITS",
               second=("input", "wait", "evaluation", "checkpoint", "logging")),
        family("between units, FSDP", FSDP, between_units, kind="BETWEEN_UNITS",
               second=("input", "wait", "evaluation", "checkpoint", "logging")),
        family("between units, cirron-sdk batches", HOOKS, between_units, kind="BETWEEN_UNITS",
               producer="batches", second=("input",)),
        family("between units, cirron-sdk manual", MANUAL, between_units, kind="BETWEEN_UNITS",
               producer="manual", second=("input", "wait", "evaluation")),
    ]  # fmt: skip
    families += [
        family(f"slow optimizer, {name}", setting, slow_optimizer, kind="OPTIMIZER_HEAVY",
               producer=producer, second=second)
        for name, setting, producer, second in (
            ("one rank", ONE, "cirron-otel", OURS),
            ("DDP", DDP, "cirron-otel", OURS),
            ("FSDP", FSDP, "cirron-otel", OURS),
            ("device", ONE_DEVICE, "cirron-otel", DEVICE),
            ("cirron-sdk hooks", HOOKS, "hooks", THEIRS),
            ("cirron-sdk manual", MANUAL, "manual", (*THEIRS, "evaluation")),
            ("cirron-sdk Trainer", HOOKS, "trainer", THEIRS),
            ("TraceML", TRACEML, "traceml", ("input",)),
            ("Stormlog", STORMLOG, "stormlog", THEIRS),
        )
    ]  # fmt: skip
    families += [
        family(f"slow loss, {name}", setting, slow_loss, kind="LOSS_HEAVY", producer=producer,
               second=second)
        for name, setting, producer, second in (
            ("one rank", ONE, "cirron-otel", OURS),
            ("DDP", DDP, "cirron-otel", OURS),
            ("cirron-sdk manual", MANUAL, "manual", (*THEIRS, "evaluation")),
        )
    ]  # fmt: skip
    return families


def in_scopes() -> list[Family]:
    """Evaluations, checkpoints, logs, and other scopes that are not work."""
    no_eval = ("input", "wait", "between", "checkpoint", "logging")
    no_checkpoint = ("input", "wait", "between", "evaluation", "logging")
    no_log = ("input", "wait", "between", "evaluation", "checkpoint")
    return [
        family("evaluations, one rank", ONE, evaluations, kind="EVALUATION_HEAVY", second=no_eval),
        family("evaluations, DDP", DDP, evaluations, kind="EVALUATION_HEAVY", second=no_eval),
        family("evaluations, cirron-sdk hooks", HOOKS, evaluations, kind="EVALUATION_HEAVY",
               producer="hooks", second=THEIRS),
        family("evaluations, cirron-sdk manual", MANUAL, evaluations, kind="EVALUATION_HEAVY",
               producer="manual", second=THEIRS),
        family("checkpoints, one rank", ONE, checkpoints, kind="CHECKPOINT_HEAVY",
               second=no_checkpoint),
        family("checkpoints, DDP", DDP, checkpoints, kind="CHECKPOINT_HEAVY",
               second=no_checkpoint),
        family("checkpoints, FSDP", FSDP, checkpoints, kind="CHECKPOINT_HEAVY",
               second=no_checkpoint),
        family("checkpoints named save, cirron-sdk manual", MANUAL,
               scopes("CHECKPOINT_HEAVY", "save"), kind="CHECKPOINT_HEAVY", producer="manual",
               second=(*THEIRS, "evaluation")),
        family("logging after units, one rank", ONE, logs, kind="LOGGING_HEAVY", second=no_log),
        family("logging after units, DDP", DDP, logs, kind="LOGGING_HEAVY", second=no_log),
        family("logging in units, one rank", with_parts(ONE, "log_metrics"),
               steady("LOGGING_HEAVY", "log_metrics", phase=None), kind="LOGGING_HEAVY",
               second=no_log),
        family("logging with tensorboard, cirron-sdk batches", HOOKS,
               scopes("LOGGING_HEAVY", "tensorboard", most=5), kind="LOGGING_HEAVY",
               producer="batches", second=("input", "between")),
        family("logging on one rank, DDP", DDP,
               single_rank_scope(("STRAGGLER", "LOGGING_HEAVY", "WAIT_STRAGGLER"), "log"),
               kind="LOGGING_HEAVY"),
        family("checkpoints on one rank, DDP", DDP,
               single_rank_scope(("CHECKPOINT_HEAVY", "STRAGGLER", "WAIT_STRAGGLER"),
                                 "checkpoint_save"), kind="CHECKPOINT_HEAVY"),
        family("garbage collection in units, one rank", with_parts(ONE, "gc"),
               steady("GARBAGE_COLLECTION", "gc", phase=None), kind="GARBAGE_COLLECTION",
               second=OURS),
        family("garbage collection in units, DDP", with_parts(DDP, "gc"),
               steady("GARBAGE_COLLECTION", "gc", phase=None), kind="GARBAGE_COLLECTION",
               second=OURS),
        family("exposed collectives, gradients averaged by the program", COLLECTIVE,
               collective("all_reduce"),
               kind="COMMUNICATION_BOUND", second=OURS),
        family("exposed collectives, FSDP", FSDP_COLLECTIVE,
               collective("reduce_scatter"),
               kind="COMMUNICATION_BOUND", second=OURS),
        family("tracing, one rank", with_parts(ONE, "~trace"),
               steady("TRACING", "~trace"), kind="TRACING", second=no_log[:1],
               change=special.with_overhead("~trace")),
        family("tracing, DDP", with_parts(DDP, "~trace"),
               steady("TRACING", "~trace"), kind="TRACING", second=no_log[:1],
               change=special.with_overhead("~trace")),
    ]  # fmt: skip
