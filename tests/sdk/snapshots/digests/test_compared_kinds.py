"""`diff` of trainings with tensors of every kind: a fault in any one of them is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import cirron_otel as ci
from tests.core.importers.dgrr.traces import command

from . import recompute
from .kinds import (
    AT,
    STEPS,
    Fault,
    Training,
)
from .loops import traced
from .reading import digests

Pick = Callable[[Training], torch.Tensor]


def record(folder: Path, training: Training) -> Path:
    with traced(folder, digest="tensors", digest_keep=str(AT)):
        training.run()
    assert ci.health()["swallowed_errors"] == {}
    return folder


def diff(a: Path, b: Path) -> Any:
    return json.loads(command("diff", a, b, "--json")[1])


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("kinds"), Training())


def test_two_equal_runs(first: Path, tmp_path: Path) -> None:
    document = diff(first, record(tmp_path, Training()))
    assert document["divergence"] is None
    assert document["digests"]["identical"] is True
    assert document["digests"]["compared"] == STEPS


def test_the_page_gives_the_digest_of_every_kind(first: Path) -> None:
    kept = [each for each in digests(first) if each.mark.step == AT]
    assert len(kept) == 6
    for each in kept:
        assert (each.mark.failed, each.mark.blob_uri is None) == (None, False)
        data = Path(str(each.mark.blob_uri).removeprefix("file://")).read_bytes()
        computed = {
            name: recompute.tensor_digest(description, *parts).hex()
            for name, description, parts in recompute.tensors_of(data)
        }
        assert computed == {name: record.digest for name, record in each.tensors.items()}


def weight(name: str) -> Pick:
    """A parameter or a buffer; a tied one has its first name."""
    return lambda training: training.model.state_dict(keep_vars=True)[name].detach()


def gradient(name: str) -> Pick:
    return lambda training: training.model.get_parameter(name).grad  # type: ignore[return-value]


def item(name: str) -> Pick:
    return lambda training: training.batch[name]


def stored(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of a tensor's values."""
    if tensor.is_nested or tensor.layout is torch.sparse_csr:
        return tensor.values()
    if tensor.layout is torch.sparse_coo:
        return tensor._values()
    return tensor.conj() if tensor.is_conj() else tensor


