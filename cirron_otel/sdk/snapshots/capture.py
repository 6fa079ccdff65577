"""One look at a model: what is measured of it, and the copies that go into its files.

It is taken on the thread that trains, for the weights change behind it; what it found is read and
written elsewhere. Nothing here draws a random number or changes a tensor.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ...core.spool.snapshot_files import can_store, copied
from . import batched
from .serial import Serial
from .statistics import Moments, kinds, moments_of, statistics
from .tensors import Subject, subjects_of

SMALL = 1 << 11
"""Elements up to which tensors in the host's memory are measured together."""
_ACCELERATORS = frozenset({"cuda"})
"""Kinds of device that are measured there. What another holds is copied, in portions."""


@dataclass(slots=True)
class Record:
    """What a snapshot record says of one tensor."""

    name: str
    is_gradient: bool
    shape: list[int]
    dtype: str
    stats: dict[str, Any] | None
    attrs: dict[str, Any]
    is_stored: bool
    """Whether the file of its kind holds it, if one is written."""


@dataclass(slots=True)
class Copies:
    """What goes into one file."""

    is_gradients: bool
    tensors: dict[str, Any]
    size: int
    """Bytes in memory."""


@dataclass(slots=True)
class _Result:
    """The rows of tensors that are measured on a device, on their way to the host."""

    numbers: list[int]
    rows: Any
    arrived: Any
    """A tensor in pinned memory that turns 1 behind the rows; None where they are here already.

    Looking at it asks nothing of CUDA: a query in another thread would break a graph capture.
    """

    @property
    def is_here(self) -> bool:
        return self.arrived is None or bool(self.arrived[0] == 1)


@dataclass(slots=True)
class Capture:
    """What was found. `records` may be asked for once `is_measured`."""

    subjects: list[Subject]
    copies: list[Copies] = field(default_factory=list)
    stored: set[str] = field(default_factory=set)
    """The names in `copies`; it stays when those are written and gone."""
    refused: int = 0
    """Files that were asked for and not copied: too much waits already."""
    _moments: dict[int, Moments] = field(default_factory=dict)
    _results: list[_Result] = field(default_factory=list)

    @property
    def is_measured(self) -> bool:
        """Whether the devices are done with it."""
        return all(result.is_here for result in self._results)

    @property
    def failures(self) -> list[Exception]:
        """What went wrong with tensors that have no statistics for it."""
        return [each.failure for each in self.subjects if each.failure is not None]

    def records(self) -> Iterator[Record]:
        """The records, in the model's order, weights first."""
        for result in self._results:
            for number, row in zip(result.numbers, result.rows.tolist(), strict=True):
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
    """Measure a model now, and copy it if `most_bytes` says how much may be copied.

    Weights and gradients are copied apart, as they go into files of their own: what does not fit
    any more is left out, and counted. Raises what torch raises where all of it fails; what one
    tensor fails at leaves that one without statistics.
    """
    torch = sys.modules["torch"]
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        raise RuntimeError("a CUDA graph is being captured: no snapshot is taken in it")
    with torch.no_grad():
        capture = Capture(subjects_of(model))
        _measure(torch, capture)
        if most_bytes is not None:
            _copy(capture, most_bytes)
    for subject in capture.subjects:
        subject.values = subject.whole = None
    return capture


def _measure(torch: Any, capture: Capture) -> None:
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
            capture._results.append(_measure_together(torch, capture, device, numbers))
        except Exception:
            for number in numbers:  # one of them is odd: it is to be alone in that
                if not _measure_alone(torch, capture, device, number):
                    serial = serial or Serial()
                    _measure_one(serial, capture, number)


def _measure_alone(torch: Any, capture: Capture, device: Any, number: int) -> bool:
    """Whether a tensor could be measured where it is: what is copied to the host is waited for."""
    try:
        capture._results.append(_measure_together(torch, capture, device, [number]))
    except Exception:
        return False
    return True


def _measure_one(serial: Serial, capture: Capture, number: int) -> None:
    subject = capture.subjects[number]
    try:
        capture._moments[number] = serial.measure(subject.values, subject.zeros)
    except Exception as error:
        subject.fail(error)


def _measure_together(torch: Any, capture: Capture, device: Any, numbers: list[int]) -> _Result:
    some = [capture.subjects[number] for number in numbers]
    limit = batched.ON_HOST if device.type == "cpu" else batched.ON_DEVICE
    rows = batched.measure([each.values for each in some], [each.zeros for each in some], limit)
    if device.type == "cpu":
        return _Result(numbers, rows, None)
    here = torch.empty(rows.shape, dtype=rows.dtype, device="cpu", pin_memory=True)
    arrived = torch.zeros(1, dtype=torch.int32, device="cpu", pin_memory=True)
    here.copy_(rows, non_blocking=True)
    arrived.copy_(torch.ones(1, dtype=torch.int32, device=device), non_blocking=True)
    return _Result(numbers, here, arrived)


def _copy(capture: Capture, most_bytes: int) -> None:
    for is_gradients in (False, True):
        wanted = []
        for subject in capture.subjects:
            if subject.is_gradient is not is_gradients:
                continue
            if subject.whole is not None and can_store(subject.name, subject.whole):
                wanted.append(subject)
            else:
                subject.attrs["not_stored"] = True
        size = sum(each.whole.numel() * each.whole.element_size() for each in wanted)
        if not wanted:
            continue
        if size > most_bytes:
            capture.refused += 1
            continue
        most_bytes -= size
        tensors = {each.name: copied(each.whole) for each in wanted}
        capture.stored.update(tensors)
        capture.copies.append(Copies(is_gradients, tensors, size))
