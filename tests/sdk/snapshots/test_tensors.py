"""Which tensors there are records of, under which names, and what is said of the odd ones."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from cirron_otel.sdk.snapshots import capture
from cirron_otel.sdk.snapshots.tensors import pieces, subjects_of

nn = torch.nn


@pytest.fixture
def four_ranks() -> Iterator[None]:
    """This process as the second of four, whose messages go nowhere: torch's own stand-in."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=1, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


def found(model: Any) -> dict[str, tuple[list[int], dict[str, Any]]]:
    return {each.name: (each.shape, each.attrs) for each in subjects_of(model)}


def records(model: Any) -> dict[str, capture.Record]:
    return {each.name: each for each in capture.take(model, 1 << 20).records()}


def holder(**parameters: Any) -> Any:
    model = nn.Module()
    for name, value in parameters.items():
        setattr(model, name, value)
    return model


def constant(tensor: Any) -> Any:
    return nn.Parameter(tensor, requires_grad=False)


def test_parameters_in_the_models_order_then_gradients_no_buffers() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    assert list(found(model)) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    model[0](torch.ones(1, 3)).sum().backward()
    names = [each.name for each in subjects_of(model)]
    assert names[4:] == ["0.weight.grad", "0.bias.grad"]
    assert [each.is_gradient for each in subjects_of(model)] == [False] * 4 + [True] * 2


@pytest.mark.usefixtures("four_ranks")
def test_tensor_names_ignore_wrapper_modules() -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.nn.parallel import DistributedDataParallel

    plain = list(found(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))))
    model = nn.Sequential(checkpoint_wrapper(nn.Linear(3, 2)), torch.compile(nn.Linear(2, 1)))
    assert "0._checkpoint_wrapped_module.weight" in dict(model.named_parameters())
    for wrapped in (model, torch.compile(model), nn.DataParallel(model)):
        assert list(found(wrapped)) == plain
    assert list(found(torch.compile(DistributedDataParallel(model)))) == plain


def test_a_module_that_is_called_module_keeps_its_name() -> None:
    model = nn.Module()
    model.module = nn.Linear(1, 1)
    model._orig_mod = nn.Linear(1, 1)
    model.weight = constant(torch.ones(1))
    assert list(found(model)) == ["weight", "module.weight", "module.bias", "_orig_mod.weight",
                                  "bias"]  # fmt: skip


def test_a_parameter_in_several_places_has_one_record_under_its_first_name() -> None:
    model = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
    model["b"].weight = model["a"].weight
    told = found(model)
    assert list(told) == ["a.weight", "a.bias", "b.bias"]
    assert told["a.weight"][1] == {"tied_names": ["b.weight"]}


@pytest.mark.usefixtures("four_ranks")
def test_of_a_sharded_parameter_the_part_of_this_process() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(6, 8))
    fully_shard(model, mesh=init_device_mesh("cpu", (4,)))
    shape, attrs = found(model)["0.weight"]
    assert (shape, attrs) == ([2, 6], {"shard": "S(0)", "global_shape": [8, 6]})
    record = records(model)["0.weight"]
    assert record.stats is not None
    assert sum(record.stats["histogram"]["counts"]) == 12
    assert record.is_stored


@pytest.mark.usefixtures("four_ranks")
def test_of_fsdp_1_the_flat_part_or_the_views_into_it() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    def sharded(uses_original: bool) -> dict[str, tuple[list[int], dict[str, Any]]]:
        model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 2))
        return found(
            FullyShardedDataParallel(
                model, use_orig_params=uses_original, device_id=torch.device("cpu")
            )
        )

    whole = "FullyShardedDataParallel"
    told = sharded(True)
    assert list(told) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert told["0.weight"] == ([19], {"shard": whole})
    assert told["1.bias"] == ([0], {"shard": whole, "without_statistics": "empty"})
    assert sharded(False) == {
        "_flat_param": ([19], {"shard": whole, "flattened": list(told)})
    }  # fmt: skip


def test_tensors_without_values_are_recorded_without_statistics() -> None:
    model = holder(meta=constant(torch.empty(3, device="meta")), empty=constant(torch.empty(0, 2)))
    model.lazy = nn.LazyLinear(3)
    told = records(model)
    assert list(told) == ["meta", "empty"]  # the lazy ones have no shape yet
    assert (told["meta"].stats, told["meta"].shape) == (None, [3])
    assert told["meta"].attrs == {"without_statistics": "meta", "not_stored": True}
    assert (told["empty"].stats, told["empty"].shape) == (None, [0, 2])
    assert told["empty"].attrs == {"without_statistics": "empty"}


