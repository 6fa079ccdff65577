"""Programs with Fabric, whose loops are written out, and with CirronLogger."""

from __future__ import annotations

from typing import Any

from tests.system.frameworks import program

from .lightning_parts import (
    VALIDATION_ROWS,
    classifier,
    lightning,
    loader,
    logs,
    results,
    trainer,
)

STEP = """
      data_load
      forward
      backward
      optimizer_step"""


def _fabric(package: str = "lightning.fabric", **options: Any) -> Any:
    import torch

    torch.manual_seed(1)
    return lightning(package).Fabric(accelerator="cpu", devices=1, **options)


def _parts(fabric: Any) -> tuple[Any, Any, Any]:
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return *fabric.setup(model, optimizer), fabric.setup_dataloaders(loader())


def _loss(model: Any, batch: Any) -> Any:
    from torch import nn

    return nn.functional.cross_entropy(model(batch[0]), batch[1])


@program(f"""
cirron.session
  epoch[0-1]
    step[0-2]{STEP}
""")
def trains_with_fabric() -> dict[str, Any]:
    """A loop with Fabric that logs its losses, with no logger."""
    fabric = _fabric()
    model, optimizer, batches = _parts(fabric)
    losses = []
    for _ in range(2):
        for batch in batches:
            loss = _loss(model, batch)
            optimizer.zero_grad()
            fabric.backward(loss)
            optimizer.step()
            fabric.log("loss", loss.detach())
            fabric.log_dict({"double": 2 * loss.item()})
            losses.append(loss.item())
    pairs = [["loss", each] for each in losses] + [["double", 2 * each] for each in losses]
    return results(model, logs=pairs)


@program("""
cirron.session
  epoch[0]
    step[0]
      micro_step[0-1]
        data_load
        forward
        backward
      optimizer_step
    step[1]
      data_load
      forward
      backward
      optimizer_step
""")
def accumulates_with_fabric() -> dict[str, Any]:
    """Gradients of two batches, with `no_backward_sync`, in mixed precision."""
    fabric = _fabric(precision="bf16-mixed")
    model, optimizer, batches = _parts(fabric)
    for number, batch in enumerate(batches):
        is_accumulating = number % 2 == 0 and number != len(batches) - 1
        with fabric.no_backward_sync(model, enabled=is_accumulating):
            fabric.backward(_loss(model, batch))
        if not is_accumulating:
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
    return results(model, logs=[])


@program(f"""
cirron.session
  epoch[0]
    step[0-2]{STEP}
      zero_grad
  checkpoint{{operation=save}}
    checkpoint_save
  checkpoint{{operation=load}}
    checkpoint_load
  checkpoint_save
  checkpoint{{operation=load}}
    checkpoint_load
""")
def saves_and_loads_with_fabric() -> dict[str, Any]:
    """`fabric.save`, `fabric.load` and `fabric.load_raw` after an epoch."""
    import torch

    fabric = _fabric()
    model, optimizer, batches = _parts(fabric)
    for batch in batches:
        fabric.backward(_loss(model, batch))
        optimizer.step()
        optimizer.zero_grad()
    fabric.save("saved/state.ckpt", {"model": model, "optimizer": optimizer, "epoch": 1})
    rest = fabric.load("saved/state.ckpt", {"model": model, "optimizer": optimizer})
    torch.save(model.state_dict(), "weights.pt")
    fabric.load_raw("weights.pt", model)
    return results(model, logs=[], rest=rest)


@program(f"""
cirron.session
  epoch[0]
    step[0-2]{STEP}
  eval[0]
    data_load
    forward
    data_load
    forward
""", ranks=2)  # fmt: skip
def trains_with_fabric_on_two_ranks() -> dict[str, Any]:
    """Fabric with DDP on two processes, and an evaluation; the other package."""
    import torch

    fabric = lightning("lightning_fabric")
    fabric = fabric.Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    model, optimizer, _ = _parts(fabric)
    for batch in fabric.setup_dataloaders(loader(12)):
        fabric.backward(_loss(model, batch))
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        losses = [_loss(model, batch).item() for batch in fabric.setup_dataloaders(loader(8))]
    return results(model, logs=[], losses=losses)


CLOSURE = """
      data_load
      optimizer_step
        forward
        backward"""
VALIDATION = """
    eval[{0}]
      data_load
      forward
      data_load
      forward"""


@program(f"""
cirron.session
  epoch[0]
    step[0-2]{CLOSURE}{VALIDATION.format(0)}
  epoch[1]
    step[0-2]{CLOSURE}{VALIDATION.format(1)}
""")
def logs_with_cirron_logger() -> dict[str, Any]:
    """CirronLogger beside CSVLogger: each value is one mark, also of what goes to it directly."""
    import importlib

    import torch

    pl = lightning()
    cirron = importlib.import_module("cirron_otel.lightning").CirronLogger()
    csv = pl.loggers.CSVLogger("csv", version="0")

    def on_train_epoch_end(self: Any) -> None:
        for logger in self.loggers:
            logger.log_metrics({"direct": float(self.current_epoch)}, step=self.global_step)

    def configure_optimizers(self: Any) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    module = classifier(
        on_train_epoch_end=on_train_epoch_end, configure_optimizers=configure_optimizers
    )
    monitor = pl.callbacks.LearningRateMonitor()
    assert isinstance(cirron, pl.loggers.Logger)
    runs = trainer(logger=[cirron, csv], callbacks=[monitor])
    runs.fit(module, loader(), loader(VALIDATION_ROWS))
    return {**results(module), "names": sorted({name for name, _ in logs()})}
