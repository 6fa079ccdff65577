"""The parts of some units by component."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from ...run.accounts import PHASES
from ...run.relations import ABSENT, Block, Texts
from .window import Clock

SCOPE: Final = "scope"
"""The component of scopes that are neither compute nor wait."""
_WAIT: Final = "wait"
"""The component of collectives."""
_OTHER_NAMES: Final = {"transfer": "h2d", "loss": "forward"}
_COMPONENTS: Final[Mapping[str, str]] = {
    name: _OTHER_NAMES.get(account, account) for name, account in PHASES.items()
}
"""The part of a step to which each phase belongs; the loss counts as forward."""
_COLLECTIVES: Final = (
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier", "all_to_all", "reduce",
    "gather", "scatter", "send", "recv", "collective",
)  # fmt: skip
"""The beginnings of the names of operations in which ranks wait, by the rules of TraceML's page."""
_TIMED: Final = ("h2d", "forward", "loss", "backward", "optimizer_step")
"""The phases that have a device time in a recording with one."""


class _Named(NamedTuple):
    """Parts with one name."""

    token: int
    component: str
    is_timed: bool
    of_unit: Any
    """The place of the unit of each part; a slice if each unit has one part."""
    ns: np.ndarray
    gpu: np.ndarray

    def times(self, clock: Clock) -> np.ndarray:
        """Return the times of the parts; on the device, only other scopes have the host's."""
        if clock == "host" or self.component == "input":
            return self.ns
        other = self.ns if self.component == SCOPE else 0
        return np.where(self.gpu == ABSENT, other, self.gpu)


class ComponentTimes:
    """The times of the components of some units."""

    def __init__(self, units: Block, parts: Block, texts: Texts) -> None:
        self._count = len(units["parts"])
        self._names = [
            _Named(token, _component(name), name in _TIMED, *columns)
            for token, *columns in _by_name(units["parts"], parts)
            for name in (texts.text(token) or "",)
        ]

    def timed(self) -> np.ndarray:
        """Return the device times of the phases that have one in a recording with device times."""
        return np.concatenate(
            [np.zeros(0, np.int64), *(each.gpu for each in self._names if each.is_timed)]
        )

    def total(self, component: str, clock: Clock) -> np.ndarray:
        """Return the time of a component in each unit, ns."""
        found = np.zeros(self._count)
        for each in self._names:
            if each.component == component:
                times = each.times(clock)
                found += (
                    times if isinstance(each.of_unit, slice)
                    else np.bincount(each.of_unit, weights=times, minlength=self._count)
                )  # fmt: skip
        return found

    def scopes(self) -> Iterator[tuple[int, Any, np.ndarray, np.ndarray]]:
        """Yield the name, the units, and the times on the host and the device of other scopes."""
        for each in self._names:
            if each.component == SCOPE:
                yield each.token, each.of_unit, each.ns, each.times("device")


def _by_name(counts: np.ndarray, parts: Block) -> Iterator[tuple[Any, ...]]:
    columns = name, ns, gpu = parts["name"], parts["ns"], parts["gpu_ns"]
    count = int(counts[0])
    if count and (counts == count).all():
        names, ns, gpu = (column.reshape(-1, count) for column in columns)
        if (names == names[0]).all():  # all units have the same parts
            for at, token in enumerate(names[0].tolist()):
                yield token, slice(None), ns[:, at], gpu[:, at]
            return
    of_unit = np.repeat(np.arange(len(counts)), counts)
    for token in np.unique(name).tolist():
        is_one = name == token
        yield token, of_unit[is_one], *(column[is_one] for column in columns[1:])


def _component(name: str) -> str:
    return _COMPONENTS.get(name) or (_WAIT if name.startswith(_COLLECTIVES) else SCOPE)
