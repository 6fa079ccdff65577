"""Programs that train with Lightning's Trainer."""

from __future__ import annotations

from typing import Any

from tests.system.frameworks import program

from .lightning_parts import (
    VALIDATION_ROWS,
    classifier,
    data,
    fit,
    lightning,
    loader,
    results,
    trainer,
)

SESSION = "cirron.session\n"


def block(level: int, *lines: str) -> str:
    """Indent lines by a level of the tree."""
    text = "\n".join(lines).strip("\n")
    return "".join("  " * level + line + "\n" for line in text.splitlines())


CLOSURE = """
data_load
optimizer_step
  forward
  backward
"""


def steps(label: str, level: int = 2, inside: str = CLOSURE) -> str:
    """Return the text of steps, or of other scopes, with the same children."""
    return block(level, label) + block(level + 1, inside)


def evaluation(number: int, level: int = 2, batches: int = 2, attrs: str = "") -> str:
    """Return the text of a validation."""
    label = f"eval[{number}]{{function=validate}}{attrs}"
    return block(level, label) + block(level + 1, *["data_load", "forward"] * batches)


def epochs(*inside: str) -> str:
    """Return the text of epochs that are numbered from 0."""
    return "".join(block(1, f"epoch[{n}]") + each for n, each in enumerate(inside))


CHECK = evaluation(0, 1, attrs="{sanity_check=true}")


@program(
    SESSION
    + CHECK
    + epochs(*[
        block(2, f"step[0]{{global_step={3 * n + 1}}}{{epoch={n}}}") + block(3, CLOSURE)
        + steps("step[1-2]") + evaluation(n + 1)
        for n in range(2)
    ])
)  # fmt: skip
def validates_after_each_epoch() -> dict[str, Any]:
    """A classifier that is validated after each epoch, and once before as a check."""
    return fit(num_sanity_val_steps=2)


@program(SESSION + epochs(*[steps("step[0-2]") + evaluation(n) for n in range(2)]))
def logs_metric_objects() -> dict[str, Any]:
    """Metrics of torchmetrics: one is called, one is updated, and a collection is updated."""
    from torch.nn.functional import cross_entropy
    from torchmetrics import MeanMetric, MetricCollection
    from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

    def training_step(self: Any, batch: Any, _batch_idx: int) -> Any:
        examples, labels = batch
        scores = self.model(examples)
        loss = cross_entropy(scores, labels)
        self.accuracy(scores, labels)
        self.mean.update(loss)
        self.log("accuracy", self.accuracy, on_step=True, on_epoch=True)
        self.log("mean", self.mean, on_step=False, on_epoch=True)
        return loss

    def validation_step(self: Any, batch: Any, _batch_idx: int) -> None:
        examples, labels = batch
        scores = self.model(examples)
        self.held_out(scores, labels)
        self.first.update(scores, labels)
        self.log("first", self.first)
        self.log_dict(self.held_out)

    module = classifier(training_step=training_step, validation_step=validation_step)
    module.accuracy, module.mean = MulticlassAccuracy(3), MeanMetric()
    module.first = MulticlassAccuracy(3, average="micro")
    module.held_out = MetricCollection([MulticlassAccuracy(3), MulticlassF1Score(3)], prefix="val_")
    trainer().fit(module, loader(), loader(VALIDATION_ROWS))
    found = results(module)
    names = {name for name, _ in found["logs"]}
    assert names >= {"accuracy_step", "accuracy_epoch", "mean", "first", "val_MulticlassF1Score"}
    return found


@program(SESSION + epochs(*[steps("step[0-2]")] * 2))
def without_validation_and_logger() -> dict[str, Any]:
    """A classifier without validation; its logged values are marks although it has no logger."""
    values: list[list[Any]] = []

    def on_train_batch_end(self: Any, *_: Any) -> None:
        metrics = self.trainer._logger_connector.metrics["log"]
        values.extend([name, value.item()] for name, value in metrics.items())

    given = fit({"on_train_batch_end": on_train_batch_end}, validates=False, logger=False)
    return {**given, "logs": [each for each in values if each[0] in ("loss_step", "rows")]}


