"""The `fit` of Keras on torch, with a validation of one batch."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import torch
from torch import nn

from .program import (
    BATCH_SIZE,
    BATCHES,
    EPOCHS,
    Arguments,
    labelled,
    run,
)


class Losses(keras.callbacks.Callback):
    """The loss of each batch, and of each validation."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    def on_train_batch_end(self, _batch: int, logs: dict[str, float] | None = None) -> None:
        self.losses.append(float((logs or {})["loss"]))

    def on_test_end(self, logs: dict[str, float] | None = None) -> None:
        self.losses.append(float((logs or {})["loss"]))


def train(arguments: Arguments) -> tuple[list[float], nn.Module]:
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential([
        keras.Input((8,)), layers.Dense(16, "relu"), layers.Dropout(0.1), layers.Dense(3),
    ])  # fmt: skip
    model.compile(
        optimizer=keras.optimizers.AdamW(0.01),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    examples, labels = labelled(BATCHES, seed=2).tensors
    losses = Losses()
    model.fit(
        examples.numpy(), labels.numpy(), batch_size=BATCH_SIZE, epochs=EPOCHS, verbose=0,
        validation_data=(examples[:BATCH_SIZE].numpy(), labels[:BATCH_SIZE].numpy()),
        callbacks=[losses],
    )  # fmt: skip
    assert isinstance(model, torch.nn.Module)
    return losses.losses, model


if __name__ == "__main__":
    run(train)
