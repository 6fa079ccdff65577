"""The Trainer's hooks in one process: marks, configuration, links, faults, removal."""

from __future__ import annotations

import gc
import json
import os
import weakref
from collections.abc import Iterator
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import cirron_otel as ci
from tests.kit.sessions.spool_trees import Spool, read_spool

from .programs.transformers_parts import (
    classifier,
    digest,
    rows,
    trainer_of,
)

pytest.importorskip("transformers")

SECRET = "hf_0123456789abcdefghij"


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Run in a directory of its own, and end the session."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    ci.shutdown()


def profile(name: str = "run") -> Any:
    return ci.profile(
        output_dir=name, frameworks="auto", join="none", exporters="none", handle_signals=False
    )


def recorded(name: str = "run") -> Spool:
    ci.shutdown()
    return read_spool(Path(name))


def train(**others: Any) -> Any:
    """Train for two steps; return the Trainer."""
    import torch

    torch.manual_seed(1)
    trainer = trainer_of(**{"max_steps": 2, **others})
    trainer.train()
    return trainer


def test_values_are_on_the_scopes_that_they_describe() -> None:
    profile()
    train(eval_strategy="epoch", num_train_epochs=1, max_steps=-1)
    session = recorded().session
    step = session.find("step")[0]
    assert {mark["name"] for mark in step.marks} >= {"loss", "grad_norm", "learning_rate"}
    assert step.mark("loss")["kind"] == "point"
    evaluation = session.one("eval")
    assert evaluation.mark("eval_loss")["kind"] == "summary"
    assert session.mark("train_loss")["kind"] == "summary"
    assert not session.one("epoch").values


def test_values_of_an_epoch_are_on_the_epoch() -> None:
    profile()
    train(logging_strategy="epoch")
    session = recorded().session
    assert session.one("epoch").mark("loss")["kind"] == "point"
    assert all(not step.values for step in session.find("step"))


def test_the_configuration_has_no_secret() -> None:
    profile()
    train(hub_token=SECRET, weight_decay=0.125)
    ci.shutdown()
    text = "".join(file.read_text() for file in Path("run/spool").glob("*.json"))
    assert SECRET not in text
    for name in ("model.class", "model.parameters", "precision", "weight_decay", "learning_rate"):
        assert f"cirron.config.{name}" in text


def test_a_resumed_session_is_linked_to_the_one_that_saved() -> None:
    profile("first")
    train(save_strategy="steps", save_steps=1)
    session = recorded("first").session.record
    origin = json.loads(Path("out/checkpoint-1/cirron_run.json").read_text())
    profile("second")
    trainer_of(max_steps=2).train(resume_from_checkpoint="out/checkpoint-1")
    (link,) = recorded("second").session.record["otel"]["links"]
    assert link["span_id"] == origin["session_span_id"]
    assert link["trace_id"] == origin["trace_id"]
    assert session["id"][:16] == origin["session_span_id"]


def test_checkpoint_is_complete_if_its_run_cannot_be_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from transformers import Trainer

    original = Trainer._save

    def blocked(self: Any, output_dir: str | None = None, **named: Any) -> None:
        original(self, output_dir, **named)
        Path(output_dir or "", "cirron_run.json").mkdir()

    monkeypatch.setattr(Trainer, "_save", blocked)
    profile()
    train(save_strategy="steps", save_steps=2)
    assert Path("out/checkpoint-2/trainer_state.json").exists()
    assert recorded().session.one("checkpoint").record["attrs"]["path"] == "out/checkpoint-2"


def test_the_trainer_gets_nothing_that_is_visible() -> None:
    plain = train()
    profile()
    traced = train()
    assert vars(traced).keys() == vars(plain).keys()
    assert [type(each) for each in traced.callback_handler.callbacks] == [
        type(each) for each in plain.callback_handler.callbacks
    ]
    assert traced.state.log_history[:2] == plain.state.log_history[:2]


