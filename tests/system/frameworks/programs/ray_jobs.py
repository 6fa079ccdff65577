"""Programs that train with Ray Train and tune with Ray Tune."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.system.frameworks import program

STEPS = """
{0}epoch[{1}]
{0}  step[0-1]
{0}    data_load
{0}    forward
{0}    loss
{0}    backward
{0}    optimizer_step"""


def _epochs(level: int, count: int, after: str = "") -> str:
    """Return the text of epochs of a loop in PyTorch, each followed by a line."""
    indent = "  " * level
    text = "".join(
        STEPS.format(indent, n) + (f"\n{indent}{after}" if after else "") for n in range(count)
    )
    return text.strip("\n") + "\n"


def _storage() -> str:
    return str(Path("storage").absolute())


def _name() -> str:
    """Return a name of its own for the run of this process.

    Ray collects the files of a run below its name and the second of its start: two drivers of a
    cluster with the same name, seed and second write to the same files.
    """
    return f"run-{os.getpid()}"


def _train_config(**options: Any) -> Any:
    from ray.train import RunConfig

    return RunConfig(name=_name(), storage_path=_storage(), **options)


def _tune_config(**options: Any) -> Any:
    from ray.tune import RunConfig

    return RunConfig(name=_name(), storage_path=_storage(), verbose=0, **options)


def _steps(config: dict[str, Any]) -> Any:
    """Train a linear model for an epoch each time; yield its loss."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(config.get("seed", 3))
    model, criterion = torch.nn.Linear(2, 1), torch.nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=config.get("lr", 0.1))
    loader = DataLoader(TensorDataset(torch.randn(4, 2), torch.randn(4, 1)), batch_size=2)
    for _ in range(config.get("epochs", 2)):
        for inputs, targets in loader:
            loss = criterion(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        yield loss.item(), model


def _report_checkpoint(metrics: dict[str, Any], number: int = 0) -> None:
    import ray.train

    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "number").write_text(str(number))
        ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(directory))


def _saving_loop(config: dict[str, Any]) -> None:
    for number, (loss, _) in enumerate(_steps(config)):
        _report_checkpoint({"loss": loss, "rows": {"seen": 4, "left": [1, 2]}}, number)


def _fit(loop: Any, workers: int = 1, config: Any = None, **options: Any) -> Any:
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer

    return TorchTrainer(
        loop,
        train_loop_config=config or {"lr": 0.1},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=_train_config(**options),
    ).fit()


def _reported(result: Any) -> list[list[Any]]:
    """Return the values of all checkpoints of a training, in order."""
    rows = [metrics for _, metrics in result.best_checkpoints]
    return [["loss", row["loss"]] for row in rows] + [
        ["rows/seen", row["rows"]["seen"]] for row in rows if "rows" in row
    ]


def _waiting_loop(config: dict[str, Any]) -> None:
    for number, (loss, _) in enumerate(_steps(config)):
        _report_checkpoint({"loss": loss}, number)
        Path(config["at"], f"epoch-{number}").touch()
        _wait_for(Path(config["at"], "ended"))


def _wait_for(path: Path) -> None:
    end = time.monotonic() + 300
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.05)


@program(
    "cirron.session\n  fit!{workers=1}\n    cirron.session{rank=0}\n"
    + _epochs(3, 2, "checkpoint{operation=save}"),
    slow=True,
)
def ends_the_driver_s_session() -> dict[str, Any]:
    """The driver's session ends while a worker trains, whose session goes on."""
    import threading

    import cirron_otel as ci

    at = Path("flags").absolute()
    at.mkdir()

    def end() -> None:
        _wait_for(at / "epoch-0")
        ci.shutdown()
        (at / "ended").touch()

    thread = threading.Thread(target=end)
    thread.start()
    result = _fit(_waiting_loop, config={"at": str(at)})
    thread.join()
    return {"metrics": result.metrics, "logs": _reported(result)}


