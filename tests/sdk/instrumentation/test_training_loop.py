"""The loops of frameworks, without any framework: their scopes, their owners, their ends."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import cirron_otel as ci
from cirron_otel.sdk.instrumentation.training_loop import TrainingLoop, current_loop
from tests.kit.sessions.spool_trees import read_spool

from .torch import trees


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    ci.profile(
        output_dir=tmp_path, frameworks="none", join="none", exporters="none", handle_signals=False
    )
    yield tmp_path
    ci.shutdown()
    assert current_loop() is None


def start(framework: str = "keras") -> TrainingLoop:
    loop = TrainingLoop.start(framework)
    assert loop is not None
    return loop


def tree(directory: Path) -> trees.Recorded:
    """Close the session, and return its tree; its times are checked."""
    ci.shutdown()
    (recorded,) = trees.read(directory).values()
    assert trees.time_faults(recorded.root, needs_unattributed=False) == []
    assert recorded.orphans == []
    return recorded


def same(directory: Path, expected: str) -> trees.Recorded:
    recorded = tree(directory)
    assert trees.difference(trees.parse(expected), recorded.root) == ""
    return recorded


def test_a_loop_gives_epochs_steps_evaluations_and_checkpoints(directory: Path) -> None:
    loop = start()
    for epoch in range(2):
        loop.begin_epoch(epoch + 3)
        for step in range(2):
            loop.begin_step()
            with ci.scope("forward"):
                pass
            loop.end_step(global_step=10 * epoch + step)
            loop.mark("accuracy", 0.5)
        loop.begin_evaluation()
        loop.mark("eval_loss", 0.25, "summary")
        loop.end_evaluation()
        scope = loop.open("checkpoint", operation="save")
        loop.close(scope)
        loop.end_epoch()
    loop.end()
    recorded = same(
        directory,
        """
cirron.session
  epoch[3]
    step[0]{global_step=0}{epoch=3}
      forward
    step[1]{global_step=1}
      forward
    eval[0]
    checkpoint{operation=save}
  epoch[4]
    step[0]{global_step=10}{epoch=4}
      forward
    step[1]{global_step=11}
      forward
    eval[1]
    checkpoint
""",
    )
    assert recorded.marks.count(("accuracy", "step")) == 4
    assert recorded.marks.count(("eval_loss", "eval")) == 2


def test_a_step_that_is_not_confirmed_is_dropped(directory: Path) -> None:
    loop = start()
    loop.begin_epoch()
    loop.expect_step()
    for is_last in (False, False, True):
        loop.fetching()
        with ci.scope("data_load"):
            pass
        if not is_last:
            loop.begin_step()
            loop.end_step()
    loop.end_epoch()
    loop.end()
    same(
        directory,
        """
cirron.session
  epoch[0]
    step[0-1]
      data_load
    data_load
""",
    )


def test_only_the_fetch_after_the_end_of_a_step_begins_another(directory: Path) -> None:
    loop = start()
    loop.begin_epoch()
    loop.expect_step()
    for _ in range(2):
        loop.fetching()
        loop.fetching()
        loop.begin_step()
        loop.fetching()
        loop.end_step()
    loop.end()
    same(directory, "cirron.session\n  epoch[0]\n    step[0-1]")


def test_micro_steps_are_numbered_within_their_step(directory: Path) -> None:
    loop = start()
    for _ in range(2):
        loop.begin_step()
        for _ in range(3):
            loop.begin_micro_step()
        loop.end_micro_step()
        loop.end_step()
    loop.end()
    same(directory, "cirron.session\n  step[0-1]\n    micro_step[0-2]")


@pytest.mark.torch
def test_a_scope_between_a_fetch_and_its_micro_step_is_not_unattributed(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    ci.profile(
        output_dir=tmp_path, frameworks=["torch"], join="none", exporters="none",
        handle_signals=False,
    )  # fmt: skip
    batches = iter(torch.utils.data.DataLoader(torch.ones(2, 1)))
    loop = start("transformers")
    loop.begin_epoch()
    loop.begin_step()
    next(batches)
    with ci.scope("of the program"):
        pass
    loop.begin_micro_step()
    with ci.scope("work"):
        pass
    loop.end_micro_step()
    loop.end_step()
    loop.end()
    (micro,) = (node for node in tree(tmp_path).root.walk() if node.name == "micro_step")
    assert [child.name for child in micro.children] == ["data_load", "work"]


@pytest.mark.parametrize("name", ["epoch", "step", "batch"])
def test_loop_opens_no_epoch_inside_a_user_scope(directory: Path, name: str) -> None:
    with ci.scope(name, index=7):
        loop = start()
        loop.begin_epoch()
        loop.begin_step()
        loop.end_step()
        loop.end_epoch()
        loop.end()
    inside = "\n    step[0]" if name == "epoch" else ""
    same(directory, f"cirron.session\n  {name}[7]{inside}")


def test_the_loop_of_the_higher_framework_owns_the_scopes(directory: Path) -> None:
    outer = start("lightning")
    outer.begin_epoch()
    for lower in ("keras", "accelerate", "lightning", "unknown"):
        assert TrainingLoop.start(lower) is None
    outer.begin_step()
    inner = start("transformers")
    assert current_loop() is inner
    inner.begin_evaluation()
    inner.end_evaluation()
    inner.end()
    assert current_loop() is outer
    outer.begin_step()
    outer.end_step()
    outer.end()
    same(
        directory,
        """
