"""The findings about a training on the device: its clock, its memory and its utilisation."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import cirron_otel as ci

from .machine import (
    Machine,
    Unavailable,
    expect,
    traced,
)

_STEPS = 60
_LOADING_S = 0.04
_WAIT_S = 60


class _SlowData(Dataset[Tensor]):
    def __len__(self) -> int:
        return _STEPS

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(_LOADING_S)
        return torch.ones(64)


def findings(machine: Machine) -> None:
    """A slow loader is the first finding, with times of the device; other kinds are assessed."""
    net = nn.Linear(64, 64).to(machine.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    with traced(cuda_memory=True, sample_interval=0.05) as session:
        for x in DataLoader(_SlowData(), 1):
            net(x.to(machine.device)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        machine.synchronize()
        document = _reported(str(session.profiler.config.output_dir))
    kinds = [each["kind"] for each in document["findings"]]
    missing = {each["kind"]: each["reason"] for each in document["not_assessed"]}
    machine.figures.update({"kinds": kinds, "not_assessed": missing})
    steps = document["units"]["count"]
    expect(steps == _STEPS, f"{steps} steps")
    expect(kinds[:1] == ["INPUT_BOUND"], f"the findings are {kinds}")
    if not machine.is_gpu:
        return
    for kind in ("WAIT_HEAVY", "HIGH_PRESSURE", "CREEP_CONFIRMED"):
        expect(kind not in missing, f"{kind}: {missing.get(kind)}")
    if importlib.util.find_spec("pynvml") is None:
        raise Unavailable("the utilisation is not read", lacks="nvidia-ml-py")
    for kind in ("LOW_GPU_UTIL", "GPU_HOT"):
        expect(kind not in missing, f"{kind}: {missing.get(kind)}")


def _reported(directory: str) -> dict[str, Any]:
    """Return the document of the run once all steps are sealed: they wait for the device."""
    command = [sys.executable, "-m", "cirron_otel", "report", directory, "--json"]
    last = time.monotonic() + _WAIT_S
    while True:
        ci.flush()
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        document: dict[str, Any] = json.loads(done.stdout)
        if document["units"]["count"] == _STEPS or time.monotonic() > last:
            return document
        time.sleep(0.1)
