"""The digest of a tensor is the one that docs/digests.md defines, however it is computed."""

from __future__ import annotations

import itertools
import math
import random
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cirron_otel.core.records.digest_marks import (
    InputError,
    Layout,
    Layouts,
    pack,
    positions,
)
from cirron_otel.sdk.snapshots import digest_weights
from cirron_otel.sdk.snapshots.digest_capture import DigestCapture, Digester
from cirron_otel.sdk.snapshots.digest_plan import ON_HOST, PlanKey, part_key
from cirron_otel.sdk.snapshots.digest_sums import Summing, readable
from cirron_otel.sdk.snapshots.digest_weights import ROW, Matrix, Words

from . import recompute

TEXT = (Path(__file__).parents[4] / "docs" / "digests.md").read_text()
CPU = torch.device("cpu")
FULL = ON_HOST.staged[-1] * ROW


def _bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    flat = flat.as_strided(flat.shape, (1,))  # the stride of a single element may be any
    return bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""


def _digests(*tensors: Any, digester: Digester | None = None) -> list[bytes]:
    capture = (digester or Digester()).capture(
        [(str(number), each) for number, each in enumerate(tensors)], has_numbers=True
    )
    assert capture.failed == []
    return capture.digests()


def _expected(tensor: torch.Tensor) -> bytes:
    dtype = str(tensor.dtype).removeprefix("torch.")
    shape = ",".join(map(str, tensor.shape))
    return recompute.tensor_digest(f"{dtype} [{shape}]", _bytes(tensor))


