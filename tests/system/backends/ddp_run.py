"""A rank of a training run with DistributedDataParallel: `torchrun … ddp_run.py`.

What is traced, and where it goes, the environment says.
"""

from __future__ import annotations

import contextlib
import sys

import torch
from opentelemetry import trace
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import cirron_otel as ci

EPOCHS, BATCHES = 2, 12


def main() -> None:
    ci.profile()
    distributed.init_process_group("gloo")
    torch.manual_seed(1)
    ranks = distributed.get_world_size()
    points = TensorDataset(torch.randn(4 * BATCHES * ranks, 8), torch.randn(4 * BATCHES * ranks, 2))
    batches = DataLoader(points, 4, sampler=DistributedSampler(points))
    network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    model, criterion = DistributedDataParallel(network), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tracer = trace.get_tracer("a.client", "1.2", attributes={"kind": "test"})
    for epoch in range(EPOCHS):
        batches.sampler.set_epoch(epoch)
        for x, y in batches:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            ci.mark("loss", loss.item())
        with ci.scope("checkpoint", epoch=epoch, size=2**70, why="é\nnext") as scope:
            ci.mark("accuracy", 0.5 + epoch / 10, kind="summary", classes=["a", "b"])
            with tracer.start_as_current_span("PUT", kind=trace.SpanKind.CLIENT) as span:
                span.set_attributes({"http.request.method": "PUT", "tags": ["x", "y"], "ok": True})
                span.add_event("retried", {"times": 2})
            scope.add_link(span.get_span_context(), {"why": "stored"})
            with contextlib.suppress(OSError), ci.scope("clean_up"):
                raise OSError("nothing to delete")
    distributed.barrier()
    distributed.destroy_process_group()
    if not ci.shutdown():
        sys.exit("not all was sent")
    if ci.health()["swallowed_errors"]:
        sys.exit(str(ci.health()["last_errors"]))


if __name__ == "__main__":
    main()
