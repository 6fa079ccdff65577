"""The check of the verdicts: the device's clock, its memory, and the sampler's readings."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from typing import Any

from torch import Tensor

from .loops import Batches, Training
from .machine import Machine, expect, traced

_FETCH_S = 0.02


class _SlowBatches(Batches):
    """Batches that take a while to load."""

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(_FETCH_S)
        return super().__getitem__(index)


def verdicts(machine: Machine) -> None:
    """A slow loader is INPUT_BOUND by the device's clock, and no rule lacks its readings."""
    training = Training(machine, machine.size(1024, 16), 1)
    training.batches = _SlowBatches(machine, training.rows, training.rows, 0)
    with tempfile.TemporaryDirectory() as directory:
        with traced(output_dir=directory, sample_interval=0.05, cuda_memory=True):
            training.run(60)
        run = _diagnosis(directory)
    missing = {each["rule"]: each["reason"] for each in run["not_assessed"]}
    machine.figures.update(
        {"window": run["window"], "primary": run["primary"], "not_assessed": missing}
    )
    expect(run["primary"] == "INPUT_BOUND", f"the primary verdict is {run['primary']}")
    (share,) = [each["share"] for each in run["verdicts"] if each["kind"] == "INPUT_BOUND"]
    machine.figures["share"] = share
    if not machine.is_gpu:
        return
    expect(run["window"]["clock"] == "device", f"the clock is the {run['window']['clock']}'s")
    needed = {"HIGH_PRESSURE", "CREEP"}
    if importlib.util.find_spec("pynvml") is not None:
        needed |= {"LOW_GPU_UTIL", "GPU_HOT"}
    expect(not needed & missing.keys(), f"rules were not assessed: {missing}")


def _diagnosis(directory: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "cirron_otel", "diagnose", directory, "--json"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    expect(done.returncode == 0, f"diagnose failed: {done.stderr}")
    (run,) = json.loads(done.stdout)["runs"]
    return dict(run)
