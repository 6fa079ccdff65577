"""The time outside of steps by account, from the ended scopes of each flush.

The accounts and their order are those of the ledger (docs/ledger.md) as far as ended scopes of one
process decide them; docs/metrics.md describes the differences. Times are those of the thread of the
first step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ...core.run.accounts import OVERRIDING, account_of
from ...semconv import JOB, SESSION
from ..tracing.loops import STEP
from ..tracing.scope import NO_SESSION, Scope

_LOOPS: Final = frozenset({SESSION, JOB, "epoch"})
"""The scopes around steps by their names; any other scope around a step is one, too."""
_MOST_OPEN: Final = 1_000
"""Maximum number of open scopes whose children are remembered."""


class OutsideUnits:
    """The sums of all steps so far; used under the lock of `Measures`."""

    def __init__(self) -> None:
        """Start without a step."""
        self._totals: Counter[str] = Counter()
        self._inside: dict[Scope, int] = {}
        """The time of the counted scopes in each open scope, ns."""
        self._around: set[Scope] = set()
        """The open scopes around the steps."""
        self._thread: int | None = None
        self._last_end: int | None = None
        """The end of the last step."""
        self._covered = 0
        """The time of counted scopes since then, ns."""

    def totals(self) -> Mapping[str, float]:
        """Return the seconds of each account so far."""
        return {account: ns / 1e9 for account, ns in self._totals.items()}

    def add(self, scopes: Iterable[Scope]) -> None:
        """Add steps, and scopes outside of steps, in the order of their ends."""
        for scope in scopes:
            name = scope._name if type(scope._name) is str else ""
            if name == STEP:
                self._add_step(scope)
            elif name == SESSION and not scope._depth:
                if self._last_end is not None and scope._thread == self._thread:
                    self._add_gap("shut_down", scope._end - self._last_end)
            elif name in _LOOPS or scope in self._around:
                self._around.discard(scope)
                self._inside.pop(scope, None)
            else:
                self._add_scope(scope, account_of(name))

    def _add_step(self, step: Scope) -> None:
        if self._thread is None:
            self._thread = step._thread
        if step._thread != self._thread:
            return
        if step._above not in self._around:
            self._note_around(step)
        begun = self._last_end
        if begun is None:
            self._add_gap("start_up", step._start - _outermost(step)._start)
        else:
            self._add_gap("between_units", step._start - begun)
        self._last_end = max(step._end, begun or 0)

    def _note_around(self, step: Scope) -> None:
        """Note that the scopes around a step have no account; their counted scopes still have."""
        parent: Any = step._above
        while parent is not NO_SESSION and parent not in self._around:
            self._around.add(parent)
            self._covered += self._inside.pop(parent, 0)
            if not parent._depth:
                break
            parent = parent._above
        if len(self._around) > _MOST_OPEN:
            self._around = {each for each in self._around if not each._end}

    def _add_gap(self, account: str, length_ns: int) -> None:
        self._totals[account] += max(length_ns - self._covered, 0)
        self._covered = 0

    def _add_scope(self, scope: Scope, account: str) -> None:
        inside_ns = self._inside.pop(scope, 0)
        overriding = account in OVERRIDING
        if not overriding and (self._last_end is None or self._is_absorbed(scope)):
            if inside_ns:
                self._cover(scope, inside_ns)
            return
        if self._thread is not None and scope._thread != self._thread:
            return
        length_ns = scope._end - scope._start
        self._totals[account] += max(length_ns - inside_ns, 0)
        self._cover(scope, length_ns)

    def _cover(self, scope: Scope, length_ns: int) -> None:
        """Note time of an account, so that the scopes around it do not count it again."""
        parent: Any = scope._above
        while self._is_around(parent):
            if parent is NO_SESSION or not parent._depth:
                self._covered += length_ns
                return
            parent = parent._above
        if len(self._inside) >= _MOST_OPEN and parent not in self._inside:
            del self._inside[next(iter(self._inside))]
        self._inside[parent] = self._inside.get(parent, 0) + length_ns

    def _is_around(self, scope: Any) -> bool:
        """Return whether a scope has no account because steps are inside it, or may be."""
        name = scope._name
        is_loop = type(name) is str and name in _LOOPS
        return is_loop or not scope._depth or scope in self._around

    def _is_absorbed(self, scope: Any) -> bool:
        """Return whether a scope belongs to the account of one around it, such as a checkpoint."""
        parent = scope._above
        while parent._depth and parent is not NO_SESSION:
            name = parent._name
            if type(name) is str and not self._is_around(parent) and account_of(name) in OVERRIDING:
                return True
            parent = parent._above
        return False


def _outermost(scope: Any) -> Any:
    """Return the outermost scope around a scope, which is usually the session."""
    while (above := scope._above) is not None and above is not NO_SESSION:
        scope = above
    return scope
