"""What the programs of this directory share: their arguments, data, model, and the line they print.

    python -m tests.sdk.instrumentation.torch.third_party.<name> DIR [--accumulate N] [--workers N]
        [--traced-only]

Each trains 2 epochs of 6 batches with a loop that a library wrote, and evaluates after each epoch:
once without tracing, and once traced to DIR. Both runs are forked from the process that has
imported the library, and both print one line of JSON: `losses`, and `weights`, the SHA-256 of the
final weights.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch._dynamo  # every optimizer imports it: here once, before the forks
from torch import nn
from torch.utils.data import TensorDataset

import cirron_otel

EPOCHS = 2
BATCHES = 6
EVALUATION_BATCHES = 2
BATCH_SIZE = 2


@dataclass(frozen=True)
class Arguments:
    trace: Path
    """Where to trace the second run to."""
    accumulate: int
    """Batches an optimizer step."""
    traced_only: bool
    """Whether the run without tracing is left out."""
    workers: int
    """Processes that load."""


def run(train: Callable[[Arguments], tuple[list[float], nn.Module]]) -> None:
    """Call `train` in two processes, of which the second is traced."""
    parser = argparse.ArgumentParser()
    parser.add_argument("trace", type=Path)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--traced-only", action="store_true")
    arguments = Arguments(**vars(parser.parse_args()))
    torch.set_num_threads(1)
    for is_traced in (True,) if arguments.traced_only else (False, True):
        pid = os.fork()
        if pid == 0:
            _run(train, arguments, is_traced)
            return  # the process comes to its normal end
        if os.waitpid(pid, 0)[1]:
            sys.exit(1)


def _run(
    train: Callable[[Arguments], tuple[list[float], nn.Module]],
    arguments: Arguments,
    is_traced: bool,
) -> None:
    torch.manual_seed(1)
    if is_traced:
        cirron_otel.profile(output_dir=arguments.trace, frameworks="auto")
    losses, model = train(arguments)
    if is_traced:
        cirron_otel.shutdown()
    json.dump({"losses": losses, "weights": digest(model)}, sys.stdout)
    print()


def digest(model: nn.Module) -> str:
    """The SHA-256 of names and values of the model's state."""
    result = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        result.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
    return result.hexdigest()


def small_model() -> nn.Module:
    """A classifier of 8 numbers, with what draws random numbers in it."""
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))


def labelled(batches: int, seed: int) -> TensorDataset:
    """So many batches of examples for `small_model`."""
    drawn = torch.Generator().manual_seed(seed)
    rows = batches * BATCH_SIZE
    return TensorDataset(
        torch.randn(rows, 8, generator=drawn), torch.randint(3, (rows,), generator=drawn)
    )
