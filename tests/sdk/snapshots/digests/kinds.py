"""A training with tensors of every kind, and a fault that can be planted in any one of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional

STEPS = 5
AT = 3
"""The step in which a fault is planted."""
FLOATS = (torch.float8_e4m3fn, torch.float8_e5m2)
Fault = Callable[["Training"], None]


class Model(nn.Module):
    """Parameters and buffers that are unusual in their dtype, layout, shape or memory."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.decoder = nn.Linear(4, 7)
        self.decoder.weight = self.words.weight  # tied
        self.rows = nn.Embedding(7, 4, sparse=True)  # sparse gradients
        self.conv = nn.Conv2d(2, 3, 2).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.empty = nn.Parameter(torch.empty(0, 4))
        self.scalar = nn.Parameter(torch.tensor(0.75))
        self.turned = nn.Parameter(torch.randn(3, 4).t())
        self.gaps = nn.Parameter(torch.randn(4, 8)[:, ::2])
        self.complex64 = nn.Parameter(torch.randn(5, dtype=torch.complex64))
        self.complex128 = nn.Parameter(torch.randn(6, dtype=torch.complex128))
        self.bf16 = nn.Parameter(torch.randn(9).bfloat16())
        self.fp16 = nn.Parameter(torch.randn(9).half())
        self.fp64 = nn.Parameter(torch.randn(9, dtype=torch.float64))
        self.fp8 = nn.Parameter(torch.randn(9).to(torch.float8_e4m3fn))
        self.coo = nn.Parameter(torch.eye(4).to_sparse())
        self.csr = nn.Parameter(torch.eye(4).to_sparse_csr())
        self.frozen = nn.Parameter(torch.randn(9).to(torch.float8_e5m2), requires_grad=False)
        self.integers = nn.Parameter(_quantized(), requires_grad=False)
        self.register_buffer("channels", _quantized_by_channel())
        self.register_buffer("mask", torch.eye(3) > 0)
        self.register_buffer("expanded", torch.randn(1, 3).expand(40, 3))
        self.register_buffer("conjugated", torch.randn(5, dtype=torch.complex64).conj())
        self.register_buffer("links", torch.eye(5).to_sparse())
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("nothing", torch.empty(2, 0, dtype=torch.int64))

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        x = self.words(batch["words"]) + self.rows(batch["words"]) * self.scalar
        x = torch.tanh(x @ self.gaps) + self.empty.sum()
        x = torch.sparse.mm(self.coo, x.t()).t()
        x = torch.sparse.mm(self.csr, x.t()).t()
        x = self.decoder(torch.tanh(x @ self.turned @ self.turned.t()))
        waves = self.complex64.abs().sum() + self.complex128.abs().sum()
        short = self.bf16.sum() + self.fp16.sum() + self.fp64.sum() + self.fp8.float().sum()
        picture = self.conv(batch["picture"]).square().sum()
        constant = self.frozen.float().sum() + self.integers.dequantize().sum()
        seen = batch["float8"].float().sum() + batch["links"].to_dense().sum()
        return functional.log_softmax(x, 1)[:, 0].sum() + waves + short + picture + constant * seen


class Optimizer(torch.optim.SGD):
    """SGD that also steps float8 parameters, which torch does not add to."""

    def step(self, closure: Any = None) -> Any:
        (group,) = self.param_groups
        small = [each for each in group["params"] if each.dtype in FLOATS]
        group["params"] = [each for each in group["params"] if each.dtype not in FLOATS]
        with torch.no_grad():
            for each in small:
                each.copy_(each.float() - group["lr"] * each.grad.float())
        super().step(closure)
        group["params"] += small
        return None


class Training:
    """A training of five steps; `fault` is called in step `AT` after the backward pass."""

    def __init__(self, fault: Fault | None = None, sample: Fault | None = None) -> None:
        torch.manual_seed(3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.model = Model()
        self.fault, self.sample = fault, sample
        self.batch: dict[str, Any] = {}

    def batches(self) -> Iterator[dict[str, Any]]:
        generator = torch.Generator().manual_seed(5)
        for step in range(STEPS):
            self.batch = {
                "words": torch.randint(7, (6,), generator=generator),
                "picture": torch.randn(1, 2, 4, 4, generator=generator),
                "float8": torch.randn(9, generator=generator).to(torch.float8_e5m2),
                "bfloat16": torch.randn(9, generator=generator).bfloat16(),
                "complex": torch.randn(9, dtype=torch.complex64, generator=generator),
                "links": torch.eye(4).to_sparse() * (step + 1),
                "nested": torch.nested.nested_tensor(
                    [torch.randn(2, generator=generator), torch.randn(3, generator=generator)],
                    layout=torch.jagged,
                ),
                "nothing": torch.empty(0, 3),
                "scalar": torch.tensor(step),
                "turned": torch.randn(4, 5, generator=generator).t(),
            }
            if step == AT and self.sample is not None:
                self.sample(self)
            yield self.batch

    def run(self) -> None:
        parameters = [each for each in self.model.parameters() if each.requires_grad]
        optimizer = Optimizer(parameters, 2**-6, momentum=0.5)
        loader = torch.utils.data.DataLoader(_Stream(self), batch_size=None)
        for step, batch in enumerate(loader):
            optimizer.zero_grad()
            self.model(batch).backward()
            if step == AT and self.fault is not None:
                with torch.no_grad():
                    self.fault(self)
            optimizer.step()


class _Stream(torch.utils.data.IterableDataset[dict[str, Any]]):
    def __init__(self, training: Training) -> None:
        self._training = training

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._training.batches()


def _quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.randn(3, 4), 0.1, 3, torch.qint8)


def _quantized_by_channel() -> torch.Tensor:
    scales, points = torch.tensor([0.5, 0.25]), torch.tensor([0, 1])
    return torch.quantize_per_channel(torch.randn(2, 3), scales, points, 0, torch.quint8)
