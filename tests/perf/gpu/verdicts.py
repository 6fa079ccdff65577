"""The verdicts on a training on the device: its clock, its memory and its utilisation."""

from __future__ import annotations

import importlib.util
import time

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import cirron_otel as ci
from cirron_otel.core.analysis.verdicts.diagnosis import Diagnosis
from cirron_otel.core.analysis.verdicts.run_window import diagnose_batches
from cirron_otel.core.analysis.verdicts.thresholds import thresholds_of
from cirron_otel.core.spool.reader import SpoolReader

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


def verdicts(machine: Machine) -> None:
    """A slow loader is INPUT_BOUND on the device's clock; memory and utilisation are assessed."""
    net = nn.Linear(64, 64).to(machine.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    with traced(cuda_memory=True, sample_interval=0.05) as session:
        for x in DataLoader(_SlowData(), 1):
            net(x.to(machine.device)).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        machine.synchronize()
        found = _diagnosed(str(session.profiler.config.output_dir))
    machine.figures.update({"kinds": [each.kind for each in found.verdicts],
                            "not_assessed": found.not_assessed})  # fmt: skip
    expect(found.steps == _STEPS, f"{found.steps} steps")
    expect(found.primary.kind == "INPUT_BOUND", f"the verdict is {found.primary.kind}")
    clock = "device" if machine.is_gpu else "host"
    expect(found.clock == clock, f"the clock is the {found.clock}'s")
    if not machine.is_gpu:
        return
    for rule in ("HIGH_PRESSURE", "CREEP"):
        expect(rule not in found.not_assessed, f"{rule}: {found.not_assessed.get(rule)}")
    if importlib.util.find_spec("pynvml") is None:
        raise Unavailable("the utilisation is not read", lacks="nvidia-ml-py")
    for rule in ("LOW_GPU_UTIL", "GPU_HOT"):
        expect(rule not in found.not_assessed, f"{rule}: {found.not_assessed.get(rule)}")


def _diagnosed(directory: str) -> Diagnosis:
    """Return the diagnosis once all steps are sealed: they wait for the device."""
    last = time.monotonic() + _WAIT_S
    while True:
        ci.flush()
        found = diagnose_batches(SpoolReader(directory), thresholds_of("run"))
        if found.steps == _STEPS or time.monotonic() > last:
            return found
        time.sleep(0.1)