def flip(pick: Pick, *index: int, bit: int = 0) -> Fault:
    """Flip a bit of an element."""

    def fault(training: Training) -> None:
        tensor = stored(pick(training))
        element = tensor[index].unsqueeze(0)
        element.view(torch.uint8)[bit // 8] ^= 1 << bit % 8

    return fault


def replace(name: str, change: Callable[[Any], torch.Tensor]) -> Fault:
    """Replace a buffer by another tensor."""
    return lambda training: setattr(training.model, name, change(getattr(training.model, name)))


def moved_index(training: Training) -> None:
    training.model.links._indices()[0, 4] -= 1


def another_integer(training: Training) -> None:
    old = training.model.integers
    changed = old.dequantize()
    changed[1, 2] += 0.1
    old.data = torch.quantize_per_tensor(changed, 0.1, 3, torch.qint8)


def another_scale(old: torch.Tensor) -> torch.Tensor:
    scales = torch.tensor([0.5, 0.125], dtype=torch.float64)
    points = old.q_per_channel_zero_points()
    return torch._make_per_channel_quantized_tensor(old.int_repr(), scales, points, 0)


def no_gradient(training: Training) -> None:
    training.model.empty.grad = None


def other_shape(training: Training) -> None:
    training.batch["nothing"] = torch.empty(0, 4)


GREAT = 19
"""A bit of float32 that an update of the weight does not absorb."""
WEIGHTS: dict[str, tuple[Fault, str, int | None]] = {
    "tied": (flip(weight("words.weight"), 2, 1, bit=GREAT), "words.weight", 0),
    "tied, by its other name": (flip(weight("decoder.weight"), 2, 1, bit=GREAT), "words.weight", 0),
    "with sparse gradients": (flip(weight("rows.weight"), 2, 1, bit=GREAT), "rows.weight", 0),
    "channels last": (flip(weight("conv.weight"), 1, 1, 0, 1, bit=GREAT), "conv.weight", 0),
    "no dimension": (flip(weight("scalar"), bit=GREAT), "scalar", 0),
    "transposed": (flip(weight("turned"), 1, 2, bit=GREAT), "turned", 0),
    "with gaps": (flip(weight("gaps"), 1, 2, bit=GREAT), "gaps", 0),
    "complex64": (flip(weight("complex64"), 1, bit=32 + GREAT), "complex64", 0),
    "complex128": (flip(weight("complex128"), 2, bit=64 + 48), "complex128", 0),
    "bfloat16": (flip(weight("bf16"), 4, bit=4), "bf16", 0),
    "float16": (flip(weight("fp16"), 4, bit=6), "fp16", 0),
    "float64": (flip(weight("fp64"), 4, bit=48), "fp64", 0),
    "float8": (flip(weight("fp8"), 4, bit=1), "fp8", 0),
    "sparse COO": (flip(weight("coo"), 2, bit=GREAT), "coo", 0),
    "sparse CSR": (flip(weight("csr"), 2, bit=GREAT), "csr", 0),
    "frozen float8": (flip(weight("frozen"), 4), "frozen", 1),
    "quantized": (another_integer, "integers", None),
    "quantized by channel": (replace("channels", another_scale), "channels", None),
    "bool": (flip(weight("mask"), 1, 2), "mask", None),
    "expanded": (flip(weight("expanded"), 0, 1), "expanded", 1),
    "conjugated": (flip(weight("conjugated"), 1), "conjugated", 1),
    "a sparse buffer's value": (flip(weight("links"), 4), "links", 1),
    "a sparse buffer's index": (moved_index, "links", None),
    "a buffer with no dimension": (flip(weight("count")), "count", None),
    "an empty buffer": (replace("nothing", lambda _: torch.empty(3, 0).long()), "nothing", None),
}
GRADIENTS: dict[str, tuple[Fault, str, int | None]] = {
    "tied": (flip(gradient("words.weight"), 1, 1), "words.weight", 1),
    "sparse": (flip(gradient("rows.weight"), 3, 1), "rows.weight", 1),
    "channels last": (flip(gradient("conv.weight"), 1, 1, 0, 1), "conv.weight", 1),
    "no dimension": (flip(gradient("scalar")), "scalar", 1),
    "transposed": (flip(gradient("turned"), 1, 2), "turned", 1),
    "with gaps": (flip(gradient("gaps"), 1, 2), "gaps", 1),
    "empty": (no_gradient, "empty", None),
    "complex64": (flip(gradient("complex64"), 1, bit=32), "complex64", 1),
    "complex128": (flip(gradient("complex128"), 2, bit=64), "complex128", 1),
    "bfloat16": (flip(gradient("bf16"), 4), "bf16", 1),
    "float16": (flip(gradient("fp16"), 4), "fp16", 1),
    "float64": (flip(gradient("fp64"), 4), "fp64", 1),
    "float8": (flip(gradient("fp8"), 4), "fp8", 1),
    "sparse COO": (flip(gradient("coo"), 2), "coo", 1),
    "sparse CSR": (flip(gradient("csr"), 2), "csr", 1),
}
BATCHES: dict[str, tuple[Fault, str, int | None]] = {
    "integers": (flip(item("words"), 3), "words", None),
    "float8": (flip(item("float8"), 4), "float8", 1),
    "bfloat16": (flip(item("bfloat16"), 4), "bfloat16", 1),
    "complex": (flip(item("complex"), 4), "complex", 1),
    "sparse": (flip(item("links"), 3), "links", 1),
    "nested": (flip(item("nested"), 4), "nested", 1),
    "empty": (other_shape, "nothing", None),
    "no dimension": (flip(item("scalar")), "scalar", None),
    "transposed": (flip(item("turned"), 2, 1), "turned", 1),
}


def check(first: Path, second: Path, quantity: str, tensor: str, ulp: int | None) -> None:
    found = diff(first, second)["divergence"]
    assert (found["step"], found["quantity"], found["tensor"]) == (AT, quantity, tensor)
    if ulp == 0:
        assert found["ulp"] > 0
    else:
        assert found["ulp"] == ulp


@pytest.mark.parametrize("kind", WEIGHTS)
def test_a_parameter_or_buffer(kind: str, first: Path, tmp_path: Path) -> None:
    fault, tensor, ulp = WEIGHTS[kind]
    check(first, record(tmp_path, Training(fault)), "weights", tensor, ulp)


@pytest.mark.parametrize("kind", GRADIENTS)
def test_a_gradient(kind: str, first: Path, tmp_path: Path) -> None:
    fault, tensor, ulp = GRADIENTS[kind]
    check(first, record(tmp_path, Training(fault)), "grads", tensor, ulp)


@pytest.mark.parametrize("kind", BATCHES)
def test_a_tensor_of_the_batch(kind: str, first: Path, tmp_path: Path) -> None:
    fault, tensor, ulp = BATCHES[kind]
    check(first, record(tmp_path, Training(sample=fault)), "batch", tensor, ulp)
