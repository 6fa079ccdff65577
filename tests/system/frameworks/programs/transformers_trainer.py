"""Programs that train with the Trainer of transformers."""

from __future__ import annotations

from typing import Any

from tests.system.frameworks import program

from .transformers_parts import (
    TIMES,
    classifier,
    language_model,
    results,
    rows,
    stream,
    tokens,
    trainer_of,
)


def _block(text: str, level: int) -> str:
    return "".join(f"\n{'  ' * level}{line}" for line in text.strip().splitlines())


PHASES = "data_load\nforward\nbackward\noptimizer_step"


def steps(label: str, level: int = 2, phases: str = PHASES) -> str:
    """Return the lines of steps with these phases."""
    return _block(label, level) + _block(phases, level + 1)


def evaluation(number: int, level: int = 2, attrs: str = "{function=evaluate}") -> str:
    """Return the lines of an evaluation of two batches."""
    return _block(f"eval[{number}]{attrs}", level) + _block("data_load\nforward\n" * 2, level + 1)


def epochs(label: str, inside: str = "") -> str:
    """Return the lines of epochs of three steps, and what follows the steps."""
    return f"\n  {label}{steps('step[0-2]')}{inside}"


SESSION = "cirron.session"
SAVED = "\n    checkpoint{operation=save}"
LOADED = "\n  checkpoint{operation=load} x2"


@program(SESSION + "".join(epochs(f"epoch[{n}]", evaluation(n)) for n in range(2)))
def evaluates_after_each_epoch() -> dict[str, Any]:
    """A language model that is evaluated after each epoch."""
    trainer = trainer_of(
        model=language_model(), train_dataset=tokens(6), eval_dataset=tokens(4),
        eval_strategy="epoch",
    )  # fmt: skip
    trainer.train()
    return results(trainer)


@program(
    f"""
{SESSION}
  zero_grad
  epoch[0-1]
    step[0]{{global_step}}
      data_load
      forward{{module=Classifier}}
      backward
      clip_grad{{function=clip_grad_norm_}}
      optimizer_step{{optimizer=AdamW}}
      scheduler_step
      zero_grad
    step[1-2]
      data_load
      forward
      backward
      clip_grad
      optimizer_step
      scheduler_step
      zero_grad
"""
)
def trains() -> dict[str, Any]:
    """The shortest program, with the work between the phases."""
    trainer = trainer_of()
    trainer.train()
    return results(trainer)


ACCUMULATED = """
      clip_grad
      optimizer_step
      scheduler_step
      zero_grad
"""
MICRO_STEP = """
        data_load
        forward
        backward"""
MICRO = "\n  data_load\n  forward\n  backward"


@program(
    f"""
{SESSION}
  zero_grad
  epoch[0-1]
    step[0-1]
      micro_step[0-1]{MICRO_STEP}{ACCUMULATED}
"""
)
def accumulates() -> dict[str, Any]:
    """Gradients of two batches."""
    trainer = trainer_of(train_dataset=rows(8), gradient_accumulation_steps=2)
    trainer.train()
    return results(trainer)


@program(
    f"""
{SESSION}
  zero_grad
  epoch[0-1]
    step[0]
      micro_step[0-1]{MICRO_STEP}{ACCUMULATED}
    step[1]
      micro_step[0]{MICRO_STEP}{ACCUMULATED}
"""
)
def accumulates_a_remainder() -> dict[str, Any]:
    """Gradients of two batches; the last step of an epoch has one batch left."""
    trainer = trainer_of(gradient_accumulation_steps=2)
    trainer.train()
    return results(trainer)


@program(
    SESSION
    + "\n  epoch[0]"
    + steps("step[0-1]")
    + evaluation(0)
    + steps("step[2]")
    + "\n  epoch[1]"
    + steps("step[0]{global_step=4}")
    + evaluation(1)
    + steps("step[1-2]")
    + evaluation(2)
)
def evaluates_every_two_steps() -> dict[str, Any]:
    """An evaluation after every second global step, in the middle of epochs."""
    trainer = trainer_of(eval_strategy="steps", eval_steps=2)
    trainer.train()
    return results(trainer)