def _ranked_loop(config: dict[str, Any]) -> None:
    import ray.train

    rank = ray.train.get_context().get_world_rank()
    for number, (loss, _) in enumerate(_steps({**config, "seed": rank})):
        if rank == 0:
            metrics = {"loss": loss, "rows": {"seen": 4, "left": [1, 2]}}
            _report_checkpoint(metrics, number)
        else:
            ray.train.report({"other_loss": loss})


@program(
    "cirron.session\n  fit{trainer=TorchTrainer}{workers=2}{run=run}\n    cirron.session{rank=0}\n"
    + _epochs(3, 2, "checkpoint{operation=save}")
    + "    cirron.session{rank=1}\n" + _epochs(3, 2),
    slow=True,
)  # fmt: skip
def trains_on_two_workers() -> dict[str, Any]:
    """Two workers; only the first one reports checkpoints."""
    result = _fit(_ranked_loop, 2)
    return {"metrics": result.metrics, "logs": _reported(result)}


def _failing_loop(config: dict[str, Any]) -> None:
    for _, model in _steps(config):
        model(None)


@program(
    "cirron.session\n  fit!\n    cirron.session!{rank=0}\n" + _epochs(3, 1) + "      forward!\n",
    slow=True,
)
def fails_in_a_worker() -> dict[str, Any]:
    """An exception leaves the training function, and then `fit`."""
    try:
        _fit(_failing_loop)
    except Exception as error:
        return {"error": type(error).__name__, "causes": _causes(error)}
    return {}


def _causes(error: Any) -> list[str]:
    failures = getattr(error, "worker_failures", {})
    return [type(getattr(each, "_base_exc", each)).__name__ for each in failures.values()]


def _killed_loop(config: dict[str, Any]) -> None:
    import ray.train

    is_first = ray.train.get_checkpoint() is None
    for number, (loss, _) in enumerate(_steps({**config, "epochs": 1})):
        _report_checkpoint({"loss": loss}, number)
    if is_first:
        import cirron_otel as ci

        ray.train.get_all_reported_checkpoints()  # returns when Ray has stored them
        ci.flush()
        os.kill(os.getpid(), signal.SIGKILL)


@program(
    "cirron.session\n  fit\n    cirron.session!{rank=0}\n"
    + _epochs(3, 1, "checkpoint{operation=save}")
    + "    cirron.session{rank=0}{ray.restart=1}\n" + _epochs(3, 1, "checkpoint{operation=save}"),
    slow=True,
)  # fmt: skip
def restarts_a_killed_worker() -> dict[str, Any]:
    """A worker is killed; another one continues from its checkpoint."""
    from ray.train import FailureConfig

    result = _fit(_killed_loop, failure_config=FailureConfig(max_failures=1))
    return {"metrics": result.metrics, "logs": _reported(result)}


def _local_loop(config: dict[str, Any]) -> None:
    import ray.train

    for loss, _ in _steps(config):
        ray.train.report({"loss": loss})


@program("cirron.session\n  fit{workers=0}\n" + _epochs(2, 2))
def trains_in_the_driver() -> dict[str, Any]:
    """Without workers, Ray runs the function in the driver."""
    return {"metrics": _fit(_local_loop, 0).metrics}


