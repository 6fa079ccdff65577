"""The user's choices for a conclusion: changed thresholds, and findings that do not count."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ....errors import UsageError
from ..accounts import BY_RULE, AccountNames, account_names_of
from .finding import Finding
from .rate import Rate, rate_of
from .thresholds import KINDS, Limits, limits_of


@dataclass(frozen=True, slots=True)
class Pattern:
    """The findings of a kind, or those of them in one phase or scope."""

    kind: str
    name: str | None = None
    """The recorded name of the phase or the scope; None for all findings of the kind."""

    def __str__(self) -> str:
        return self.kind if self.name is None else f"{self.kind}:{self.name}"

    def matches(self, finding: Finding) -> bool:
        """Return whether a finding is one of these."""
        return finding.kind == self.kind and self.name in (None, finding.phase, finding.scope)


def pattern_of(text: str) -> Pattern:
    """Return the pattern `KIND` or `KIND:NAME`. Raises UsageError for an unknown kind."""
    kind, separator, name = text.partition(":")
    if kind.upper() not in KINDS:
        raise UsageError(
            f"{kind!a} is not a kind of finding: docs/findings.md lists them, for example"
            " INPUT_BOUND"
        )
    if separator and not name:
        raise UsageError(f"{text!a}: expected the name of a phase or a scope after the colon")
    return Pattern(kind.upper(), name or None)


@dataclass(frozen=True, slots=True)
class Choices:
    """The choices for a conclusion; by default none is made."""

    limits: Limits = field(default_factory=Limits)
    ignored: tuple[Pattern, ...] = ()
    """The findings that count neither for the status nor for the headline."""

    accounts: AccountNames = BY_RULE
    """The accounts of scopes by their names."""
    rate: Rate | None = None
    """The price of an hour of a rank; None if costs have no amounts."""

    @property
    def is_default(self) -> bool:
        """Whether no choice was made."""
        return self == Choices()

    def divided(self, findings: Iterable[Finding]) -> tuple[list[Finding], list[Finding]]:
        """Return the findings that count, and those that are ignored."""
        counted: list[Finding] = []
        ignored: list[Finding] = []
        for each in findings:
            is_ignored = any(pattern.matches(each) for pattern in self.ignored)
            (ignored if is_ignored else counted).append(each)
        return counted, ignored


def choices_of(
    settings: Iterable[str] = (),
    ignored: Iterable[str] = (),
    accounts: Iterable[str] = (),
    price: str | None = None,
) -> Choices:
    """Return the choices from the texts of options. Raises UsageError.

    `settings` are thresholds as `NAME=VALUE`, `ignored` findings as `KIND` or `KIND:NAME`,
    `accounts` those of scopes as `NAME=ACCOUNT`, and `price` is that of an hour of a rank.
    """
    rate = None if price is None else rate_of(price)
    patterns = tuple(map(pattern_of, ignored))
    return Choices(limits_of(settings), patterns, account_names_of(accounts), rate)
