"""What the flush thread does with what was recorded, beside `orjson.dumps` of the same records."""

from __future__ import annotations

import gc
import statistics
import tracemalloc
from collections.abc import Callable
from typing import Any

import orjson

from cirron_otel.sdk.flush.flush_result import FlushResult
from cirron_otel.sdk.flush.measures import Measures
from cirron_otel.sdk.tracing.buffers import EARLY_FLUSH
from cirron_otel.sdk.tracing.mark import mark
from cirron_otel.sdk.tracing.scope import Scope

from .by_hand import ByHand, marks_on_one, training
from .measure import Case, against, interleave

FLUSH_BAR = 4.0


def flush_side(scopes: int, blocks: int) -> None:
    """`collect` and `encode`, no file, and whether marks cost the same each.

    A flush's worth is what the flush thread is woken for; a backlog is what a thread leaves that
    records without a pause.
    """
    by_hand = ByHand()
    by_hand.flush()
    with Scope("epoch", index=0):  # in training one is open, and journalled, all the time
        by_hand.flush()
        _compared(by_hand, "a flush's worth", min(EARLY_FLUSH, scopes), 3 * blocks)
        _compared(by_hand, "a backlog", scopes, blocks)
    _marks(by_hand, scopes, blocks)
    _metrics(by_hand, min(EARLY_FLUSH, scopes), 3 * blocks)
    by_hand.close()


def _compared(by_hand: ByHand, what: str, scopes: int, blocks: int) -> None:
    print(f"flush side, no file: {what}, {scopes:,} scopes; medians of {blocks} blocks")
    training(scopes)
    texts = by_hand.flush()
    records: list[dict[str, Any]] = [orjson.loads(text) for text in texts]
    if [orjson.dumps(record) for record in records] != texts:
        raise AssertionError("orjson does not write the same text: no floor to stand on")
    flush = Case("collect + encode", lambda _: by_hand.flush(), lambda: training(scopes))

    def parse() -> None:  # as new as records are that have just been made
        records[:] = map(orjson.loads, texts)

    floor = Case("floor: orjson.dumps of the same", lambda _: [*map(orjson.dumps, records)], parse)
    interleave([flush, floor], scopes, blocks)
    spans = sum(len(record["spans"]) for record in records)
    marks = sum(len(record["marks"]) for record in records)
    size = sum(map(len, texts))
    for case in (floor, flush):
        print(f"  {case.name:<34}{case.us(scopes):8.2f} µs/scope", end="")
        print("" if case is floor else "  " + against(flush, floor, FLUSH_BAR))
    print(f"  {spans:,} spans, {marks:,} marks, {size / spans:.0f} B/span in {len(texts)} batches")


def _marks(by_hand: ByHand, scopes: int, blocks: int) -> None:
    many = scopes // 2
    few = many // 10
    ten = Case("many", lambda _: by_hand.flush(), lambda: marks_on_one(many))
    one = Case("few", lambda _: by_hand.flush(), lambda: marks_on_one(few))
    interleave([ten, one], 1, 3 * blocks)  # they are short
    print(
        f"  {many:,} marks on one span: {ten.us(many):.2f} µs/mark; {few:,}: {one.us(few):.2f};"
        f" ten times the marks take {ten.us(1) / one.us(1):.1f} x as long,"
        f" {ten.cpu_us(1) / one.cpu_us(1):.1f} x the CPU time"
    )


def _metrics(by_hand: ByHand, scopes: int, blocks: int) -> None:
    """What metrics take beside the records: of the flush thread, and nowhere else."""
    collector, found = by_hand.collector, FlushResult()

    def flushed() -> None:
        nonlocal found
        training(scopes)
        found = collector.collect()

    collector.retains_records = True
    shapes = {"explicit": Measures(), "exponential": Measures(is_exponential=True)}
    cases = [
        Case(name, lambda _, measures=measures: measures(found), flushed)  # type: ignore[misc]
        for name, measures in shapes.items()
    ]
    interleave(cases, scopes, blocks)
    collector.retains_records = False
    costs = ", ".join(f"{case.us(scopes):.2f} µs/scope with {case.name} buckets" for case in cases)
    print(f"  metrics, beside that: {costs}")


# --- memory ---------------------------------------------------------------------------------------


def _plain(number: int) -> None:
    for _ in range(number):
        with Scope("x"):
            pass


def _with_attribute(number: int) -> None:
    for _ in range(number):
        with Scope("x", lr=0.001):
            pass


def _marks_only(number: int) -> None:
    for _ in range(number):
        mark("loss", 0.5)


KEPT: dict[str, Callable[[int], None]] = {
    "scope": _plain,
    "scope with an attribute": _with_attribute,
    "mark": _marks_only,
}


def kept(work: Callable[[int], object], flush: Callable[[], object], number: int) -> float:
    """Bytes that one record keeps until it is flushed: the median of five."""
    found = []
    gc.collect()
    gc.freeze()  # a collection then passes only over what the records have made
    for _ in range(5):
        flush()
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        work(number)
        gc.collect()
        found.append((tracemalloc.get_traced_memory()[0] - before) / number)
        tracemalloc.stop()
    gc.unfreeze()
    return statistics.median(found)


def allocation(number: int) -> None:
    """Bytes a record keeps until it is flushed, and what a flush needs beside them at its peak."""
    by_hand = ByHand()
    print(f"memory of what waits for the flush, {number:,} records")
    for name, work in KEPT.items():
        print(f"  {name:<34}{kept(work, by_hand.flush, number):8.0f} B")
    by_hand.flush()
    _plain(number)
    gc.collect()
    tracemalloc.start()
    by_hand.flush()
    peak = tracemalloc.get_traced_memory()[1] / number
    tracemalloc.stop()
    print(f"  {'peak of a flush, beside them':<34}{peak:8.0f} B a scope")
    by_hand.close()