@program(
    SESSION
    + "\n  epoch[0]"
    + steps("step[0-1]")
    + "\n    checkpoint{operation=save,path=out/checkpoint-2}"
    + "\n  checkpoint{operation=load,path=out/checkpoint-2} x2"
    + "\n  epoch[0]{skipped_batches=2}"
    + steps("step[2]{global_step=3}")
    + "\n  epoch[1]"
    + steps("step[0]{global_step=4}")
    + steps("step[1-2]")
)
def resumes_within_an_epoch() -> dict[str, Any]:
    """A second Trainer goes on from the checkpoint of a first, after two of three steps."""
    trainer_of(save_strategy="steps", save_steps=2, max_steps=2).train()
    trainer = trainer_of()
    trainer.train(resume_from_checkpoint="out/checkpoint-2")
    marked = results(trainer)
    marked["logs"] = []  # the history begins with that of the first Trainer
    return marked


@program(
    SESSION
    + epochs("epoch[0]", SAVED)
    + LOADED
    + "\n  epoch[1]"
    + steps("step[0]{global_step=4}")
    + steps("step[1-2]")
)
def resumes_between_epochs() -> dict[str, Any]:
    """The last checkpoint is found by itself, at the end of an epoch."""
    trainer_of(save_strategy="epoch", num_train_epochs=1).train()
    trainer = trainer_of()
    trainer.train(resume_from_checkpoint=True)
    return {**results(trainer), "logs": []}


@program(
    SESSION
    + epochs("epoch[0]", SAVED)
    + LOADED
    + "\n  epoch[1]"
    + steps("step[0]{global_step=4}")
    + steps("step[1-2]")
)
def resumes_without_skipping() -> dict[str, Any]:
    """With ignore_data_skip no batch is skipped."""
    trainer_of(save_strategy="epoch", num_train_epochs=1).train()
    trainer = trainer_of(ignore_data_skip=True)
    trainer.train(resume_from_checkpoint="out/checkpoint-3")
    return {**results(trainer), "logs": []}


@program(
    SESSION
    + "\n  epoch[0]"
    + steps("step[0-1]")
    + SAVED
    + LOADED
    + "\n  epoch[0]{skipped_batches=2}"
    + steps("step[2]")
    + "\n  epoch[1]"
    + steps("step[0]{global_step=4}")
)
def resumes_a_stream() -> dict[str, Any]:
    """A stream has to be read again up to the checkpoint, in the first fetch."""
    trainer_of(train_dataset=stream(6), save_strategy="steps", save_steps=2, max_steps=2).train()
    trainer = trainer_of(train_dataset=stream(6), max_steps=4)
    trainer.train(resume_from_checkpoint="out/checkpoint-2")
    return {**results(trainer), "logs": []}


@program(
    SESSION
    + epochs("epoch[0]", evaluation(0) + SAVED)
    + epochs("epoch[1]", evaluation(1) + SAVED)
    + "\n  checkpoint{operation=load,path=out/checkpoint-3}"
)
def stops_early() -> dict[str, Any]:
    """A metric that does not improve ends the training; the best model is loaded."""
    from transformers import EarlyStoppingCallback

    trainer = trainer_of(
        num_train_epochs=5, eval_strategy="epoch", save_strategy="epoch",
        load_best_model_at_end=True, metric_for_best_model="accuracy",
        compute_metrics=lambda _: {"accuracy": 0.5, "name": "constant"},
        callbacks=[EarlyStoppingCallback(1)],
    )  # fmt: skip
    trainer.train()
    found = results(trainer)
    found["logs"] = [[name, value] for name, value in found["logs"] if name != "eval_name"]
    return found


@program(
    SESSION
    + epochs("epoch[0]")
    + "\n  epoch[1]"
    + steps("step[0]")
    + steps("step[1]{global_step=4}", phases="data_load\nforward!"),
    error="RuntimeError: a bad batch",
)
def fails_half_way() -> dict[str, Any]:
    """The model raises in the second step of the second epoch."""
    trainer = trainer_of(model=classifier(fails_at=5))
    trainer.train()
    return results(trainer)


@program(
    SESSION
    + "\n  epoch[0]"
    + steps("step[0-1]")
    + SAVED
    + LOADED
    + "\n  epoch[0]"
    + steps("step[2]{global_step=2}", phases="data_load\nforward!"),
    error="RuntimeError: a bad batch",
)
def fails_after_resuming() -> dict[str, Any]:
    """The first step of a resumed training raises: there is no new global step."""
    trainer_of(save_strategy="steps", save_steps=2, max_steps=2).train()
    trainer = trainer_of(model=classifier(fails_at=1))
    trainer.train(resume_from_checkpoint="out/checkpoint-2")
    return results(trainer)


