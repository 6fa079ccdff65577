"""Training loops of Accelerate's tutorials and examples, without a Trainer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tests.system.frameworks import program

PREPARED = """cirron.session
  prepare
"""
STEP = """
      data_load
      forward
      backward
      optimizer_step"""
MICRO = """
        data_load
        forward
        backward"""
ACCUMULATED = f"""
      micro_step[0-1]{MICRO}
      optimizer_step"""


def _model(seed: int = 1, inputs: int = 4, outputs: int = 2) -> Any:
    import torch

    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(inputs, 8), torch.nn.Tanh(), torch.nn.Linear(8, outputs)
    )


def _data(rows: int, seed: int = 2) -> Any:
    import torch
    from torch.utils.data import TensorDataset

    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, 4, generator=generator)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


def _loader(batches: int, seed: int = 2, **options: Any) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(_data(2 * batches, seed), **{"batch_size": 2, **options})


def _parts(accelerator: Any, batches: int = 3) -> tuple[Any, Any, Any]:
    """Prepare a model, its optimizer and a loader."""
    import torch

    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parts: tuple[Any, Any, Any] = accelerator.prepare(model, optimizer, _loader(batches))
    return parts


def _loss(model: Any, batch: Any) -> Any:
    from torch.nn.functional import cross_entropy

    return cross_entropy(model(batch[0]), batch[1])


def _update(accelerator: Any, model: Any, optimizer: Any, batch: Any) -> float:
    loss = _loss(model, batch)
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.item())


def _weights(*models: Any) -> dict[str, Any]:
    return {
        str(index): [each.detach().double().sum().item() for each in model.parameters()]
        for index, model in enumerate(models)
    }


@program(f"{PREPARED}  epoch[0-1]\n    step[0-2]{STEP}")
def plain() -> dict[str, Any]:
    """The first loop of the documentation: prepare and backward."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = _parts(accelerator)
    losses = [_update(accelerator, model, optimizer, batch) for _ in range(2) for batch in loader]
    return {"losses": losses, **_weights(model)}


@program(f"{PREPARED}  epoch[0-1]\n    step[0-1]{ACCUMULATED}\n    step[2]{STEP}")
def accumulates_with_a_rest() -> dict[str, Any]:
    """Two batches in a step, and one in the last: the end of the loader synchronizes."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer, loader = _parts(accelerator, 5)
    for _ in range(2):
        for batch in loader:
            with accelerator.accumulate(model):
                _update(accelerator, model, optimizer, batch)
    return _weights(model)


@program(f"{PREPARED}  epoch[0]\n    step[0-1]{ACCUMULATED}\n  epoch[1]\n    step[0]{ACCUMULATED}")
def accumulates_across_epochs() -> dict[str, Any]:
    """The end of the loader does not synchronize, so that a step has batches of two epochs."""
    from accelerate import Accelerator
    from accelerate.utils import GradientAccumulationPlugin

    plugin = GradientAccumulationPlugin(num_steps=2, sync_with_dataloader=False)
    accelerator = Accelerator(cpu=True, gradient_accumulation_plugin=plugin)
    model, optimizer, loader = _parts(accelerator)
    for _ in range(2):
        for batch in loader:
            with accelerator.accumulate(model):
                _update(accelerator, model, optimizer, batch)
    return _weights(model)


@program(
    f"{PREPARED}  epoch[0-1]\n    step[0]\n      micro_step[0]{MICRO}\n      micro_step[1]\n"
    f"        data_load\n        forward\n      micro_step[2]{MICRO}\n      optimizer_step"
)
def skips_a_batch_of_an_accumulated_step() -> dict[str, Any]:
    """A batch whose loss is not used is one of the step's micro steps."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
    model, optimizer, loader = _parts(accelerator)
    for _ in range(2):
        for index, batch in enumerate(loader):
            with accelerator.accumulate(model):
                loss = _loss(model, batch)
                if index == 1:
                    continue
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
    return _weights(model)


def _evaluate(accelerator: Any, model: Any, loader: Any) -> float:
    import torch

    model.eval()
    right = total = 0
    for inputs, labels in loader:
        with torch.no_grad():
            predictions = model(inputs).argmax(dim=-1)
        gathered = accelerator.gather_for_metrics((predictions, labels))
        right += int((gathered[0] == gathered[1]).sum())
        total += len(gathered[1])
    return right / total


EVALUATION = """
    data_load
    forward
    data_load
    forward"""


