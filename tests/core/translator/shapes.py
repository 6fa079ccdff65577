"""Random batches of the shapes that people write, without the cost of Hypothesis.

Generators of Hypothesis take longer than the code under test. These take a seed, so that a failing
batch can be made again.
"""

from __future__ import annotations

from random import Random
from typing import Any

from cirron_otel.core.translator.own.spans import overhead_mark
from tests.kit.generators.strategies import LOWER, SESSION_ID

_NAMES = (
    "step",
    "forward",
    "backward",
    "data_load",
    "épreuve 中",
    'a"b\\c\n',
    "x" * 130,
    "",
    "cirron",
)
_KEYS = (
    "step", "mode", "lr", "schlüssel", "a b", "k" * 140, "", "cirron.index", "thread.id",
    "cirron.attr.x", "process.pid", "cirron.mark.id", "cirron.snapshot.id", "cirron.rest", 'q"\\',
)  # fmt: skip
_TEXTS = (
    "train",
    "",
    "é中😀",
    "x" * 126,
    "x" * 127,
    "x" * 300,
    '"\\\n\0',
    "1",
    "null",
    "a,b",
    "[1]",
)
_INTS = (0, 1, 127, 128, 129, 16383, 16384, 2**31, 2**63 - 1, -1, -(2**63), 2**63, 2**70)
_FLOATS = (0.0, -0.0, 1.0, 0.5, 1e-5, 1e16, 1e22, 5e-324, 1.7976931348623157e308, 0.1, -2.5)


