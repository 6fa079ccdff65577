"""The loop of Accelerate's documentation: prepare, accumulate, backward; then an evaluation."""

from __future__ import annotations

import torch
from accelerate import Accelerator
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
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=arguments.accumulate)
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
    kinds = {"batch_size": BATCH_SIZE, "num_workers": arguments.workers}
    training = DataLoader(labelled(BATCHES, seed=2), shuffle=True, **kinds)
    evaluation = DataLoader(labelled(EVALUATION_BATCHES, seed=3), **kinds)
    model, optimizer, training, evaluation, scheduler = accelerator.prepare(
        model, optimizer, training, evaluation, scheduler
    )
    losses = []
    for _ in range(EPOCHS):
        model.train()
        for examples, labels in training:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(examples), labels)
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            losses.append(loss.item())
        model.eval()
        for examples, labels in evaluation:
            with torch.no_grad():
                predictions = model(examples)
            gathered = accelerator.gather_for_metrics((predictions, labels))
            losses.append(nn.functional.cross_entropy(*gathered).item())
    return losses, accelerator.unwrap_model(model)


if __name__ == "__main__":
    run(train)
