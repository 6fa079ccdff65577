"""Trainings that are interrupted in the middle of an epoch, and resumed in another session."""

from __future__ import annotations

import copy
import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cirron_otel as ci
from tests.core.importers.dgrr.traces import command
from tests.kit.sessions.processes import ROOT

from .loops import traced
from .reading import digests

EPOCHS, LENGTH = 3, 6
STOP = (1, 3)
"""The epoch, and the number of its batches, after which the training is interrupted."""
Saved = dict[str, Any]


class Training:
    """A training with dropout and a shuffled loader; `saved` is the state to resume from."""

    def __init__(self, saved: Saved | None = None, *, restores: bool = True) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.2), nn.Linear(5, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 0.01)
        self.data = torch.randn(4 * LENGTH, 4, generator=torch.Generator().manual_seed(2))
        self.loader = DataLoader(TensorDataset(self.data), 4, shuffle=True)
        self.first, self.skipped, self.generator = 0, 0, None
        if saved is not None:
            saved = copy.deepcopy(saved)
            self.first, self.skipped = saved["place"]
            self.model.load_state_dict(saved["model"])
            self.optimizer.load_state_dict(saved["optimizer"])
            if restores:
                torch.set_rng_state(saved["at epoch"])
                self.generator = saved["generator"]

    def restore(self) -> None:
        """Restore the generator, as soon as the skipped batches have been fetched."""
        if self.generator is not None:
            torch.set_rng_state(self.generator)

    def run(self, loop: Callable[..., Iterator[Any]], stop: tuple[int, int] | None) -> Saved | None:
        for epoch in ci.epochs(range(self.first, EPOCHS), start=self.first):
            before = torch.get_rng_state()
            for number, (inputs,) in enumerate(loop(self, self.skipped), self.skipped):
                loss = self.model(inputs).square().mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                if stop == (epoch, number + 1):
                    return {
                        "place": stop, "model": copy.deepcopy(self.model.state_dict()),
                        "optimizer": copy.deepcopy(self.optimizer.state_dict()),
                        "generator": torch.get_rng_state(), "at epoch": before,
                    }  # fmt: skip
            self.skipped = 0
        return None


def skipping(training: Training, skipped: int) -> Iterator[Any]:
    """A plain loop that fetches the batches again, and does not use them."""
    for number, batch in enumerate(training.loader):
        if number == skipped - 1:
            training.restore()
        if number >= skipped:
            yield batch


def fetched_before(training: Training, skipped: int) -> Iterator[Any]:
    """Steps of `ci.batches`, from the first batch that is used."""
    batches = iter(training.loader)
    for _ in range(skipped):
        next(batches)
    if skipped:
        training.restore()
    return ci.batches(batches, start=skipped)


def skipping_items(training: Training, skipped: int) -> Iterator[Any]:
    """Steps of `ci.batches`, also for the batches that are not used."""
    for number, batch in enumerate(ci.batches(training.loader)):
        if number == skipped - 1:
            training.restore()
        if number >= skipped:
            yield batch


def sliced(training: Training, skipped: int) -> Iterator[Any]:
    """Steps of `ci.batches`; the first fetches the batches that are not used, too."""

    def rest() -> Iterator[Any]:
        for number, batch in enumerate(training.loader):
            if number == skipped - 1:
                training.restore()
            if number >= skipped:
                yield batch

    return ci.batches(rest(), start=skipped)


def manual(training: Training, skipped: int) -> Iterator[Any]:
    """Steps that the program opens itself."""
    for number, batch in enumerate(training.loader):
        if number == skipped - 1:
            training.restore()
        if number >= skipped:
            with ci.scope("step", index=number):
                yield batch


def without_loader(training: Training, skipped: int) -> Iterator[Any]:
    """Steps of `ci.batches` over a range; the data does not come from a loader."""
    batches = training.data[torch.randperm(4 * LENGTH)].view(LENGTH, 4, 4)
    if skipped:
        training.restore()
    for number in ci.batches(range(skipped, LENGTH), start=skipped):
        yield (batches[number],)


LOOPS = (skipping, fetched_before, skipping_items, sliced, manual, without_loader)


def diff(a: Path, b: Path) -> Any:
    return json.loads(command("diff", a, b, "--run", "all", "--json")[1])


def record(
    folder: Path, loop: Any, training: Callable[[], Training], stop: tuple[int, int] | None = None,
    **options: Any,
) -> Saved | None:  # fmt: skip
    with traced(folder, **{"digest": "tensors"} | options):
        saved = training().run(loop, stop)
    assert ci.health()["swallowed_errors"] == {}
    return saved


@pytest.mark.parametrize(
    ("loop", "mode"), [*((loop, "tensors") for loop in LOOPS), (skipping, "step")]
)
def test_interrupted_and_resumed(loop: Any, mode: str, tmp_path: Path) -> None:
    record(tmp_path / "complete", loop, Training, digest=mode)
    saved = record(tmp_path / "both", loop, Training, STOP, digest=mode)
    for name in ("both", "resumed"):
        record(tmp_path / name, loop, lambda: Training(saved), digest=mode)
    document = diff(tmp_path / "complete", tmp_path / "both")
    assert document["divergence"] is None
    assert document["digests"]["identical"] is True
    assert document["digests"]["compared"] == EPOCHS * LENGTH
    rank = diff(tmp_path / "complete", tmp_path / "resumed")["digests"]["ranks"][0]
    assert (rank["compared"], rank["only_a"], rank["only_b"]) == (9, 9, 0)
    assert (rank["divergence"], rank["differing"]) == (None, 0)
    found = [each for each in digests(tmp_path / "resumed") if each.mark.step == 0]
    assert {each.span["index"] for each in found} == {STOP[1]}
    assert len({each.mark.quantity for each in found}) == len(found)


