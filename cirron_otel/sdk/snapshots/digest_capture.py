"""Digest the tensors of one quantity now; the result is read later (docs/digests.md).

A capture is taken on the training thread, because the tensors change afterwards. It draws no random
number, waits for no device, and keeps and changes no tensor.
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from ...core.records.digest_marks import DIGEST_BYTES, NUMBERS, number_size, positions
from ...core.spool.snapshot_files import can_store, copied
from ..tracing.device_scalar import await_arrival
from .arrival import Arrival
from .digest_parts import Subject, dtype_of, subject_of
from .digest_sums import Part, Summing
from .digest_weights import to_device

_ACCELERATORS = frozenset({"cpu", "cuda"})
"""Device types on which tensors are digested; other devices' tensors are copied to the host."""
_MASK = (1 << 64) - 1
_TEXT = 200


class Digester:
    """Digests tensors on the calling thread; it reuses the plans and weights of each device."""

    def __init__(self) -> None:
        self._summing: dict[Any, Summing] = {}

    def capture(
        self, named: Iterable[tuple[str, Any]], *, has_numbers: bool, room: int | None = None
    ) -> DigestCapture:
        """Digest tensors; with `has_numbers`, also read four numbers of each of them.

        With `room`, also copy the tensors to host memory, if they have at most that many bytes.
        A tensor that fails is left out.
        """
        torch = sys.modules["torch"]
        with torch.no_grad():
            capture = DigestCapture()
            subjects = _subjects(capture, named)
            if room is not None:
                capture.copy(subjects, room)
            by_device: dict[Any, list[tuple[int, list[Part]]]] = {}
            for number, subject in enumerate(subjects):
                parts = [Part(each) for each in subject.parts.values()]
                device = parts[0].tensor.device if parts else torch.device("cpu")
                by_device.setdefault(device, []).append((number, parts))
            for device, entries in by_device.items():
                self._sum_up(capture, device, entries)
            if has_numbers:
                _add_numbers(capture, subjects)
        return capture

    def _sum_up(
        self, capture: DigestCapture, device: Any, entries: list[tuple[int, list[Part]]]
    ) -> None:
        summing = self._summing.get(device)
        if summing is None:
            summing = self._summing[device] = Summing(device)
        sums = summing.sums([parts for _, parts in entries])
        capture.sums.append(([number for number, _ in entries], Arrival(sums)))


class DigestCapture:
    """The digests of a quantity's tensors, which may still be on their way from a device."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.descriptions: list[str] = []
        self.dtypes: list[str] = []
        self.shapes: list[list[int]] = []
        self.is_sharded = False
        """Whether one of the tensors is this process's part of a sharded one."""
        self.failed: list[str] = []
        """The tensors that could not be read, and why."""
        self.sums: list[tuple[list[int], Arrival]] = []
        self.numbers: list[tuple[list[int], int, Arrival]] = []
        """For each group of tensors: their places, the bytes of a number, and the numbers."""
        self.copies: dict[str, Any] | None = None
        """Copies of the parts in host memory, if they were requested."""
        self.copied_bytes = 0
        self.not_copied: str | None = None
        """The reason why requested copies were not made."""

    def add(self, subject: Subject) -> None:
        """Add a tensor."""
        self.names.append(subject.name)
        self.descriptions.append(subject.description)
        self.dtypes.append(subject.dtype)
        self.shapes.append(subject.shape)
        self.is_sharded = self.is_sharded or subject.is_shard

    @property
    def is_one_number(self) -> bool:
        """Whether there is one tensor, dense and real, with one element that has been read."""
        if len(self.names) != 1 or not self.numbers or math.prod(self.shapes[0]) != 1:
            return False
        dtype, *more = self.descriptions[0].split(" ")
        return dtype == self.dtypes[0] and len(more) == 1

    def without_tensors(self) -> DigestCapture:
        """Return a capture of no tensor, with the same failures."""
        capture = DigestCapture()
        capture.failed = list(self.failed)
        return capture

    def fail(self, name: str, error: Exception) -> None:
        """Record that a tensor is left out."""
        self.failed.append(f"{name}: {type(error).__name__}: {error}"[:_TEXT])

    def copy(self, subjects: list[Subject], room: int) -> None:
        """Copy the parts; copies from a device wait for it."""
        torch = sys.modules["torch"]
        parts: dict[str, Any] = {}
        for subject in subjects:
            for key, part in subject.parts.items():
                name = f"{subject.name}#{key}" if key else subject.name
                if not can_store(name, part):
                    part = part.contiguous().view(-1).view(torch.uint8)  # noqa: PLW2901
                parts[name] = part
        size = sum(part.numel() * part.element_size() for part in parts.values())
        if size > room:
            self.not_copied = f"{size} bytes, and {room} more may wait for the disk"
            return
        self.copies = {name: copied(part) for name, part in parts.items()}
        self.copied_bytes = size

    def wait(self) -> None:
        """Wait until everything has arrived. Raises TimeoutError if it does not."""
        for arrival in [*(each[1] for each in self.sums), *(each[2] for each in self.numbers)]:
            await_arrival(lambda arrival=arrival: arrival.is_here)  # type: ignore[misc]

    def digests(self) -> list[bytes]:
        """Return the digests of the tensors; call `wait` first."""
        digests = [b""] * len(self.names)
        for places, arrival in self.sums:
            for place, sums in zip(places, arrival.values.tolist(), strict=True):
                seeds = _seeds(self.descriptions[place])
                digests[place] = b"".join(
                    [
                        (seed + total & _MASK).to_bytes(8, "little")
                        for seed, total in zip(seeds, sums, strict=True)
                    ]
                )
        return digests

    def records(self, digests: list[bytes]) -> list[bytes]:
        """Return the digests with the bits of four numbers; call `wait` first."""
        empty = [bytes(NUMBERS * (number_size(dtype) or 0)) for dtype in self.dtypes]
        records = [digest + numbers for digest, numbers in zip(digests, empty, strict=True)]
        for places, size, arrival in self.numbers:
            data = _bytes_of(arrival)
            for at, place in enumerate(places):
                start = at * NUMBERS * size
                records[place] = digests[place] + data[start : start + NUMBERS * size]
        return records


