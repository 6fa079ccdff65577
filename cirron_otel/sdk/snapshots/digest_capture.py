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

from ...core.records.digest_marks import DIGEST_BYTES, NUMBERS, number_size
from ...core.spool.snapshot_files import can_store, copied
from ..tracing.device_scalar import await_arrival
from .digest_parts import Subject, TensorFacts, plain_input, subject_of
from .digest_plan import PlanKey
from .digest_sums import PendingSums, Summing
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
            by_device = _inputs(torch, capture, named, has_numbers, is_copied=room is not None)
            if room is not None:
                capture.copy(room)
            for device, inputs in by_device.items():
                summing = self._summing.get(device)
                if summing is None:
                    summing = self._summing[device] = Summing(device)
                sums = summing.sums(inputs.keys, inputs.sources)
                capture.sums.append((inputs.places, sums))
        return capture


class _Inputs:
    """The tensors on one device."""

    def __init__(self) -> None:
        self.places: list[int] = []
        """Their places among all tensors."""
        self.keys: list[PlanKey] = []
        self.sources: list[Any] = []


class DigestCapture:
    """The digests of a quantity's tensors, which may still be on their way from a device."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.facts: list[TensorFacts] = []
        self.failed: list[str] = []
        """The tensors that could not be read, and why."""
        self.sums: list[tuple[list[int], PendingSums]] = []
        """For the tensors of each device: their places, and their sums and numbers."""
        self.subjects: list[Subject] = []
        """The tensors to copy."""
        self.copies: dict[str, Any] | None = None
        """Copies of the parts in host memory, if they were requested."""
        self.copied_bytes = 0
        self.not_copied: str | None = None
        """The reason why requested copies were not made."""

    @property
    def dtypes(self) -> list[str]:
        """The dtype of each tensor's numbers."""
        return [each.dtype for each in self.facts]

    @property
    def shapes(self) -> list[list[int]]:
        """The shape of each tensor."""
        return [each.shape for each in self.facts]

    @property
    def descriptions(self) -> list[str]:
        """The description of each tensor."""
        return [each.description for each in self.facts]

    @property
    def is_sharded(self) -> bool:
        """Whether one of the tensors is this process's part of a sharded one."""
        return any(each.is_shard for each in self.facts)

    @property
    def is_one_number(self) -> bool:
        """Whether there is one tensor, dense and real, with one element that has been read."""
        if len(self.facts) != 1 or math.prod(self.facts[0].shape) != 1:
            return False
        ((_, sums),) = self.sums
        dtype, *more = self.facts[0].description.split(" ")
        return bool(sums.numbers[0].starts) and dtype == self.facts[0].dtype and len(more) == 1

    def without_tensors(self) -> DigestCapture:
        """Return a capture of no tensor, with the same failures."""
        capture = DigestCapture()
        capture.failed = list(self.failed)
        return capture

    def fail(self, name: str, error: Exception) -> None:
        """Record that a tensor is left out."""
        self.failed.append(f"{name}: {type(error).__name__}: {error}"[:_TEXT])

    def copy(self, room: int) -> None:
        """Copy the parts of `subjects`; copies from a device wait for it."""
        torch = sys.modules["torch"]
        parts: dict[str, Any] = {}
        subjects, self.subjects = self.subjects, []
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
        for _, sums in self.sums:
            await_arrival(lambda sums=sums: sums.arrival.is_here)  # type: ignore[misc]

    def digests(self) -> list[bytes]:
        """Return the digests of the tensors; call `wait` first."""
        digests = [b""] * len(self.names)
        for places, pending in self.sums:
            for place, sums in zip(places, pending.halves(), strict=True):
                seeds = _seeds(self.facts[place].description)
                digests[place] = b"".join(
                    [
                        (seed + total & _MASK).to_bytes(8, "little")
                        for seed, total in zip(seeds, sums, strict=True)
                    ]
                )
        return digests

    def records(self, digests: list[bytes]) -> list[bytes]:
        """Return the digests with the bits of four numbers; call `wait` first."""
        records = list(digests)
        for places, sums in self.sums:
            for place, bits in zip(places, sums.bits(), strict=True):
                missing = NUMBERS * (number_size(self.facts[place].dtype) or 0) - len(bits)
                records[place] += bits + bytes(missing)
        return records


def _inputs(
    torch: Any, capture: DigestCapture, named: Iterable[tuple[str, Any]], has_numbers: bool, *,
    is_copied: bool,
) -> dict[Any, _Inputs]:  # fmt: skip
    """Add the tensors to the capture, except those that fail; return them by their devices."""
    by_device: dict[Any, _Inputs] = {}
    entries = iter(named)
    while True:
        name = "tensors"
        try:
            name, tensor = next(entries)
        except StopIteration:
            return by_device
        except Exception as error:
            capture.fail(name, error)
            continue
        try:
            found = None if is_copied else plain_input(torch, tensor, has_numbers=has_numbers)
            if found is None:
                subject = subject_of(name, tensor)
                _bring_together(subject)
                found = subject.read(has_numbers=has_numbers)
                if is_copied:
                    capture.subjects.append(subject)
        except Exception as error:
            capture.fail(name, error)
            continue
        facts, device, key, sources = found
        inputs = by_device.get(device)
        if inputs is None:
            inputs = by_device[device] = _Inputs()
        inputs.places.append(len(capture.names))
        inputs.keys.append(key)
        inputs.sources += sources
        capture.names.append(name)
        capture.facts.append(facts)


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


@lru_cache(1 << 14)
def _seeds(description: str) -> tuple[int, int]:
    data = hashlib.sha256(description.encode()).digest()[:DIGEST_BYTES]
    return int.from_bytes(data[:8], "little"), int.from_bytes(data[8:], "little")
