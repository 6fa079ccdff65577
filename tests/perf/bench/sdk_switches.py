"""What `cpu_time` and `memory_peak` cost a scope: why they are off unless asked for."""

from __future__ import annotations

from typing import Any

import cirron_otel as ci

from .measure import Case, interleave
from .sdk_hot import SPURT

SETTINGS: dict[str, dict[str, Any]] = {
    "both off (the default)": {},
    "cpu_time": {"cpu_time": True},
    "memory_peak": {"memory_peak": True},
    "both on": {"cpu_time": True, "memory_peak": True},
}


def _scopes(number: int) -> None:
    for _ in range(number):
        with ci.scope("x"):
            pass


def _case(name: str, options: dict[str, Any]) -> Case:
    def prepare() -> None:
        ci.profile(frameworks=[], snapshots=None, output_dir="switches", **options)
        _scopes(100)
        ci.flush()

    return Case(name, _scopes, prepare, ci.shutdown, SPURT)


def switches(items: int, blocks: int) -> None:
    """A scope with each switch on, in sessions of their own, interleaved."""
    print(f"switches: µs a scope, medians of {blocks} blocks of {items:,}")
    cases = [_case(name, options) for name, options in SETTINGS.items()]
    interleave(cases, items, blocks)
    off, cpu_off = cases[0].us(items), cases[0].cpu_us(items)
    for case in cases:
        cost, by_cpu = case.us(items), case.cpu_us(items)
        extra = "" if case is cases[0] else f"  {cost - off:+.2f} µs, cpu {by_cpu - cpu_off:+.2f}"
        print(f"  {case.name:<28}{cost:8.3f}{extra}")
