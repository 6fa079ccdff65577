"""Runs of every shape in which nothing is wrong."""

from __future__ import annotations

from dataclasses import replace

from .. import special
from ..building import Family, family
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
    STORMLOG,
    TRACEML,
    at_least,
    long,
)
from .usual import with_parts


def healthy() -> list[Family]:
    """Runs of every shape in which nothing is wrong."""
    most = replace(DDP, ranks=(16, 16), noise=(0.2, 0.2))
    return [
        *(
            family(f"healthy, {name}", setting, producer=producer)
            for name, setting, producer in (
                ("one rank", ONE, "cirron-otel"),
                ("one rank, few units", replace(ONE, units=(10, 30)), "cirron-otel"),
                ("one rank, many units", replace(ONE, units=(1500, 2000)), "cirron-otel"),
                ("DDP", DDP, "cirron-otel"),
                ("DDP, few units", replace(DDP, units=(10, 30)), "cirron-otel"),
                ("DDP, 16 ranks, 20 % noise", most, "cirron-otel"),
                ("FSDP", FSDP, "cirron-otel"),
                ("FSDP, 16 ranks, 20 % noise", replace(most, synchronised=FSDP.synchronised),
                 "cirron-otel"),
                ("ranks apart", APART, "cirron-otel"),
                ("ranks apart, 16 ranks, 20 % noise", replace(most, synchronised=()),
                 "cirron-otel"),
                ("device", ONE_DEVICE, "cirron-otel"),
                ("DDP on devices", DDP_DEVICE, "cirron-otel"),
                ("long, one rank", long(ONE), "cirron-otel"),
                ("long, DDP", long(DDP), "cirron-otel"),
                ("cirron-sdk hooks", HOOKS, "hooks"),
                ("cirron-sdk hooks, DDP", HOOKS_DDP, "hooks"),
                ("cirron-sdk batches", HOOKS, "batches"),
                ("cirron-sdk manual", MANUAL, "manual"),
                ("cirron-sdk manual, DDP", MANUAL_DDP, "manual"),
                ("cirron-sdk Trainer", HOOKS, "trainer"),
                ("inference of cirron-sdk", REQUESTS, "inference"),
                ("requests", REQUESTS, "requests"),
                ("TraceML", TRACEML, "traceml"),
                ("Stormlog", STORMLOG, "stormlog"),
                ("foreign spans", FOREIGN, "foreign"),
            )
        ),
        family("healthy, loss and gradients", at_least(ONE, 20), change=special.healthy_values),
        family("healthy, loss and gradients, DDP", DDP, change=special.healthy_values),
        family("healthy, loss, DGRR", STORMLOG, producer="dgrr", change=special.healthy_values),
        family("healthy, device memory", at_least(ONE, 60),
               change=special.memory(device=True, is_healthy=True)),
        family("healthy, device memory, DDP", at_least(DDP, 60),
               change=special.memory(device=True, is_healthy=True)),
        family("healthy, rollouts in units", with_parts(ONE, "rollout"), of_plan=special.rollouts),
        family("healthy, rollouts in units, DDP", with_parts(DDP, "rollout"),
               of_plan=special.rollouts),
        family("healthy, heavy forward", ONE, of_plan=special.heavy_forward),
        family("healthy, late rank, DDP", DDP, of_plan=special.late_rank),
        family("healthy, clocks differ, DDP", DDP, of_plan=special.clocks_differ),
        family("healthy, with its own times, DDP", at_least(DDP, 20),
               change=special.has_ddp_times),
        family("healthy, clocks differ, FSDP", FSDP, of_plan=special.clocks_differ),
        family("healthy, one unit fewer, DDP", at_least(DDP, 60), of_plan=special.one_unit_fewer),
        family("healthy, interrupted by the user", ONE, change=special.is_interrupted),
    ]  # fmt: skip
