"""Programs that log scalars to TensorBoard, wandb and mlflow.

`logs` are the scalars that the tools themselves have stored, read back from their files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.system.frameworks import program

from .keras_parts import (
    OPTIONS,
    TORCH,
    compiled,
    data,
    results,
)

LOOP = """cirron.session
  epoch[0]
    step[0-2]
      data_load
      forward
      zero_grad
      backward
      optimizer_step
"""
os.environ |= {
    "DO_NOT_TRACK": "1",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "WANDB_SILENT": "true",
}


def _batches(rows: int = 6) -> Any:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(3)
    data = TensorDataset(torch.randn(rows, 4), torch.randint(2, (rows,)))
    return DataLoader(data, batch_size=2)


def _train(log: Callable[[int, Any], None]) -> None:
    """Train for three steps, and call `log` with the number and the loss of each."""
    import torch

    batches = _batches()
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for number, (inputs, labels) in enumerate(batches):
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log(number, loss)


def _tensorboard(directory: str, prefix: str = "") -> list[list[Any]]:
    """Return the scalars of the event files of a directory, with `prefix` before their tags."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    events = EventAccumulator(directory, size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    logs = []
    for tag in events.Tags()["scalars"]:
        logs += [[prefix + tag, each.value] for each in events.Scalars(tag)]
    for tag in events.Tags()["tensors"]:
        if not tag.startswith("cirron/"):
            values = [make_ndarray(each.tensor_proto) for each in events.Tensors(tag)]
            logs += [[prefix + tag, float(each)] for each in values if each.dtype.kind == "f"]
    return logs


def _records(path: Path) -> Iterator[bytes]:
    """Yield the records of a file of wandb, which has the format of LevelDB's log."""
    data = path.read_bytes()
    at, parts = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        if not kind:
            return
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


def _wandb(run: Any) -> list[list[Any]]:
    """Return the numbers in the history of a finished offline run; dots join nested keys."""
    import json

    logs: list[list[Any]] = []

    def add(name: str, value: Any) -> None:
        if isinstance(value, dict) and "_type" not in value:
            for key, each in value.items():
                add(f"{name}.{key}", each)
        elif isinstance(value, (int, float)):
            logs.append([name, value])

    for record in _written_records(run.id):
        rows: list[tuple[str, Any]] = []
        for item in record.history.item:
            name = item.key or ".".join(item.nested_key)
            if not name.startswith("_"):
                rows.append((name, json.loads(item.value_json)))
        for name, value in sorted(rows, key=lambda row: row[0]):
            add(name, value)
    return logs


def _written_records(run: str) -> list[Any]:
    """Return the records of a run. Its process may write the last of them after `finish`."""
    import time

    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = Path.cwd().glob(f"wandb/*-run-*-{run}/*.wandb")
    for _ in range(300):
        records = [Record.FromString(data) for data in _records(path)]
        if any(each.HasField("exit") for each in records):
            return records
        time.sleep(0.1)
    raise TimeoutError(path)


def _mlflow(run: str) -> list[list[Any]]:
    from mlflow import MlflowClient

    client = MlflowClient()
    names = client.get_run(run).data.metrics
    return [[name, each.value] for name in names for each in client.get_metric_history(run, name)]


@program(LOOP)
def writes_to_tensorboard() -> dict[str, Any]:
    """A loop with `SummaryWriter.add_scalar` of a tensor and of a number."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter("runs") as writer:

        def log(number: int, loss: Any) -> None:
            writer.add_scalar("loss/train", loss, number)
            writer.add_scalar("lr", scalar_value=0.5, global_step=number)

        _train(log)
    return {"logs": _tensorboard("runs")}


@program(LOOP)
def writes_groups_to_tensorboard() -> dict[str, Any]:
    """A loop with `add_scalars`, which writes a file for each value."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter("runs") as writer:
        _train(lambda number, loss: writer.add_scalars("loss", {"a": loss, "b": 0.5}, number))
    logs = [["loss/a", value] for _, value in _tensorboard("runs/loss_a")]
    return {"logs": logs + [["loss/b", value] for _, value in _tensorboard("runs/loss_b")]}


