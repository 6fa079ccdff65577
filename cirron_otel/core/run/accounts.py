"""The accounts of the ledger: each nanosecond of a rank belongs to exactly one.

The rules are in docs/ledger.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

ACCOUNTS: Final = (
    "start_up", "warm_up", "compilation", "garbage_collection", "tracing", "input", "transfer",
    "forward", "loss", "backward", "optimizer", "communication", "waiting_for_ranks", "evaluation",
    "checkpoint", "logging", "other_scopes", "unattributed", "between_units", "busy", "idle",
    "stalled", "lost", "paused", "shut_down", "ended",
)  # fmt: skip
"""All accounts, in the order of reports."""

PHASES: Final[Mapping[str, str]] = {
    "data_load": "input", "h2d": "transfer", "forward": "forward", "train_step": "forward",
    "loss": "loss", "backward": "backward", "recompute": "backward",
    "optimizer_step": "optimizer", "zero_grad": "optimizer", "clip_grad": "optimizer",
    "scheduler_step": "optimizer",
}  # fmt: skip
"""The accounts of phases by the recorded name. Collectives are recognised by `_COLLECTIVE`."""
OVERRIDING: Final = (
    "garbage_collection", "compilation", "tracing", "checkpoint", "logging", "evaluation",
)  # fmt: skip
"""The accounts of scopes that take precedence over the phase around them."""

_COLLECTIVE: Final = re.compile(
    "(all_reduce|all_gather|reduce_scatter|all_to_all|collective)(?![a-z]).*"
    "|broadcast|barrier|reduce|gather|scatter|send|recv", re.DOTALL,
)  # fmt: skip
_LOGGING: Final = re.compile("log_(?!soft|prob|likelihood|sum)")
"""Functions of probabilities, such as `log_softmax`, are not logging."""
_NAMES: Final[Mapping[str, str]] = {
    "eval": "evaluation", "evaluation": "evaluation", "validation": "evaluation",
    "val": "evaluation", "test": "evaluation",
    "save": "checkpoint",
    "log": "logging", "logging": "logging", "tensorboard": "logging", "wandb": "logging",
    "gc": "garbage_collection", "garbage_collection": "garbage_collection",
    "compile": "compilation", "compilation": "compilation",
    "tracing": "tracing",
}  # fmt: skip
_OWN: Final = "other_scopes"


def account_of(name: str | None) -> str:
    """Return the account of a scope by its name; `other_scopes` for a name without one."""
    if name is None:
        return _OWN
    found = PHASES.get(name) or _NAMES.get(name)
    if found is not None:
        return found
    lower = name.lower()
    if "checkpoint" in lower:
        return "checkpoint"
    if lower in _NAMES:
        return _NAMES[lower]
    if _LOGGING.match(lower):
        return "logging"
    return "communication" if _COLLECTIVE.fullmatch(lower) else _OWN
