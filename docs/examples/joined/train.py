"""The training job: it requests each batch from the feature service (FEATURES_URL)."""

import os
from collections.abc import Iterator

import requests
import torch
from opentelemetry.instrumentation.requests import RequestsInstrumentor
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import cirron_otel as ci

SERVICE = os.environ.get("FEATURES_URL", "http://localhost:8000")
SAMPLES, BATCH, EPOCHS = 320, 16, 2

# Each request gets a span below the open step, and its headers propagate the trace.
RequestsInstrumentor().instrument()
ci.profile()


class Features(Dataset):
    """The service's samples."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.service = requests.Session()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: list[int]) -> list[tuple[Tensor, int]]:
        """Fetch a batch with one request. DataLoader calls this method if a dataset has it."""
        answer = self.service.get(f"{SERVICE}/features", params={"ids": numbers}, timeout=10)
        answer.raise_for_status()
        return [(torch.tensor(numbers), kind) for numbers, kind in answer.json()]


def batches(loader: DataLoader) -> Iterator[list[Tensor]]:
    """Yield the loader's batches; skip those that the service fails to return."""
    fetching = iter(loader)
    while True:
        try:
            batch = next(fetching)
        except StopIteration:
            return
        except requests.RequestException as error:
            print(f"batch left out: {type(error).__name__}", flush=True)
        else:
            yield batch


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
# The requests are made in this process, inside the step. With num_workers, the workers would make
# them ahead of the step, and they would belong to a separate tree: see workers=True.
loader = DataLoader(Features(SAMPLES), BATCH, shuffle=True)
for epoch in range(EPOCHS):
    for inputs, kinds in batches(loader):
        loss = criterion(model(inputs), kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ci.mark("loss", loss.item())
        print(f"epoch {epoch}  loss {loss.item():.3f}", flush=True)
