"""The recent batches of a followed run, compared with a rule that looks at every rank each time."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from cirron_otel.core.run import recent_batches
from cirron_otel.core.run.recent_batches import RecentBatches

WINDOW = 5


def is_enough(batches: list[tuple[str, dict[int | None, int]]], ranks: set[int | None]) -> bool:
    """Whether these batches have two windows, in four batches, of each of the ranks."""
    steps: Counter[int | None] = Counter()
    count: Counter[int | None] = Counter()
    for _, batch in batches:
        steps.update(batch)
        count.update(batch.keys())
    return bool(ranks) and all(steps[r] >= 2 * WINDOW and count[r] >= 4 for r in ranks)


@pytest.mark.parametrize("seed", range(20))
def test_retained_batches_match_the_reference_rule(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recent_batches, "MAX_BATCHES", 20)
    chance = random.Random(seed)
    ranks = [None] if seed == 0 else list(range(chance.choice([1, 2, 5, 30])))
    recent = RecentBatches(WINDOW)
    kept: list[tuple[str, dict[int | None, int]]] = []
    for number in range(300):
        known = ranks if number < 200 else ranks[: len(ranks) // 2 + 1]
        some = chance.sample(known, chance.choice([0, 1, 1, len(known)]))
        steps: dict[int | None, int] = {rank: chance.randint(1, 6) for rank in some}
        recent.add(f"{number}", steps)
        kept.append((f"{number}", steps))
        while len(kept) > 1:
            present = {rank for _, batch in kept for rank in batch}
            is_full = len(kept) > max(20, 2 * len(present))
            if not is_enough(kept[1:], present) and not is_full:
                break
            del kept[0]
        assert recent.names() == {name for name, _ in kept}


def test_many_ranks_have_two_batches_each() -> None:
    count = recent_batches.MAX_BATCHES
    recent = RecentBatches(200)
    for number in range(5 * count):
        recent.add(f"{number}", {number % count: 9})
    assert recent.names() == {f"{number}" for number in range(3 * count, 5 * count)}
