"""Programs that train with Keras on torch."""

from __future__ import annotations

from typing import Any

from tests.frameworks import program

from . import keras_shared
from .keras_parts import TORCH, compiled, data, programs_on, results

assert keras_shared
PROGRAMS = programs_on(TORCH)


@program(TORCH.session(TORCH.epoch(0, 3), TORCH.epoch(1, 3)))
def reads_a_torch_loader() -> dict[str, Any]:
    """A DataLoader of torch is the input."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    model = compiled()
    rows = TensorDataset(*map(torch.from_numpy, data()))
    return results(model, model.fit(DataLoader(rows, batch_size=2), epochs=2, verbose=0))
