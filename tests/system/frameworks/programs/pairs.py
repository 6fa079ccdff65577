"""Programs in which two frameworks meet, or a framework and a hand-written loop."""

from __future__ import annotations

from typing import Any

from tests.system.frameworks import program

from . import keras_parts
from .keras_parts import OPTIONS, TORCH, compiled
from .transformers_parts import (
    classifier,
    digest,
    language_model,
    results,
    rows,
    tokens,
    trainer_of,
)
from .transformers_trainer import epochs, evaluation, steps

SESSION = "cirron.session"


def _written_out(model: Any, batches: Any, optimizer: Any) -> None:
    """Train for one epoch, without a trainer."""
    for batch in batches:
        optimizer.zero_grad()
        model(**batch)["loss"].backward()
        optimizer.step()


@program(f"{SESSION}\n  epoch[0]{steps('step[0-2]')}\n  epoch[1]{steps('step[0-2]')}")
def trainer_in_epochs_of_the_program() -> dict[str, Any]:
    """A Trainer that is called in each epoch of `ci.epochs`: the program's epochs count."""
    import cirron_otel as ci

    trainer = trainer_of(model=classifier(), train_dataset=rows(6), num_train_epochs=1)
    for _ in ci.epochs(range(2)):
        trainer.train()
    return {"weights": results(trainer)["weights"]}


@program(SESSION + "".join(epochs(f"epoch[{n}]") for n in range(2)))
def loop_that_imports_a_model() -> dict[str, Any]:
    """A hand-written loop over a model of transformers: torch's rules determine the tree."""
    import torch
    from torch.utils.data import DataLoader

    model = language_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        _written_out(model, DataLoader(tokens(6), batch_size=2), optimizer)
    return {"weights": digest(model)}


@program(
    SESSION
    + "".join(
        epochs(f"epoch[{n}]") + evaluation(n, level=1, attrs="{function=evaluate}")
        for n in range(2)
    )
)
def evaluates_in_a_written_out_loop() -> dict[str, Any]:
    """A hand-written loop that calls `Trainer.evaluate` after each epoch."""
    import torch
    from torch.utils.data import DataLoader

    model = classifier()
    trainer = trainer_of(model=model, train_dataset=rows(6), eval_dataset=rows(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        model.train()
        _written_out(model, DataLoader(rows(6), batch_size=2), optimizer)
        losses.append(trainer.evaluate()["eval_loss"])
    return {"losses": losses}


@program(SESSION + "".join(epochs(f"epoch[{n}]") for n in range(2)))
def trainer_in_a_thread() -> dict[str, Any]:
    """A Trainer that runs in a thread of its own."""
    import threading

    trainer = trainer_of(model=classifier(), train_dataset=rows(6))
    thread = threading.Thread(target=trainer.train)
    thread.start()
    thread.join()
    return results(trainer)


@program(f"{SESSION}{epochs('epoch[0]')}{epochs('epoch[0]')}")
def two_trainers_in_two_threads() -> dict[str, Any]:
    """A Trainer runs in a second thread while one is in its second step: each has its epochs."""
    import threading

    from transformers import TrainerCallback

    other = trainer_of(model=classifier(), train_dataset=rows(6, seed=3), num_train_epochs=1)

    class StartsOther(TrainerCallback):
        def on_step_end(self, _: Any, state: Any, __: Any, **___: Any) -> None:
            if state.global_step == 1:
                thread = threading.Thread(target=other.train)
                thread.start()
                thread.join()

    trainer = trainer_of(
        model=classifier(), train_dataset=rows(6), num_train_epochs=1, callbacks=[StartsOther()]
    )
    trainer.train()
    return {"weights": [results(each)["weights"] for each in (trainer, other)]}


ACCUMULATED = """
    step[0-1]
      micro_step[0-1]
        data_load
        forward
        backward
      optimizer_step"""


@program(
    SESSION
    + epochs("epoch[0]", evaluation(0))
    + f"\n  prepare\n  epoch[0]{ACCUMULATED}\n  epoch[1]{ACCUMULATED}"
    + evaluation(1, level=1, attrs="")
    + "\n  checkpoint{operation=save,path=state}"
)
def accelerator_after_a_trainer() -> dict[str, Any]:
    """A loop with an Accelerator of its own goes on with the model of a Trainer."""
    import torch
    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    trainer = trainer_of(num_train_epochs=1, eval_strategy="epoch")
    trainer.train()
    model = classifier()
    model.load_state_dict(trainer.model.state_dict())
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer, training, held_out = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1),
        DataLoader(rows(8), batch_size=2), DataLoader(rows(4, seed=3), batch_size=2),
    )  # fmt: skip
    for _ in range(2):
        for batch in training:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch)["loss"])
                optimizer.step()
                optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        losses = [model(**batch)["loss"].item() for batch in held_out]
    accelerator.save_state("state")
    return {**results(trainer), "losses": losses, "last": digest(model)}


