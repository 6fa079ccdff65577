"""Programs that train with Keras on torch."""

from __future__ import annotations

from typing import Any

from tests.system.frameworks import program

from . import keras_shared
from .keras_parts import (
    OPTIONS,
    TORCH,
    compiled,
    data,
    programs_on,
    results,
)

assert keras_shared
PROGRAMS = programs_on(TORCH)


@program(TORCH.session(TORCH.epoch(0, 3), TORCH.epoch(1, 3, done=3)))
def reads_a_torch_loader() -> dict[str, Any]:
    """A DataLoader of torch is the input."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    model = compiled()
    rows = TensorDataset(*map(torch.from_numpy, data()))
    return results(model, model.fit(DataLoader(rows, batch_size=2), epochs=2, verbose=0))


@program(
    TORCH.session(TORCH.epoch(0, 1) + "\n  step[1]{global_step=1}\n    data_load"),
    error="MemoryError: too much",
)
def fails_in_its_train_step() -> dict[str, Any]:
    """A train step of the program's own raises; the step has the global step before it."""
    import keras

    class Custom(keras.Sequential):  # type: ignore[misc]
        def train_step(self, rows: Any) -> Any:
            if int(self.optimizer.iterations) == 1:
                raise MemoryError("too much")
            return super().train_step(rows)

    compiled(kind=Custom).fit(*data(), **OPTIONS)
    return {}


ADVERSARIES = """
      data_load
      forward x2
      backward
      optimizer_step
      forward x2
      backward
      optimizer_step"""


@program(f"cirron.session\n  forward\n  loss\n  epoch[0-1]\n    step[0-1]{ADVERSARIES}")
def trains_adversaries() -> dict[str, Any]:
    """The guide's GAN: a train step with two models and two optimizers."""
    import keras
    import torch

    layers = keras.layers
    keras.utils.set_random_seed(1)

    class Adversaries(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.generator = keras.Sequential([keras.Input((3,)), layers.Dense(4)])
            self.critic = keras.Sequential([keras.Input((4,)), layers.Dense(1)])
            self.seeds = keras.random.SeedGenerator(1)
            self.built = True

        def compile(self, of_critic: Any, of_generator: Any, loss: Any) -> None:
            super().compile()
            self.of_critic, self.of_generator, self.loss_of = of_critic, of_generator, loss

        def train_step(self, real: Any) -> Any:
            made = self.generator(keras.random.normal((len(real), 3), seed=self.seeds))
            ones, zeros = torch.ones((len(real), 1)), torch.zeros((len(real), 1))
            self.zero_grad()
            judged = self.critic(torch.cat([made.detach(), real]))
            of_critic = self.loss_of(torch.cat([ones, zeros]), judged)
            self._update(of_critic, self.critic, self.of_critic)
            self.zero_grad()
            made = self.generator(keras.random.normal((len(real), 3), seed=self.seeds))
            of_generator = self.loss_of(zeros, self.critic(made))
            self._update(of_generator, self.generator, self.of_generator)
            return {"critic": of_critic, "generator": of_generator}

        def _update(self, loss: Any, model: Any, optimizer: Any) -> None:
            loss.backward()
            weights = model.trainable_weights
            with torch.no_grad():
                optimizer.apply([each.value.grad for each in weights], weights)

    model = Adversaries()
    loss = keras.losses.BinaryCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.02), loss)
    return results(model, model.fit(data(4)[0], epochs=2, **OPTIONS))


@program(
    TORCH.session(
        "epoch[0]\n  step[0-1]\n    data_load\n    forward\n      backward\n"
        "      optimizer_step\n"
        "  eval[0]\n    data_load\n    forward"
    )
)
def compiles_with_dynamo() -> dict[str, Any]:
    """`jit_compile=True`: the function of a step is compiled, here without generated code."""
    import functools

    import torch

    torch.compile = functools.partial(torch.compile, backend="eager")
    model = compiled(jit_compile=True)
    return results(model, model.fit(*data(4), validation_data=data(2), **OPTIONS))


@program(
    "cirron.session\n  forward\n  loss\n  epoch[0-1]\n    step[0-1]\n      data_load\n"
    "      forward\n      loss\n      backward\n      optimizer_step",
    ranks=2,
)
def two_ranks_write_their_loop() -> dict[str, Any]:
    """Keras' guide to several GPUs with torch: a Keras model in DDP, and a loop of torch."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    dist.init_process_group("gloo")
    rows = TensorDataset(*map(torch.from_numpy, data(8)))
    loader = DataLoader(rows, batch_size=2, sampler=DistributedSampler(rows, shuffle=False))
    model = compiled()
    parallel = DistributedDataParallel(model)
    optimizer, criterion = torch.optim.SGD(model.parameters(), lr=0.1), torch.nn.MSELoss()
    for _ in range(2):
        for inputs, targets in loader:
            optimizer.zero_grad()
            criterion(parallel(inputs), targets).backward()
            optimizer.step()
    dist.destroy_process_group()
    return results(model)