def _bytes_of(arrival: Arrival) -> bytes:
    torch = sys.modules["torch"]
    return bytes(arrival.values.view(-1).view(torch.uint8).tolist())


def _subjects(capture: DigestCapture, named: Iterable[tuple[str, Any]]) -> list[Subject]:
    subjects: list[Subject] = []
    entries = iter(named)
    while True:
        name = "tensors"
        try:
            name, tensor = next(entries)
            subject = subject_of(name, tensor)
            _bring_together(subject)
        except StopIteration:
            return subjects
        except Exception as error:
            capture.fail(name, error)
            continue
        subjects.append(subject)
        capture.add(subject)


def _bring_together(subject: Subject) -> None:
    """Move the parts of a tensor to one device."""
    devices = {part.device for part in subject.parts.values()}
    if all(each.type == "cpu" for each in devices):
        return
    target = next(each for each in devices if each.type != "cpu")
    for key, part in subject.parts.items():
        if target.type not in _ACCELERATORS:
            subject.parts[key] = part.cpu()
        elif part.device != target:
            subject.parts[key] = to_device(part, target)


def _add_numbers(capture: DigestCapture, subjects: list[Subject]) -> None:
    """Read four numbers of each tensor, those of a device and size together."""
    torch = sys.modules["torch"]
    groups: dict[tuple[Any, int], tuple[list[int], list[Any]]] = {}
    for place, subject in enumerate(subjects):
        numbers = subject.numbers
        if numbers is None or not numbers.numel() or number_size(dtype_of(numbers)) is None:
            continue
        places, views = groups.setdefault((numbers.device, numbers.element_size()), ([], []))
        places.append(place)
        views.append(_four(torch, numbers))
    for (_, size), (places, views) in groups.items():
        capture.numbers.append((places, size, Arrival(torch.cat(views))))


def _four(torch: Any, numbers: Any) -> Any:
    """Return four numbers as integers of the same size: a view, if their places allow it."""
    integers = (torch.int8, torch.int16, torch.int32, torch.int64)
    kind = integers[numbers.element_size().bit_length() - 1]
    numbers = numbers.view(kind)
    count = numbers.numel()
    places = positions(count)
    if numbers.is_contiguous() and (count == 1 or count >= NUMBERS):
        apart = places[1] - places[0]
        return numbers.as_strided((NUMBERS,), (apart,), numbers.storage_offset())
    return torch.stack([numbers[_index(numbers.shape, place)] for place in places])


def _index(shape: Any, place: int) -> tuple[int, ...]:
    index = []
    for size in reversed(shape):
        place, at = divmod(place, size)
        index.append(at)
    return tuple(reversed(index))


@lru_cache(1 << 14)
def _seeds(description: str) -> tuple[int, int]:
    data = hashlib.sha256(description.encode()).digest()[:DIGEST_BYTES]
    return int.from_bytes(data[:8], "little"), int.from_bytes(data[8:], "little")
