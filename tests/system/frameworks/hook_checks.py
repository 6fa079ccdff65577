"""Checks of the hooks into Accelerate and `generate`. `test_hook_checks.py` runs them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accelerate.accelerator
import torch
import torch._dynamo
import transformers.generation.utils
from transformers import LogitsProcessor, LogitsProcessorList, Trainer, TrainingArguments

import cirron_otel as ci
from cirron_otel.accelerate import CirronTracker
from cirron_otel.sdk.instrumentation import checkpoint_origin
from cirron_otel.sdk.instrumentation.accelerate import accelerator as hooks
from cirron_otel.sdk.instrumentation.training_loop import TrainingLoop
from cirron_otel.sdk.instrumentation.transformers import generation
from tests.kit.sessions.spool_trees import read_spool

from .checking import (
    Checks,
    callables,
    fail,
    names,
    profile,
    warnings,
)
from .programs import accelerate_loops as loops
from .programs import generation as texts

Accelerator = accelerate.accelerator.Accelerator
Mixin = transformers.generation.utils.GenerationMixin
check = Checks()


def _train(accelerator: Any, *, epochs: int = 1) -> Any:
    model, optimizer, loader = loops._parts(accelerator)
    for _ in range(epochs):
        for batch in loader:
            with accelerator.accumulate(model):
                loops._update(accelerator, model, optimizer, batch)
    return model


@check
def shutdown_restores_every_method() -> None:
    before = callables(Accelerator, Mixin)
    profile()
    assert Accelerator.prepare is not before[0]["prepare"]
    assert Mixin.generate is not before[1]["generate"]
    ci.shutdown()
    assert callables(Accelerator, Mixin) == before


@check
def a_missing_method_costs_its_part() -> None:
    messages = warnings()
    del Accelerator._do_sync
    Accelerator.accumulate = lambda *_: torch.no_grad().__class__()
    for name in ("_prepare_generated_length", *generation._ENCODERS):
        if name in vars(Mixin):
            delattr(Mixin, name)
    profiler = profile()
    state = profiler.health()["hooks"]
    assert state["accelerate"]["not_recorded"] == ["do_sync"], state
    assert state["transformers"]["not_recorded"] == ["tokens of generate", "encoders of generate"]
    assert len(messages) == 3, messages
    Accelerator(cpu=True).prepare(loops._model())
    ci.shutdown()
    assert "prepare" in names()


@check
def errors_of_the_hooks_never_reach_the_program() -> None:
    expected = texts._gpt2().generate(texts._prompts(), max_new_tokens=3).tolist()
    for owner, name in (
        (hooks, "Scope"), (hooks, "store_origin"), (hooks, "link_origin"),
        (hooks, "current_engine"), (generation, "current_engine"), (generation, "_name_here"),
        (generation, "TokenCounts"),
        (generation, "Scope"), (generation.Generation, "check"), (generation.Generation, "_finish"),
        (generation.Generation, "end_prefill"), (generation, "model_attributes"),
    ):  # fmt: skip
        profiler = profile(name)
        original = getattr(owner, name)
        setattr(owner, name, fail)
        accelerator = Accelerator(cpu=True)
        _train(accelerator)
        accelerator.save_state("state")
        accelerator.load_state("state")
        found = texts._gpt2().generate(texts._prompts(), max_new_tokens=3).tolist()
        setattr(owner, name, original)
        counts = profiler.health()["swallowed_errors"]
        assert sum(counts.values()) > 0, name
        assert found == expected, name
        engine = generation.current_engine()
        assert not engine.inside, name  # type: ignore[union-attr]
        ci.shutdown()
        assert not generation._open.calls


class _At(LogitsProcessor):  # type: ignore[misc]
    """Calls a function at the second token."""

    def __init__(self, action: Callable[[], object]) -> None:
        self._action = action

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        if input_ids.shape[1] == 5:
            self._action()
        return scores


def _generate(action: Callable[[], object]) -> list[Any]:
    result = texts._gpt2().generate(
        texts._prompts(), max_new_tokens=4, logits_processor=LogitsProcessorList([_At(action)])
    )
    return result.tolist()  # type: ignore[no-any-return]


@check
def the_session_ends_in_the_middle_of_a_generation() -> None:
    expected = _generate(lambda: None)
    profile()
    assert _generate(ci.shutdown) == expected
    assert {"request", "prefill", "decode"} <= set(names())
    profile("second")
    assert _generate(lambda: None) == expected
    ci.shutdown()
    assert names("second") == ["cirron.session", "request", "prefill", "decode"]


@check
def the_session_begins_in_the_middle_of_a_generation() -> None:
    expected = _generate(lambda: None)
    assert _generate(profile) == expected
    texts._gpt2().generate(texts._prompts(), max_new_tokens=2)
    ci.shutdown()
    assert names()[-3:] == ["request", "prefill", "decode"]


@check
def a_fork_in_the_middle_of_a_generation() -> None:
    children: list[int] = []
    profile()
    expected = _generate(lambda: None)
    assert _generate(lambda: children.append(os.fork())) == expected
    if not children[0]:
        ci.shutdown()
        os._exit(0)
    assert os.waitpid(children[0], 0)[1] == 0
    ci.shutdown()
    assert names().count("request") == 2


@check
def the_session_ends_in_the_middle_of_an_accumulated_step() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    model, optimizer, loader = loops._parts(accelerator)
    profile()
    for index, batch in enumerate(loader):
        with accelerator.accumulate(model):
            if index == 1:
                ci.shutdown()
            loops._update(accelerator, model, optimizer, batch)
    assert "optimizer_step" not in names()
    assert "micro_step" in names()


@check
def a_resumed_session_links_to_the_one_that_saved() -> None:
    profile("first")
    accelerator = Accelerator(cpu=True)
    _train(accelerator)
    accelerator.save_state("state")
    accelerator.load_state("state")
    ci.shutdown()
    profile("second")
    accelerator = Accelerator(cpu=True)
    loops._parts(accelerator)
    accelerator.load_state("state")
    accelerator.load_state("state")
    ci.shutdown()
    first, second = (
        next(each for each in read_spool(Path(name)).spans if each["name"] == "cirron.session")
        for name in ("first", "second")
    )
    origin = json.loads(Path("state", checkpoint_origin.FILE).read_text())
    assert not (first.get("otel") or {}).get("links"), first
    (link,) = second["otel"]["links"]
    assert origin["trace_id"] in str(link)
    assert origin["session_span_id"] in str(link)
    assert first["id"].startswith(origin["session_span_id"]), (first["id"], origin)


@check
def a_damaged_origin_is_ignored() -> None:
    accelerator = Accelerator(cpu=True)
    loops._parts(accelerator)
    accelerator.save_state("state")
    for text in ("", "[]", "{}", '{"trace_id": 5, "session_span_id": null}', "x" * 10_000):
        Path("state", checkpoint_origin.FILE).write_text(text)
        profiler = profile()
        accelerator.load_state("state")
        assert not profiler.health()["swallowed_errors"], text
        ci.shutdown()


@check
def in_a_trainer_accelerate_adds_nothing() -> None:
    arguments = TrainingArguments(
        "out", max_steps=2, gradient_accumulation_steps=2, per_device_train_batch_size=1,
        report_to=[], use_cpu=True, disable_tqdm=True, save_strategy="no",
    )  # fmt: skip
    profile()
    trainer = Trainer(texts._gpt2(), arguments, train_dataset=texts._sequences(4))
    trainer.train()
    ci.shutdown()
    found = names()
    assert "prepare" not in found
    assert found.count("step") == 2
    assert found.count("micro_step") == 4


@check
def in_the_loop_of_another_framework_accelerate_adds_nothing() -> None:
    profile()
    accelerator = Accelerator(cpu=True)
    for framework in ("transformers", "lightning"):
        loop = TrainingLoop.start(framework)
        assert loop is not None
        loops._parts(accelerator)
        accelerator.save_state("state")
        loop.end()
    ci.shutdown()
    assert not {"prepare", "checkpoint"} & set(names())
    assert not Path("state", checkpoint_origin.FILE).exists()


@check
def logged_values_are_not_changed() -> None:
    values = {
        "float": 0.1 + 0.2, "nan": float("nan"), "integer": 2**70, "text": "größer",
        "tensor": torch.tensor(0.1), "bool": True,
    }  # fmt: skip
    profile()
    accelerator = Accelerator(cpu=True, log_with=CirronTracker())
    accelerator.init_trackers("project", config={"lr": 0.1, "model": {"depth": 3}})
    assert accelerator.get_tracker("cirron", unwrap=True).session is not None
    accelerator.log(values, step=7)
    accelerator.log({"last": 1})
    accelerator.log({"bad": [1, 2]})
    accelerator.end_training()
    ci.shutdown()
    marks = {each["name"]: each for each in read_spool(Path("run")).marks}
    for name in ("float", "integer", "text", "bool"):
        assert marks[name]["value"] == values[name], marks[name]
        assert type(marks[name]["value"]) is type(values[name])
        assert marks[name]["attrs"] == {"step": 7}
    assert marks["tensor"]["value"] == values["tensor"].item()  # type: ignore[union-attr]
    assert marks["last"]["attrs"] == {}
    assert "bad" not in marks


@check
def without_a_session_the_tracker_does_nothing() -> None:
    accelerator = Accelerator(cpu=True, log_with=CirronTracker())
    accelerator.init_trackers("project", config={"lr": 0.1})
    accelerator.log({"loss": 1.0}, step=1)
    assert accelerator.get_tracker("cirron", unwrap=True) is None


@check
def a_generation_costs_little_per_token() -> None:
    import time

    def measured(call: Any) -> float:
        best = 1.0
        for _ in range(200):
            begun = time.perf_counter()
            generation._notify(call, generation.Generation.check)
            best = min(best, time.perf_counter() - begun)
        return best

    profile()
    model = texts._gpt2()
    costs: list[float] = []
    _At.second = lambda *_: None  # type: ignore[attr-defined]
    result = model.generate(
        texts._prompts(),
        max_new_tokens=4,
        logits_processor=LogitsProcessorList([_At(lambda: costs.append(measured(model)))]),
    )
    assert result.shape == (2, 8)
    ci.shutdown()
    assert costs[0] < 10e-6, costs  # about 1 us


if __name__ == "__main__":
    check.main()