def _flipped(tensor: torch.Tensor, bit: int) -> torch.Tensor:
    data = tensor.clone()
    data.view(-1).view(torch.uint8)[bit // 8] ^= 1 << bit % 8
    return data


DENSE: dict[str, Callable[[], torch.Tensor]] = {
    "float32": lambda: torch.randn(3, 5),
    "float64": lambda: torch.randn(7, dtype=torch.float64),
    "float16": lambda: torch.randn(9).half(),
    "odd bfloat16": lambda: torch.randn(11).bfloat16(),
    "bfloat16 at an odd place": lambda: torch.randn(12).bfloat16()[1:],
    "float8": lambda: torch.randn(13).to(torch.float8_e4m3fn),
    "float8 with a stride": lambda: torch.randn(26).to(torch.float8_e5m2)[::2],
    "float8 without a sign": lambda: torch.arange(250, dtype=torch.uint8).view(
        torch.float8_e8m0fnu
    ),
    "int64": lambda: torch.randint(-9, 9, (4,)),
    "bool": lambda: torch.randn(5, 3) > 0,
    "uint8": lambda: torch.arange(256, dtype=torch.uint8),
    "complex64": lambda: torch.randn(5, dtype=torch.complex64),
    "complex128": lambda: torch.randn(3, dtype=torch.complex128),
    "conjugated": lambda: torch.randn(2, 5, dtype=torch.complex64).conj(),
    "negated": lambda: torch.randn(4, dtype=torch.complex64).conj().imag,
    "no dimension": lambda: torch.tensor(2.5),
    "at an odd address": lambda: torch.frombuffer(
        bytearray(range(50)), dtype=torch.uint8, offset=1
    ),
    "at an even address": lambda: torch.frombuffer(
        bytearray(range(50)), dtype=torch.bfloat16, offset=2
    )[1:],
    "empty": lambda: torch.empty(0, 4),
    "one element with a stride": lambda: torch.randn(9)[::9],
    "one column of one row": lambda: torch.randn(8, 3, dtype=torch.float64)[:1, ::3],
    "a row and a word": lambda: torch.randn(1025),
    "transposed": lambda: torch.randn(60, 50).t(),
    "permuted": lambda: torch.randn(8, 9, 10).permute(2, 0, 1),
    "channels last": lambda: torch.randn(2, 3, 5, 5).contiguous(memory_format=torch.channels_last),
    "with gaps": lambda: torch.randn(40, 40)[::3, ::2],
    "expanded": lambda: torch.randn(1, 3).expand(700, 3),
    "not a number": lambda: torch.tensor([math.nan, math.inf, -math.inf, -0.0, 0.0]),
    "in a graph": lambda: torch.randn(4, requires_grad=True) * 2,
    "a parameter": lambda: torch.nn.Parameter(torch.randn(4)),
}


@pytest.mark.parametrize("make", DENSE.values(), ids=DENSE.keys())
def test_dense_tensors(make: Callable[[], torch.Tensor]) -> None:
    tensor = make()
    version = tensor._version
    assert _digests(tensor) == [_expected(tensor.detach())]
    assert tensor._version == version


def test_the_page_and_the_script_have_the_same_functions() -> None:
    (code,) = (each for each in re.findall(r"```py\n(.*?)```", TEXT, re.DOTALL) if "odd" in each)
    page = types.ModuleType("page")
    exec(code, page.__dict__)
    data = random.Random(1).randbytes(9000)
    digest = page.tensor_digest("float32 [2250]", data)
    assert digest == recompute.tensor_digest("float32 [2250]", data)
    assert page.quantity_digest([("a", digest)]) == recompute.quantity_digest([("a", digest)])
    assert len([line for line in code.splitlines() if line.strip()]) <= 30


def test_many_tensors_are_digested_as_each_alone() -> None:
    tensors = [make() for make in DENSE.values()]
    assert _digests(*tensors) == [_digests(each)[0] for each in tensors]


@pytest.mark.parametrize("multiplier", [Matrix, Words])
@pytest.mark.parametrize("elements", [FULL // 4, FULL // 4 + 3, FULL // 2 + 1025, 5000])
def test_large_tensors_in_portions(multiplier: Any, elements: int) -> None:
    """A tensor in several portions has the sum of the sums of its pieces, each from its own row."""
    flat = torch.randint(-(2**31), 2**31, (elements,), dtype=torch.int32)
    side = next(each for each in range(int(elements**0.5), 0, -1) if elements % each == 0)
    strided = flat.view(side, -1).t().contiguous().t()
    tensors = [flat, torch.randn(5), strided]
    parts = [readable(torch, each, each.numel() * 4, 4) for each in tensors]
    accesses = [access for access, _ in parts]
    keys = [
        PlanKey((part_key(each.numel() * 4, access),), 0, 0)
        for each, access in zip(tensors, accesses, strict=True)
    ]
    summing = Summing(CPU, multiplier(CPU))
    sums = summing.sums(keys, [view for _, view in parts]).halves()
    assert sums[0] == sums[2] == _slow_sums(flat)


def _slow_sums(words: torch.Tensor) -> list[int]:
    """The definition with integers of 64 bits, for a tensor of int32."""
    unsigned = (words.long() & 0xFFFFFFFF) ^ 0x80808080
    padded = torch.zeros(-(-len(words) // 1024) * 1024, dtype=torch.int64)
    padded[: len(words)] = unsigned - 0x80808080
    rows = padded.view(-1, 1024)
    sums = []
    for half in (0, 1):
        columns = torch.tensor([_signed(recompute.odd(2 * c + half + 1)) for c in range(1024)])
        numbers = torch.tensor(
            [_signed(recompute.odd(2**40 + 2 * r + half)) for r in range(len(rows))]
        )
        sums.append(int(((rows * columns).sum(1) * numbers).sum()))
    return sums


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def test_both_multipliers_agree_on_the_extremes() -> None:
    rows = torch.full((40, ROW), -128, dtype=torch.int8)
    rows[1], rows[2, ::2] = 127, 127
    halves = []
    for each in (Matrix(CPU), Words(CPU)):
        results = torch.empty((40, each.width), dtype=each.dtype)
        each.multiply(rows, results)
        halves.append(each.halves(results))
    assert torch.equal(*halves)


def test_products_that_are_not_exact_are_not_used(monkeypatch: Any) -> None:
    """A CPU without the instructions may saturate sums at 16 bits."""

    def exact(rows: Any, weights: Any, out: Any) -> Any:
        return out.copy_(rows.int() @ weights.int())

    def saturating(rows: Any, weights: Any, out: Any) -> Any:
        return exact(rows, weights, out).clamp_(-(2**15), 2**15 - 1)

    # Whatever this machine's CPU has.
    monkeypatch.setattr(digest_weights, "_has_byte_products", lambda _: True)
    monkeypatch.setattr(torch, "_int_mm", exact)
    assert isinstance(digest_weights.multiplier(CPU), Matrix)
    monkeypatch.setattr(torch, "_int_mm", saturating)
    assert isinstance(digest_weights.multiplier(CPU), Words)


def test_without_the_instructions_the_digest_is_the_same(monkeypatch: Any) -> None:
    tensor = torch.randn(3000)
    expected = _digests(tensor)
    monkeypatch.setattr(digest_weights, "_has_byte_products", lambda _: False)
    assert isinstance(digest_weights.multiplier(CPU), Words)
    assert _digests(tensor) == expected


# --- every bit, every position, shape, dtype ------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
def test_each_flipped_bit_gives_another_digest(dtype: torch.dtype) -> None:
    tensor = torch.zeros(9, dtype=dtype)
    bits = 9 * tensor.element_size() * (8 if dtype != torch.bool else 1)
    step = 1 if dtype != torch.bool else 8
    flipped = [_flipped(tensor, bit * step) for bit in range(bits)]
    digests = set(_digests(tensor, *flipped))
    assert len(digests) == bits + 1


def test_two_changes_that_sums_of_long_words_would_not_see() -> None:
    tensor = torch.randn(4096)
    negated = -tensor
    some = tensor.clone()
    some[1], some[3] = -some[1], -some[3]
    assert len(set(_digests(tensor, negated, some))) == 3


def test_order_and_position() -> None:
    tensor = torch.arange(1.0, 3001.0)
    swapped = tensor.clone()
    swapped[[5, 2100]] = swapped[[2100, 5]]
    rectangle = torch.zeros(4, 1024)
    rectangle[0, 0] = rectangle[2, 7] = 1
    turned = torch.zeros(4, 1024)
    turned[0, 7] = turned[2, 0] = 1
    assert len(set(_digests(tensor, swapped, tensor.flip(0), tensor.roll(1024)))) == 4
    assert len(set(_digests(rectangle, turned))) == 2


def test_shape_and_dtype() -> None:
    tensor = torch.zeros(6)
    tensors = [tensor, tensor.view(2, 3), tensor.view(3, 2), tensor.int(), torch.zeros(7)]
    assert len(set(_digests(*tensors))) == 5


def test_column_weights_differ_in_the_bits_that_signs_use() -> None:
    for half in (0, 1):
        low = {digest_weights.column_weight(column, half) % 2**33 for column in range(1024)}
        assert len(low) == 1024


def test_row_weights_match_the_documentation() -> None:
    weights = digest_weights.row_weights(3, CPU).tolist()
    expected = [[recompute.odd(2**40 + 2 * row + half) for half in (0, 1)] for row in range(3)]
    assert [[each % 2**64 for each in row] for row in weights] == expected


# --- tensors in several parts ---------------------------------------------------------------------


def test_sparse_coo_is_digested_as_stored() -> None:
    indices, numbers = torch.tensor([[0, 1, 1], [2, 0, 0]]), torch.tensor([1.0, 2.0, 3.0])
    tensor = torch.sparse_coo_tensor(indices, numbers, (4, 9))
    text = "float32 [4,9] sparse_coo indices int64 [2,3] values float32 [3]"
    expected = recompute.tensor_digest(text, _bytes(indices), _bytes(numbers))
    assert _digests(tensor) == [expected]
    assert _digests(tensor.coalesce()) != [expected]


@pytest.mark.parametrize("layout", ["csr", "csc", "bsr", "bsc"])
def test_compressed_sparse(layout: str) -> None:
    dense = torch.eye(4) * torch.arange(1.0, 5.0)
    sizes = {"blocksize": (2, 2)} if layout.startswith("b") else {}
    tensor = dense.to_sparse(layout=getattr(torch, f"sparse_{layout}"), **sizes)
    names = ("crow_indices", "col_indices") if layout in ("csr", "bsr") else (
        "ccol_indices", "row_indices",
    )  # fmt: skip
    parts = {name: getattr(tensor, name)() for name in (*names, "values")}
    described = " ".join(
        f"{name} {str(each.dtype)[6:]} [{','.join(map(str, each.shape))}]"
        for name, each in parts.items()
    )
    text = f"float32 [4,4] sparse_{layout} {described}"
    assert _digests(tensor) == [recompute.tensor_digest(text, *map(_bytes, parts.values()))]


def test_quantized() -> None:
    tensor = torch.quantize_per_tensor(torch.tensor([0.5, -1.0, 2.0]), 0.5, 3, torch.qint8)
    text = "qint8 [3] quantized values int8 [3] scales float64 [] zero_points int64 []"
    numbers = torch.tensor([4, 1, 7], dtype=torch.int8)
    scale, point = torch.tensor(0.5, dtype=torch.float64), torch.tensor(3)
    expected = recompute.tensor_digest(text, _bytes(numbers), _bytes(scale), _bytes(point))
    assert _digests(tensor) == [expected]
    channels = torch.quantize_per_channel(
        torch.ones(2, 3), torch.tensor([0.5, 0.25]), torch.tensor([0, 1]), 0, torch.quint8
    )
    assert len(set(_digests(tensor, channels))) == 2


def test_nested() -> None:
    tensor = torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)], layout=torch.jagged)
    other = torch.nested.nested_tensor([torch.ones(3), torch.zeros(2)], layout=torch.jagged)
    assert len(set(_digests(tensor, other))) == 2


def test_meta_has_the_digest_of_its_description() -> None:
    tensor = torch.empty(2, 3, device="meta")
    assert _digests(tensor) == [recompute.tensor_digest("float32 [2,3]")]


def test_a_tensor_that_fails_is_left_out() -> None:
    class Hostile(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, *_: Any) -> Any:
            raise RuntimeError("not today")

    tensor = torch.randn(3)
    hostile = torch.Tensor._make_wrapper_subclass(Hostile, (3,))  # type: ignore[attr-defined]
    named = [("a", tensor), ("b", hostile), ("c", tensor)]
    capture = Digester().capture(named, has_numbers=True)
    assert capture.names == ["a", "c"]
    assert capture.failed == ["b: RuntimeError: not today"]
    assert capture.digests() == [_expected(tensor)] * 2


# --- the records of tensors -----------------------------------------------------------------------


def _records(capture: DigestCapture) -> Any:
    digests = capture.digests()
    layout = Layout(capture.names, capture.dtypes, capture.shapes)
    tensors = {"layout": layout.id, "packed": pack(capture.records(digests))}
    layouts = Layouts()
    assert layouts.unpack(tensors) is None
    layouts.add(tensors | layout._asdict())
    with pytest.raises(InputError, match="cannot be unpacked"):
        layouts.unpack(tensors | {"packed": pack(capture.records(digests)[:-1])})
    return layouts.unpack(tensors)


@pytest.mark.parametrize("make", DENSE.values(), ids=DENSE.keys())
def test_four_numbers(make: Callable[[], torch.Tensor]) -> None:
    tensor = make().detach()
    (record,) = _records(Digester().capture([("w", tensor)], has_numbers=True))
    real = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    size = real.element_size()
    data = _bytes(real)
    indices = positions(real.numel())
    expected = [int.from_bytes(data[i * size : (i + 1) * size], "little") for i in indices]
    assert list(record.numbers) == (expected or [0] * 4)
    assert record.dtype == str(real.dtype).removeprefix("torch.")
    assert record.shape == tuple(tensor.shape)
    assert 16 + 4 * size <= 48


def test_positions() -> None:
    assert [positions(n) for n in (0, 1, 2, 3, 4, 5, 7, 3001)] == [
        (), (0,) * 4, (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3), (0, 1, 2, 3), (0, 2, 4, 6),
        (0, 1000, 2000, 3000),
    ]  # fmt: skip


def test_records_of_many_tensors() -> None:
    tensors = {name: make().detach() for name, make in DENSE.items()}
    tensors["meta"] = torch.empty(3, device="meta")
    tensors["coo"] = torch.eye(3).to_sparse()
    records = _records(Digester().capture(tensors.items(), has_numbers=True))
    assert [each.name for each in records] == list(tensors)
    for record in records:
        alone = _records(
            Digester().capture([(record.name, tensors[record.name])], has_numbers=True)
        )
        assert alone == [record]
    coo = records[-1]
    assert (coo.numbers[0], coo.dtype) == (0x3F800000, "float32")


def test_a_plan_is_reused_only_for_the_same_sizes() -> None:
    digester = Digester()
    for sizes in itertools.permutations([1, 1500, 40], 3):
        tensors = [torch.randn(size) for size in sizes]
        assert _digests(*tensors, digester=digester) == list(map(_expected, tensors))


def test_no_random_number_is_drawn() -> None:
    before = torch.get_rng_state(), random.getstate()
    _digests(torch.randn(0), torch.ones(5000))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()