@program(LOOP)
def writes_doubles_to_tensorboard() -> dict[str, Any]:
    """Numbers of several types, stored as float64; an invalid one raises, and is no mark."""
    import numpy
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter("runs") as writer:

        def log(number: int, loss: Any) -> None:
            values = {
                "python": 0.1 + number,
                "numpy": numpy.float64(0.2),
                "array": loss.numel() / 3,
            }
            for name, value in values.items():
                writer.add_scalar(name, value, number, new_style=True, double_precision=True)
            for wrong in ([1.0, 2.0], object()):
                try:
                    writer.add_scalar("wrong", wrong, number)
                except Exception as error:
                    failures.append(type(error).__name__)

        failures: list[str] = []
        _train(log)
    return {"logs": _tensorboard("runs"), "failures": failures}


@program(LOOP)
def writes_hyperparameters_to_tensorboard() -> dict[str, Any]:
    """`add_hparams` at the end, whose metrics belong to the session."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter("runs") as writer:
        _train(lambda number, loss: writer.add_scalar("loss", loss, number))
        writer.add_hparams({"lr": 0.5}, {"hparam/accuracy": 0.75}, run_name="end")
    return {"logs": _tensorboard("runs") + _tensorboard("runs/end")}


@program(LOOP)
def writes_with_tensorboardx() -> dict[str, Any]:
    """A loop with tensorboardX, through a subclass of its writer."""
    from tensorboardX import SummaryWriter

    class Writer(SummaryWriter):
        def add_scalar(self, tag: str, *args: Any, **kwargs: Any) -> None:
            super().add_scalar(f"mine/{tag}", *args, **kwargs)

    with Writer("runs") as writer:
        _train(lambda number, loss: writer.add_scalar("loss", loss, number))
    return {"logs": _tensorboard("runs")}


@program(LOOP)
def logs_to_wandb() -> dict[str, Any]:
    """A loop with `wandb.log`, without steps."""
    import wandb

    run = wandb.init(project="tests", mode="offline", dir=".")
    _train(lambda number, loss: wandb.log({"loss": loss.item(), "number": number}))
    run.finish()
    return {"logs": _wandb(run)}


@program(LOOP)
def logs_to_wandb_in_parts() -> dict[str, Any]:
    """`Run.log` with `step` and `commit=False`; tensors, nested dicts, media and text."""
    import wandb

    with wandb.init(project="tests", mode="offline", dir=".") as run:

        def log(number: int, loss: Any) -> None:
            run.log({"train": {"loss": loss, "deep": {"half": 0.5}}}, step=number * 10)
            run.log({"lr": 0.1, "histogram": wandb.Histogram([1, 2, 2])}, commit=False)
            run.log({"text": "a note", "list": [1, 2], "nothing": None, "is_last": number == 2})

        _train(log)
    return {"logs": _wandb(run)}


@program(LOOP)
def logs_to_mlflow() -> dict[str, Any]:
    """A loop with `mlflow.log_metric` and `mlflow.log_metrics`."""
    import mlflow

    mlflow.set_tracking_uri("file:store")
    with mlflow.start_run() as run:

        def log(number: int, loss: Any) -> None:
            mlflow.log_metric("loss", loss.item(), step=number)
            mlflow.log_metrics({"lr": 0.1, "tensor": loss.detach()}, step=number)

        _train(log)
    return {"logs": _mlflow(run.info.run_id)}


@program(LOOP)
def logs_with_a_client_of_mlflow() -> dict[str, Any]:
    """`MlflowClient` without an active run: single metrics, and batches with params and tags."""
    import mlflow
    from mlflow.entities import Metric, Param

    mlflow.set_tracking_uri("file:store")
    client = mlflow.MlflowClient()
    run = client.create_run("0", tags={"mine": "yes"}).info.run_id

    def log(number: int, loss: Any) -> None:
        client.log_metric(run, "loss", loss.item(), step=number)
        metrics = [Metric(name, loss.item() / 2, 1, number) for name in ("half", "again")]
        client.log_batch(run, metrics=metrics)

    client.log_batch(run, params=[Param("lr", "0.5")])
    _train(log)
    client.set_terminated(run)
    return {"logs": _mlflow(run), "tag": client.get_run(run).data.tags["mine"]}


@program(LOOP)
def logs_the_same_twice() -> dict[str, Any]:
    """Two loggers at once: a value with the same name is one mark, with another name two."""
    import mlflow
    from torch.utils.tensorboard import SummaryWriter

    mlflow.set_tracking_uri("file:store")
    with SummaryWriter("runs") as writer, mlflow.start_run():

        def log(number: int, loss: Any) -> None:
            writer.add_scalar("loss", loss, number)
            mlflow.log_metric("loss", loss.item(), step=number)
            writer.add_scalar("loss/again", loss, number)
            mlflow.log_metric("again", loss.item(), step=number)

        _train(log)
    logs = _tensorboard("runs")
    return {"logs": [*logs, *[["again", value] for name, value in logs if name == "loss"]]}


@program("cirron.session\n")
def logs_in_threads() -> dict[str, Any]:
    """Threads that share a writer: their marks belong to the session."""
    import threading

    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter("runs") as writer:

        def log(number: int) -> None:
            for step in range(20):
                writer.add_scalar(f"thread/{number}", number + step / 4, step)

        threads = [threading.Thread(target=log, args=(number,)) for number in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    return {"logs": sorted(_tensorboard("runs"))}


@program(
    LOOP
    + """  eval[0]
    data_load
    forward
    data_load
    forward
