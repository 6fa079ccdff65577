"""The engines of ignite: a trainer, and an evaluator that a handler runs after each epoch."""

from __future__ import annotations

from typing import Any

import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Loss
from torch import nn
from torch.utils.data import DataLoader

from .program import (
    BATCH_SIZE,
    BATCHES,
    EPOCHS,
    EVALUATION_BATCHES,
    Arguments,
    labelled,
    run,
    small_model,
)


def train(arguments: Arguments) -> tuple[list[float], nn.Module]:
    model, losses = small_model(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()
    kinds: dict[str, Any] = {"batch_size": BATCH_SIZE, "num_workers": arguments.workers}
    training = DataLoader(labelled(BATCHES, seed=2), shuffle=True, **kinds)
    evaluation = DataLoader(labelled(EVALUATION_BATCHES, seed=3), **kinds)
    trainer = create_supervised_trainer(
        model, optimizer, criterion, gradient_accumulation_steps=arguments.accumulate
    )
    evaluator = create_supervised_evaluator(model, metrics={"loss": Loss(criterion)})

    @trainer.on(Events.ITERATION_COMPLETED)
    def keep(engine: Any) -> None:
        losses.append(float(engine.state.output))

    @trainer.on(Events.EPOCH_COMPLETED)
    def evaluate(_engine: Any) -> None:
        losses.append(float(evaluator.run(evaluation).metrics["loss"]))

    trainer.run(training, max_epochs=EPOCHS)
    return losses, model


if __name__ == "__main__":
    run(train)