def test_resumed_without_its_generator(tmp_path: Path) -> None:
    record(tmp_path / "complete", skipping, Training)
    saved = record(tmp_path / "both", skipping, Training, STOP)
    record(tmp_path / "both", skipping, lambda: Training(saved, restores=False))
    found = diff(tmp_path / "complete", tmp_path / "both")["divergence"]
    assert (found["epoch"], found["index"], found["quantity"]) == (*STOP, "rng")


def test_the_program_of_the_page(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "digests.md").read_text()
    (program,) = re.findall(r"```py\n(import torch(?:(?!```).)*start=first.*?)```", page, re.DOTALL)
    with traced(tmp_path):
        exec(program, {})
    batches = [json.loads(file.read_bytes()) for file in (tmp_path / "spool").iterdir()]
    spans = [span for batch in batches for span in batch["spans"]]
    epochs = {each["id"]: each["index"] for each in spans if each["name"] == "epoch"}
    steps = [(epochs[e["parent_id"]], e["index"]) for e in spans if e["name"] == "step"]
    numbers = [number for number in sorted(steps) if number >= (1, 2)]
    assert numbers == [(1, 2), (1, 3), (1, 4), *((2, number) for number in range(5))]


def test_one_loop_may_take_several_batches(tmp_path: Path) -> None:
    """Each item of `ci.batches` has two batches, which the program uses later."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    data = TensorDataset(torch.randn(16, 4))
    with traced(tmp_path, digest="tensors"):
        loader = iter(DataLoader(data, 4))
        for pair in ci.batches(zip(loader, loader, strict=True)):
            sum(model(inputs).square().mean() for (inputs,) in pair).backward()  # type: ignore[union-attr]
            optimizer.step()
    steps = [
        [each.mark.quantity for each in found]
        for _, found in itertools.groupby(digests(tmp_path), key=lambda each: each.mark.step)
    ]
    assert steps == [["rng", "batch", "batch", "loss", "grads", "weights", "optimizer"]] * 2


class Loss(nn.Module):
    """A model of the Trainer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.2), nn.Linear(5, 1))

    def forward(self, x: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        return {"loss": self.layers(x).square().mean()}


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_trainer_in_the_middle_of_an_epoch(accumulation: int, tmp_path: Path) -> None:
    """It restores the generators only after it has fetched the first batch."""
    transformers = pytest.importorskip("transformers")
    generator = torch.Generator().manual_seed(2)
    data = [{"x": torch.randn(4, generator=generator)} for _ in range(24)]
    stop = 9 // accumulation

    class Stop(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, _: Any, state: Any, control: Any, **__: Any) -> None:
            control.should_training_stop = state.global_step == stop

    def train(folder: Path, callbacks: Any = (), checkpoint: str | None = None) -> None:
        options = transformers.TrainingArguments(
            str(tmp_path / "checkpoints" / folder.name), num_train_epochs=3,
            per_device_train_batch_size=4, gradient_accumulation_steps=accumulation,
            save_steps=stop,
            remove_unused_columns=False, report_to=[], disable_tqdm=True, logging_strategy="no",
            use_cpu=True, seed=1,
        )  # fmt: skip
        with traced(folder, digest="tensors", frameworks=["transformers", "torch"]):
            torch.manual_seed(1)
            trainer = transformers.Trainer(
                Loss(), options, train_dataset=data, callbacks=list(callbacks)
            )
            trainer.train(resume_from_checkpoint=checkpoint)
        assert ci.health()["swallowed_errors"] == {}

    train(tmp_path / "complete")
    train(tmp_path / "both", [Stop()])
    train(
        tmp_path / "both", checkpoint=str(tmp_path / "checkpoints" / "both" / f"checkpoint-{stop}")
    )
    document = diff(tmp_path / "complete", tmp_path / "both")
    assert document["divergence"] is None
    assert document["digests"]["identical"] is True
    assert document["digests"]["compared"] == EPOCHS * LENGTH // accumulation


class Unusable:
    def __index__(self) -> int:
        raise OSError("no number")


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (7, [7, 8]),
        (True, [1, 2]),
        (torch.tensor(7), [7, 8]),
        ("x", [0, 1]),
        (Unusable(), [0, 1]),
    ],
)
def test_the_first_number_of_a_loop(
    start: Any, expected: list[int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with traced(tmp_path):
        assert list(ci.batches(["a", "b"], start=start)) == ["a", "b"]
    batches = [json.loads(file.read_bytes()) for file in (tmp_path / "spool").iterdir()]
    spans = [span for batch in batches for span in batch["spans"]]
    indexes = sorted(each["index"] for each in spans if each["name"] == "step")
    assert json.dumps(indexes) == json.dumps(expected)  # true is not 1
    assert ("not a whole number" in caplog.text) == (expected == [0, 1])
