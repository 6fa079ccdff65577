"""Trains with one internal of torch after the other taken away, as if a release had changed it.

    python -m tests.sdk.instrumentation.torch.programs.doctored_torch DIRECTORY

Prints, for each, the scopes that were recorded, what was logged, what health counts, the losses.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

import cirron_otel as ci
from tests.kit.sessions.spool_trees import read_spool

CHECKPOINTS, COMPILES = "checkpoints", "compiles"
CASES: dict[str, tuple[list[str], str]] = {
    "nothing": ([], ""),
    "data_load": (["torch.utils.data.dataloader._BaseDataLoaderIter"], ""),
    "autograd.grad": (["torch.autograd.grad"], ""),
    "recompute": (["torch.utils.checkpoint.CheckpointFunction"], CHECKPOINTS),
    "recompute without reentrance": (
        [
            "torch.utils.checkpoint._checkpoint_without_reentrant_generator",
            "torch.utils.checkpoint._checkpoint_without_reentrant_generator_impl",
        ],
        CHECKPOINTS,
    ),
    "graph task": (["torch._C._current_graph_task_id"], CHECKPOINTS),
    "tracing": (["torch._guards.TracingContext"], COMPILES),
    "optimizer_step": (["torch.optim.optimizer.register_optimizer_step_pre_hook"], ""),
    "optimizer_step after": (["torch.optim.optimizer.register_optimizer_step_post_hook"], ""),
    "skipped": (["torch.amp.grad_scaler.GradScaler"], ""),
    "compiled functions": (["torch._dynamo.eval_frame._maybe_set_eval_frame"], COMPILES),
    "compiled functions left alone": (
        ["torch._C._dynamo.eval_frame._FrameExecStrategy", "torch._C._dynamo.eval_frame.skip_code"],
        COMPILES,
    ),
    "workers": (["torch.utils.data._utils.worker._worker_loop"], ""),
}
"""What is taken away, and what torch itself cannot do then."""


class Net(nn.Module):
    """With a block that is computed again, in both ways."""

    def __init__(self, checkpoints: bool) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.last = nn.Linear(2, 1)
        self.checkpoints = checkpoints

    def forward(self, x: Tensor) -> Tensor:
        if self.checkpoints:
            x = checkpoint(self.inner, x.requires_grad_(), use_reentrant=True)
            x = checkpoint(self.inner, x, use_reentrant=False)
        return self.last(self.inner(x))


def half(x: Tensor) -> Tensor:
    return x / 2


def train(without: str) -> list[float]:
    """A loop with much of what hooks look at."""
    torch.manual_seed(5)
    model, criterion = Net(checkpoints=without != CHECKPOINTS), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    function = half if without == COMPILES else torch.compile(half, backend="eager")
    losses = []
    for _ in range(2):
        for x in DataLoader(torch.rand(6, 2), 2):
            loss = criterion(model(function(x)), x[:, :1])
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


@contextlib.contextmanager
def without(paths: list[str]) -> Iterator[None]:
    """Take them away for a time, those that there are."""
    taken = []
    for path in paths:
        module, _, name = path.rpartition(".")
        owner = importlib.import_module(module)
        if hasattr(owner, name):
            taken.append((owner, name, getattr(owner, name)))
            delattr(owner, name)
    assert taken or not paths
    try:
        yield
    finally:
        for owner, name, value in taken:
            setattr(owner, name, value)


class Said(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    told: dict[str, Any] = {}
    for case, (paths, lost) in CASES.items():
        with without(paths):
            try:
                untraced = train(lost)
            except (AttributeError, NameError):
                continue  # this torch cannot do without
        directory, said = Path(sys.argv[1], case.replace(" ", "_")), Said()
        logging.getLogger("cirron_otel").addHandler(said)
        with without(paths):
            profiler = ci.profile(
                output_dir=directory, frameworks=["torch"], join="none", workers=True
            )
            hooks = profiler.installed_hooks
            losses = train(lost)
            ci.shutdown()
        logging.getLogger("cirron_otel").removeHandler(said)
        spans = read_spool(directory).spans
        told[case] = {
            "names": Counter(span["name"] for span in spans),
            "skipped": sum("skipped" in span["attrs"] for span in spans),
            "said": said.said,
            "errors": profiler.health()["swallowed_errors"],
            "hooks": hooks,
            "same": losses == untraced,
        }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
