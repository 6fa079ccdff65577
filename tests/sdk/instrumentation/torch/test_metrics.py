"""Metrics of a hooked training loop: as many of each phase as the spool contains."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.forked_scripts import ForkedScripts
from tests.kit.servers.metrics_sink import (
    HTTP,
    SINKS,
    Sink,
    by_name,
    phases,
    points,
)
from tests.kit.sessions.whole import whole
from tests.sdk.flush.test_metrics import check, check_exemplars, to

pytestmark = pytest.mark.torch

LOOP = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import cirron_otel as ci
ci.profile(output_dir=sys.argv[1], snapshots=None)
model, criterion = nn.Linear(4, 2), nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = DataLoader(TensorDataset(torch.randn(48, 4), torch.randn(48, 2)), batch_size=4)
for epoch in range(2):
    for at, (given, wanted) in enumerate(data):
        loss = criterion(model(given), wanted)
        loss.backward()
        if at % 2:  # two batches a step
            optimizer.step()
            optimizer.zero_grad()
            ci.mark("loss", loss)
ci.shutdown()
"""


def test_steps_and_phases_of_the_hooks(scripts: ForkedScripts, tmp_path: Path) -> None:
    with SINKS[HTTP](Sink()) as sink:
        scripts.text(LOOP, tmp_path, tmp_path / "run", env=to(sink, HTTP))
    found = whole(tmp_path / "run")
    (request,) = sink.metrics
    check(request, found)
    metrics = by_name(request)
    (step,) = points(metrics["cirron.step.duration"])
    assert step.count == 12
    check_exemplars(step, found, "step")
    told = {name: point.count for name, point in phases(metrics).items()}
    assert told["backward"] == told["forward"] == 24, "in micro steps, too"
    assert told["optimizer_step"] == 12
    (loss,) = points(metrics["cirron.mark.loss"])
    assert loss.as_double == max(found.marks, key=lambda mark: mark["ts_ns"])["value"]