KERAS = f"{SESSION}\n  forward\n  loss"
"""The tree of building a model of Keras."""


def _keras_epoch(number: int, steps: int) -> str:
    done = number * steps
    lines = TORCH.epoch(number, steps, done=done).splitlines()
    return "".join(f"\n  {line}" for line in lines)


@program(
    KERAS + epochs("epoch[0]") + "\n  data_load\n  forward" + _keras_epoch(0, 3)
    + epochs("epoch[1]") + _keras_epoch(1, 3)
)  # fmt: skip
def keras_fits_between_the_epochs_of_a_loop() -> dict[str, Any]:
    """A hand-written loop of torch whose epochs alternate with those of a Keras model's `fit`."""
    import torch
    from torch.utils.data import DataLoader

    head, encoder = compiled(), classifier()
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    logs = []
    for number in range(2):
        _written_out(encoder, DataLoader(rows(6), batch_size=2), optimizer)
        history = head.fit(
            *keras_parts.data(), initial_epoch=number, epochs=number + 1, **OPTIONS
        ).history
        logs += [[name, values[-1]] for name, values in history.items()]
    return {**keras_parts.results(head), "logs": logs, "encoder": digest(encoder)}


@program(
    KERAS + "\n  epoch[0]" + steps("step[0]", phases="data_load\nforward x2\nbackward")
    + "\n      optimizer_step" + steps("step[1-2]") + epochs("epoch[1]")
)  # fmt: skip
def keras_trains_on_the_batches_of_a_loop() -> dict[str, Any]:
    """A hand-written loop over a DataLoader that calls `train_on_batch`: the steps are torch's."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    model = compiled()
    loader = DataLoader(TensorDataset(*map(torch.from_numpy, keras_parts.data())), batch_size=2)
    losses = []
    for _ in range(2):
        for inputs, targets in loader:
            losses.append([float(each) for each in model.train_on_batch(inputs, targets)])
    return {**keras_parts.results(model), "logs": [], "losses": losses}


@program(
    KERAS + "\n  data_load\n  forward" + _keras_epoch(0, 2) + "\n    epoch[0]"
    + steps("step[0-2]", 3) + _keras_epoch(1, 2)
)  # fmt: skip
def trainer_in_a_callback_of_keras() -> dict[str, Any]:
    """A Trainer runs after Keras' first epoch: it has a higher priority, and its own epochs."""
    import keras

    trainer = trainer_of(model=classifier(), train_dataset=rows(6), num_train_epochs=1)

    class Trains(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, *_: Any, **__: Any) -> None:
            if epoch == 0:
                trainer.train()

    model = compiled()
    history = model.fit(*keras_parts.data(4), epochs=2, callbacks=[Trains()], **OPTIONS)
    found, trained = keras_parts.results(model, history), results(trainer)
    return found | {"trainer": trained, "logs": trained["logs"] + found["logs"]}
