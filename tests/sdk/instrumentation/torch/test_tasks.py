"""Trainings that run as asyncio tasks of one event loop have separate epochs and steps."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from .judging import faults
from .loops import Loop, parts
from .loops.parts import Training
from .tools import Ours, Untraced, run
from .trees import Node, Recorded, read

LOOPS: dict[str, Loop] = {}


def loop(tree: str) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    def register(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        LOOPS[function.__name__] = Loop(function.__name__, function, tree)
        return function

    return register


async def fit(training: Training, count: int = 6) -> None:
    for batch in parts.loader(count):
        training.step(batch)
        await asyncio.sleep(0)


async def side_by_side(count: int = 2) -> list[list[float]]:
    trainings = [Training() for _ in range(count)]
    await asyncio.gather(*map(fit, trainings))
    return [training.losses for training in trainings]


STEPS = """
      data_load
      forward
      loss
      backward
      optimizer_step
"""


@loop("cirron.session\n  epoch[0-1]\n    step[0-2]" + STEPS)
def two_fits(ci: Any) -> Any:
    return asyncio.run(side_by_side())


@loop("cirron.session\n  epoch[0-3]\n    step[0-2]" + STEPS)
def tasks_of_two_loops(ci: Any) -> Any:
    return [asyncio.run(side_by_side()), asyncio.run(side_by_side())]


@loop("cirron.session\n  epoch[0]\n    step[0-2]" + STEPS + "  epoch[1-2]\n    step[0-2]" + STEPS)
def after_a_training_without_tasks(ci: Any) -> Any:
    training = Training()
    for batch in parts.loader():
        training.step(batch)
    return [training.losses, asyncio.run(side_by_side())]


@loop("cirron.session\n  epoch[0]\n    step[0-2]" + STEPS)
def a_loop_for_each_batch(ci: Any) -> Any:
    """What runs in a task that began in a step belongs to that step."""
    training = Training()

    async def train(batch: Any) -> None:
        await asyncio.create_task(train_now(batch))

    async def train_now(batch: Any) -> None:
        training.step(batch)

    for batch in parts.loader():
        asyncio.run(train(batch))
    return training.losses


@loop(
    "cirron.session\n  search\n    epoch[0]\n      step[0-2]"
    + STEPS.replace("\n", "\n  ")
    + "\n  search\n    epoch[1]\n      step[0-2]"
    + STEPS.replace("\n", "\n  ")
)
def in_scopes(ci: Any) -> Any:
    trainings = [Training(), Training()]

    async def search(training: Training) -> None:
        with ci.scope("search"):
            await fit(training)

    async def main() -> None:
        await asyncio.gather(*map(search, trainings))

    asyncio.run(main())
    return [training.losses for training in trainings]


@loop("""
cirron.session
  epoch[0]
    step[0-2]
      data_load
      forward
      loss
      backward
      optimizer_step
  eval[0]
    data_load
    forward
    loss
    data_load
    forward
    loss
""")
def a_fit_and_an_evaluation(ci: Any) -> Any:
    training, other = Training(), Training()

    async def evaluate() -> None:
        for batch in parts.loader(4):
            with torch.no_grad():
                other.losses.append(other.loss(batch).item())
            await asyncio.sleep(0)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fit(training))
            group.create_task(evaluate())

    asyncio.run(main())
    return [training.losses, other.losses]


@pytest.mark.parametrize("name", sorted(LOOPS))
def test_tasks_have_separate_trees(name: str, tmp_path: Path) -> None:
    own = LOOPS[name]
    bare = run(own, Untraced(), tmp_path)
    traced = run(own, Ours(), tmp_path)
    assert traced.result == bare.result
    recorded = read(tmp_path)[0]
    wrong = [fault for fault in faults(own, traced, recorded) if not _is_overlap(fault)]
    assert not wrong, "\n".join(wrong)


def _is_overlap(fault: str) -> bool:
    """Whether epochs of two tasks, or scopes around them, run at the same time: they may."""
    return " before the end of " in fault and fault.startswith(("epoch", "eval", "search"))


def test_epochs_of_tasks_overlap_and_steps_do_not(tmp_path: Path) -> None:
    run(LOOPS["two_fits"], Ours(), tmp_path)
    root = read(tmp_path)[0].root
    first, second = (node for node in root.walk() if node.name == "epoch")
    assert second.record["start_ns"] < first.record["end_ns"]


@pytest.mark.parametrize("runs", ["to_thread", "run_in_executor"])
def test_a_training_in_a_thread_is_that_threads(runs: str, tmp_path: Path) -> None:
    def train(training: Training) -> None:
        for batch in parts.loader():
            training.step(batch)

    async def main() -> None:
        trainings = [Training(), Training()]
        if runs == "to_thread":
            await asyncio.gather(*[asyncio.to_thread(train, each) for each in trainings])
            return
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            current = asyncio.get_running_loop()
            await asyncio.gather(*[current.run_in_executor(pool, train, t) for t in trainings])

    def both(ci: Any) -> None:
        asyncio.run(main())

    outcome = run(Loop(runs, both, ""), Ours(), tmp_path)
    assert (outcome.error, outcome.complaints) == ("", [])
    recorded: Recorded = read(tmp_path)[0]
    epochs: list[Node] = [node for node in recorded.root.children if node.name == "epoch"]
    assert len(epochs) == 2
    for epoch in epochs:
        assert len({node.record["thread_id"] for node in epoch.walk()}) == 1
        assert Counter(node.name for node in epoch.walk())["optimizer_step"] == 3