class Shapes:
    """Makes batches of a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self._is_own = random.random() < 0.3
        self._is_native = random.random() < 0.6
        self._oddity = random.choice((0.0, 0.0, 0.02, 0.3))
        """How often something is as few write it."""
        self._is_ordered = random.random() < 0.7
        self._number = 0
        self._now = 1_795_197_734_691_234_492
        self.spans: list[dict[str, Any]] = []
        self.marks: list[dict[str, Any]] = []
        self.snapshots: list[dict[str, Any]] = []

    def batch(self) -> dict[str, Any]:
        """A batch."""
        random = self.random
        epoch = self._id()
        for index in range(random.randint(1, 6)):
            step = self._id()
            for _ in range(random.randint(0, 3)):
                self._span(step, None)
            self._span(epoch, index, step)
        for _ in range(random.choice((0, 0, 1, 3))):
            self._mark(random.choice((epoch, "root", self._id())))
        batch: dict[str, Any] = {
            "schema_version": 1, "sdk_version": "0.3.0", "batch_id": "c" * 32, "created_ns": 7,
            "spans": self.spans, "marks": self.marks, "snapshots": self.snapshots,
        }  # fmt: skip
        if self._is_own:
            batch["otel"] = {"session": SESSION_ID}
            if random.random() < 0.7:
                batch["otel"]["trace_id"] = SESSION_ID
        return batch

    def _is_odd(self) -> bool:
        return self.random.random() < self._oddity

    def _id(self) -> str:
        random = self.random
        self._number += 1
        upper = f"{random.getrandbits(48):012x}{self._number:04x}"
        if self._is_odd():
            return random.choice(
                ("A" * 32, "x", f"{'0' * 16}{upper}", f"{upper} {upper}"[:32], upper * 2)
            )
        return upper + (LOWER if self._is_native else f"{random.getrandbits(64):016x}")

    def _time(self) -> int:
        random = self.random
        if self._is_odd():
            return random.choice((0, 1, 2**63, 2**64 - 1, 2**64, -1))
        self._now += (
            random.choice((1, 1000, 1_000_000)) if self._is_ordered else random.randint(0, 2)
        )
        return self._now

    def _span(self, parent: str | None, index: int | None, own: str | None = None) -> None:
        random = self.random
        own = own or self._id()
        if self._is_odd():
            parent = random.choice((None, "", "root", "b" * 32))
        start = self._time()
        riders = random.choice((0, 0, 0, 1, 1, 2, 4))
        mark_ids = [self._mark(own) for _ in range(riders)]
        for _ in range(random.choice((0, 0, 0, 0, 1, 2))):
            self._snapshot(own)
        end = self._time()
        if self._is_own and random.random() < 0.7:
            mark = overhead_mark(own, end, random.choice((*_INTS[:8], 12_345)))
            self.marks.append(mark)
            mark_ids.append(mark["id"])
        if self._is_odd():
            random.shuffle(mark_ids)
            mark_ids = mark_ids[: random.randint(0, 3)]
        span = {
            "id": own, "name": self._pick(_NAMES), "parent_id": parent, "index": index,
            "start_ns": start, "end_ns": end, "cpu_ns": self._cost(), "gpu_ns": None,
            "memory_peak_bytes": self._cost(), "thread_id": random.choice((1, 140429488208768)),
            "pid": random.choice((1, 1, 1, 2)), "rank": random.choice((0, 0, 0, 1)),
            "attrs": self._attrs(), "mark_ids": mark_ids,
        }  # fmt: skip
        if self._is_own and random.random() < 0.2:
            span["otel"] = random.choice(
                (
                    {"trace_id": f"{0xE1:016x}{LOWER}"},
                    {"kind": 3},
                    {"status": {"code": 2, "message": "out of memory"}},
                    {"events": [{"name": "exception", "time_ns": 3, "attributes": {"k": 1}}]},
                    {"flags": 257, "links": [{"trace_id": "ab" * 16, "span_id": "cd" * 8}]},
                )
            )
        self.spans.append(span)

    def _pick(self, values: tuple[Any, ...]) -> Any:
        """One of the first four, mostly."""
        return self.random.choice(values if self._is_odd() or self._oddity > 0.1 else values[:4])

    def _cost(self) -> int | None:
        return self.random.choice((None, None, None, *_INTS[:8]))

    def _attrs(self) -> dict[str, Any]:
        count = self.random.choice((0, 0, 1, 1, 2, 3))
        return {self._pick(_KEYS): self._attribute() for _ in range(count)}

    def _attribute(self, depth: int = 0) -> Any:
        random = self.random
        which = random.randint(0, 9)
        if which == 0 and depth < 3:
            return [self._attribute(depth + 1) for _ in range(random.randint(0, 3))]
        if which == 1 and depth < 3:
            return {
                self._pick(_KEYS): self._attribute(depth + 1) for _ in range(random.randint(0, 2))
            }
        return self._value(random.choice(("int", "int", "float", "string", "bool", "null")))

    def _value(self, kind: str) -> Any:
        random = self.random
        if kind == "int":
            odd = random.choice(_INTS if self._is_odd() else _INTS[:9])
            return random.choice((random.randint(0, 20_000), odd))
        if kind == "float":
            return random.choice((random.random(), random.choice(_FLOATS)))
        if kind == "string":
            return random.choice((f"text {random.randint(0, 99)}", random.choice(_TEXTS)))
        return random.random() < 0.5 if kind == "bool" else None

    def _mark(self, span_id: str) -> str:
        random = self.random
        own, kind = self._id(), random.choice(("float", "float", "int", "string", "bool"))
        mark = {
            "id": own, "span_id": span_id, "name": self._pick(_NAMES), "value_type": kind,
            "value": self._value(kind), "attrs": self._attrs(), "ts_ns": self._time(),
            "kind": random.choice(("point", "point", "summary")),
        }  # fmt: skip
        if random.random() < 0.1:
            mark |= {"value_type": "float", "value": None}
            mark["value_nonfinite"] = random.choice(("nan", "inf", "-inf"))
        if self._is_odd():
            mark |= random.choice(
                ({"value_type": "odd"}, {"kind": "odd"}, {"kind": ""}, {"value": 1})
            )
        self.marks.append(mark)
        return own

    def _snapshot(self, span_id: str) -> None:
        random = self.random
        stats: dict[str, Any] = {
            name: self._value("float")
            for name in ("mean", "std", "min", "max", "norm")
            if random.random() < 0.9
        }
        if random.random() < 0.8:
            bins = [self._value("float") for _ in range(random.choice((0, 2, 17)))]
            counts = [random.randint(0, 5000) for _ in range(random.choice((0, 1, 16)))]
            stats["histogram"] = {"bins": bins, "counts": counts}
        if self._is_odd():
            stats[random.choice(("mean", "more"))] = random.choice((1, "nan", None, [1.5]))
        self.snapshots.append(
            {
                "id": self._id(), "span_id": span_id, "tensor_name": self._pick(_NAMES),
                "shape": [random.randint(0, 200) for _ in range(random.randint(0, 3))],
                "dtype": "float32", "mode": random.choice(("stats", "full")),
                "stats": random.choice((stats, stats, None)),
                "blob_uri": random.choice((None, "file:///a/é.safetensors")),
                "ts_ns": self._time(), "attrs": self._attrs(),
            }
        )  # fmt: skip


def mutated(data: bytes, random: Random) -> bytes:
    """`data` with one byte more, less, or another."""
    at = random.randrange(len(data))
    how = random.randint(0, 4)
    if how == 0:
        return data[:at] + data[at + 1 :]
    if how == 1:
        return data[:at] + bytes((random.randrange(256),)) + data[at:]
    if how == 2:
        return data[:at] + bytes((data[at] ^ 1 << random.randrange(8),)) + data[at + 1 :]
    return (
        data[:at]
        + bytes((random.choice((0, 1, 127, 128, 255, random.randrange(256))),))
        + data[at + 1 :]
    )
