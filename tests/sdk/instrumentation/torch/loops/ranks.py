"""Loops of several processes (gloo on loopback); every rank has the same tree.

On a CPU torch 2.6 has no FSDP2, and its ZeroRedundancyOptimizer hangs now and then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from . import loop
from .networks import (
    Checkpointed,
    Net,
    begin,
    sgd,
    weights,
)
from .parts import points


@contextlib.contextmanager
def _group() -> Iterator[None]:
    """The process group that RANK, WORLD_SIZE and MASTER_ADDR describe."""
    begin()
    distributed.init_process_group("gloo")
    try:
        yield
        distributed.barrier()
    finally:
        distributed.destroy_process_group()


def _share(batches: int = 3) -> DataLoader[Any]:
    """This rank's part of the points: so many batches of two."""
    whole = points(batches * 2 * distributed.get_world_size())
    return DataLoader(whole, 2, sampler=DistributedSampler(whole))


def _train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    criterion, batches = nn.MSELoss(), _share()
    for epoch in range(2):
        batches.sampler.set_epoch(epoch)
        for x, y in batches:
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()


@loop(
    """
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward{module=DistributedDataParallel}
      loss
      backward
      optimizer_step
""",
    ranks=2,
)
def ddp_two_ranks(ci: Any) -> list[float]:
    """DistributedDataParallel on 2 ranks, DistributedSampler with set_epoch."""
    with _group():
        model = DistributedDataParallel(Net())
        _train(model, sgd(model))
        return weights(model)


@loop(
    """
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward{module=DistributedDataParallel}
      loss
      backward
      optimizer_step
""",
    ranks=4,
)
def ddp_four_ranks(ci: Any) -> list[float]:
    """DistributedDataParallel on 4 ranks."""
    with _group():
        model = DistributedDataParallel(Net())
        _train(model, sgd(model))
        return weights(model)


@loop(
    """
cirron.session
  epoch[0-1]
    step[0-1]
      micro_step[0-1]
        data_load
        forward
        loss
        backward
      optimizer_step
""",
    ranks=2,
)
def ddp_no_sync(ci: Any) -> list[float]:
    """DistributedDataParallel, two batches per step, the first of them under no_sync."""
    with _group():
        model, criterion = DistributedDataParallel(Net()), nn.MSELoss()
        optimizer = sgd(model)
        for _ in range(2):
            for i, (x, y) in enumerate(_share(4)):
                with model.no_sync() if i % 2 == 0 else contextlib.nullcontext():
                    (criterion(model(x), y) / 2).backward()
                if i % 2 == 1:
                    optimizer.step()
                    optimizer.zero_grad()
        return weights(model)


@loop(
    """
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward{module=DistributedDataParallel}
      loss
      backward
        recompute x2
      optimizer_step
""",
    ranks=2,
)
def ddp_static_graph(ci: Any) -> list[float]:
    """DistributedDataParallel with a static graph and reentrant checkpointing."""
    with _group():
        net = Checkpointed(use_reentrant=True)
        model = DistributedDataParallel(net, static_graph=True)
        _train(model, sgd(model))
        return weights(model)


@loop(
    """
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward{module}
      loss
      backward
      optimizer_step
""",
    ranks=2,
)
def ddp_compiled(ci: Any) -> list[float]:
    """torch.compile of a model in DistributedDataParallel."""
    with _group():
        net = DistributedDataParallel(Net())
        model = torch.compile(net, backend="aot_eager")
        _train(model, sgd(net))
        return weights(net)


@loop(
    """
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step{optimizer=ZeroRedundancyOptimizer}
""",
    ranks=2,
    since="2.15",
)
def zero_redundancy(ci: Any) -> list[float]:
    """ZeroRedundancyOptimizer, which lets each rank step a part of the parameters."""
    with _group():
        model = DistributedDataParallel(Net())
        _train(model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.05))
        return weights(model)


@loop(
    """
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward{module=FullyShardedDataParallel}
      loss
      backward
      optimizer_step
""",
    ranks=2,
)
def fsdp1(ci: Any) -> list[float]:
    """FullyShardedDataParallel (FSDP1), with its layers wrapped as well."""
    with _group():
        net, cpu = Net(), torch.device("cpu")
        net.hidden = FullyShardedDataParallel(net.hidden, device_id=cpu)
        model = FullyShardedDataParallel(net, device_id=cpu)
        _train(model, sgd(model))
        return weights(model)


@loop(
    """
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward{module}
      loss
      backward
      optimizer_step
""",
    ranks=2,
    since="2.15",
)
def fsdp2(ci: Any) -> list[float]:
    """fully_shard (FSDP2) of the layers and the model."""
    with _group():
        model = Net()
        mesh = distributed.init_device_mesh("cpu", (2,))
        fully_shard(model.hidden, mesh=mesh)
        fully_shard(model, mesh=mesh)
        _train(model, sgd(model))
        return [v for p in model.parameters() for v in p.full_tensor().flatten().tolist()]


@loop(
    """
cirron.session
  epoch[0-1]
    step[0-1]
      micro_step[0-1]
        data_load
        forward
        loss
        backward
      optimizer_step
""",
    ranks=2,
    since="2.15",
)
def fsdp2_accumulating(ci: Any) -> list[float]:
    """fully_shard with set_requires_gradient_sync, two batches per step."""
    with _group():
        model, criterion = Net(), nn.MSELoss()
        fully_shard(model, mesh=distributed.init_device_mesh("cpu", (2,)))
        optimizer = sgd(model)
        for _ in range(2):
            for i, (x, y) in enumerate(_share(4)):
                model.set_requires_gradient_sync(i % 2 == 1)
                (criterion(model(x), y) / 2).backward()
                if i % 2 == 1:
                    optimizer.step()
                    optimizer.zero_grad()
        return [v for p in model.parameters() for v in p.full_tensor().flatten().tolist()]


@loop(
    """
cirron.session
  epoch[0]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
  eval[0]
    data_load
    forward
    loss
    data_load
    forward
    loss
  epoch[1]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
  eval[1]
    data_load
    forward
    loss
    data_load
    forward
    loss
""",
    ranks=2,
)
def ddp_validation(ci: Any) -> list[float]:
    """DistributedDataParallel, validated after each epoch; the metric is reduced over the ranks."""
    with _group():
        model, criterion = DistributedDataParallel(Net()), nn.MSELoss()
        optimizer, metrics = sgd(model), []
        for _ in range(2):
            model.train()
            for x, y in _share():
                optimizer.zero_grad()
                criterion(model(x), y).backward()
                optimizer.step()
            model.eval()
            total = torch.zeros(())
            with torch.no_grad():
                for x, y in _share(2):
                    total += criterion(model(x), y)
            distributed.all_reduce(total)
            metrics.append(total.item())
        return [*weights(model), *metrics]


@loop(
    """
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
""",
    ranks=2,
)
def gradients_reduced_by_hand(ci: Any) -> list[float]:
    """No wrapper: the loop reduces the gradients over the ranks itself."""
    with _group():
        model, criterion = Net(), nn.MSELoss()
        optimizer = sgd(model)
        for _ in range(2):
            for x, y in _share():
                optimizer.zero_grad()
                criterion(model(x), y).backward()
                for parameter in model.parameters():
                    distributed.all_reduce(parameter.grad)
                    parameter.grad /= distributed.get_world_size()
                optimizer.step()
        return weights(model)
