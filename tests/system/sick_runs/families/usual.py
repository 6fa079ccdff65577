"""The causes and the second causes that many families use."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ..causes import above_forward, above_quarter, scopes, steady
from ..drawing import Setting
from ..plan import BETWEEN

OURS: Final = ("input", "wait", "between", "evaluation", "checkpoint", "logging")
"""The second causes of runs of cirron-otel."""
NO_INPUT: Final = ("wait", "between", "evaluation", "checkpoint", "logging")
THEIRS: Final = ("input", "wait", "between")
"""The second causes of runs of cirron-sdk."""
DEVICE: Final = ("input", "evaluation", "checkpoint")

slow_input = steady("INPUT_BOUND", "data_load")
slow_transfer = steady("H2D_BOUND", "h2d")
waiting = steady("WAIT_HEAVY", "~end")
between_units = steady("BETWEEN_UNITS", BETWEEN)
slow_optimizer = steady("OPTIMIZER_HEAVY", "optimizer_step", above_quarter)
slow_loss = steady("LOSS_HEAVY", "loss", above_forward)
evaluations = scopes("EVALUATION_HEAVY", "eval", at_epochs=True)
checkpoints = scopes("CHECKPOINT_HEAVY", "checkpoint_save")
logs = scopes("LOGGING_HEAVY", "log", most=5)


def with_parts(setting: Setting, *parts: str) -> Setting:
    """A setting with further segments of each unit."""
    return replace(setting, parts=parts)


def with_h2d(setting: Setting) -> Setting:
    """A setting in which the transfer is always recorded."""
    return replace(setting, always=("h2d",))
