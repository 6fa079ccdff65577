"""What makes a step: gradients that are accumulated, several optimizers, no loader at all."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from . import loop, parts
from .parts import Training


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      micro_step[0-1]
        data_load
        forward
        loss
        backward
      optimizer_step
""")
def accumulation(ci: Any) -> Any:
    """Gradients of two batches a step, six batches."""
    training = Training()
    loader = parts.loader(12)
    for _ in range(2):
        for number, batch in enumerate(loader, start=1):
            training.backward(batch, parts=2)
            if number % 2 == 0:
                training.update()
    return training.losses


@loop("""
cirron.session
  epoch[0-1]
    step[0]
      micro_step[0-3]
        data_load
        forward
        loss
        backward
      optimizer_step
    step[1]
      micro_step[0-1]
        data_load
        forward
        loss
        backward
      optimizer_step
""")
def accumulation_flushed(ci: Any) -> Any:
    """Four batches a step, six batches: a last optimizer.step() behind the loop takes the rest."""
    training = Training()
    loader = parts.loader(12)
    for _ in range(2):
        for number, batch in enumerate(loader, start=1):
            training.backward(batch, parts=4)
            if number % 4 == 0:
                training.update()
        training.update()
    return training.losses


@loop("""
cirron.session
  epoch[0-1]
    step[0]
      micro_step[0-3]
        data_load
        forward
        loss
        backward
      optimizer_step
    step[1]
      micro_step[0-1]
        data_load
        forward
        loss
        backward
""")
def accumulation_tail(ci: Any) -> Any:
    """Four batches a step, six batches: the rest never steps."""
    training = Training()
    loader = parts.loader(12)
    for _ in range(2):
        training.optimizer.zero_grad()
        for number, batch in enumerate(loader, start=1):
            training.backward(batch, parts=4)
            if number % 4 == 0:
                training.update()
    return training.losses


@loop("""
cirron.session
  epoch[0-1]
    step[0-1]
      micro_step[0-1]
        data_load
        forward
        loss
        backward
      optimizer_step
    step[2]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def accumulation_to_the_end(ci: Any) -> Any:
    """As Hugging Face's Trainer does: a step after every second and after the last batch."""
    training = Training()
    loader = parts.loader(10)
    for _ in range(2):
        for i, batch in enumerate(loader):
            loss = training.loss(batch)
            loss = loss / 2
            loss.backward()
            training.losses.append(loss.item())
            if (i + 1) % 2 == 0 or i + 1 == len(loader):
                training.update()
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0-1]
      micro_step[0]
        data_load
        forward
        loss
        backward
      log
      micro_step[1]
        data_load
        forward
        loss
        backward
      optimizer_step
""")
def accumulation_with_scopes(ci: Any) -> Any:
    """A scope of the user's own in the first of two batches."""
    training = Training()
    for number, batch in enumerate(parts.loader(8)):
        training.backward(batch, parts=2)
        if number % 2 == 0:
            with ci.scope("log"):
                training.losses.append(float(number))
        else:
            training.update()
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0]
      micro_step[0-1]
        data_load
        forward
        loss
        backward
      optimizer_step
    eval[0]
      data_load
      forward
      loss
    step[1]
      micro_step[0-1]
        data_load
        forward
        loss
        backward
      optimizer_step
    eval[1]
      data_load
      forward
      loss
""")
def accumulation_and_validation(ci: Any) -> Any:
    """A validation after each optimizer step of an accumulating loop."""
    training = Training()
    held_out = parts.loader(2)
    for number, batch in enumerate(parts.loader(8), start=1):
        training.backward(batch, parts=2)
        if number % 2 == 0:
            training.update()
            with torch.no_grad():
                training.evaluate(held_out)
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0]
      data_load
      forward
      loss
      backward
      optimizer_step
    step[1]
      data_load
      forward
      loss
    step[2]
      data_load
      forward
      loss
      backward
      optimizer_step
""")
def batch_left_out(ci: Any) -> Any:
    """A batch whose loss is out of bounds has no backward."""
    training = Training()
    for number, batch in enumerate(parts.loader()):
        training.optimizer.zero_grad()
        loss = training.loss(batch)
        if number == 1:
            continue
        loss.backward()
        training.optimizer.step()
        training.losses.append(loss.item())
    return training.losses


@loop("""
cirron.session
  epoch[0-1]
    step[0]
      micro_step[0-2]
        data_load
        forward
        loss
        backward
""")
def no_optimizer(ci: Any) -> Any:
    """Weights are changed by hand, without an optimizer: nothing tells accumulation from this."""
    training = Training()
    loader = parts.loader()
    for _ in range(2):
        for batch in loader:
            training.model.zero_grad()
            training.backward(batch)
            with torch.no_grad():
                for weight in training.model.parameters():
                    weight.sub_(weight.grad, alpha=0.05)
    return training.losses


@loop("""
cirron.session
  epoch[0]
    step[0-1]
      data_load
      forward{module=Generator}
      forward{module=Critic}
      forward{module=Critic}
      backward
      optimizer_step{optimizer=Adam}
      forward{module=Generator}
      forward{module=Critic}
      forward{module=Critic}
      backward
      optimizer_step{optimizer=Adam}
      forward{module=Generator}
      forward{module=Critic}
      backward
      optimizer_step{optimizer=SGD}
""")
def critic_steps_twice(ci: Any) -> Any:
    """A Wasserstein GAN: the critic steps twice for each batch, then the generator."""
    torch.manual_seed(0)
    generator, critic = Generator(), Critic()
    first = torch.optim.Adam(critic.parameters())
    second = torch.optim.SGD(generator.parameters(), lr=0.01)
    for x, _ in parts.loader(4):
        for _ in range(2):
            first.zero_grad()
            fake = generator(torch.randn(2, 3)).detach()
            (critic(fake).mean() - critic(x).mean()).backward()
            first.step()
        second.zero_grad()
        (-critic(generator(torch.randn(2, 3))).mean()).backward()
        second.step()


class Generator(nn.Module):
    """Points out of noise."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, noise: Tensor) -> Tensor:
        return self.layer(noise)


class Critic(nn.Module):
    """How real points look."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


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
    """Two epochs over a list of batches: no loader, so nobody tells where an epoch begins."""
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
    """Gradients of three batches a step, without a loader."""
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
    """A GAN without a loader: two optimizers a step."""
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
  forward
  forward
  step[0-1]
    micro_step[0-1]
      forward
      backward
    optimizer_step
  forward
  forward
  step[2-3]
    micro_step[0-1]
      forward
      backward
    optimizer_step
""")
def estimates_between(ci: Any) -> Any:
    """As nanoGPT does: no loader, accumulation, the loss in the model, estimates now and then."""
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