def test_shutdown_puts_everything_back() -> None:
    from transformers import Trainer
    from transformers.trainer_callback import CallbackHandler

    class Own(Trainer):  # type: ignore[misc]
        def evaluate(self, *args: Any, **named: Any) -> Any:
            return super().evaluate(*args, **named)

    owners = (Trainer, CallbackHandler, Own)
    before = [dict(vars(owner)) for owner in owners]
    profile()
    train(kind=Own)
    assert vars(Own)["evaluate"] is not before[2]["evaluate"]
    ci.shutdown()
    assert [dict(vars(owner)) for owner in owners] == before


def test_locally_defined_trainer_class_is_not_leaked() -> None:
    from transformers import Trainer

    def used() -> weakref.ref[Any]:
        teacher = classifier()

        class Own(Trainer):  # type: ignore[misc]
            def training_step(self, *args: Any, **named: Any) -> Any:
                teacher.eval()
                return super().training_step(*args, **named)

        train(kind=Own)
        return weakref.ref(teacher)

    profile()
    teacher = used()
    gc.collect()
    assert teacher() is None


def test_methods_that_get_no_instance_are_not_replaced() -> None:
    from transformers import Trainer

    saved: list[str] = []

    class Own(Trainer):  # type: ignore[misc]
        save_model = partial(saved.append, "saved")

        @staticmethod
        def predict(value: int) -> int:
            return value + 1

    profile()
    trainer = train(kind=Own)
    trainer.save_model()
    assert (saved, trainer.predict(1)) == (["saved"], 2)


def test_the_name_of_a_decorators_function_changes_nothing() -> None:
    from transformers import Trainer

    def decorated(function: Any) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            return function(*args, **named)

        return call

    class Own(Trainer):  # type: ignore[misc]
        @decorated
        def evaluate(self, *args: Any, **named: Any) -> Any:
            return super().evaluate(*args, **named)

        @decorated
        def save_model(self, *args: Any, **named: Any) -> Any:
            return super().save_model(*args, **named)

    profile()
    trainer = trainer_of(Own, eval_dataset={"one": rows(2), "two": rows(2)})
    trainer.evaluate()
    trainer.save_model("saved")
    session = recorded().session
    attrs = [each.record["attrs"] for each in session.find("eval")]
    assert [(each["function"], each["dataset"]) for each in attrs] == [
        ("evaluate", "one"),
        ("evaluate", "two"),
    ]
    assert session.one("checkpoint").record["attrs"]["path"] == "saved"


def test_trainer_may_be_constructed_ahead_of_the_session() -> None:
    from transformers import Trainer

    class Own(Trainer):  # type: ignore[misc]
        def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
            return {"eval_own": 1.0}

    trainer = trainer_of(Own)
    profile()
    trainer.evaluate()
    assert recorded().session.one("eval").mark("eval_own")["value"] == 1.0


FAULTS = (
    "loop_scopes.LoopScopes._open",
    "loop_scopes.LoopScopes._open_step",
    "loop_scopes.LoopScopes._close_step",
    "loop_scopes.LoopScopes._close_scope",
    "loop_step.LoopStep.begin_micro",
    "transformers.loop.TrainerLoop.mark_logs",
    "transformers.loop.TrainerLoop.mark_metrics",
    "transformers.configuration._arguments",
)