ACCUMULATED = (
    block(2, "step[0]{global_step=1}")
    + steps("micro_step[0]", 3, "data_load\nforward\nbackward")
    + steps("micro_step[1]", 3, "data_load")
    + steps("optimizer_step", 3, "forward\nbackward")
    + block(2, "step[1]{global_step=2}")
    + steps("micro_step[0]", 3, "data_load")
    + steps("optimizer_step", 3, "forward\nbackward")
)


@program(SESSION + epochs(ACCUMULATED))
def accumulates_gradients() -> dict[str, Any]:
    """Gradients of two batches; the last step of the epoch has only one."""
    return fit(validates=False, max_epochs=1, accumulate_grad_batches=2)


@program(
    SESSION
    + epochs(
        steps("step[0-1]") + evaluation(0) + steps("step[2]"),
        steps("step[0]") + evaluation(1) + steps("step[1-2]") + evaluation(2),
    )
)
def validates_every_two_steps() -> dict[str, Any]:
    """A validation after every second batch, counted over the epochs."""
    return fit(val_check_interval=2, check_val_every_n_epoch=None)


@program(
    SESSION
    + epochs(
        steps("step[0]", 2, "micro_step[0]\n  data_load\n  forward\n  backward")
        + evaluation(0)
        + block(2, "step[0]{global_step=1}")
        + steps("micro_step[0]", 3, "data_load")
        + steps("optimizer_step", 3, "forward\nbackward")
        + evaluation(1)
        + block(2, "step[1]")
        + steps("micro_step[0]", 3, "data_load")
        + steps("optimizer_step", 3, "forward\nbackward")
        + evaluation(2)
    )
)
def validates_within_an_accumulation() -> dict[str, Any]:
    """A validation between the batches of one optimizer step divides the step."""
    return fit(max_epochs=1, val_check_interval=1, accumulate_grad_batches=2)


@program(
    SESSION
    + evaluation(0, 1)
    + steps("eval[1]{function=test}", 1, "data_load\nforward\n" * 2)
    + steps("eval[2]{function=predict}", 1, "data_load\nforward\n" * 2)
)
def evaluates_alone() -> dict[str, Any]:
    """Validation, test and prediction without training."""
    module, runs = classifier(), trainer()
    validated = runs.validate(module, loader(VALIDATION_ROWS), verbose=False)
    tested = runs.test(module, loader(VALIDATION_ROWS), verbose=False)
    predicted = runs.predict(module, loader(VALIDATION_ROWS))
    shown = [each.tolist() for each in predicted]
    return results(module, validated=validated, tested=tested, predicted=shown)


GAN_STEP = """
data_load
forward x2
backward
optimizer_step
forward x2
backward
optimizer_step
"""


@program(
    SESSION
    + epochs(
        block(2, "step[0]{global_step=2}")
        + block(3, GAN_STEP)
        + block(2, "step[1]{global_step=4}")
        + block(3, GAN_STEP)
        + block(2, "step[2]{global_step=6}")
        + block(3, GAN_STEP)
    )
)
def optimizes_manually() -> dict[str, Any]:
    """A GAN of two optimizers in manual optimization: a step for each batch."""
    import torch
    from torch import nn

    pl = lightning()

    class Gan(pl.LightningModule):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.maker, self.critic = nn.Linear(8, 8), nn.Linear(8, 1)

        def training_step(self, batch: Any, _batch_idx: int) -> None:
            examples, _ = batch
            for optimizer, sign in zip(self.optimizers(), (1, -1), strict=True):
                loss = sign * self.critic(self.maker(examples)).mean()
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()
                self.log(f"loss_{sign}", loss)

        def configure_optimizers(self) -> Any:
            return [
                torch.optim.SGD(each.parameters(), lr=0.1) for each in (self.maker, self.critic)
            ]

    module, runs = Gan(), trainer(max_epochs=1)
    runs.fit(module, loader())
    return results(module, global_step=runs.global_step)


