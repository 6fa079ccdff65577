"""Numbers, ranks and units as text for sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from ...durations import duration
from ...nouns import plural
from ..figures.medians import median_of
from .finding import Finding

_MOST_RANKS: Final = 5
_MOST_INTERVALS: Final = 100
_MANY: Final = 6
_FAR: Final = 10
_KIB: Final = 1024
_MIB: Final = 1024**2
_GIB: Final = 1024**3


def percent(share: float | None) -> str:
    """Return a share as a percentage; one digit follows the point below 10 %."""
    if share is None:
        return "?"
    value = 100 * share
    return f"{value:.0f} %" if value >= 9.95 else f"{value:.1f} %"


def part_of(finding: Finding) -> str:
    """Return the price of a finding as a part of the time, as a phrase."""
    if finding.running_share is None or finding.running_share == finding.share:
        return f"{percent(finding.share)} of the time"
    return f"{percent(finding.running_share)} of the time after start-up"


def time(ns: float) -> str:
    """Return a time as text with a suitable unit."""
    return duration(round(ns))


def size(number: float) -> str:
    """Return a number of bytes as text."""
    if number >= 10 * _GIB:
        return f"{number / _GIB:,.1f} GiB"
    return f"{number / _MIB:,.0f} MiB" if number >= _MIB else f"{number / _KIB:,.0f} KiB"


def known_ranks(ranks: Iterable[int | None]) -> list[int | None]:
    """Return the different ranks that are known, in order."""
    return [*sorted({each for each in ranks if each is not None})]


def ranks_text(ranks: Sequence[int | None], *, begins: bool = True) -> str:
    """Return ranks as the subject of a sentence: `Rank 1`, `Ranks 1, 2 and 3`, `The process`."""
    names = [each for each in ranks if each is not None]
    if not names:
        text = "the process"
    elif len(names) == 1:
        text = f"rank {names[0]}"
    elif len(names) > _MOST_RANKS:
        text = (
            f"ranks {', '.join(map(str, names[:_MOST_RANKS]))} and {len(names) - _MOST_RANKS} more"
        )
    else:
        text = f"ranks {listed(list(map(str, names)))}"
    return text[0].upper() + text[1:] if begins else text


def listed(names: Sequence[str]) -> str:
    """Return names as text: `a`, `a and b`, `a, b and c`."""
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def hosts_of(ranks: Iterable[int | None], hosts: Mapping[int | None, str]) -> list[str]:
    """Return the different hosts of ranks, in order; `hosts` has those that are known."""
    return sorted({hosts[rank] for rank in ranks if rank in hosts})


def intervals(numbers: Iterable[int], size: int = 1) -> list[tuple[int, int]]:
    """Return the first 100 intervals of consecutive numbers, each of which is `size` units."""
    ordered = np.unique(np.asarray(list(numbers), np.int64))
    if not len(ordered):
        return []
    breaks = np.flatnonzero(np.diff(ordered) > size)
    firsts = ordered[np.r_[0, breaks + 1]]
    lasts = ordered[np.r_[breaks, len(ordered) - 1]] + size - 1
    pairs = zip(firsts.tolist(), lasts.tolist(), strict=True)
    return list(pairs)[:_MOST_INTERVALS]


def units_text(steps: Sequence[tuple[int, int]], unit: str) -> str:
    """Return intervals of units as text: `step 70`, `steps 100 to 129`, `steps 3, 7 and 9`."""
    if not steps:
        return f"all {plural(unit)}"
    parts = [str(a) if a == b else f"{a} to {b}" for a, b in steps]
    if len(parts) == 1:
        return f"{unit if steps[0][0] == steps[0][1] else plural(unit)} {parts[0]}"
    if len(parts) > _MOST_RANKS:
        return f"{plural(unit)} {', '.join(parts[:3])} and {len(parts) - 3} more"
    return f"{plural(unit)} {listed(parts)}"


def period_of(numbers: Sequence[int] | np.ndarray) -> int | None:
    """Return the distance of numbers if all distances agree to 1, and there are three or more.

    Of six numbers or more, one may be at another place: in that unit, the machine had other work.
    """
    places = np.unique(np.asarray(numbers, np.int64))
    period, odd = _period(places)
    if period is not None or len(places) < _MANY or odd is None:
        return period
    return _period(np.delete(places, odd))[0] or _period(np.delete(places, odd + 1))[0]


def _period(places: np.ndarray) -> tuple[int | None, int | None]:
    """Return the distance of places, or else the number of the first other distance."""
    distances = np.diff(places)
    if len(distances) < 2:
        return None, None
    middle = int(median_of(distances))
    # Two distances of a few units agree to 1 by chance.
    slack = 1 if len(distances) > 2 or middle >= _FAR else 0
    odd = np.flatnonzero(abs(distances - middle) > slack)
    if len(odd):
        return None, int(odd[0])
    return (middle if middle > 1 else None), None
