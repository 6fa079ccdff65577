"""Digests and numbers do not depend on the portions in which tensors are multiplied."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from cirron_otel.core.records.digest_marks import number_size, positions
from cirron_otel.sdk.snapshots import digest_sums
from cirron_otel.sdk.snapshots.arrival import ResultMemory
from cirron_otel.sdk.snapshots.digest_capture import Digester
from cirron_otel.sdk.snapshots.digest_parts import plain_input, subject_of
from cirron_otel.sdk.snapshots.digest_plan import ON_DEVICE, ON_HOST, Sizes
from cirron_otel.sdk.snapshots.digest_sums import Summing
from cirron_otel.sdk.snapshots.digest_weights import Words

from . import recompute
from .test_definition import DENSE

CPU = torch.device("cpu")
ROW = 4096
DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int8,
    torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64,
    torch.complex128,
]  # fmt: skip
SIZES = {
    "single rows": Sizes((1,), direct=1, most_direct=1, step=1, group=1),
    "only staged": Sizes((1, 2, 3), direct=99, most_direct=99, step=1, group=4),
    "mostly direct": Sizes((2, 5), direct=2, most_direct=3, step=1, group=7),
    "in steps": Sizes((3,), direct=2, most_direct=4, step=2, group=6),
    "of the host": ON_HOST,
    "of a device": ON_DEVICE,
}


def _bytes(tensor: torch.Tensor) -> bytes:
    flat = (
        tensor.resolve_conj().resolve_neg().flatten().clone(memory_format=torch.contiguous_format)
    )
    flat = flat.as_strided(flat.shape, (1,))
    return bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""


def _described(tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{dtype} [{','.join(map(str, tensor.shape))}]"


def _four(numbers: torch.Tensor) -> bytes:
    """The bytes of the four numbers of a dense tensor, as docs/digests.md defines them."""
    real = torch.view_as_real(numbers.resolve_conj()) if numbers.is_complex() else numbers
    data, size = _bytes(real), real.element_size()
    assert number_size(str(real.dtype).removeprefix("torch.")) == size
    found = b"".join(data[at * size : (at + 1) * size] for at in positions(real.numel()))
    return found or bytes(4 * size)


def _dense(rng: random.Random) -> tuple[torch.Tensor, bytes]:
    """A tensor of any dtype, size and layout, and its record."""
    dtype = rng.choice(DTYPES)
    size = torch.empty(0, dtype=dtype).element_size()
    count = rng.choice([0, 1, 2, 3, 4, 5, rng.randrange(1, 3000), ROW // size, 5 * ROW // size + 1])
    skipped = rng.randrange(3)
    data = torch.randint(0, 2 if dtype == torch.bool else 256, ((2 * count + 4) * size,))
    tensor = data.to(torch.uint8).view(dtype)[skipped:]
    layout = rng.randrange(4)
    if layout == 0:
        tensor = tensor[: 2 * count : 2]
    elif layout == 1:
        tensor = tensor[: count - count % 6].view(-1, 3, 2).permute(2, 0, 1)
    elif layout == 2 and dtype.is_complex:
        tensor = tensor[:count].conj()
    else:
        tensor = tensor[:count]
    return tensor, recompute.tensor_digest(_described(tensor), _bytes(tensor)) + _four(tensor)


def _in_parts(rng: random.Random) -> tuple[Any, bytes]:
    """A tensor in several parts, the numbers not always in the first, and its record."""
    count = rng.choice([1, 3, 2000])
    numbers = torch.randn(count, dtype=rng.choice([torch.float64, torch.complex64]))
    if rng.randrange(2):
        indices = torch.stack([torch.arange(count) % 7, torch.arange(count) % 5])
        tensor: Any = torch.sparse_coo_tensor(indices, numbers, (7, 5), check_invariants=False)
        text, parts = "[7,5] sparse_coo indices", {"": indices, "values ": numbers}
    else:
        offsets = torch.tensor([0, 1, count])
        tensor = torch.nested.nested_tensor_from_jagged(numbers, offsets)
        text, parts = "[2,-1] jagged values", {"": numbers, "offsets ": offsets}
    described = " ".join(name + _described(part) for name, part in parts.items())
    text = f"{str(numbers.dtype).removeprefix('torch.')} {text} {described}"
    digest = recompute.tensor_digest(text, *map(_bytes, parts.values()))
    return tensor, digest + _four(numbers)


def _digester(sizes: Sizes, by: Any = None) -> Digester:
    digester = Digester()
    digester._summing[CPU] = Summing(CPU, by, sizes)
    return digester


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES.keys())
@pytest.mark.parametrize("seed", range(4))
def test_digest_records_match_the_reference_definition(sizes: Sizes, seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    digester = _digester(sizes, Words(CPU) if seed % 2 else None)
    for _ in range(3):
        makers: list[Callable[[random.Random], tuple[Any, bytes]]] = [_dense] * 9 + [_in_parts]
        made = [rng.choice(makers)(rng) for _ in range(rng.choice([1, 5, 12]))]
        named = [(str(number), tensor) for number, (tensor, _) in enumerate(made)]
        for _ in range(2):  # the plan is made, and reused
            capture = digester.capture(named, has_numbers=True)
            assert capture.failed == []
            assert capture.records(capture.digests()) == [record for _, record in made]
        capture = digester.capture(named, has_numbers=False)
        assert capture.digests() == [record[:16] for _, record in made]
        assert not any(any(record[16:]) for record in capture.records(capture.digests()))


def test_a_plan_depends_on_the_places_of_the_numbers() -> None:
    """The same bytes with numbers of other sizes, and with another place in memory."""
    digester = _digester(SIZES["only staged"])
    data = torch.randint(0, 256, (8 * 3000,), dtype=torch.uint8)
    for dtype in (torch.uint8, torch.float64, torch.int16, torch.float32, torch.complex64):
        for start in (0, 8):
            tensor = data[start : start + 8 * 2999].view(dtype)
            capture = digester.capture([("a", tensor)], has_numbers=True)
            assert capture.records(capture.digests()) == [
                recompute.tensor_digest(_described(tensor), _bytes(tensor)) + _four(tensor)
            ]


@pytest.mark.parametrize(
    ("dtype", "start"), [(torch.uint8, 1), (torch.bfloat16, 1), (torch.float32, 1)]
)
def test_a_large_tensor_at_any_address(dtype: torch.dtype, start: int) -> None:
    """A multiplication where the rows are might need a greater alignment."""
    digester = _digester(SIZES["mostly direct"], Words(CPU))
    size = torch.empty(0, dtype=dtype).element_size()
    tensor = torch.randint(0, 256, (7 * ROW,), dtype=torch.uint8).view(dtype)[start:]
    assert tensor.data_ptr() % 16 == size
    capture = digester.capture([("a", tensor)], has_numbers=True)
    assert capture.digests() == [recompute.tensor_digest(_described(tensor), _bytes(tensor))]


# --- usual tensors --------------------------------------------------------------------------------


def _view(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape, requires_grad=True)


USUAL: dict[str, Callable[[], torch.Tensor]] = {
    **{name: make for name, make in DENSE.items() if name not in (
        "complex64", "complex128", "conjugated", "negated",
    )},
    "a leaf": lambda: _view((3, 4)),
    "a loss": lambda: _view((3, 4)).sum(),
}  # fmt: skip


class _Subclass(torch.Tensor):
    """A type that is not torch's own."""