def _prepared_loop(_: dict[str, Any]) -> None:
    import ray.train.torch
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(3)
    rows = TensorDataset(torch.randn(4, 2), torch.randn(4, 1))
    loader, held_out = (
        ray.train.torch.prepare_data_loader(DataLoader(rows, batch_size=2, shuffle=shuffle))
        for shuffle in (True, False)
    )
    model = ray.train.torch.prepare_model(torch.nn.Linear(2, 1))
    criterion = torch.nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model.train()
        for inputs, targets in loader:
            loss = criterion(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            losses = [criterion(model(inputs), targets).item() for inputs, targets in held_out]
        ray.train.report({"loss": loss.item(), "held_out": sum(losses)})


_EVALUATED = """    data_load
    eval[{0}]
      data_load
      forward
      loss
      data_load
      forward
      loss
"""


@program(
    "cirron.session\n  fit{workers=0}\n"
    + "".join(
        "    data_load\n" + STEPS.format("    ", n).strip("\n") + "\n" + _EVALUATED.format(n)
        for n in range(2)
    )
)
def trains_with_prepared_loaders() -> dict[str, Any]:
    """The loop of Ray's tutorials: its loaders fetch a batch ahead, also in the evaluation."""
    return {"metrics": _fit(_prepared_loop, 0).metrics}


# --- Ray Tune -----------------------------------------------------------------------------------


def _tune(trainable: Any, space: dict[str, Any], run: Any = None, **options: Any) -> Any:
    from ray import tune

    return tune.Tuner(
        trainable,
        param_space=space,
        tune_config=tune.TuneConfig(**options),
        run_config=run or _tune_config(),
    ).fit()


def _values(grid: Any, *names: str) -> list[list[Any]]:
    """Return the values of all trials, as their data frames have them."""
    return [
        [name, value]
        for result in grid
        for name in names
        if result.metrics_dataframe is not None
        for value in result.metrics_dataframe[name].tolist()
    ]


def _objective(config: dict[str, Any]) -> None:
    from ray import tune

    for number in range(3):
        metrics = {"score": config["width"] / (number + 3), "nested": {"deep": {"value": number}}}
        tune.report(metrics)


def _trials(*attributes: str, inside: str = "      cirron.session\n") -> str:
    return "".join(f"    trial{each}\n{inside}" for each in attributes)


@program(
    "cirron.session\n  tune\n"
    + _trials(*[f"{{cirron.config.width={n}}}{{status=TERMINATED}}" for n in (1, 2, 3)]),
    slow=True,
)
def tunes_over_a_grid() -> dict[str, Any]:
    """Three trials of a function that reports nested values."""
    from ray import tune

    grid = _tune(_objective, {"width": tune.grid_search([1, 2, 3])}, max_concurrent_trials=2)
    return {"logs": _values(grid, "score", "nested/deep/value")}


@program(
    "cirron.session\n  tune\n" + _trials(*["{status=TERMINATED}"] * 3),
    slow=True,
)
def tunes_in_one_process() -> dict[str, Any]:
    """Three trials, one after the other, in one process (`reuse_actors`)."""
    from ray import tune

    grid = _tune(
        _objective,
        {"width": tune.grid_search([1, 2, 3])},
        max_concurrent_trials=1,
        reuse_actors=True,
    )
    logs = _values(grid, "score", "nested/deep/value")
    pids = {result.metrics["pid"] for result in grid}
    return {"logs": logs, "processes": len(pids)}


def _failing_objective(config: dict[str, Any]) -> None:
    from ray import tune

    tune.report({"score": config["width"]})
    if config["width"] == 2:
        raise ValueError("a wrong width")


@program(
    "cirron.session\n  tune\n    trial{status=TERMINATED}\n      cirron.session\n"
    "    trial!{status=ERROR}{failures=2}\n      cirron.session!\n"
    "      cirron.session!{ray.restart=1}\n",
    slow=True,
)
def tunes_with_a_failing_trial() -> dict[str, Any]:
    """A trial raises, is tried again, and raises again; the other one ends."""
    from ray import tune

    run = _tune_config(failure_config=tune.FailureConfig(max_failures=1))
    grid = _tune(_failing_objective, {"width": tune.grid_search([1, 2])}, run)
    return {"errors": [type(each.error).__name__ for each in grid]}


def _trainable() -> Any:
    from ray import tune

    class Walk(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            self.at = config["start"]

        def step(self) -> dict[str, Any]:
            self.at += 0.1
            return {"at": self.at, "list": [1]}

        def save_checkpoint(self, _: str) -> dict[str, Any]:
            return {"at": self.at}

        def load_checkpoint(self, checkpoint: Any) -> None:
            self.at = checkpoint["at"]

    return Walk


@program(
    "cirron.session\n  tune\n"
    + _trials(
        *["{status=TERMINATED}{stopped=true}"] * 2,
        inside="      cirron.session\n        iteration[0]\n        iteration[1]\n"
        "        checkpoint{operation=save}\n        iteration[2]\n"
        "        checkpoint{operation=save}\n",
    ),
    slow=True,
)
def tunes_a_class() -> dict[str, Any]:
    """A class trainable with checkpoints, which a stopping criterion ends."""
    from ray import tune

    run = _tune_config(
        stop={"training_iteration": 3},
        checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=2, checkpoint_at_end=True),
    )
    grid = _tune(_trainable(), {"start": tune.grid_search([1, 2])}, run)
    return {"logs": _values(grid, "at")}


def _asha_objective(config: dict[str, Any]) -> None:
    from ray import tune

    for number in range(4):
        tune.report({"score": config["width"] * (number + 1)})


@program(
    "cirron.session\n  tune\n"
    + _trials("{status=TERMINATED}", "{status=TERMINATED}{stopped=true}"),
    slow=True,
)
def stops_trials_early() -> dict[str, Any]:
    """A scheduler ends the worse trial after its first report."""
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler

    scheduler = ASHAScheduler(
        metric="score", mode="max", max_t=100, grace_period=1, reduction_factor=2
    )
    grid = _tune(
        _asha_objective, {"width": tune.grid_search([2, 1])}, scheduler=scheduler,
        max_concurrent_trials=1,
    )  # fmt: skip
    return {"logs": _values(grid, "score")}


@program(
    "cirron.session\n  search\n    prepare\n    tune\n      cirron.session\n        task\n"
    "      trial\n        cirron.session\n"
    "          attempt\n          attempt\n          attempt\n",
    slow=True,
)
def tunes_inside_scopes_of_its_own() -> dict[str, Any]:
    """`tune.run` in scopes of the program; the function, and a task that it starts, open scopes."""
    from ray import tune

    import cirron_otel as ci

    with ci.scope("search"):
        with ci.scope("prepare"):
            time.sleep(0.01)
        analysis = tune.run(
            _scoped_objective, config={"width": 2}, storage_path=_storage(), name=_name(), verbose=0
        )
    return {"width": [trial.config["width"] for trial in analysis.trials]}


def _scoped_task() -> None:
    import cirron_otel as ci

    with ci.scope("task"):
        pass
    ci.shutdown()  # Ray may kill the process when the trial ends


def _scoped_objective(config: dict[str, Any]) -> None:
    import ray
    from ray import tune

    import cirron_otel as ci

    ray.get(ray.remote(num_cpus=0)(_scoped_task).remote())
    for _ in range(3):
        with ci.scope("attempt"):
            tune.report({"score": config["width"]})


def _resumed_objective(config: dict[str, Any]) -> None:
    from ray import tune

    if not Path(config["flag"]).exists():
        raise RuntimeError("not yet")
    tune.report({"score": 1})


@program(
    "cirron.session\n  tune\n    trial!{status=ERROR}\n      cirron.session!\n"
    "  tune\n    trial{status=TERMINATED}\n      cirron.session\n",
    slow=True,
)
def resumes_a_tuning() -> dict[str, Any]:
    """A tuning whose trial fails, and that is restored."""
    from ray import tune

    flag = Path("flag").absolute()
    grid = _tune(_resumed_objective, {"flag": str(flag)})
    flag.touch()
    tuner = tune.Tuner.restore(
        f"{_storage()}/{_name()}", trainable=_resumed_objective, resume_errored=True
    )
    return {"errors": grid.num_errors, "logs": _values(tuner.fit(), "score")}


# --- other trainers in workers ------------------------------------------------------------------


def _trainer_loop(config: dict[str, Any]) -> None:
    import torch
    from ray.train.huggingface.transformers import RayTrainReportCallback, prepare_trainer
    from torch.utils.data import Dataset
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    class Tokens(Dataset[Any]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"input_ids": [index, 1, 2], "labels": [index, 1, 2]}

    shape = GPT2Config(
        vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2, bos_token_id=0,
        eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    arguments = TrainingArguments(
        output_dir="out", num_train_epochs=2, per_device_train_batch_size=2, logging_steps=1,
        save_strategy="epoch", report_to=[], use_cpu=True, disable_tqdm=True, seed=1,
    )  # fmt: skip
    torch.manual_seed(1)  # the Trainer seeds only what comes after its construction
    trainer = Trainer(model=GPT2LMHeadModel(shape), args=arguments, train_dataset=Tokens())
    trainer.add_callback(RayTrainReportCallback())
    prepare_trainer(trainer).train()


TRAINER_EPOCH = """\
            epoch[{0}]
              step[0]
                data_load
                forward
                backward
                optimizer_step
              step[1]{{global_step={1}}}
                data_load
                forward
                backward
                optimizer_step
              checkpoint{{operation=save}}
              checkpoint{{operation=save}}
"""


def _lightning_loop(config: dict[str, Any]) -> None:
    import lightning
    import torch
    from ray.train.lightning import (
        RayDDPStrategy,
        RayLightningEnvironment,
        RayTrainReportCallback,
        prepare_trainer,
    )
    from torch.utils.data import DataLoader, TensorDataset

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any) -> Any:
            loss = torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=config["lr"])

    torch.manual_seed(3)
    loader = DataLoader(TensorDataset(torch.randn(4, 2), torch.randn(4, 1)), batch_size=2)
    trainer = prepare_trainer(
        lightning.Trainer(
            max_epochs=2,
            accelerator="cpu",
            devices="auto",
            strategy=RayDDPStrategy(),
            plugins=[RayLightningEnvironment()],
            callbacks=[RayTrainReportCallback()],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            log_every_n_steps=1,
        )
    )
    trainer.fit(Model(), loader)


