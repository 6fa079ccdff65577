"""Sessions that begin and end before, within and after loops, in one case after the other.

    python -m tests.sdk.instrumentation.torch.programs.installing DIRECTORY

Each session is traced into a directory of its own, below DIRECTORY. Prints what the cases saw.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cirron_otel as ci
from cirron_otel.sdk.instrumentation.training_loop import TrainingLoop

DIRECTORY = Path(sys.argv[1])
FINDERS = list(sys.meta_path)


def profile(name: str, **options: Any) -> Any:
    return ci.profile(output_dir=DIRECTORY / name, join="none", **options)


def ours() -> bool:
    """Whether the hooks are in torch."""
    from torch.utils.data import dataloader

    return "cirron_otel" in dataloader._BaseDataLoaderIter.__next__.__code__.co_filename


class Loop:
    """Six steps; `then` is called with the number of each, when its batch is there."""

    def __init__(self) -> None:
        import torch

        torch.manual_seed(3)
        self.model = torch.nn.Linear(2, 1)
        self.criterion = torch.nn.MSELoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.loader = torch.utils.data.DataLoader(torch.rand(12, 2), 2)

    def run(self, then: Callable[[int], Any] = lambda _: None) -> list[float]:
        losses = []
        for number, x in enumerate(self.loader):
            then(number)
            loss = self.criterion(self.model(x), x[:, :1])
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            losses.append(loss.item())
        return losses


def imported_later() -> Any:
    """The hooks come with torch, not with who asks whether it is there."""
    profiler = profile("imported_later")
    asked = importlib.util.find_spec("torch") is not None
    before = ("torch" in sys.modules, profiler.installed_hooks)
    import torch

    torch.set_num_threads(1)
    found = [asked, *before, profiler.installed_hooks, ours()]
    Loop().run()
    ci.shutdown()
    return [*found, profiler.installed_hooks, ours(), sys.meta_path == FINDERS]


def not_at_all() -> Any:
    found = []
    for name in ("none", []):
        profiler = profile(f"not_{name or 'one'}", frameworks=name)
        found += [profiler.installed_hooks, ours()]
        Loop().run()
        ci.shutdown()
    return found


def by_name() -> Any:
    profiler = profile("by_name", frameworks=["torch", "jax"])
    found = [profiler.installed_hooks, profiler.health()["last_errors"]]
    ci.shutdown()
    return found


def one_after_the_other() -> Any:
    losses = []
    for name in ("first", "second"):
        profile(name)
        losses.append(Loop().run())
        ci.shutdown()
    return losses[0] == losses[1]


def twice() -> Any:
    """The second call gives the first one's session."""
    found = profile("twice") is profile("twice_again", frameworks="none")
    Loop().run()
    ci.shutdown()
    return [found, ours()]


def middle() -> Any:
    """A session ends, and another begins, in the middle of a loop."""
    untraced = Loop().run()

    def then(number: int) -> None:
        if number == 2:
            ci.shutdown()
        elif number == 4:
            profile("after_middle")

    profile("before_middle")
    losses = Loop().run(then)
    with ci.scope("afterwards"):
        pass
    ci.shutdown()
    return losses == untraced


def claimed() -> Any:
    """A framework with a higher priority runs loops in the middle of a session."""
    profile("claimed")
    loop = Loop()
    loop.run()
    higher = TrainingLoop.start("transformers")
    assert higher is not None
    with ci.scope("epoch", index=1):
        loop.run()
    lower = TrainingLoop.start("keras")
    same = TrainingLoop.start("transformers")
    higher.end()
    loop.run()
    ci.shutdown()
    return [lower, same]


def terminated() -> Any:
    """A child is told to go in the middle of a step."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        profile("terminated")

        def then(number: int) -> None:
            if number == 3:
                os.write(write, b"!")
                signal.pause()

        Loop().run(then)
        os._exit(0)
    os.read(read, 1)
    os.kill(pid, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def interrupted() -> Any:
    """Ctrl-C in the middle of a step, and the loop is not gone on with."""
    profile("interrupted")

    def then(number: int) -> None:
        if number == 3:
            signal.raise_signal(signal.SIGINT)

    try:
        Loop().run(then)
    except KeyboardInterrupt:
        Loop().run()
    ci.shutdown()
    return ours()


CASES = (
    imported_later, not_at_all, by_name, one_after_the_other, twice, middle, claimed, terminated,
    interrupted,
)  # fmt: skip


def main() -> None:
    print(json.dumps({case.__name__: case() for case in CASES}))


if __name__ == "__main__":
    main()
