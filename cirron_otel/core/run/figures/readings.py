"""The readings of the sampler."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from ..relations import ABSENT, DOUBLE, INTEGER, Block, Texts, known
from ..utilization import Utilization
from .series import value_of

_MOST_ROWS: Final = 1000
_NAMES: Final = (
    "system.cpu.utilization", "process.cpu.utilization", "hw.gpu.utilization", "hw.temperature",
)  # fmt: skip


class ReadingsFold:
    """The marks of the sampler."""

    def __init__(self, texts: Texts, times: tuple[int, int] | None = None) -> None:
        """Only marks from the first to the last of `times` count, in Unix ns; None: all of them."""
        self._texts, self._times = texts, times
        self._values: dict[str, dict[tuple[int, int], list[float]]] = {}

    def add(self, block: Block) -> None:
        """Add marks, in any order."""
        is_due = block["ts_ns"] != ABSENT
        if self._times is not None:
            is_due &= (block["ts_ns"] >= self._times[0]) & (block["ts_ns"] <= self._times[1])
        for name in _NAMES:
            is_one = is_due & (block["name"] == self._texts.token(name)) & (block["on_scope"] == 1)
            places = np.flatnonzero(is_one)
            for place in places.tolist():
                number = self._number(int(block["type"][place]), int(block["value"][place]))
                key = int(block["rank"][place]), int(block["device"][place])
                numbers = self._values.setdefault(name, {}).setdefault(key, [])
                if number is not None:
                    numbers.append(number)

    def _number(self, kind: int, value: int) -> float | None:
        if kind == DOUBLE:
            number = float(np.int64(value).view(np.float64))
            return number if math.isfinite(number) else None
        if kind == INTEGER:
            return float(value)
        text = value_of(self._texts, kind, value)
        return finite_number(text) if text and text[0] in "0123456789-" else None

    def cpu(self) -> list[Utilization]:
        """Return the mean CPU utilisation of the host, or else of each process."""
        host = self._read("system.cpu.utilization", "host")
        return host or self._read("process.cpu.utilization", "process")

    def gpu(self) -> list[Utilization]:
        """Return the mean utilisation of each device."""
        return self._read("hw.gpu.utilization", "gpu")

    def temperature(self) -> list[Utilization]:
        """Return the highest temperature of each device, °C."""
        return self._read("hw.temperature", "gpu", is_highest=True)

    def _read(self, name: str, source: str, *, is_highest: bool = False) -> list[Utilization]:
        rows = []
        for (rank, device), numbers in self._values.get(name, {}).items():
            if numbers:
                value = max(numbers) if is_highest else math.fsum(numbers) / len(numbers)
                text = self._texts.text(device)
                rows.append((rank, text is not None, text or "", value))
        return [
            Utilization(known(rank), device or source, value)
            for rank, _, device, value in sorted(rows)[:_MOST_ROWS]
        ]


def finite_number(text: str | None) -> float | None:
    """Return the number in the text of a mark's value; None if it is not a finite number."""
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None