@program(
    SESSION + epochs("epoch[0]", "\n    eval[0]\n      data_load\n      forward!"),
    error="RuntimeError: a bad batch",
)
def fails_in_an_evaluation() -> dict[str, Any]:
    """The model raises in an evaluation."""
    trainer = trainer_of(model=classifier(fails_at=4), eval_strategy="epoch")
    trainer.train()
    return results(trainer)


@program(
    SESSION + evaluation(0, 1),
    error="NoResultError: ",
)
def raises_an_empty_exception() -> dict[str, Any]:
    """An exception that is false, because it has no items, leaves an evaluation."""

    class NoResultError(Exception):
        def __len__(self) -> int:
            return len(self.args)

    def fails(_: Any) -> dict[str, float]:
        raise NoResultError

    trainer_of(compute_metrics=fails).evaluate()
    return {}


@program(SESSION + epochs("epoch[0]", evaluation(0)) + epochs("epoch[1]", evaluation(1)), ranks=2)
def trains_on_two_ranks() -> dict[str, Any]:
    """DDP with gloo, an evaluation after each epoch, and a checkpoint that one rank saves."""
    trainer = trainer_of(
        train_dataset=rows(12), eval_dataset=rows(8, seed=3), eval_strategy="epoch",
        ddp_backend="gloo",
    )  # fmt: skip
    trainer.train()
    return results(trainer)


@program(
    SESSION
    + "\n  epoch[0]"
    + steps("step[0]", phases="micro_step[0-1]\n  data_load\n  forward\n  backward\noptimizer_step")
    + SAVED,
    ranks=2,
)
def accumulates_on_two_ranks() -> dict[str, Any]:
    """DDP defers the synchronisation of gradients, and rank 0 saves a checkpoint."""
    trainer = trainer_of(
        train_dataset=rows(8), ddp_backend="gloo", gradient_accumulation_steps=2, max_steps=1,
        save_strategy="steps", save_steps=1,
    )  # fmt: skip
    trainer.train()
    return results(trainer)


@program(SESSION + epochs("epoch[0-1]"))
def trains_in_bfloat16() -> dict[str, Any]:
    """Mixed precision on the CPU."""
    trainer = trainer_of(bf16=True)
    trainer.train()
    return results(trainer)


@program(SESSION + epochs("epoch[0]", evaluation(0)))
def compiles() -> dict[str, Any]:
    """The model is compiled, without a code generator so that the test is quick."""
    trainer = trainer_of(
        torch_compile=True, torch_compile_backend="eager", num_train_epochs=1,
        eval_strategy="epoch",
    )  # fmt: skip
    trainer.train()
    return {**results(trainer), "weights": ""}


@program(SESSION + epochs("epoch[0]", evaluation(0)), slow=True)
def compiles_to_machine_code() -> dict[str, Any]:
    """The model is compiled by Inductor, or without a C++ compiler by AOTAutograd alone."""
    import os
    import shutil

    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    backend = "inductor" if shutil.which("g++") else "aot_eager"
    trainer = trainer_of(
        torch_compile=True, torch_compile_backend=backend, num_train_epochs=1,
        eval_strategy="epoch",
    )  # fmt: skip
    trainer.train()
    return results(trainer)


def _logged(trainer: Any) -> list[list[Any]]:
    """Train; return the values of every log, also of attempts whose history the Trainer drops."""
    from transformers import TrainerCallback

    collected: list[list[Any]] = []

    class Collects(TrainerCallback):  # type: ignore[misc]
        def on_log(self, *_: Any, logs: dict[str, Any], **__: Any) -> None:
            values = {name: value for name, value in logs.items() if name != "epoch"}
            collected.extend([n, value] for n, value in values.items() if not n.endswith(TIMES))

    trainer.add_callback(Collects())
    trainer.train()
    return collected


OUT_OF_MEMORY = "DefaultCPUAllocator: can't allocate memory"


@program(
    SESSION
    + "\n  epoch[0]"
    + steps("step[0-1]")
    + "\n  epoch[1]"
    + steps("step[0]{global_step=3}")
    + steps("step[1]", phases="data_load\nforward!")
    + "\n  epoch[0]"
    + steps("step[0]{global_step=1}")
    + steps("step[1-2]")
    + "\n  epoch[1]"
    + steps("step[0]{global_step=4}")
    + steps("step[1-2]")
)
def finds_a_batch_size() -> dict[str, Any]:
    """The training begins again with half of the batch, in the second epoch."""
    model = classifier(fails_at=4, error=OUT_OF_MEMORY)
    trainer = trainer_of(model=model, train_dataset=rows(3), auto_find_batch_size=True)
    logs = _logged(trainer)
    return {**results(trainer), "logs": logs}


