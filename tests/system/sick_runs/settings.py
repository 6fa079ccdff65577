"""The kinds of runs from which the families draw their plans."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from .drawing import Setting

DDP_ENDS: Final = ("backward",)
FSDP_ENDS: Final = ("forward", "backward")

ONE: Final = Setting()
DDP: Final = Setting(DDP_ENDS, (2, 16))
FSDP: Final = Setting(FSDP_ENDS, (2, 16))
COLLECTIVE: Final = Setting(("all_reduce",), (2, 16), parts=("all_reduce",))
"""A program that averages its gradients itself, in a scope of its own."""
FSDP_COLLECTIVE: Final = Setting(("forward", "reduce_scatter"), (2, 16), parts=("reduce_scatter",))
APART: Final = Setting((), (2, 16))
"""Ranks that do not wait for each other."""
ONE_DEVICE: Final = replace(ONE, has_device=True, without=("zero_grad",))
DDP_DEVICE: Final = replace(DDP, has_device=True, without=("zero_grad",))

HOOKS: Final = Setting(is_bare=True, without=("zero_grad", "h2d", "loss"))
"""Runs that the hooks and helpers of cirron-sdk record."""
HOOKS_DDP: Final = replace(HOOKS, synchronised=DDP_ENDS, ranks=(2, 8))
MANUAL: Final = replace(HOOKS, without=("zero_grad", "h2d"))
MANUAL_DDP: Final = replace(MANUAL, synchronised=DDP_ENDS, ranks=(2, 8))
TRACEML: Final = Setting(
    DDP_ENDS, (1, 8), is_bare=True, has_ends=False, without=("zero_grad", "loss")
)
TRACEML_DDP: Final = replace(TRACEML, ranks=(2, 8))
STORMLOG: Final = Setting(is_bare=True, without=("zero_grad", "h2d", "loss"))
REQUESTS: Final = Setting(
    is_bare=True, without=("zero_grad", "h2d", "loss", "backward"), epochs=(1, 1), units=(20, 2000)
)
FOREIGN: Final = replace(REQUESTS, units=(20, 1500))


def at_least(setting: Setting, units: int) -> Setting:
    """Return a setting whose runs have a minimum number of units."""
    return replace(setting, units=(units, max(units, setting.units[1])))


def without_spikes(setting: Setting, units: int) -> Setting:
    """Return a setting without other spikes, whose runs have a minimum number of units."""
    return replace(at_least(setting, units), has_spikes=False)


def long(setting: Setting) -> Setting:
    """Return a setting whose runs take more or less than a minute."""
    return replace(setting, extent_s=(10, 900))