@program(
    PREPARED
    + "".join(f"  epoch[{n}]\n    step[0-2]{STEP}\n  eval[{n}]{EVALUATION}\n" for n in range(2))
)
def evaluates_after_each_epoch() -> dict[str, Any]:
    """The example of nlp_example.py: an epoch, then an evaluation with gather_for_metrics."""
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=6)
    model, optimizer, training, evaluation, schedule = accelerator.prepare(
        model, optimizer, _loader(3, shuffle=True), _loader(2, 3), schedule
    )
    accuracies = []
    for _ in range(2):
        model.train()
        for batch in training:
            accelerator.backward(_loss(model, batch))
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        accuracies.append(_evaluate(accelerator, model, evaluation))
    return {"accuracies": accuracies, **_weights(model)}


INNER_EVALUATION = EVALUATION.replace("\n", "\n  ")


@program(
    f"{PREPARED}  epoch[0]\n    step[0-1]{STEP}\n    eval[0]{INNER_EVALUATION}\n"
    f"    step[2-3]{STEP}\n    eval[1]{INNER_EVALUATION}"
)
def evaluates_every_two_steps() -> dict[str, Any]:
    """An evaluation in the middle of an epoch."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = _parts(accelerator, 4)
    evaluation = accelerator.prepare_data_loader(_loader(2, 3))
    accuracies = []
    for step, batch in enumerate(loader):
        model.train()
        _update(accelerator, model, optimizer, batch)
        if step % 2:
            accuracies.append(_evaluate(accelerator, model, evaluation))
    return {"accuracies": accuracies, **_weights(model)}


@program(
    f"{PREPARED}  epoch[0]\n    step[0]{STEP}\n    step[1]{STEP}\n"
    "      checkpoint{operation=save,path=half}\n"
    "  prepare\n  checkpoint{operation=load,path=half}\n"
    f"  epoch[1]\n    step[0-1]{STEP}"
)
def resumes_in_the_middle_of_an_epoch() -> dict[str, Any]:
    """The state is saved in the loop; a second training skips the batches that were seen."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = _parts(accelerator, 4)
    for step, batch in enumerate(loader):
        _update(accelerator, model, optimizer, batch)
        if step == 1:
            accelerator.save_state("half")
            break
    del batch
    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = _parts(accelerator, 4)
    accelerator.load_state("half")
    for batch in accelerator.skip_first_batches(loader, 2):
        _update(accelerator, model, optimizer, batch)
    return _weights(model)


@program(
    PREPARED
    + "".join(
        f"  epoch[{n}]\n    step[0-1]{STEP}\n"
        f"  checkpoint{{operation=save,path=checkpoints/checkpoint_{n}}}\n"
        for n in range(2)
    )
    + "  checkpoint{operation=load,path=checkpoints/checkpoint_1}"
)
def names_checkpoints_automatically() -> dict[str, Any]:
    """A checkpoint after each epoch, with a limit, and the latest is loaded."""
    from accelerate import Accelerator
    from accelerate.utils import ProjectConfiguration

    configuration = ProjectConfiguration(
        project_dir=".", automatic_checkpoint_naming=True, total_limit=2
    )
    accelerator = Accelerator(cpu=True, project_config=configuration)
    model, optimizer, loader = _parts(accelerator, 2)
    for _ in range(2):
        for batch in loader:
            _update(accelerator, model, optimizer, batch)
        accelerator.save_state()
    accelerator.load_state()
    return _weights(model)


ADVERSARIAL = """
      data_load
      forward
      forward
      forward
      backward
      optimizer_step
      forward
      backward
      optimizer_step"""


def _adversaries(accelerator: Any) -> tuple[Any, ...]:
    import torch

    generator, critic = _model(1, 3, 4), _model(2, 4, 1)
    parts: tuple[Any, ...] = accelerator.prepare(
        generator,
        critic,
        torch.optim.Adam(generator.parameters()),
        torch.optim.Adam(critic.parameters()),
        _loader(2),
    )
    return parts


@program(f"{PREPARED}  epoch[0-1]\n    step[0-1]{ADVERSARIAL}")
def two_models_and_optimizers() -> dict[str, Any]:
    """A GAN: both optimizers step in each iteration."""
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    generator, critic, of_generator, of_critic, loader = _adversaries(accelerator)
    for _ in range(2):
        for real, _labels in loader:
            made = generator(torch.randn(len(real), 3))
            of_critic.zero_grad()
            accelerator.backward(critic(made.detach()).mean() - critic(real).mean())
            of_critic.step()
            of_generator.zero_grad()
            accelerator.backward(-critic(made).mean())
            of_generator.step()
    return _weights(generator, critic)


