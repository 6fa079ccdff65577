"""Recognition of out-of-memory errors by their type, or by the messages of known allocators.

A text that merely contains "out of memory" is not recognised. The frameworks are never imported:
their types are looked up in `sys.modules`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from decimal import Decimal
from math import prod
from typing import Any, Final, NamedTuple

_UNITS: Final = {
    "bytes": 1, "B": 1,
    "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
    # torch up to 2.1 and MPS print these names for the same powers of 1,024.
    "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40,
}  # fmt: skip
_SIZE: Final = r"(?P<size>[0-9][0-9,]*(?:\.[0-9]*)?) ?(?P<unit>bytes|B|[KMGT]i?B)\b"
_EXACT: Final = frozenset({"bytes", "B"})
_LONGEST: Final = 1 << 20
"""Maximum number of characters of a message that are searched."""


class OutOfMemory(NamedTuple):
    """The facts that an out-of-memory error states about itself."""

    reason: str
    """The exception's type, or the failure that its message reports."""
    backend: str | None = None
    """`cuda` (also for AMD), `xpu`, `mps`, `cpu`, or the lower-case name of another backend."""
    requested_bytes: int | None = None
    """The size of the failed allocation; None if the error does not state it."""
    requested: str | None = None
    """The size as the message states it, if that is rounded: `requested_bytes` then is too."""
    device_id: int | None = None
    """The index of the device; None if the error does not state it."""


class _Message(NamedTuple):
    """The message of an allocator."""

    pattern: re.Pattern[str]
    reason: str
    """The failure; with `{}`, the backend or the status in the message is inserted."""
    backend: str | None


def _message(pattern: str, reason: str, backend: str | None = None) -> _Message:
    # The messages of DataLoader workers and of TorchScript contain the original one on a line that
    # begins with its type.
    start = r"(?:\A|^(?:[A-Za-z_]\w*\.)*[A-Z]\w*Error: )"
    return _Message(re.compile(start + pattern, re.MULTILINE), reason, backend)


_MESSAGES: Final = (
    _message(
        r"\[enforce fail at [^\]\n]{1,200}\][^\n]{0,40}DefaultCPUAllocator:"
        rf" (?:can't allocate memory|not enough memory): you tried to allocate {_SIZE}",
        "DefaultCPUAllocator",
        "cpu",
    ),
    _message(
        r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory):"
        rf" you tried to allocate {_SIZE}",
        "DefaultCPUAllocator",
        "cpu",
    ),
    _message(rf"unable to mmap {_SIZE} from file <[^\n]*>: Cannot allocate memory", "mmap", "cpu"),
    _message(
        r"unable to allocate shared memory\(shm\) for file <[^\n]*>:"
        r" (?:Cannot allocate memory|No space left on device)",
        "shared memory",
        "cpu",
    ),
    _message(
        r"MPS backend out of memory \(MPS allocated: [^\n]{1,200}?\)\."
        rf"\s+Tried to\s+allocate {_SIZE}",
        "MPS backend out of memory",
        "mps",
    ),
    _message(rf"Invalid buffer size: {_SIZE}\s*$", "Invalid buffer size", "mps"),
    _message(
        rf"(?P<name>[A-Z][A-Z0-9]{{1,15}}) out of memory\. Tried to allocate {_SIZE}",
        "{} out of memory",
    ),
    _message(
        r"(?P<name>[A-Z][A-Z0-9]{1,15}) out of memory\. Allocation was preemptively rejected"
        rf"[^\n]{{0,200}}Requested size: {_SIZE}",
        "{} out of memory",
    ),
    _message(r"(?P<name>CUDA|HIP)(?: driver)? error: out of memory\b", "{} error: out of memory"),
    _message(
        r"(?:CUDA|HIP|cuDNN|cuFFT|cusolver|cuSOLVER|hipFFT|MIOpen) error:"
        r" (?P<name>(?:CU|HIP|ROC|MI)[A-Z]*_(?:STATUS_)?ALLOC_FAILED)\b",
        "{}",
        "cuda",
    ),
    _message(
        r"NCCL error in: (?:[^\n]*\n){1,4}?[^\n]{0,200}Cuda failure (?:\d+ )?'out of memory'",
        "NCCL: out of memory",
        "cuda",
    ),
    _message(
        r"(?:Native API failed\. Native API returns:|(?:level_zero|UR|opencl) backend failed"
        r"(?: with error:|\. UR backend returns:)) ?-?\d+"
        r" \((?P<name>UR_RESULT_ERROR_OUT_OF_(?:DEVICE|HOST)_MEMORY)\)",
        "{}",
        "xpu",
    ),
    _message(
        rf"RESOURCE_EXHAUSTED: Out of memory (?:while trying to allocate|allocating) {_SIZE}",
        "RESOURCE_EXHAUSTED",
    ),
)
_SPELLED: Final = re.compile(
    rf"(?:Tried to allocate|Requested size:|Out of memory allocating|you tried to allocate) {_SIZE}"
)
_DEVICE: Final = re.compile(r"\b(?:GPU|Device|device) (\d{1,4})\b(?! bytes)")
_NAMED: Final = re.compile(r"([A-Z][A-Z0-9]{1,15}) out of memory\b")
_BACKENDS: Final = {"hip": "cuda"}
"""torch uses its CUDA interfaces for AMD's devices."""


