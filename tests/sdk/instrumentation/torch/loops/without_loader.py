"""Loops without a loader: the optimizer determines the steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from . import loop, parts
from .parts import Critic, Generator, Training


@loop("""
cirron.session
  step[0-3]
    forward
    loss
    backward
    optimizer_step
""")
def no_loader(ci: Any) -> Any:
    """for _ in range(4), without a loader."""
    training = Training()
    whole = parts.points(6).tensors
    for _ in range(4):
        training.step(whole)
    return training.losses


@loop("""
cirron.session
  step[0-5]
    forward
    loss
    backward
    optimizer_step
""")
def list_of_batches(ci: Any) -> Any:
    """Two epochs over a list of batches: without a loader, nothing shows where an epoch begins."""
    training = Training()
    batches = list(zip(*(part.split(2) for part in parts.points(6).tensors), strict=True))
    for _ in range(2):
        for batch in batches:
            training.step(batch)
    return training.losses


@loop("""
cirron.session
  step[0-1]
    micro_step[0-2]
      forward
      loss
      backward
    optimizer_step
""")
def no_loader_accumulation(ci: Any) -> Any:
    """Gradients of three batches per step, without a loader."""
    training = Training()
    whole = parts.points(6).tensors
    for _ in range(2):
        for _ in range(3):
            training.backward(whole, parts=3)
        training.update()
    return training.losses


@loop("""
cirron.session
  step[0-2]
    forward{module=Generator}
    forward{module=Critic}
    loss
    forward{module=Critic}
    loss
    backward
    optimizer_step{optimizer=Adam}
    forward{module=Critic}
    loss
    backward
    optimizer_step{optimizer=SGD}
""")
def no_loader_gan(ci: Any) -> Any:
    """A GAN without a loader: two optimizers per step."""
    torch.manual_seed(0)
    generator, critic = Generator(), Critic()
    first = torch.optim.Adam(critic.parameters())
    second = torch.optim.SGD(generator.parameters(), lr=0.01)
    criterion = nn.BCEWithLogitsLoss()
    real, ones, zeros = torch.randn(2, 4), torch.ones(2, 1), torch.zeros(2, 1)
    for _ in range(3):
        fake = generator(torch.randn(2, 3))
        first.zero_grad()
        loss = criterion(critic(real), ones) + criterion(critic(fake.detach()), zeros)
        loss.backward()
        first.step()
        second.zero_grad()
        criterion(critic(fake), ones).backward()
        second.step()


class Regression(nn.Module):
    """A model that returns its own loss, as language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.network = parts.network()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(self.network(x), y)


@loop("""
cirron.session
  eval[0]
    forward
    forward
  step[0-1]
    micro_step[0-1]
      forward
      backward
    optimizer_step
  eval[1]
    forward
    forward
  step[2-3]
    micro_step[0-1]
      forward
      backward
    optimizer_step
""")
def estimates_between(ci: Any) -> Any:
    """As in nanoGPT: no loader, accumulation, the loss in the model, periodic estimates."""
    model = Regression()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x, y = parts.points(6).tensors
    losses = []

    @torch.no_grad()
    def estimate() -> float:
        model.eval()
        mean = torch.stack([model(x[i:], y[i:]) for i in range(2)]).mean().item()
        model.train()
        return mean

    for iteration in range(4):
        if iteration % 2 == 0:
            losses.append(estimate())
        for part in range(2):
            loss = model(x[part::2], y[part::2]) / 2
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return losses


@loop("""
cirron.session
  forward
  backward
  eval[0]
    forward x2
  step[0-1]
    micro_step[0-1]
      forward
      backward
    optimizer_step
  eval[1]
    forward x2
  step[2]
    micro_step[0-1]
      forward
      backward
    optimizer_step
""")
def reference_gradients_first(ci: Any) -> Any:
    """As in llm.c: reference gradients are computed before the optimizer is constructed."""
    torch.manual_seed(0)
    model, data = Critic(), torch.randn(4, 4)
    model(data).mean().backward()
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for step in range(3):
        if step in {0, 2}:
            model.eval()
            with torch.no_grad():
                losses += [model(data).mean().item() for _ in range(2)]
        model.train()
        optimizer.zero_grad(set_to_none=True)
        for half in data.split(2):
            model(half).square().mean().backward()
        optimizer.step()
    return losses