@program(
    f"{PREPARED}  epoch[0-1]\n    step[0-2]{STEP}\n  eval[0]{EVALUATION}",
    ranks=2,
)
def two_ranks() -> dict[str, Any]:
    """Two processes with gloo: sharded loaders, and predictions gathered from both."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = _parts(accelerator, 6)
    evaluation = accelerator.prepare_data_loader(_loader(4, 3))
    for _ in range(2):
        for batch in loader:
            _update(accelerator, model, optimizer, batch)
    accuracy = _evaluate(accelerator, model, evaluation)
    accelerator.wait_for_everyone()
    accelerator.end_training()
    return {"accuracy": accuracy, **_weights(model)}


@program(f"{PREPARED}  epoch[0-1]\n    step[0-1]{ACCUMULATED}", ranks=2)
def two_ranks_accumulate_dispatched_batches() -> dict[str, Any]:
    """The first process reads the batches and splits them; gradients are accumulated."""
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=2,
        dataloader_config=DataLoaderConfiguration(dispatch_batches=True, split_batches=True),
    )
    model, optimizer, loader = _parts(accelerator, 4)
    for _ in range(2):
        for batch in loader:
            with accelerator.accumulate(model):
                _update(accelerator, model, optimizer, batch)
    accelerator.end_training()
    return _weights(model)


@program(f"{PREPARED}  epoch[0-1]\n    step[0-2]{STEP}")
def bfloat16() -> dict[str, Any]:
    """Mixed precision; the loss is computed in `autocast`, too."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    model, optimizer, loader = _parts(accelerator)
    for _ in range(2):
        for batch in loader:
            with accelerator.autocast():
                loss = _loss(model, batch)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    return _weights(model)


@program(f"{PREPARED}  epoch[0-1]\n    step[0-2]{STEP}", slow=True)
def compiled() -> dict[str, Any]:
    """Accelerate compiles the model with `dynamo_backend`."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, dynamo_backend="eager")
    model, optimizer, loader = _parts(accelerator)
    for _ in range(2):
        for batch in loader:
            _update(accelerator, model, optimizer, batch)
    return _weights(model)


@program(f"{PREPARED}  epoch[0]\n    step[0-1]{STEP}")
def stops_early() -> dict[str, Any]:
    """The example early_stopping.py: a trigger ends both loops."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = _parts(accelerator)
    is_over = False
    for _ in range(3):
        for step, batch in enumerate(loader):
            _update(accelerator, model, optimizer, batch)
            if step == 1:
                accelerator.set_trigger()
            if accelerator.check_trigger():
                is_over = True
                break
        if is_over:
            break
    return _weights(model)