@pytest.mark.parametrize("most_bytes", [None, 1000])
def test_released_memory_is_not_read(most_bytes: int | None) -> None:
    released = constant(torch.randn(50, 30))
    released.untyped_storage().resize_(0)
    found = capture.take(holder(released=released, other=constant(torch.ones(3))), most_bytes)
    records = {each.name: each for each in found.records()}
    assert (records["released"].stats, records["released"].shape) == (None, [50, 30])
    assert "memory has been released" in records["released"].attrs["without_statistics"]
    assert records["other"].stats is not None
    assert [record.is_stored for record in records.values()] == [False, most_bytes is not None]


def test_records_name_the_form_that_was_measured_and_the_layout() -> None:
    quantized = torch.quantize_per_tensor(torch.tensor([0.0, 0.5, 1.0]), 0.5, 0, torch.qint8)
    model = holder(
        cx=nn.Parameter(torch.tensor([3 + 4j, 0])),
        q=constant(quantized),
        sparse=constant(torch.tensor([[0.0, 2.0], [0.0, 0.0]]).to_sparse()),
        csr=constant(torch.tensor([[0.0, 2.0], [0.0, 0.0]]).to_sparse_csr()),
    )
    told = records(model)
    assert {name: record.attrs for name, record in told.items()} == {
        "cx": {"statistics_of": "magnitude"},
        "q": {"statistics_of": "dequantized", "not_stored": True},
        "sparse": {"layout": "sparse_coo", "not_stored": True},
        "csr": {"layout": "sparse_csr", "not_stored": True},
    }
    means = {name: record.stats and record.stats["mean"] for name, record in told.items()}
    assert means == {"cx": 2.5, "q": 0.5, "sparse": 0.5, "csr": 0.5}
    assert told["sparse"].shape == [2, 2]
    assert told["cx"].is_stored


def test_a_sparse_gradient_counts_each_row_once() -> None:
    model = nn.Embedding(10, 2, sparse=True)
    model(torch.tensor([1, 1, 4])).sum().backward()
    assert not model.weight.grad.is_coalesced()
    stats = records(model)["weight.grad"].stats
    assert stats is not None
    dense = model.weight.grad.to_dense()
    assert (stats["max"], stats["min"]) == (2.0, 0.0)
    assert stats["mean"] == pytest.approx(0.3)
    assert stats["norm"] == pytest.approx(dense.norm().item())
    assert stats["histogram"]["counts"] == [16, *[0] * 7, 2, *[0] * 6, 2]


def test_one_tensor_that_cannot_be_measured_leaves_the_others_alone() -> None:
    class Odd(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if function in (torch.aminmax, torch.Tensor.to, torch._foreach_copy_):
                raise RuntimeError("not implemented for odd ones")
            return super().__torch_function__(function, types, args, kwargs)

    odd = torch.ones(4).as_subclass(Odd)
    found = capture.take(holder(a=nn.Parameter(torch.ones(3)), odd=constant(odd)))
    told = {each.name: each for each in found.records()}
    assert told["a"].stats is not None
    assert told["odd"].stats is None
    assert "not implemented" in told["odd"].attrs["without_statistics"]
    assert len(found.failures) == 1


@pytest.mark.parametrize("model", [None, 5, object(), dict])
def test_objects_that_are_not_models_have_no_tensors(model: Any) -> None:
    assert subjects_of(model) == []


@pytest.mark.parametrize("limit", [1, 3, 7, 64, 10_000])
def test_pieces_are_the_tensor_and_small_ones_are_all_there_is(limit: int) -> None:
    base = torch.arange(5 * 6 * 7 * 8).reshape(5, 6, 7, 8)
    turned, repeated = base.permute(2, 0, 3, 1), base[:, :1].expand(5, 9, 7, 8)
    for tensor in (base, turned, base[::2, :, 1::3], repeated, torch.tensor(3)):
        some = list(pieces(tensor, limit))
        assert all(piece.numel() <= limit for piece in some)
        assert all(piece._is_view() or tensor.dim() == 0 for piece in some)  # nothing is copied
        together = torch.cat([piece.reshape(-1) for piece in some])
        assert together.sort().values.equal(tensor.reshape(-1).sort().values)


MEMORY = """
import resource, torch
from cirron_otel.sdk.snapshots import capture
torch.set_num_threads(1)
base = torch.randn(3000, 3000).bfloat16()
model = torch.nn.Module()
model.plain = torch.nn.Parameter(base)
model.turned = torch.nn.Parameter(base.T, requires_grad=False)
model.gaps = torch.nn.Parameter(base[:, ::2], requires_grad=False)
list(capture.take(torch.nn.Linear(100, 100)).records())
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
list(capture.take(model).records())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_measuring_takes_little_memory_whatever_the_layout() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True
    )
    # As doubles the tensor would be 72 MB; the portions are 17.
    assert int(done.stdout) < 40_000