""",
)
def logs_an_evaluation() -> dict[str, Any]:
    """A value of the evaluation, and one after it."""
    import torch
    from torch.utils.tensorboard import SummaryWriter

    batches, held_out = _batches(), _batches(4)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    with SummaryWriter("runs") as writer:
        for number, (inputs, labels) in enumerate(batches):
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            writer.add_scalar("loss", loss, number)
        model.eval()
        with torch.no_grad():
            for number, (inputs, _) in enumerate(held_out):
                writer.add_scalar("mean", model(inputs).mean(), number)
        writer.add_scalar("epoch_loss", loss, 0)
    return {"logs": _tensorboard("runs")}


def _rows() -> list[dict[str, Any]]:
    import torch

    torch.manual_seed(3)
    return [{"x": torch.randn(4), "labels": torch.tensor(number % 2)} for number in range(6)]


TRAINER = """cirron.session
  zero_grad
  epoch[0]
    step[0-2]
      data_load
      forward
      backward
      clip_grad
      optimizer_step
      scheduler_step
      zero_grad
"""


def _trainer(**options: Any) -> Any:
    import torch
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 2)

        def forward(self, x: Any, labels: Any) -> dict[str, Any]:
            logits = self.layer(x)
            return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    arguments = TrainingArguments(
        output_dir="out", num_train_epochs=1, per_device_train_batch_size=2, logging_steps=1,
        save_strategy="no", use_cpu=True, disable_tqdm=True, **options,
    )  # fmt: skip
    return Trainer(model=Model(), args=arguments, train_dataset=_rows())


@program(TRAINER)
def trainer_reports_to_tensorboard() -> dict[str, Any]:
    """The Trainer's own TensorBoard callback: each value is marked once, under its own name."""
    os.environ["TENSORBOARD_LOGGING_DIR"] = "runs"
    trainer = _trainer(report_to=["tensorboard"])
    trainer.train()
    rows = trainer.state.log_history
    names = ("loss", "grad_norm", "learning_rate")
    logs = [[name, row[name]] for row in rows for name in names if name in row]
    stored = [value for name, value in _tensorboard("runs") if name == "train/loss"]
    assert [float(row) for name, row in logs if name == "loss"], stored
    return {"logs": logs}


@program(TRAINER)
def trainer_has_a_callback_that_logs() -> dict[str, Any]:
    """A callback of the program logs a value of its own in `on_log`, and passes others on."""
    from torch.utils.tensorboard import SummaryWriter
    from transformers import TrainerCallback

    writer = SummaryWriter("runs")

    class Log(TrainerCallback):  # type: ignore[misc]
        def on_log(self, _: Any, state: Any, __: Any, **kwargs: Any) -> None:
            if "loss" in kwargs["logs"]:
                writer.add_scalar("mine/twice", kwargs["logs"]["loss"] * 2, state.global_step)
                writer.add_scalar("passed/loss", kwargs["logs"]["loss"], state.global_step)

        def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
            writer.add_scalar("mine/step", state.global_step, state.global_step)

    trainer = _trainer(report_to=[])
    trainer.add_callback(Log())
    trainer.train()
    writer.close()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    logs = [["mine/step", number + 1] for number in range(3)]
    logs += [["mine/twice", each * 2] for each in losses]
    return {"logs": [*logs, *[["loss", each] for each in losses]]}


