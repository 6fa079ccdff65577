"""The sampler's marks on scopes that an instrumentation has opened and may still discard.

The fetch that finds no batch left is discarded with the step that was begun for it, and so is a
pass without batches. A mark that is sealed before would refer to a span that never exists.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ..tracing.buffers import MarkEntry
from ..tracing.clock import now
from ..tracing.phase import LoaderPassSpan, Phase, Step
from ..tracing.scope import NO_SESSION, Scope

HELD_NS: Final = 10_000_000_000
"""How long a mark waits for the decision, ns; then it moves to the nearest scope that remains. A
process that is killed loses the marks that wait."""
_LOAD: Final = "data_load"
_COMPILED: Final = "function"
"""The attribute of a call of a compiled function, which may turn out not to be a phase."""


class UndecidedSamples:
    """Holds back marks until it is decided whether their scopes are recorded."""

    def __init__(self) -> None:
        self.held: list[MarkEntry] = []
        """Marks that wait for the decision."""
        self._passes: set[Any] = set()
        """The open passes in which a phase or a step is recorded; they remain."""

    def see(self, ended: Iterable[Scope]) -> None:
        """Take notice of the scopes that are recorded now."""
        passes = {each._above for each in ended if isinstance(each, Phase)}
        passes = {each for each in passes if type(each) is LoaderPassSpan}
        self._passes = {each for each in self._passes | passes if not each._end}

    def split(
        self, entries: list[MarkEntry], *, is_last: bool
    ) -> tuple[list[MarkEntry], list[MarkEntry]]:
        """Return the marks to seal now and the marks to hold back, out of those held and `entries`.

        With `is_last`, all scopes have ended, and nothing is held back.
        """
        if is_last:
            return self.held + entries, []
        ready: list[MarkEntry] = []
        held: list[MarkEntry] = []
        latest = now() - HELD_NS
        for entry in self.held + entries:
            if not self._may_vanish(entry[0]):
                ready.append(entry)
            elif entry[3] > latest:
                held.append(entry)
            else:
                ready.append((self._remaining(entry[0]), *entry[1:]))
        return ready, held

    def _may_vanish(self, scope: Any) -> bool:
        if not isinstance(scope, Phase) or scope._end:
            return False
        if isinstance(scope, Step):
            return not scope._is_known
        if isinstance(scope, LoaderPassSpan):
            return scope not in self._passes
        return scope._name == _LOAD or bool(scope._attrs and _COMPILED in scope._attrs)

    def _remaining(self, scope: Any) -> Any:
        """Return the nearest scope, from this one outwards, that is certain to remain."""
        if scope._attrs and _COMPILED in scope._attrs:
            return scope  # only a short call can turn out not to be a phase
        while scope._depth and scope is not NO_SESSION and self._may_vanish(scope):
            scope = scope._above
        return scope
