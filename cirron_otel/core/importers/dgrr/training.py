"""The page's model and its training, in doubles and without fused operations.

Each arithmetic operation is rounded on its own. docs/dgrr.md specifies the data.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from .layout import TraceRecord, record_bytes

_MASK: Final = 2**64 - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15
SLOPE, INTERCEPT, NOISE = 2.0, 1.0, 0.1
"""The data: y = SLOPE · x + INTERCEPT, and noise between −NOISE and NOISE."""


class SplitMix64:
    """The generator SplitMix64, which a seed of 64 bits determines."""

    def __init__(self, seed: int) -> None:
        self._state = seed

    def next_u64(self) -> int:
        """Return the next 64 bits."""
        self._state = (self._state + _GOLDEN) & _MASK
        mixed = self._state
        mixed = ((mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & _MASK
        return mixed ^ mixed >> 31

    def next_symmetric(self) -> float:
        """Return a double from −1 up to 1, 1 excluded: a multiple of 2⁻⁵²."""
        return (self.next_u64() >> 11) * 2.0**-53 * 2.0 - 1.0


class KahanSum:
    """A compensated sum of doubles."""

    def __init__(self) -> None:
        self.total = 0.0
        self._lost = 0.0

    def add(self, number: float) -> None:
        """Add a number."""
        corrected = number - self._lost
        total = self.total + corrected
        self._lost = (total - self.total) - corrected
        self.total = total


def samples(seed: int) -> Iterator[tuple[float, float]]:
    """Yield the inputs x and the expected outputs y, without end."""
    generator = SplitMix64(seed)
    while True:
        x = generator.next_symmetric()
        noise = NOISE * generator.next_symmetric()
        yield x, (SLOPE * x + INTERCEPT) + noise


def gradients(x: float, y: float, w: float, b: float) -> tuple[float, float, float]:
    """Return the gradients of the weight and of the bias, and the loss."""
    error = (w * x + b) - y
    doubled = 2.0 * error
    return doubled * x, doubled, error * error


def updated(parameter: float, gradient: float, learning_rate: float) -> float:
    """Return a parameter after a step: a product and a difference, each rounded."""
    return parameter - learning_rate * gradient


class Training:
    """A training from w = b = 0: its records, and its mean loss."""

    def __init__(self, seed: int, learning_rate: float) -> None:
        """The seed has 64 bits, unsigned."""
        self._samples = samples(seed)
        self._learning_rate = learning_rate
        self._step = 0
        self._losses = KahanSum()
        self.w = self.b = 0.0

    @property
    def mean_loss(self) -> float | None:
        """The mean of the losses; None before the first step."""
        return self._losses.total / self._step if self._step else None

    def step(self) -> bytes:
        """Train one step, and return its record."""
        x, y = next(self._samples)
        w, b = self.w, self.b
        grad_w, grad_b, loss = gradients(x, y, w, b)
        self.w = updated(w, grad_w, self._learning_rate)
        self.b = updated(b, grad_b, self._learning_rate)
        data = record_bytes(self._step, (w, b), (grad_w, grad_b), (self.w, self.b), loss)
        self._losses.add(loss)
        self._step += 1
        return data


def replayed(record: TraceRecord, learning_rate: float) -> tuple[float, float]:
    """Return `w_after` and `b_after`, computed again from the record's other fields."""
    return (
        updated(record.w_before, record.grad_w, learning_rate),
        updated(record.b_before, record.grad_b, learning_rate),
    )
