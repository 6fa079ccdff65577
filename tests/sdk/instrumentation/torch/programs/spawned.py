"""A spawned process that uses the model passed to it; it imports nothing of the package."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn


def look_at(model: nn.Module, answers: Any) -> None:
    """Compute with the model, and say what of ours has come along."""
    torch.set_num_threads(1)
    with torch.no_grad():
        out = model(torch.ones(1, 4))
    ours = sorted(name for name in sys.modules if name.startswith("cirron"))
    answers.put((out.item(), ours))