@program(
    f"""
{SESSION}
  epoch[0]
    step[0]
      micro_step[0-1]{MICRO_STEP}
      optimizer_step
  epoch[1]
    step[0]{{global_step=1}}
      micro_step[0]{MICRO_STEP}
      micro_step[1]
        data_load
        forward!
  epoch[0]
    step[0]{{global_step=1}}
      micro_step[0-1]{MICRO_STEP}
      optimizer_step
    step[1]
      micro_step[0-1]{MICRO_STEP}
      optimizer_step
  epoch[1]
    step[0]{{global_step=3}}
      micro_step[0-1]{MICRO_STEP}
      optimizer_step
    step[1]
      micro_step[0-1]{MICRO_STEP}
      optimizer_step
"""
)
def finds_a_batch_size_while_it_accumulates() -> dict[str, Any]:
    """The memory is exhausted by the second batch of a step."""
    model = classifier(fails_at=4, error=OUT_OF_MEMORY)
    trainer = trainer_of(
        model=model, train_dataset=rows(4), auto_find_batch_size=True,
        gradient_accumulation_steps=2,
    )  # fmt: skip
    logs = _logged(trainer)
    return {**results(trainer), "logs": logs}


@program(SESSION + epochs("epoch[0]"))
def smooths_labels() -> dict[str, Any]:
    """The Trainer computes the loss, in a function."""
    trainer = trainer_of(
        model=language_model(), train_dataset=tokens(6), label_smoothing_factor=0.1,
        num_train_epochs=1,
    )  # fmt: skip
    trainer.train()
    return results(trainer)


@program(
    SESSION
    + evaluation(0, 1)
    + epochs("epoch[0]")
    + evaluation(1, 1, "{function=predict}")
    + "\n  checkpoint{operation=save,path=final}"
)
def evaluates_and_predicts_alone() -> dict[str, Any]:
    """An evaluation before the training; a prediction and a saved model after it."""
    trainer = trainer_of(num_train_epochs=1)
    trainer.evaluate()
    trainer.train()
    predicted = trainer.predict(rows(4, seed=4))
    trainer.save_model("final")
    found = results(trainer, predictions=predicted.predictions.tolist())
    found["logs"].append(["test_loss", predicted.metrics["test_loss"]])
    return found


@program(
    SESSION
    + epochs("epoch[0]", evaluation(0, 2, "{dataset=seen}") + evaluation(1, 2, "{dataset=unseen}"))
)
def evaluates_two_datasets() -> dict[str, Any]:
    """Each dataset of a dict is an evaluation."""
    trainer = trainer_of(
        num_train_epochs=1, eval_strategy="epoch",
        eval_dataset={"seen": rows(4), "unseen": rows(4, seed=3)},
    )  # fmt: skip
    trainer.train()
    return results(trainer)


@program(
    SESSION
    + "\n  epoch[0]"
    + steps("step[0-2]", phases=PHASES.replace("optimizer_step", "optimizer_step{optimizer=SGD}"))
)
def uses_its_own_optimizer() -> dict[str, Any]:
    """An optimizer and a schedule of the program."""
    import torch

    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    trainer = trainer_of(model=model, optimizers=(optimizer, schedule), num_train_epochs=1)
    trainer.train()
    return results(trainer)


@program(SESSION + epochs("epoch[0]") + "\n  epoch[1]" + steps("step[0]"))
def trains_on_a_stream() -> dict[str, Any]:
    """An IterableDataset that ends before max_steps is read again, as the next epoch."""
    trainer = trainer_of(train_dataset=stream(6), max_steps=4)
    trainer.train()
    return results(trainer)


@program(
    f"""
{SESSION}
  epoch[0]
    step[0]{{global_step=1}}
      micro_step[0-1]{MICRO_STEP}
      optimizer_step
    step[1]{{global_step=1}}
      micro_step[0]{MICRO_STEP}
  epoch[1]
    step[0]{{global_step=2}}
      micro_step[0-1]{MICRO_STEP}
      optimizer_step
    step[1]{{global_step=2}}
      micro_step[0]{MICRO_STEP}
  epoch[2]
    step[0]{{global_step=3}}
      micro_step[0-1]{MICRO_STEP}
      optimizer_step
"""
)
def accumulates_a_stream() -> dict[str, Any]:
    """A stream ends in the middle of an accumulation: its last step has no optimizer_step."""
    trainer = trainer_of(train_dataset=stream(6), gradient_accumulation_steps=2, max_steps=3)
    trainer.train()
    return results(trainer)