@program(
    f"{PREPARED}  epoch[0]\n    step[0]{STEP}\n    step[1]\n      data_load\n      forward!",
    error="RuntimeError: a bad batch",
)
def fails_half_way() -> dict[str, Any]:
    """A forward raises in the second step."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = _parts(accelerator)
    for step, batch in enumerate(loader):
        if step == 1:
            model[0].register_forward_pre_hook(_raise)
        _update(accelerator, model, optimizer, batch)
    return {}


def _raise(*_: Any) -> None:
    raise RuntimeError("a bad batch")


@program(
    f"{PREPARED}  epoch[0]\n    step[0]\n      data_load\n      forward!\n"
    f"  prepare\n  epoch[1]\n    step[0-3]{STEP}"
)
def finds_a_batch_size() -> dict[str, Any]:
    """The example memory.py: the batch is halved after an error that looks like no memory."""
    import torch
    from accelerate import Accelerator
    from accelerate.utils import find_executable_batch_size

    accelerator = Accelerator(cpu=True)
    sizes = []

    @find_executable_batch_size(starting_batch_size=2)
    def train(batch_size: int) -> Any:
        accelerator.free_memory()
        sizes.append(batch_size)
        model = _model()
        if batch_size > 1:
            model[0].register_forward_pre_hook(_out_of_memory)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model, optimizer, loader = accelerator.prepare(
            model, optimizer, _loader(2, batch_size=batch_size)
        )
        for batch in loader:
            _update(accelerator, model, optimizer, batch)
        return model

    model = train()
    return {"sizes": sizes, **_weights(model)}


def _out_of_memory(*_: Any) -> None:
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory")


@program(
    f"{PREPARED}  epoch[0]\n    step[0-2]{STEP}\n"
    f"  prepare\n  epoch[1]\n    step[0-2]{STEP}\n"
    f"  epoch[2]\n    step[0-2]{STEP}"
)
def two_accelerators() -> dict[str, Any]:
    """Two Accelerators, one after the other, and the first one again."""
    from accelerate import Accelerator

    first, second = Accelerator(cpu=True), None
    model, optimizer, loader = _parts(first)
    for batch in loader:
        _update(first, model, optimizer, batch)
    second = Accelerator(cpu=True)
    student, of_student, other = _parts(second)
    for batch in other:
        _update(second, student, of_student, batch)
    for batch in loader:
        _update(first, model, optimizer, batch)
    return _weights(model, student)


@program(
    f"{PREPARED}  epoch[0]\n    step[0-2]\n      data_load\n      forward\n      backward\n"
    "      clip_grad\n      optimizer_step\n      scheduler_step\n      zero_grad\n"
    "  checkpoint{operation=save,path=model}\n    checkpoint_save\n"
    "  checkpoint{operation=save,path=all}\n" + "    checkpoint_save\n" * 4
)
def clips_and_schedules() -> dict[str, Any]:
    """The example complete_nlp_example.py in short: clipping, a scheduler, the model at the end."""
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    with accelerator.main_process_first(), accelerator.local_main_process_first():
        loader = _loader(3)
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    norms = []
    for batch in loader:
        accelerator.backward(_loss(model, batch))
        norms.append(float(accelerator.clip_grad_norm_(model.parameters(), 1.0)))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    accelerator.print("done")
    accelerator.save_model(accelerator.unwrap_model(model), "model")
    accelerator.save_state("all")
    accelerator.free_memory()
    return {"norms": norms}


@program(f"{PREPARED}  epoch[0-1]\n    step[0-1]{ACCUMULATED}")
def logs_with_the_tracker() -> dict[str, Any]:
    """The example tracking.py, with CirronTracker: the loss of each step, and of each epoch."""
    from accelerate import Accelerator

    from cirron_otel.accelerate import CirronTracker

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, log_with=CirronTracker())
    accelerator.init_trackers("project", config={"lr": 0.1, "epochs": 2})
    model, optimizer, loader = _parts(accelerator, 4)
    logs, steps = [], 0
    for epoch in range(2):
        total = 0.0
        for batch in loader:
            with accelerator.accumulate(model):
                loss = _update(accelerator, model, optimizer, batch)
                total += loss
            if accelerator.sync_gradients:
                steps += 1
                accelerator.log({"loss": loss, "tokens": 2 * steps}, step=steps)
                logs += [["loss", loss], ["tokens", 2 * steps]]
        accelerator.log({"epoch_loss": total / 4, "epoch": epoch})
        logs += [["epoch_loss", total / 4], ["epoch", epoch]]
    accelerator.end_training()
    return {"logs": logs, **_weights(model)}


@program(f"cirron.session\n  epoch[0-1]\n    step[0-1]{ACCUMULATED}")
def synchronizes_manually() -> dict[str, Any]:
    """Parts are prepared one by one, and `no_sync` is used instead of `accumulate`."""
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare_model(_model())
    optimizer = accelerator.prepare_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    loader = accelerator.prepare_data_loader(_loader(4))
    for _ in range(2):
        for index, batch in enumerate(loader):
            is_last = bool(index % 2)
            context = contextlib.nullcontext() if is_last else accelerator.no_sync(model)
            with context:
                accelerator.backward(_loss(model, batch) / 2)
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
    return _weights(model)


@program(f"{PREPARED}  epoch[0]\n    step[0-1]{STEP}\n  epoch[1]\n    step[0]{STEP}")
def skips_batches_of_an_iterable_dataset() -> dict[str, Any]:
    """Skipped batches of a dataset without a sampler are fetched, and are no steps."""
    import torch
    from accelerate import Accelerator, skip_first_batches
    from torch.utils.data import DataLoader, IterableDataset

    class Rows(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            return iter(_data(6))

    accelerator = Accelerator(cpu=True)
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    unprepared = DataLoader(Rows(), batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, unprepared)
    for batch in skip_first_batches(loader, 1):
        _update(accelerator, model, optimizer, batch)
    for batch in skip_first_batches(unprepared, 2):
        _update(accelerator, model, optimizer, batch)
    return _weights(model)


@program(
    f"{PREPARED}  epoch[0]\n    step[0]\n      micro_step[0]\n        data_load\n"
    "        forward\n        forward\n        forward\n        backward\n        forward\n"
    "        backward\n      micro_step[1]\n        data_load\n        forward\n"
    "        forward\n        forward\n        backward\n      optimizer_step\n      forward\n"
    "      backward\n      optimizer_step"
)
def two_models_accumulate() -> dict[str, Any]:
    """A GAN with `accumulate` around both models."""
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    generator, critic, of_generator, of_critic, loader = _adversaries(accelerator)
    for real, _labels in loader:
        with accelerator.accumulate(generator, critic):
            made = generator(torch.randn(len(real), 3))
            accelerator.backward(critic(made.detach()).mean() - critic(real).mean())
            of_critic.step()
            of_critic.zero_grad()
            accelerator.backward(-critic(made).mean())
            of_generator.step()
            of_generator.zero_grad()
    return _weights(generator, critic)