@program(
    """cirron.session
  zero_grad
  epoch[0]
    step[0-2]
      data_load
      optimizer_step
        forward
        zero_grad
        backward
"""
)
def lightning_logs_to_tensorboard() -> dict[str, Any]:
    """`self.log` through a TensorBoardLogger, and a value that the module writes itself.

    Lightning writes the placeholder `hp_metric` with the hyperparameters.
    """
    import torch
    from lightning import LightningModule, Trainer
    from lightning.pytorch.loggers import TensorBoardLogger

    class Module(LightningModule):
        def __init__(self, rate: float = 0.5) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.rate = rate
            self.layer = torch.nn.Linear(4, 2)

        def training_step(self, batch: Any, number: int) -> Any:
            inputs, labels = batch
            loss = torch.nn.functional.cross_entropy(self.layer(inputs), labels)
            self.log("loss", loss)
            self.logger.experiment.add_scalar("mine", number + 0.5, number)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=self.rate)

    trainer = Trainer(
        max_epochs=1, logger=TensorBoardLogger(".", name="runs", version=0), accelerator="cpu",
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        log_every_n_steps=1,
    )  # fmt: skip
    trainer.fit(Module(), _batches())
    stored = _tensorboard("runs/version_0")
    return {"logs": [each for each in stored if each[0] not in ("epoch", "hp_metric")]}


LIGHTNING_EPOCH = """  epoch[{0}]
    step[0-2]
      data_load
      optimizer_step
        forward
        backward
    eval[{0}]{{function=validate}}
      data_load
      forward
      data_load
      forward
"""


@program("cirron.session\n" + "".join(LIGHTNING_EPOCH.format(n) for n in range(2)))
def lightning_logs_epochs_to_tensorboard() -> dict[str, Any]:
    """Values of epochs, metric objects and learning rates, each of which is marked once."""
    import torch
    from lightning import LightningModule, Trainer
    from lightning.pytorch.callbacks import LearningRateMonitor
    from lightning.pytorch.loggers import TensorBoardLogger
    from torchmetrics.classification import MulticlassAccuracy

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 2)
            self.accuracy, self.held_out = MulticlassAccuracy(2), MulticlassAccuracy(2)

        def training_step(self, batch: Any, _: int) -> Any:
            inputs, labels = batch
            scores = self.layer(inputs)
            loss = torch.nn.functional.cross_entropy(scores, labels)
            self.accuracy(scores, labels)
            self.log("loss", loss, on_step=True, on_epoch=True)
            self.log("accuracy", self.accuracy, on_step=True, on_epoch=True)
            return loss

        def validation_step(self, batch: Any, _: int) -> None:
            inputs, labels = batch
            self.held_out(self.layer(inputs), labels)
            self.log_dict({"held_out": self.held_out, "rows": float(len(labels))})

        def on_train_epoch_end(self) -> None:
            self.logger.log_metrics({"mine": self.current_epoch + 0.5}, step=self.global_step)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.5)

    trainer = Trainer(
        max_epochs=2, logger=TensorBoardLogger(".", name="runs", version=0), accelerator="cpu",
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        log_every_n_steps=1, num_sanity_val_steps=0, callbacks=[LearningRateMonitor()],
    )  # fmt: skip
    trainer.fit(Module(), _batches(), _batches(4))
    stored = [each for each in _tensorboard("runs/version_0") if each[0] != "epoch"]
    assert len({name for name, _ in stored}) == 8, stored
    return {"logs": stored}


@program(
    """cirron.session
  prepare
  epoch[0]
    step[0-2]
      data_load
      forward
      zero_grad
      backward
      optimizer_step
"""
)
def accelerate_tracks_with_tensorboard() -> dict[str, Any]:
    """Accelerate's tracker for TensorBoard: there is no Trainer, so its values are marks."""
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir="runs")
    accelerator.init_trackers("run")
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model, optimizer, batches = accelerator.prepare(model, optimizer, _batches())
    for number, (inputs, labels) in enumerate(batches):
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        accelerator.log({"loss": loss.item()}, step=number)
    accelerator.end_training()
    return {"logs": _tensorboard("runs/run")}


