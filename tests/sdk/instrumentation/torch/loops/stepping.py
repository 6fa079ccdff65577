"""The boundaries of steps: accumulated gradients, skipped batches, several optimizers."""

from __future__ import annotations

from typing import Any

import torch

from . import loop, parts
from .parts import Critic, Generator, Training


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
    """Six batches; gradients are accumulated over two batches per step."""
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
    """Six batches, four per step: an optimizer.step() after the loop uses the remaining ones."""
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
    """Six batches, four per step: the remaining ones get no optimizer step."""
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
    """A step after every second batch and after the last one, as in Hugging Face's Trainer."""
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
    """A scope of the program in the first of two accumulated batches."""
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
    """A validation after each optimizer step of a loop that accumulates gradients."""
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
    step[0-2]
      data_load
      forward
      loss
      backward
""")
def no_optimizer(ci: Any) -> Any:
    """The loop changes the weights itself, without an optimizer."""
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
