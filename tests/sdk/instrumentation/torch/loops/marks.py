"""Loops with marks."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader

from . import loop, parts
from .parts import Training


@loop("""
cirron.session
  epoch[0-1]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
      log
  eval[0]
    data_load
    forward
    loss
""")
def marks(ci: Any) -> Any:
    """Marks in every scope, each named after the scope that it must be attached to."""

    def change(point: Any) -> Any:
        ci.mark("on data_load", 1)
        return point

    def seen(*_: Any) -> None:
        ci.mark("on forward", 1)

    training = Training()
    training.model[0].register_forward_hook(seen)
    loader = DataLoader(parts.Changed(change), batch_size=2)
    ci.mark("on cirron.session", 0)
    for epoch in range(2):
        ci.mark("on cirron.session", epoch)
        for batch in loader:
            ci.mark("on step", 0)
            training.optimizer.zero_grad()
            loss = training.loss(batch)
            ci.mark("on step", loss.item())
            loss.backward()
            ci.mark("on step", True)
            training.optimizer.step()
            ci.mark("on step", "end")
            with ci.scope("log"):
                ci.mark("on log", loss.item())
                training.losses.append(loss.item())
    with torch.no_grad():
        for batch in parts.loader(2):
            ci.mark("on eval", 1)
            training.losses.append(training.loss(batch).item())
            ci.mark("on eval", 2)
    ci.mark("on cirron.session", training.losses[-1], kind="summary")
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
    step[1]
      micro_step[0-1]
        data_load
        forward
        loss
        backward
      optimizer_step
    step[2]
      micro_step[0]
        data_load
        forward
        loss
        backward
  eval[0]
    data_load
    forward
    loss
    data_load
    forward
    loss
  data_load
""")
def marks_before_it_is_known(ci: Any) -> Any:
    """Marks made before the kind of the pass or of the step is known: none is lost."""
    training = Training()
    for number, batch in enumerate(parts.loader(10), start=1):
        ci.mark("fetched", number)
        training.backward(batch, parts=2)
        ci.mark("backward", training.losses[-1])
        if number % 2 == 0:
            training.update()
            ci.mark("on step", "updated")
    for batch in parts.loader(4):
        ci.mark("fetched", 0)
        with torch.no_grad():
            training.losses.append(training.loss(batch).item())
        ci.mark("evaluated", training.losses[-1])
    next(iter(parts.loader()))
    ci.mark("peeked", 1)
    return training.losses