def _keras_callback() -> Any:
    """Return mlflow's callback for Keras; its package imports pandas, which is not installed."""
    import importlib.util

    import mlflow

    path = Path(mlflow.__file__).parent / "keras" / "callback.py"
    spec = importlib.util.spec_from_file_location("mlflow.keras.callback", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MlflowCallback()


@program(
    TORCH.session(
        TORCH.epoch(0, 2, TORCH.evaluation(0, 1)),
        TORCH.epoch(1, 2, TORCH.evaluation(1, 1), done=2),
    )
)
def keras_logs_to_mlflow_and_tensorboard() -> dict[str, Any]:
    """mlflow's callback for Keras, and a callback of the program that writes to TensorBoard."""
    import keras
    import mlflow
    from torch.utils.tensorboard import SummaryWriter

    class Writes(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            writer.add_scalar("epoch/loss", logs["loss"], epoch)
            writer.add_scalar("gap", logs["val_loss"] - logs["loss"], epoch)

    mlflow.set_tracking_uri("file:runs")
    model = compiled()
    callbacks = [_keras_callback(), Writes()]
    with SummaryWriter("board") as writer, mlflow.start_run() as run:
        history = model.fit(
            *data(4), epochs=2, validation_data=data(2), callbacks=callbacks, **OPTIONS
        )
        mlflow.flush_async_logging()
    stored = [each for each in _mlflow(run.info.run_id) if "validation" not in each[0]]
    found = results(model, history)
    gap = [b - a for a, b in zip(history.history["loss"], history.history["val_loss"], strict=True)]
    assert sorted(stored) == sorted(found["logs"])
    return found | {"logs": found["logs"] + [["gap", each] for each in gap]}


@program(
    """cirron.session
  prepare
  epoch[0]
    step[0-2]
      data_load
      forward
      zero_grad
      backward
      optimizer_step
"""
)
def accelerate_tracks_with_several_trackers() -> dict[str, Any]:
    """CirronTracker between two other trackers: each value is one mark."""
    import torch
    from accelerate import Accelerator

    from cirron_otel.accelerate import CirronTracker

    accelerator = Accelerator(
        cpu=True, log_with=["tensorboard", CirronTracker(), "mlflow"], project_dir="runs"
    )
    accelerator.init_trackers("run")
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model, optimizer, batches = accelerator.prepare(model, optimizer, _batches())
    logs: list[list[Any]] = []
    for number, (inputs, labels) in enumerate(batches):
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        values = {"loss": loss.item(), "constant": 1, "phase": "training"}
        accelerator.log(values, step=number)
        accelerator.log(values, step=number)
        logs += [[name, value] for _ in range(2) for name, value in values.items()]
    accelerator.end_training()
    return {"logs": logs}


@program(TRAINER)
def accelerate_logs_in_a_callback() -> dict[str, Any]:
    """A callback of the program passes the Trainer's values and two others to an Accelerator."""
    from accelerate import Accelerator
    from transformers import TrainerCallback

    from cirron_otel.accelerate import CirronTracker

    accelerator = Accelerator(
        cpu=True, log_with=["tensorboard", CirronTracker()], project_dir="runs"
    )
    accelerator.init_trackers("run")

    class Log(TrainerCallback):  # type: ignore[misc]
        def on_log(self, _: Any, state: Any, __: Any, **kwargs: Any) -> None:
            if "loss" in kwargs["logs"]:
                own = {"mine": kwargs["logs"]["loss"] * 2, "note": "from a callback"}
                accelerator.log({**kwargs["logs"], **own}, step=state.global_step)

    trainer = _trainer(report_to=[])
    trainer.add_callback(Log())
    trainer.train()
    accelerator.end_training()
    rows = [row for row in trainer.state.log_history if "loss" in row]
    logs = [["mine", row["loss"] * 2] for row in rows]
    logs += [["note", "from a callback"] for _ in rows]
    names = ("loss", "grad_norm", "learning_rate")
    return {"logs": [*logs, *[[name, row[name]] for row in rows for name in names]]}
