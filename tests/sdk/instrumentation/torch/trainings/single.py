"""Programs that are one training, although they have several optimizers or models."""

from __future__ import annotations

import asyncio
import copy
import gc
from itertools import cycle

import torch
from torch.nn import Sequential
from torch.optim import SGD, Adam

import cirron_otel as ci

from . import fit, loader, net, sgd, update


def usual() -> None:
    fit(net(), epochs=3)


def optimizer_of_each_epoch() -> None:
    model = net()
    for _ in range(3):
        fit(model, sgd(model), epochs=1)
        gc.collect()


def checkpoint_loaded() -> None:
    model = net()
    optimizer = Adam(model.parameters())
    fit(model, optimizer, epochs=1)
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    model.load_state_dict(weights)
    optimizer = Adam(model.parameters())
    optimizer.load_state_dict(state)
    fit(model, optimizer, epochs=1)


def unfrozen() -> None:
    model = Sequential(net(4), net())
    fit(model, sgd(model[1]), epochs=1)
    fit(model, sgd(model), epochs=1)


def other_layers_of_the_model() -> None:
    model = Sequential(net(4), net())
    fit(model, sgd(model[1]), epochs=1)
    fit(model, sgd(model[0]), epochs=1)


def learning_rate_test_of_the_model() -> None:
    model = net()
    weights = copy.deepcopy(model.state_dict())
    fit(model, epochs=1)
    model.load_state_dict(weights)
    fit(model)


def _gan(*, generator_first: bool, alone: int = 0, each: int = 1) -> None:
    generator, critic = net(4), net()
    ours, theirs = sgd(generator), sgd(critic)
    fit(critic, theirs, alone)
    for _ in range(2):
        for number, (batch,) in enumerate(loader()):
            both = Sequential(generator, critic)
            if generator_first:
                update(both, ours, batch)
            update(critic, theirs, batch)
            if not generator_first and number % each == 0:
                update(both, ours, batch)


def gan() -> None:
    _gan(generator_first=False)


def gan_with_five_critic_steps() -> None:
    _gan(generator_first=False, each=5)


def _scaled_gan(skipped: set[tuple[int, str]], *, alone: int = 0) -> None:
    """GradScaler skips the steps of these models in these iterations; each step is sealed."""
    generator, critic = net(4), net()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    optimizers = {"critic": sgd(critic), "generator": sgd(generator)}
    iteration = 0
    for epoch in range(2 + alone):
        for (batch,) in loader():
            ci.flush()  # seals the previous step
            for name, optimizer in optimizers.items():
                if name == "critic" or epoch >= alone:
                    optimizer.zero_grad()
                    factor = float("inf") if (iteration, name) in skipped else 1
                    scaler.scale(critic(generator(batch)).mean() * factor).backward()
                    scaler.step(optimizer)
            scaler.update()
            iteration += 1


def gan_whose_first_steps_are_skipped() -> None:
    _scaled_gan({(0, "critic"), (0, "generator")})


def gan_whose_first_critic_step_is_skipped() -> None:
    _scaled_gan({(0, "critic")})


def generator_joins_after_a_skipped_step() -> None:
    _scaled_gan({(3, "critic")}, alone=1)


def generator_joins_later() -> None:
    _gan(generator_first=False, alone=2)


def generator_joins_later_and_steps_first() -> None:
    _gan(generator_first=True, alone=2)


def second_optimizer_joins_some_steps_later() -> None:
    first, second = net(), net()
    ours, theirs = sgd(first), sgd(second)
    fit(first, ours, 1)
    for number, (batch,) in enumerate(loader()):
        update(second, theirs, batch)
        if number:
            update(first, ours, batch)


def tasks_in_turn_by_batches() -> None:
    first, second = net(), net()
    ours, theirs = sgd(first), sgd(second)
    for _ in range(2):
        for (one,), (other,) in zip(loader(), loader(), strict=True):
            update(first, ours, one)
            update(second, theirs, other)


def ensemble_trained_together() -> None:
    models = [net() for _ in range(3)]
    optimizers = [sgd(model) for model in models]
    for _ in range(2):
        for (batch,) in loader():
            for model, optimizer in zip(models, optimizers, strict=True):
                update(model, optimizer, batch)


def an_optimizer_for_each_parameter() -> None:
    model = Sequential(net(4), net())
    optimizers = [SGD([each], lr=0.01) for each in model.parameters()]
    for _ in range(2):
        for (batch,) in loader():
            model(batch).mean().backward()
            for optimizer in optimizers:
                optimizer.step()


def optimizer_in_backward() -> None:
    model = Sequential(net(4), net())
    for each in model.parameters():
        optimizer = SGD([each], lr=0.01)
        each.register_post_accumulate_grad_hook(lambda _, own=optimizer: own.step())
    for _ in range(2):
        for (batch,) in loader():
            model(batch).mean().backward()


def two_parts_in_epochs_of_the_program() -> None:
    first, second = net(), net()
    ours, theirs = sgd(first), sgd(second)
    for _ in ci.epochs(range(2)):
        fit(first, ours, 1)
        fit(second, theirs, 1)


def q_learning() -> None:
    policy = net()
    target = copy.deepcopy(policy)
    optimizer = sgd(policy)
    for number in range(6):
        with torch.no_grad():
            wanted = target(torch.ones(2, 4))
        optimizer.zero_grad()
        (policy(torch.ones(2, 4)) - wanted).square().mean().backward()
        optimizer.step()
        if number % 2:
            target.load_state_dict(policy.state_dict())


def agents_in_turn_without_loader() -> None:
    agents = [(model, sgd(model)) for model in (net(), net())]
    for (model, optimizer), _ in zip(cycle(agents), range(6), strict=False):
        update(model, optimizer, torch.ones(2, 4))


def folds_without_loader() -> None:
    for _ in range(2):
        model = net()
        optimizer = sgd(model)
        for _ in range(3):
            update(model, optimizer, torch.ones(2, 4))


def policy_without_loader_and_models_with_loader() -> None:
    policy = net()
    optimizer = sgd(policy)
    update(policy, optimizer, torch.ones(2, 4))
    fit(net(), epochs=1)
    update(policy, optimizer, torch.ones(2, 4))


def tasks_that_train_at_the_same_time() -> None:
    async def task() -> None:
        model = net()
        optimizer = sgd(model)
        for (batch,) in loader():
            update(model, optimizer, batch)
            await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(task(), task())

    asyncio.run(both())


ONE = [
    usual, optimizer_of_each_epoch, checkpoint_loaded, unfrozen, other_layers_of_the_model,
    learning_rate_test_of_the_model, gan, gan_with_five_critic_steps, generator_joins_later,
    gan_whose_first_steps_are_skipped, gan_whose_first_critic_step_is_skipped,
    generator_joins_after_a_skipped_step,
    generator_joins_later_and_steps_first, second_optimizer_joins_some_steps_later,
    tasks_in_turn_by_batches, ensemble_trained_together, an_optimizer_for_each_parameter,
    optimizer_in_backward, two_parts_in_epochs_of_the_program, q_learning,
    agents_in_turn_without_loader, folds_without_loader,
    policy_without_loader_and_models_with_loader, tasks_that_train_at_the_same_time,
]  # fmt: skip