def _flattened() -> torch.Tensor:
    parameter = torch.nn.Parameter(torch.randn(4))
    parameter._fsdp_flattened = True  # type: ignore[attr-defined]
    return parameter


UNUSUAL: dict[str, Callable[[], Any]] = {
    "complex": DENSE["complex64"],
    "conjugated": DENSE["conjugated"],
    "negated": DENSE["negated"],
    "sparse": lambda: torch.eye(3).to_sparse(),
    "compressed": lambda: torch.eye(3).to_sparse_csr(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.5, 3, torch.qint8),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged),
    "meta": lambda: torch.empty(3, device="meta"),
    "a subclass": lambda: torch.randn(3).as_subclass(_Subclass),
    "of FSDP": _flattened,
    "no tensor": lambda: 3,
}


@pytest.mark.parametrize("make", USUAL.values(), ids=USUAL.keys())
def test_a_usual_tensor_is_read_as_any_other(make: Callable[[], torch.Tensor]) -> None:
    tensor = make()
    for has_numbers in (False, True):
        with torch.no_grad():
            found = plain_input(torch, tensor, has_numbers=has_numbers)
            expected = subject_of("", tensor).read(has_numbers=has_numbers)
        assert found is not None
        assert found[:3] == expected[:3]
        (one,), (other,) = found[3], expected[3]
        assert (one.shape, one.dtype, one.data_ptr()) == (
            other.shape,
            other.dtype,
            other.data_ptr(),
        )


@pytest.mark.parametrize("make", UNUSUAL.values(), ids=UNUSUAL.keys())
def test_an_unusual_tensor_is_left_to_the_general_case(make: Callable[[], Any]) -> None:
    with torch.no_grad():
        assert plain_input(torch, make(), has_numbers=True) is None


# --- the results ----------------------------------------------------------------------------------


def test_results_have_memory_that_no_other_has() -> None:
    with FakeTensorMode():
        memory = ResultMemory(64)
        parts = [memory.take(size) for size in (24, 32, 16, 8, 200, 8)]
        places = [
            (each.untyped_storage()._cdata, each.storage_offset(), len(each)) for each in parts
        ]
    blocks = [block for block, _, _ in places]
    assert [(at, size) for _, at, size in places] == [
        (0, 24), (24, 32), (0, 16), (16, 8), (0, 200), (0, 8),
    ]  # fmt: skip
    assert blocks[0] == blocks[1]
    assert blocks[2] == blocks[3]
    assert len({blocks[0], blocks[2], blocks[4], blocks[5]}) == 4


def test_plan_is_rebuilt_after_a_failed_weight_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    """If memory for the weights of rows is missing once, the next capture makes them."""
    tensor = torch.arange(5 * ROW, dtype=torch.int32)
    digester = _digester(ON_HOST)

    def fail(*_: Any) -> Any:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(digest_sums, "row_weights", fail)
        with pytest.raises(RuntimeError, match="out of memory"):
            digester.capture([("a", tensor)], has_numbers=True)
    capture = digester.capture([("a", tensor)], has_numbers=True)
    digest = recompute.tensor_digest(_described(tensor), _bytes(tensor))
    assert capture.records(capture.digests()) == [digest + _four(tensor)]


@pytest.mark.parametrize("is_strided", [False, True])
@pytest.mark.parametrize("has_copies", [False, True])
def test_released_memory_is_not_read(is_strided: bool, has_copies: bool) -> None:
    numbers, other = torch.randn(60, 50), torch.randn(3)
    released = numbers[:, 7] if is_strided else numbers[7:]
    numbers.untyped_storage().resize_(0)
    named = [("a", released), ("b", other)]
    capture = Digester().capture(named, has_numbers=True, room=1000 if has_copies else None)
    assert capture.names == ["b"]
    [failure] = capture.failed
    assert "a: NoBytesError: its memory of" in failure
    assert (capture.copies is not None) == has_copies
    assert capture.records(capture.digests())[0].endswith(_four(other))
