"""Training loops as people write them, each with the tree that it must give, written by hand.

A loop is a function of the SDK module it is traced with (`cirron_otel`, or a neighbour with the
same names); most do not use it. It runs between `profile()` and `shutdown()`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Run = Callable[[Any], Any]


@dataclass(frozen=True)
class Loop:
    """One loop."""

    name: str
    run: Run
    """What it returns, if anything (losses, say), must be the same with and without tracing."""
    tree: str
    """The expected tree: `name`, `name[index]` or `name[first-last]` (as many siblings, each with
    what stands below), ` x3` behind it for three siblings that are alike, `!` for status ERROR,
    `{key}` or `{key=value}` for attributes that must be there. Two spaces a level, in order of
    start; where threads train side by side, those of the session's thread first. With several
    ranks: the tree of each. A name, index or status that is not expected is wrong, attributes that
    are not named are not compared."""
    ranks: int = 1
    """Processes that run it together (gloo on loopback)."""
    since: str = "2.6"
    """The first torch that has what it uses."""
    needs: tuple[str, ...] = ()
    """Modules beside torch that it imports."""
    slow: bool = False
    """Takes more than about ten seconds."""

    @property
    def title(self) -> str:
        """The first line of the function's documentation."""
        return (self.run.__doc__ or self.name).strip().splitlines()[0]

    @property
    def group(self) -> str:
        """The module that it stands in."""
        return self.run.__module__.rpartition(".")[2]


LOOPS: dict[str, Loop] = {}


def every() -> dict[str, Loop]:
    """All loops by their names, in the order of their modules' names and as they stand there."""
    for module in sorted(found.name for found in pkgutil.iter_modules(__path__)):
        importlib.import_module(f"{__name__}.{module}")
    return dict(sorted(LOOPS.items(), key=lambda item: item[1].group))


def loop(
    tree: str,
    *,
    ranks: int = 1,
    since: str = "2.6",
    needs: tuple[str, ...] = (),
    slow: bool = False,
) -> Callable[[Run], Run]:
    """Make a function one of the matrix's loops, with its expected tree."""

    def register(run: Run) -> Run:
        if run.__name__ in LOOPS:
            raise ValueError(f"two loops are called {run.__name__}")
        LOOPS[run.__name__] = Loop(run.__name__, run, tree, ranks, since, needs, slow)
        return run

    return register