@pytest.mark.parametrize("place", FAULTS)
def test_an_error_of_a_hook_costs_records_only(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {
        "gradient_accumulation_steps": 2, "eval_strategy": "epoch", "save_strategy": "epoch",
    }  # fmt: skip
    plain = digest(train(**options).model)
    profile()

    def fault(*_: Any, **__: Any) -> None:
        raise RuntimeError("a fault of the hooks")

    monkeypatch.setattr(f"cirron_otel.sdk.instrumentation.{place}", fault)
    # In a context of its own: a scope whose end fails remains current.
    assert digest(copy_context().run(train, **options).model) == plain
    monkeypatch.undo()


def test_a_missing_method_costs_its_part(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from transformers import Trainer

    monkeypatch.delattr(Trainer, "_load_best_model")
    profiler = profile()
    train()
    assert profiler.health()["hooks"]["transformers"]["not_recorded"] == ["checkpoint (load)"]
    assert sum("not fully supported" in each.message for each in caplog.records) == 1
    assert len(recorded().session.find("step")) == 2


@pytest.mark.parametrize("event", ["on_step_begin", "on_step_end", "on_evaluate", "on_log"])
def test_a_callback_that_ends_the_session_ends_no_training(event: str) -> None:
    from transformers import TrainerCallback

    def end(*_: Any, **__: Any) -> None:
        ci.shutdown()

    ends = type("Ends", (TrainerCallback,), {event: end})
    plain = digest(train(eval_strategy="epoch").model)
    profile()
    assert digest(train(eval_strategy="epoch", callbacks=[ends()]).model) == plain
    assert recorded().session.record["end_ns"] is not None


@pytest.mark.parametrize("event", ["on_step_begin", "on_epoch_end", "on_log"])
def test_an_exception_of_a_callback_is_raised_unchanged(event: str) -> None:
    from transformers import TrainerCallback

    def fail(*_: Any, **__: Any) -> None:
        raise KeyError(event)

    profile()
    with pytest.raises(KeyError, match=event):
        train(callbacks=[type("Fails", (TrainerCallback,), {event: fail})()])
    train()  # a later training has scopes of its own
    session = recorded().session
    assert [len(each.find("step")) for each in session.find("epoch")][-1] == 2


def test_a_child_of_a_callback_has_no_scopes_of_the_training() -> None:
    from transformers import TrainerCallback

    class Forks(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            child = os.fork()
            if not child:
                os._exit(0)
            os.waitpid(child, 0)

    profile()
    train(callbacks=[Forks()])
    assert len(recorded().session.find("step")) == 2


def test_a_class_with_hooks_is_pickled_by_value() -> None:
    import cloudpickle
    from transformers import Trainer

    class Own(Trainer):  # type: ignore[misc]
        def compute_loss(self, *args: Any, **named: Any) -> Any:
            return super().compute_loss(*args, **named)

        def training_step(self, *args: Any, **named: Any) -> Any:
            return super().training_step(*args, **named)

    profile()
    train(kind=Own)
    copy = cloudpickle.loads(cloudpickle.dumps(Own))
    ci.shutdown()
    train(kind=copy, model=classifier(), train_dataset=rows(6))


def hook_losses(spool: Spool, name: str = "loss") -> list[Any]:
    """Return the values of the marks that the hooks made, in order of their times."""
    spans = {span["id"]: span["name"] for span in spool.spans}
    marks = sorted(spool.marks, key=lambda each: int(each["ts_ns"]))
    scopes = ("backward", "clip_grad")
    return [
        each.get("value_nonfinite") or each["value"]
        for each in marks
        if each["name"] == name and spans[each["span_id"]] in scopes
    ]


def test_loss_that_the_filter_hides_is_marked() -> None:
    from transformers import Trainer

    class Bad(Trainer):  # type: ignore[misc]
        def compute_loss(self, *args: Any, **named: Any) -> Any:
            loss = super().compute_loss(*args, **named)
            return loss * float("nan") if self.state.global_step == 3 else loss

    profile()
    trainer = train(
        kind=Bad, model=classifier(), train_dataset=rows(6), max_steps=6, max_grad_norm=0
    )
    logged = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert all(value == value for value in logged[:4])  # the filter hides the step's value
    spool = recorded()
    assert hook_losses(spool) == ["nan"] * (6 - 3)
    assert [each["value"] for each in spool.marks if each["name"] == "loss"].count(None) >= 1


def test_series_of_the_trainer_are_marked_once() -> None:
    profile()
    trainer = train(max_steps=4)
    for name in ("loss", "grad_norm"):
        logged = [row[name] for row in trainer.state.log_history if name in row]
        ci.shutdown()
        spool = read_spool(Path("run"))
        marks = sorted(spool.marks, key=lambda each: int(each["ts_ns"]))
        assert [each["value"] for each in marks if each["name"] == name] == logged


@pytest.mark.parametrize("others", [{"logging_strategy": "no"}, {"logging_steps": 500}])
def test_series_that_the_trainer_does_not_log_are_marked_by_the_hooks(
    others: dict[str, Any],
) -> None:
    profile()
    train(max_steps=4, **others)
    spool = recorded()
    assert len(hook_losses(spool)) == len(hook_losses(spool, "grad_norm")) == 4
