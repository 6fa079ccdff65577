"""Capture a model: measure its tensors, and copy those that are written to files.

A capture is taken on the training thread, because the weights change afterwards; its result is read
and written by other threads. It draws no random numbers and changes no tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ...core.spool.snapshot_files import can_store, copied
from . import batched
from .arrival import Arrival
from .serial import Serial
from .statistics import Moments, kinds, moments_of, statistics
from .tensors import Subject, subjects_of

SMALL = 1 << 11
"""Maximum elements of a tensor in host memory that is measured together with others."""
_ACCELERATORS = frozenset({"cuda"})
"""Device types on which tensors are measured; other devices' tensors are copied to the host."""


@dataclass(slots=True)
class Record:
    """The content of one tensor's snapshot record."""

    name: str
    is_gradient: bool
    shape: list[int]
    dtype: str
    stats: dict[str, Any] | None
    attrs: dict[str, Any]
    is_stored: bool
    """Whether the file of weights or gradients contains the tensor, if one is written."""


@dataclass(slots=True)
class Copies:
    """The tensors of one file."""

    is_gradients: bool
    tensors: dict[str, Any]
    size: int
    """Size in memory, bytes."""


@dataclass(slots=True)
class _Result:
    """The rows of tensors measured on a device, while they are being copied to the host."""

    numbers: list[int]
    rows: Arrival


@dataclass(slots=True)
class Capture:
    """The result of a capture. Call `records` only once `is_measured` is true."""

    subjects: list[Subject]
    copies: list[Copies] = field(default_factory=list)
    stored: set[str] = field(default_factory=set)
    """The names of the tensors in `copies`, retained after the copies have been written."""
    refused: int = 0
    """Number of requested files that were not copied because too much data waits for the disk."""
    _moments: dict[int, Moments] = field(default_factory=dict)
    _results: list[_Result] = field(default_factory=list)

    @property
    def is_measured(self) -> bool:
        """Whether the devices have finished."""
        return all(result.rows.is_here for result in self._results)

    @property
    def failures(self) -> list[Exception]:
        """The errors that left tensors without statistics."""
        return [each.failure for each in self.subjects if each.failure is not None]

    def records(self) -> Iterator[Record]:
        """Yield the records in the model's order, weights first."""
        for result in self._results:
            for number, row in zip(result.numbers, result.rows.values.tolist(), strict=True):
                measured = self._moments[number] = moments_of(row)
                measured.add_zeros(self.subjects[number].zeros)
        self._results.clear()
        for number, subject in enumerate(self.subjects):
            moments = self._moments.get(number)
            stats = None if moments is None else statistics(moments)
            attrs = subject.attrs if moments is None else subject.attrs | kinds(moments)
            yield Record(
                subject.name, subject.is_gradient, subject.shape, subject.dtype, stats, attrs,
                subject.name in self.stored,
            )  # fmt: skip


def take(model: Any, most_bytes: int | None = None) -> Capture:
    """Measure a model now, and copy up to `most_bytes` bytes of it (None: copy nothing).

    Weights and gradients are copied separately because they have separate files; a file that does
    not fit is omitted and counted. Raises torch's error if everything fails; a failure of one
    tensor only leaves that tensor without statistics.
    """
    torch = sys.modules["torch"]
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("a CUDA graph is being captured: no snapshot is taken")
    with torch.no_grad():
        capture = Capture(subjects_of(model))
        _measure(capture)
        if most_bytes is not None:
            _copy(capture, most_bytes)
    for subject in capture.subjects:
        subject.values = subject.whole = None
    return capture


def _measure(capture: Capture) -> None:
    together: dict[Any, list[int]] = {}
    serial: Serial | None = None
    for number, subject in enumerate(capture.subjects):
        values = subject.values
        if values is None:
            continue
        device, size = values.device, values.numel()
        if size and (device.type in _ACCELERATORS or (device.type == "cpu" and size <= SMALL)):
            together.setdefault(device, []).append(number)
            continue
        serial = serial or Serial()
        _measure_one(serial, capture, number)
    for device, numbers in together.items():
        try:
            capture._results.append(_measure_together(capture, device, numbers))
        except Exception:
            for number in numbers:  # at least one of them fails, which must not affect the others
                if not _measure_alone(capture, device, number):
                    serial = serial or Serial()
                    _measure_one(serial, capture, number)


def _measure_alone(capture: Capture, device: Any, number: int) -> bool:
    """Try to measure a tensor on its device, since a copy to the host would block."""
    try:
        capture._results.append(_measure_together(capture, device, [number]))
    except Exception:
        return False
    return True


def _measure_one(serial: Serial, capture: Capture, number: int) -> None:
    subject = capture.subjects[number]
    try:
        capture._moments[number] = serial.measure(subject.values, subject.zeros)
    except Exception as error:
        subject.fail(error)


def _measure_together(capture: Capture, device: Any, numbers: list[int]) -> _Result:
    subjects = [capture.subjects[number] for number in numbers]
    limit = batched.ON_HOST if device.type == "cpu" else batched.ON_DEVICE
    rows = batched.measure(
        [each.values for each in subjects], [each.zeros for each in subjects], limit
    )
    return _Result(numbers, Arrival(rows))


def _copy(capture: Capture, most_bytes: int) -> None:
    for is_gradients in (False, True):
        subjects = []
        for subject in capture.subjects:
            if subject.is_gradient is not is_gradients:
                continue
            if subject.whole is not None and can_store(subject.name, subject.whole):
                subjects.append(subject)
            else:
                subject.attrs["not_stored"] = True
        size = sum(each.whole.numel() * each.whole.element_size() for each in subjects)
        if not subjects:
            continue
        if size > most_bytes:
            capture.refused += 1
            continue
        most_bytes -= size
        tensors = {each.name: copied(each.whole) for each in subjects}
        capture.stored.update(tensors)
        capture.copies.append(Copies(is_gradients, tensors, size))
