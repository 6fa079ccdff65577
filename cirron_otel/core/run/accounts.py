"""The accounts of the ledger: each nanosecond of a rank belongs to exactly one.

The rules are in docs/ledger.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ...errors import UsageError
from ...semconv import JOB, MICRO_STEP, SESSION

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
OF_SCOPES: Final = tuple(
    each for each in ACCOUNTS
    if each in {*PHASES.values(), *OVERRIDING, "communication", _OWN}
)  # fmt: skip
"""The accounts that a scope may have, in the order of reports."""
_FIXED: Final = frozenset({
    *PHASES, SESSION, JOB, MICRO_STEP, "step", "batch", "request", "epoch",
})  # fmt: skip
"""The names of phases, and of scopes around them."""


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


@dataclass(frozen=True, slots=True)
class AccountNames:
    """The accounts of scopes by their names: those that the user chooses, then `account_of`."""

    chosen: Mapping[str, str] = field(default_factory=dict)
    """The accounts of the user's own scopes by their names in lower case."""

    def account_of(self, name: str | None) -> str:
        """Return the account of a scope by its name."""
        found = self.chosen.get(name.lower()) if self.chosen and name is not None else None
        return account_of(name) if found is None else found


BY_RULE: Final = AccountNames()
"""No account is chosen."""


def account_names_of(assignments: Iterable[str]) -> AccountNames:
    """Return the accounts given as `NAME=ACCOUNT`; names are compared without case.

    Raises UsageError for an unknown account, the name of a phase, and a name with two accounts.
    """
    chosen: dict[str, str] = {}
    for text in assignments:
        name, separator, account = text.rpartition("=")
        if not separator or not name:
            raise UsageError(f"{text!a}: expected NAME=ACCOUNT, as in rollout=forward")
        if account not in OF_SCOPES:
            raise UsageError(
                f"{text!a}: a scope cannot be in the account {account!a}: expected one of"
                f" {', '.join(OF_SCOPES)}"
            )
        if name.lower() in _FIXED:
            raise UsageError(f"{text!a}: {name} is no scope of your own, so its account is fixed")
        if chosen.setdefault(name.lower(), account) != account:
            raise UsageError(f"{text!a}: {name} also has the account {chosen[name.lower()]}")
    return AccountNames(chosen)
