"""A small training loop under TraceML: `train.py STEPS [SLOW_RANK]`.

The rank SLOW_RANK sleeps 4 ms in each forward pass. With `BOTH=1` the job is also recorded by this
package. Rank 0 writes the losses of all steps to the file LOSSES, as a JSON list. If GATES is a
directory, the steps whose numbers are the names of files there wait until these are removed, and
create a file `reached NUMBER`.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import traceml_ai as traceml

STEPS, SLOW = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else -1
RANK = int(os.environ.get("RANK", "0"))


class Network(torch.nn.Module):
    """Two layers, with an optional pause."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
        )

    def forward(self, items: torch.Tensor) -> torch.Tensor:
        if RANK == SLOW:
            time.sleep(0.004)
        return self.layers(items)


def main() -> None:
    """Train, and write the losses."""
    torch.set_num_threads(1)
    torch.manual_seed(7)
    traceml.init()
    if os.environ.get("BOTH"):
        import cirron_otel

        cirron_otel.profile()
    is_distributed = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if is_distributed:
        torch.distributed.init_process_group("gloo")
    model = Network()
    trained = torch.nn.parallel.DistributedDataParallel(model) if is_distributed else model
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.01)
    items = torch.utils.data.TensorDataset(torch.randn(4 * STEPS, 16), torch.randn(4 * STEPS, 1))
    losses = []
    gates = os.environ.get("GATES")
    for number, (inputs, targets) in enumerate(torch.utils.data.DataLoader(items, batch_size=4)):
        while gates and Path(gates, str(number)).exists():
            Path(gates, f"reached {number}").touch()
            time.sleep(0.05)
        with traceml.trace_step(trained):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(trained(inputs), targets)
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
        time.sleep(float(os.environ.get("PAUSE_S", "0")))
    if RANK == 0:
        Path(os.environ["LOSSES"]).write_text(json.dumps(losses))
    if is_distributed:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