@program(SESSION + epochs(steps("step[0-2]", 2, CLOSURE.replace("data_load", "data_load x2"))))
def trains_on_two_loaders() -> dict[str, Any]:
    """Two loaders that are read together; the shorter one begins again."""

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        return self.loss(batch["long"]) + 0 * batch["short"][0].sum()

    module, runs = classifier(training_step=training_step), trainer(max_epochs=1)
    runs.fit(module, {"long": loader(), "short": loader(VALIDATION_ROWS)})
    return results(module)


@program(SESSION + epochs(steps("step[0-2]") + evaluation(0, batches=3)))
def validates_on_two_loaders() -> dict[str, Any]:
    """Two loaders for the validation are one evaluation; each has its own logged value."""

    def validation_step(self: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        self.log("val_loss", self.loss(batch))

    module = classifier(validation_step=validation_step)
    trainer(max_epochs=1).fit(module, loader(), [loader(VALIDATION_ROWS), loader(2)])
    return results(module)


FETCHED_AHEAD = (
    steps("step[0-1]") + steps("step[2]", 2, "optimizer_step\n  forward\n  backward")
)  # fmt: skip


@program(
    SESSION
    + block(1, "data_load", "epoch[0]")
    + FETCHED_AHEAD
    + block(1, "epoch[1]")
    + block(2, "data_load")
    + FETCHED_AHEAD
)
def streams_without_length() -> dict[str, Any]:
    """A stream without a length, of which Lightning fetches one batch ahead."""
    from torch.utils.data import DataLoader, IterableDataset

    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(data())

    module = classifier()
    trainer().fit(module, DataLoader(Stream(), batch_size=2))
    return results(module)


@program(SESSION + epochs(*[steps("step[0-2]", 2, "optimizer_step\n  forward\n  backward")] * 2))
def trains_on_an_iterable() -> dict[str, Any]:
    """An object that yields batches instead of a loader: no fetch can be observed."""
    import torch

    class Batches:
        def __iter__(self) -> Any:
            rows = data()
            return iter(
                [(rows.tensors[0][i : i + 2], rows.tensors[1][i : i + 2]) for i in (0, 2, 4)]
            )

    torch.manual_seed(1)
    module = classifier()
    trainer().fit(module, Batches())
    return results(module)


@program(SESSION + epochs(steps("step[0]") + block(2, "data_load")))
def skips_the_rest_of_an_epoch() -> dict[str, Any]:
    """`on_train_batch_start` returns -1: the batch is not trained on, and the epoch ends."""

    def on_train_batch_start(self: Any, batch: Any, batch_idx: int) -> int | None:
        return -1 if batch_idx == 1 else None

    return fit({"on_train_batch_start": on_train_batch_start}, validates=False, max_epochs=1)


@program(
    SESSION
    + epochs(steps("step[0-2]", 2, "data_load\noptimizer_step\n" + "  forward\n  backward\n" * 3))
)
def optimizes_with_lbfgs() -> dict[str, Any]:
    """LBFGS calls its closure several times in a step."""
    import torch

    def configure_optimizers(self: Any) -> Any:
        return torch.optim.LBFGS(self.parameters(), max_iter=3, max_eval=3)

    return fit({"configure_optimizers": configure_optimizers}, validates=False, max_epochs=1)


SAVED = block(2, "checkpoint{operation=save}")


@program(
    SESSION
    + epochs(
        steps("step[0-2]") + evaluation(0) + SAVED,
        steps("step[0-2]") + evaluation(1) + SAVED,
    )
)
def saves_after_each_validation() -> dict[str, Any]:
    """ModelCheckpoint saves after a validation: a checkpoint beside the evaluation."""
    pl = lightning()
    saver = pl.callbacks.ModelCheckpoint("saved", monitor="val_loss", save_top_k=-1)
    return fit(callbacks=[saver], enable_checkpointing=True)


@program(
    SESSION
    + block(1, "epoch[0]")
    + steps("step[0-2]")
    + block(1, "checkpoint{operation=save}", "checkpoint{operation=load}", "epoch[1]")
    + block(2, "step[0]{global_step=4}")
    + block(3, CLOSURE)
    + steps("step[1-2]")
)
def resumes_after_an_epoch() -> dict[str, Any]:
    """A second Trainer continues with the next epoch, and with the next global step."""
    pl = lightning()
    module, first = classifier(), trainer(max_epochs=1)
    first.fit(module, loader())
    first.save_checkpoint("epoch.ckpt")
    second = trainer(max_epochs=2, logger=pl.loggers.CSVLogger("csv", version="1"))
    second.fit(module, loader(), ckpt_path="epoch.ckpt", **_trusting())
    return results(module, global_step=second.global_step)


@program(
    SESSION
    + block(1, "epoch[0]")
    + steps("step[0-1]")
    + SAVED
    + steps("step[2]")
    + block(1, "checkpoint{operation=load}", "epoch[0]")
    + block(2, "step[2]{global_step=3}")
    + block(3, CLOSURE)
    + block(1, "epoch[1]")
    + steps("step[0]", 2)
    + SAVED
    + steps("step[1-2]", 2)
)
def resumes_within_an_epoch() -> dict[str, Any]:
    """A checkpoint in the middle of an epoch: the steps continue with their number."""
    pl = lightning()
    saver = pl.callbacks.ModelCheckpoint("saved", every_n_train_steps=2, filename="at-{step}")
    options = {"callbacks": [saver], "enable_checkpointing": True}
    trainer(max_epochs=1, **options).fit(classifier(), loader())
    module = classifier()
    saver = pl.callbacks.ModelCheckpoint("again", every_n_train_steps=4, filename="at-{step}")
    options = {"callbacks": [saver], "enable_checkpointing": True}
    second = trainer(max_epochs=2, logger=pl.loggers.CSVLogger("csv", version="1"), **options)
    second.fit(module, loader(), ckpt_path="saved/at-step=2.ckpt", **_trusting())
    return results(module, global_step=second.global_step)


def _trusting() -> dict[str, Any]:
    """Return the arguments of `fit` that load a checkpoint of the program's own."""
    import inspect

    pl = lightning()
    known = inspect.signature(pl.Trainer.fit).parameters
    return {"weights_only": False} if "weights_only" in known else {}


@program(
    SESSION
    + epochs(
        steps("step[0]", 2, "data_load\noptimizer_step\n  checkpoint\n  forward\n  backward")
        + steps("step[1]", 2, f"{CLOSURE}\nprobe\n  checkpoint")
        + steps("step[2]")
        + evaluation(0)
        + block(3, "checkpoint{operation=save}")
    )
)
def saves_while_other_scopes_are_open() -> dict[str, Any]:
    """The module saves in its training step, in a scope of its own, and in a validation."""
    import cirron_otel as ci

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        if batch_idx == 0:
            self.trainer.save_checkpoint("first.ckpt")
        loss = self.loss(batch)
        self.log("loss", loss)
        return loss

    def on_train_batch_end(self: Any, _: Any, __: Any, batch_idx: int) -> None:
        if batch_idx == 1:
            with ci.scope("probe"):
                self.trainer.save_checkpoint("second.ckpt")

    def on_validation_epoch_end(self: Any) -> None:
        self.trainer.save_checkpoint("third.ckpt")

    methods = {
        "training_step": training_step,
        "on_train_batch_end": on_train_batch_end,
        "on_validation_epoch_end": on_validation_epoch_end,
    }
    return fit(methods, max_epochs=1)


@program(SESSION + epochs(steps("step[0-2]") + evaluation(0)))
def stops_early() -> dict[str, Any]:
    """EarlyStopping ends the training after the first of five epochs."""
    pl = lightning()
    stopper = pl.callbacks.EarlyStopping("val_loss", stopping_threshold=1e9)
    return fit(callbacks=[stopper], max_epochs=5)


@program(
    SESSION
    + epochs(
        steps("step[0-2]"),
        steps("step[0]") + steps("step[1]", 2, "data_load\noptimizer_step!\n  forward"),
    ),
    error="ValueError: batch 1",
)
def fails_in_training() -> dict[str, Any]:
    """An exception in the second epoch's second training step."""

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        if self.current_epoch == 1 and batch_idx == 1:
            raise ValueError("batch 1")
        return loss

    return fit({"training_step": training_step}, validates=False)


@program(
    SESSION + epochs(steps("step[0-2]") + evaluation(0, batches=1)),
    error="ValueError: validation",
)
def fails_in_validation() -> dict[str, Any]:
    """An exception in the first validation step."""

    def validation_step(self: Any, batch: Any, batch_idx: int) -> None:
        self.loss(batch)
        raise ValueError("validation")

    return fit({"validation_step": validation_step})


@program(
    SESSION + epochs(steps("step[0]") + block(2, "step[1]") + block(3, "data_load")),
    error="SystemExit: 1",
)
def is_interrupted() -> dict[str, Any]:
    """A KeyboardInterrupt between two batches, which Lightning turns into an exit."""

    def on_train_batch_start(self: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 1:
            raise KeyboardInterrupt

    return fit({"on_train_batch_start": on_train_batch_start}, validates=False)


@program(SESSION + epochs(steps("step[0]") + evaluation(0, batches=1)))
def runs_fast() -> dict[str, Any]:
    """`fast_dev_run`: one batch of each loader."""
    return fit(fast_dev_run=True)


@program(
    SESSION + epochs(steps("step[0-2]"), steps("step[0]")),
)
def trains_a_number_of_steps() -> dict[str, Any]:
    """`max_steps` ends the training within an epoch."""
    return fit(validates=False, max_epochs=-1, max_steps=4)


@program(
    SESSION + epochs(*[steps("step[0-1]") + evaluation(n, batches=1) for n in range(2)]),
)
def limits_batches() -> dict[str, Any]:
    """Two of three batches for training, one of two for validation."""
    return fit(limit_train_batches=2, limit_val_batches=1)


@program(SESSION + epochs(*[steps("step[0]") + evaluation(n, batches=1) for n in range(2)]))
def overfits() -> dict[str, Any]:
    """`overfit_batches`: one batch, for training and for validation."""
    return fit(overfit_batches=1)


@program(
    SESSION + epochs(*[steps("step[0-1]") + evaluation(n, batches=1) for n in range(2)]), ranks=2
)
def trains_on_two_ranks() -> dict[str, Any]:
    """DDP on two processes."""
    module = classifier()
    runs = trainer(strategy="ddp", devices=2)
    runs.fit(module, loader(8), loader(VALIDATION_ROWS))
    given = results(module)
    return given if runs.is_global_zero else {**given, "logs": []}


@program(SESSION + epochs(*[steps("step[0-2]") + evaluation(n) for n in range(2)]))
def trains_in_mixed_precision() -> dict[str, Any]:
    """Mixed precision with bfloat16."""
    return fit(precision="bf16-mixed")


@program(SESSION + epochs(*[steps("step[0-2]") + evaluation(n) for n in range(2)]))
def compiles_the_module() -> dict[str, Any]:
    """A module that torch.compile has wrapped."""
    import torch

    module = classifier()
    compiled = torch.compile(module, backend="eager")
    trainer().fit(compiled, loader(), loader(VALIDATION_ROWS))
    return results(module)


@program(
    SESSION
    + epochs(*[steps("step[0-2]") + evaluation(n) for n in range(2)])
    + steps("eval[2]{function=test}", 1, "data_load\nforward\n" * 2)
)
def takes_a_data_module() -> dict[str, Any]:
    """A LightningDataModule with hyperparameters of its own."""
    pl = lightning()

    class Data(pl.LightningDataModule):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self, rows: int = 6) -> None:  # noqa: ARG002 - a hyperparameter
            super().__init__()
            self.save_hyperparameters()

        def prepare_data(self) -> None:
            data()

        def setup(self, stage: str) -> None:
            self.stage = stage

        def train_dataloader(self) -> Any:
            return loader(self.hparams["rows"])

        def val_dataloader(self) -> Any:
            return loader(VALIDATION_ROWS)

        def test_dataloader(self) -> Any:
            return loader(VALIDATION_ROWS)

    module, runs, given = classifier(), trainer(), Data()
    runs.fit(module, datamodule=given)
    tested = runs.test(module, datamodule=given, verbose=False)
    return results(module, tested=tested)


SCHEDULED = """
data_load
optimizer_step
  forward
  zero_grad
  backward
  clip_grad
scheduler_step
"""


@program(
    SESSION + block(1, "zero_grad") + epochs(*[steps("step[0-2]", 2, SCHEDULED)] * 2),
)
def schedules_and_clips() -> dict[str, Any]:
    """A scheduler for each step, clipped gradients, and logged learning rates."""
    import torch

    def configure_optimizers(self: Any) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        return [optimizer], [{"scheduler": scheduler, "interval": "step"}]

    pl = lightning()
    monitor = pl.callbacks.LearningRateMonitor("step")
    return fit(
        {"configure_optimizers": configure_optimizers},
        validates=False,
        callbacks=[monitor],
        gradient_clip_val=0.5,
    )


@program(
    SESSION + epochs(steps("step[0-2]", 2, "optimizer_step\n  data_load\n  forward\n  backward"))
)
def reads_the_iterator() -> dict[str, Any]:
    """A training step that takes the iterator and fetches its batch itself."""

    def training_step(self: Any, dataloader_iter: Any) -> Any:
        batch, _, _ = next(dataloader_iter)
        loss = self.loss(batch)
        self.log("loss", loss, batch_size=2)
        return loss

    return fit({"training_step": training_step}, validates=False, max_epochs=1)


@program(
    SESSION
    + epochs(
        steps("step[0]")
        + steps("step[1]", 2, "data_load\noptimizer_step\n  forward")
        + steps("step[2]")
    )
)
def returns_no_loss() -> dict[str, Any]:
    """A training step that returns None for one batch: nothing is backpropagated."""

    def training_step(self: Any, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(batch)
        return None if batch_idx == 1 else loss

    return fit({"training_step": training_step}, validates=False, max_epochs=1)


@program(
    SESSION
    + block(1, "epoch[0]")
    + steps("step[0-2]", 2, "data_load\nforward\nbackward\noptimizer_step")
    + block(1, "epoch[0]")
    + steps("step[0-2]")
    + block(1, "epoch[1]")
    + steps("step[0-2]", 2, "data_load\nforward\nbackward\noptimizer_step")
)
def trains_beside_a_loop_of_its_own() -> dict[str, Any]:
    """Loops in plain torch before and after the Trainer's."""
    import torch

    module = classifier()

    def train() -> None:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for batch in loader():
            module.loss(batch).backward()
            optimizer.step()
            optimizer.zero_grad()

    train()
    trainer(max_epochs=1).fit(module, loader())
    train()
    return results(module)


@program(SESSION + epochs(*[steps("step[0-2]") + evaluation(n) for n in range(2)]))
def trains_with_the_other_package() -> dict[str, Any]:
    """The package `pytorch_lightning`, which is the same code under another name."""
    package = "pytorch_lightning"
    module = classifier(package)
    trainer(package).fit(module, loader(), loader(VALIDATION_ROWS))
    return results(module)


OLDEST: dict[str, dict[str, str]] = {
    # A checkpoint of Lightning 2.2 that is saved in `on_train_batch_end` does not count the batch
    # as completed, so the resumed run trains on it again.
    "resumes_within_an_epoch": {
        "tree": SESSION
        + block(1, "epoch[0]")
        + steps("step[0-1]")
        + SAVED
        + steps("step[2]")
        + block(1, "checkpoint{operation=load}", "epoch[0]")
        + block(2, "step[1]{global_step=3}")
        + block(3, CLOSURE)
        + steps("step[2]")
        + SAVED
        + block(1, "epoch[1]")
        + steps("step[0-2]")
    },
    # Lightning 2.2 returns from `fit` after a KeyboardInterrupt.
    "is_interrupted": {"error": ""},
}
"""The expectations that differ with the oldest supported version of Lightning, by program."""