@program(
    SESSION
    + "\n  epoch[0]"
    + steps(
        "step[0-1]",
        phases="micro_step[0-1]\n  data_load\n  forward\n  loss\n  backward\noptimizer_step",
    )
    + "\n    eval[0]\n      data_load\n      forward\n      loss\n      data_load"
    + "\n      forward\n      loss"
)
def overrides_methods() -> dict[str, Any]:
    """A subclass with its own training step, loss and evaluation, which call no other."""
    import torch
    from torch import nn
    from transformers import Trainer

    class Own(Trainer):  # type: ignore[misc]
        criterion = nn.CrossEntropyLoss()

        def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
            return self.criterion(model(x=inputs["x"])["logits"], inputs["labels"])

        def training_step(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
            model.train()
            loss = self.compute_loss(model, inputs) / 2
            self.accelerator.backward(loss)
            return loss.detach()

        def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
            self.model.eval()
            with torch.no_grad():
                losses = [
                    self.compute_loss(self.model, each) for each in self.get_eval_dataloader()
                ]
            metrics = {"eval_loss": float(sum(losses)), "eval_batches": float(len(losses))}
            self.log(metrics)
            return metrics

    trainer = trainer_of(
        Own, num_train_epochs=1, gradient_accumulation_steps=2, eval_strategy="epoch",
        train_dataset=rows(8),
    )  # fmt: skip
    trainer.train()
    return results(trainer)


@program(
    SESSION
    + "\n  epoch[0]"
    + steps("step[0-2]", phases=f"{PHASES}\nafter_step")
    + "\n    after_epoch"
    + evaluation(0, 2, "{function=evaluate}")
)
def has_callbacks_with_scopes() -> dict[str, Any]:
    """Callbacks that open scopes, and one that evaluates on the training data."""
    from transformers import TrainerCallback

    import cirron_otel as ci

    class Scopes(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, *_: Any, **__: Any) -> None:
            with ci.scope("after_step"):
                pass

        def on_epoch_end(self, *_: Any, **__: Any) -> None:
            with ci.scope("after_epoch"):
                pass
            trainer.evaluate(rows(4), metric_key_prefix="train")

    trainer = trainer_of(num_train_epochs=1, callbacks=[Scopes()])
    trainer.train()
    return results(trainer)


@program(
    SESSION
    + "\n  epoch[0]"
    + steps(
        "step[0]",
        phases="data_load\nforward\nbackward\ncheckpoint{path=early}\neval[0]\n  data_load\n"
        "  forward\n  data_load\n  forward\noptimizer_step",
    )
)
def evaluates_within_a_step() -> dict[str, Any]:
    """A callback saves and evaluates before the optimizer steps: both belong to the step."""
    from transformers import TrainerCallback

    class Early(TrainerCallback):  # type: ignore[misc]
        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            trainer.save_model("early")
            trainer.evaluate()

    trainer = trainer_of(max_steps=1, callbacks=[Early()])
    trainer.train()
    return results(trainer)


@program(
    SESSION
    + "\n  epoch[0]"
    + steps("step[0]{global_step=1}")
    + evaluation(0)
    + "\n    checkpoint{path=early}"
    + steps(
        "step[1]",
        phases=f"{PHASES}\nprobe\n  eval[1]" + "\n    data_load\n    forward" * 2,
    )
)
def evaluates_after_its_steps() -> dict[str, Any]:
    """A callback evaluates and saves in on_step_end, and then in a scope of its own in on_log."""
    from transformers import TrainerCallback

    import cirron_otel as ci

    class Evaluates(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
            if state.global_step == 1:
                trainer.evaluate()
                trainer.save_model("early")

        def on_log(self, _: Any, state: Any, __: Any, logs: Any, **___: Any) -> None:
            if state.global_step == 2 and "loss" in logs:
                with ci.scope("probe"):
                    trainer.evaluate()

    trainer = trainer_of(max_steps=2, callbacks=[Evaluates()])
    trainer.train()
    return results(trainer)


@program(SESSION + "\n  epoch[0-1]" + steps("step[0]"))
def leaves_epochs_early() -> dict[str, Any]:
    """A callback ends each epoch after its first step; the epochs are still numbered."""
    from transformers import TrainerCallback

    class Leaves(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, _: Any, __: Any, control: Any, **___: Any) -> None:
            control.should_epoch_stop = True

    trainer = trainer_of(callbacks=[Leaves()])
    trainer.train()
    return results(trainer)


@program(
    SESSION
    + "\n  search"
    + epochs("epoch[0]").replace("\n", "\n  ")
    + "\n  search"
    + epochs("epoch[0]").replace("\n", "\n  ")
)
def trains_twice() -> dict[str, Any]:
    """A Trainer with a model_init trains twice; each time its epochs begin at 0."""
    import cirron_otel as ci

    trainer = trainer_of(model_init=lambda _=None: classifier(), num_train_epochs=1)
    histories = []
    for rate in (0.1, 0.01):
        trainer.args.learning_rate = rate
        with ci.scope("search"):
            trainer.train()
        histories += results(trainer)["logs"]
    return {**results(trainer), "logs": histories}


@program(
    SESSION
    + "\n  epoch[0]"
    + steps("step[0-1]", phases=f"micro_step[0-1]{MICRO}\nprobe\noptimizer_step")
    + evaluation(0)
    + "\n    after"
)
def extends_the_end_of_an_epoch() -> dict[str, Any]:
    """A subclass logs after the evaluation of an epoch; a callback, between micro steps."""
    from transformers import Trainer, TrainerCallback

    import cirron_otel as ci

    class Own(Trainer):  # type: ignore[misc]
        def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
            is_end = self.control.should_evaluate
            super()._maybe_log_save_evaluate(*args, **kwargs)
            if is_end:
                with ci.scope("after"):
                    self.log({"evaluated": float(self.state.global_step)})

    class Probes(TrainerCallback):  # type: ignore[misc]
        def on_substep_end(self, *_: Any, **__: Any) -> None:
            with ci.scope("probe"):
                trainer.log({"probed": 1.0})

    trainer = trainer_of(
        Own, num_train_epochs=1, gradient_accumulation_steps=2, eval_strategy="epoch",
        train_dataset=rows(8), callbacks=[Probes()],
    )  # fmt: skip
    trainer.train()
    return results(trainer)


@program(
    SESSION
    + epochs(
        "epoch[0]",
        "\n    data_load\n    forward\n    backward\n    optimizer_step",
    )
)
def trains_inside_a_callback() -> dict[str, Any]:
    """A Trainer in a callback of another one has no scopes of its own, and no marks."""
    from transformers import TrainerCallback

    class Nested(TrainerCallback):  # type: ignore[misc]
        def on_epoch_end(self, *_: Any, **__: Any) -> None:
            trainer_of(max_steps=1, output_dir="nested").train()

    trainer = trainer_of(num_train_epochs=1, callbacks=[Nested()])
    trainer.train()
    return results(trainer)


GENERATED = "data_load\ngenerate\n  prefill\n  decode\nforward"


@program(SESSION + epochs("epoch[0]") + "\n  eval[0]" + _block(f"{GENERATED}\n{GENERATED}", 2))
def generates_in_an_evaluation() -> dict[str, Any]:
    """Seq2SeqTrainer generates and computes the loss for each batch."""
    import torch
    from torch.utils.data import Dataset
    from transformers import (
        Seq2SeqTrainer,
        Seq2SeqTrainingArguments,
        T5Config,
        T5ForConditionalGeneration,
    )

    from .transformers_parts import options

    class Pairs(Dataset[dict[str, Any]]):
        def __init__(self, count: int) -> None:
            self.rows = torch.randint(2, 32, (count, 5), generator=torch.Generator().manual_seed(2))

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"input_ids": self.rows[index], "labels": self.rows[index]}

    config = T5Config(
        vocab_size=32, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2,
        decoder_start_token_id=0,
    )  # fmt: skip
    trainer = Seq2SeqTrainer(
        model=T5ForConditionalGeneration(config),
        args=Seq2SeqTrainingArguments(**options(num_train_epochs=1, predict_with_generate=True)),
        train_dataset=Pairs(6),
        eval_dataset=Pairs(4),
        compute_metrics=lambda _: {"constant": 1.0},
    )
    trainer.train()
    trainer.evaluate(min_new_tokens=2, max_new_tokens=2)
    return results(trainer)