LIGHTNING_EPOCH = """\
            epoch[{0}]
              step[0-1]
                data_load
                optimizer_step
                  forward
                  backward
              checkpoint{{operation=save}}
              checkpoint{{operation=save}}
"""


def _nested_loop(config: dict[str, Any]) -> None:
    _trainer_loop(config)
    _lightning_loop(config)
    _saving_loop(config)


def _nested_objective(config: dict[str, Any]) -> None:
    from ray import tune

    result = _fit(_nested_loop, config={"lr": config["lr"], "epochs": 1})
    losses = {str(n): row["loss"] for n, (_, row) in enumerate(result.best_checkpoints)}
    tune.report({"final": result.metrics["loss"], "losses": losses})


@program(
    "cirron.session\n  tune\n    trial\n      cirron.session\n        fit{trainer=TorchTrainer}\n"
    "          cirron.session{rank=0}\n"
    + "".join(TRAINER_EPOCH.format(n, 2 * n + 2) for n in range(2))
    + "".join(LIGHTNING_EPOCH.format(n) for n in range(2))
    + _epochs(6, 1, "checkpoint{operation=save}"),
    slow=True,
)  # fmt: skip
def tunes_a_trainer() -> dict[str, Any]:
    """A trial that runs a TorchTrainer; its worker runs three training loops, one after the other.

    The first two are the Trainers of transformers and of Lightning, each with Ray's callback, which
    reports checkpoints. The last one is a loop in PyTorch.
    """
    grid = _tune(_nested_objective, {"lr": 0.1})
    return {"logs": _values(grid, "final", *(f"losses/{n}" for n in range(5)))}