cirron.session
  epoch[0]
    step[0]
    eval[0]
    step[1]
""",
    )


def test_each_thread_has_separate_loops_and_numbers(directory: Path) -> None:
    first, second = threading.Barrier(2), threading.Barrier(2)

    def train() -> None:
        first.wait(120)
        loop = start()
        loop.begin_epoch()
        second.wait(120)
        loop.end()

    threads = [threading.Thread(target=train) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert current_loop() is None
    same(directory, "cirron.session\n  epoch[0]\n  epoch[0]")


def test_loop_ended_from_another_thread_is_over_in_its_starting_thread(directory: Path) -> None:
    loops: list[TrainingLoop] = []
    started, ended = threading.Event(), threading.Event()

    def train() -> None:
        for number in range(2):
            loops.append(start())
            loops[-1].begin_epoch(number)
            started.set()
            assert ended.wait(120)
        loops[-1].end()
        loops.append(current_loop())  # type: ignore[arg-type]

    own = start()
    own.begin_epoch(7)
    thread = threading.Thread(target=train)
    thread.start()
    assert started.wait(120)
    loops[0].end()
    assert current_loop() is own
    ended.set()
    thread.join()
    assert [each is None for each in loops] == [False, False, True]
    own.end()
    assert [each.label for each in tree(directory).root.children].count("epoch[7]") == 1


def test_shutdown_closes_open_scopes_and_disables_the_loop(directory: Path) -> None:
    loop = start()
    loop.begin_epoch()
    loop.begin_step()
    ci.shutdown()
    assert current_loop() is None
    loop.begin_step()
    loop.end_step()
    loop.end_epoch()
    loop.end()
    same(directory, "cirron.session\n  epoch[0]\n    step[0]")


def test_an_error_that_is_caught_leaves_no_status_and_a_failed_scope_has_one(
    directory: Path,
) -> None:
    loop = start()
    loop.begin_epoch()
    loop.begin_step()
    error = ValueError("no more")
    scope = loop.open("checkpoint")
    loop.close(scope, error)
    loop.begin_step()
    loop.end(error)
    same(directory, "cirron.session\n  epoch[0]\n    step[0]\n    checkpoint!\n    step[1]")


def test_a_forked_child_is_in_no_loop(directory: Path) -> None:
    loop = start()
    loop.begin_epoch()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if current_loop() is None else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert current_loop() is loop
    loop.end()
    same(directory, "cirron.session\n  epoch[0]")


def test_nothing_is_recorded_without_a_session() -> None:
    assert TrainingLoop.start("keras") is None


def test_a_scope_that_the_program_leaves_open_does_not_outlive_the_loop(directory: Path) -> None:
    loop = start()
    loop.begin_epoch()
    loop.begin_step()
    left = ci.scope("left")
    left.__enter__()
    loop.end_step()
    loop.begin_step()
    loop.end_step()
    left.__exit__(None, None, None)
    loop.end_epoch()
    loop.end()
    with ci.scope("after"):
        pass
    ci.shutdown()
    session = read_spool(directory).session
    assert [child.name for child in session.children] == ["epoch", "after"]