def oom_in(error: BaseException) -> Iterator[tuple[BaseException, OutOfMemory]]:
    """Yield each out-of-memory error in `error`, which may be a group. Usually there is none."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from oom_in(each)
        return
    found = oom_of(error)
    if found is not None:
        yield error, found


def oom_of(error: BaseException) -> OutOfMemory | None:
    """Return the facts about an out-of-memory error; None if `error` is of another kind."""
    if isinstance(error, MemoryError):
        return _of_memory_error(error)
    if _is_torchs(error):
        return _of_torchs(error)
    if _is_tensorflows(error):
        return OutOfMemory("tensorflow.errors.ResourceExhaustedError")
    if not isinstance(error, RuntimeError):
        return None
    return _of_message(_text(error))


def _of_message(text: str) -> OutOfMemory | None:
    for message in _MESSAGES:
        match = message.pattern.search(text)
        if match is None:
            continue
        groups = match.groupdict()
        name = groups.get("name")
        backend = message.backend or (name.lower() if name is not None else None)
        size, rounded = _bytes_in(match) if groups.get("size") else (None, None)
        device = _device_in(text) if backend not in ("cpu", "mps") else None
        return OutOfMemory(message.reason.format(name), _backend(backend), size, rounded, device)
    return None


def _backend(name: str | None) -> str | None:
    return name if name is None else _BACKENDS.get(name, name)


def _of_memory_error(error: MemoryError) -> OutOfMemory:
    kind = type(error)
    reason = (
        kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    )
    exact = _array_bytes(error)
    if exact is not None:
        return OutOfMemory(reason, "cpu", exact)
    match = _SPELLED.search(_text(error))
    size, rounded = _bytes_in(match) if match is not None else (None, None)
    backend = "cuda" if kind.__module__.partition(".")[0] == "cupy" else "cpu"
    return OutOfMemory(reason, backend, size, rounded)


def _array_bytes(error: Any) -> int | None:
    """Return the exact size in numpy's error, which has the shape and the type of the array."""
    if "numpy" not in sys.modules or not type(error).__module__.startswith("numpy."):
        return None
    shape, dtype = getattr(error, "shape", None), getattr(error, "dtype", None)
    size = getattr(dtype, "itemsize", None)
    if not isinstance(shape, tuple) or type(size) is not int:
        return None
    return prod(int(each) for each in shape) * size


def _of_torchs(error: BaseException) -> OutOfMemory:
    text = _text(error)
    known = _of_message(text)
    if known is not None:
        return known._replace(reason="torch.OutOfMemoryError")
    match = _SPELLED.search(text)
    size, rounded = _bytes_in(match) if match is not None else (None, None)
    named = _NAMED.match(text)
    backend = _backend(named[1].lower()) if named is not None else None
    return OutOfMemory("torch.OutOfMemoryError", backend, size, rounded, _device_in(text))


def _is_torchs(error: BaseException) -> bool:
    torch = sys.modules.get("torch")
    kinds = (
        getattr(torch, "OutOfMemoryError", None),
        getattr(getattr(torch, "cuda", None), "OutOfMemoryError", None),
    )
    return any(isinstance(kind, type) and isinstance(error, kind) for kind in kinds)


def _is_tensorflows(error: BaseException) -> bool:
    return any(
        kind.__name__ == "ResourceExhaustedError" and kind.__module__.startswith("tensorflow.")
        for kind in type(error).__mro__
    ) and _text(error).lstrip().startswith(("OOM when allocating", "{{function_node"))


def _bytes_in(match: re.Match[str]) -> tuple[int | None, str | None]:
    """Return the size in a message, and its text if that is rounded."""
    unit = match["unit"]
    value = Decimal(match["size"].replace(",", "")) * _UNITS[unit]
    return int(value), None if unit in _EXACT else f"{match['size']} {unit}"


def _device_in(text: str) -> int | None:
    match = _DEVICE.search(text)
    return int(match[1]) if match is not None else None


def _text(error: BaseException) -> str:
    try:
        return str(error)[:_LONGEST]
    except Exception:
        return ""
