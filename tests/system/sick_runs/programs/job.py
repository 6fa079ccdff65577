"""A training job of a real program: its settings, and the places at which a cause can be planted.

This module does not import torch, so that the truth about all programs can be read quickly.
"""

from __future__ import annotations

import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ..truth import Expected

Hook = Callable[[int], None]
"""Is called with the number of a step, from 0 over the run."""
PLACES: Final = frozenset({
    "start", "worker_start", "pass_start", "fetch", "collate", "batch", "forward", "loss",
    "loss_function", "backward", "clip", "optimizer", "scheduler", "after_step",
    "evaluation", "checkpoint", "epoch_end",
})  # fmt: skip
"""In the order of the loop. `fetch` is inside the dataset, `batch` between the fetch and the
forward pass, `loss_function` between the loss and the backward pass."""


@dataclass(slots=True)
class Job:
    """The settings of a job. Both twins have them; only `plant` and `sleep` differ."""

    is_sick: bool
    folder: Path
    """The folder of the program's own files."""
    rank: int = 0
    epochs: int = 1
    steps: int = 60
    """The steps of an epoch."""
    batch: int = 4
    forward_s: float = 0.004
    backward_s: float = 0.004
    workers: int = 0
    is_persistent: bool = False
    evaluate_every: int = 0
    """The steps between two evaluations; 0: none."""
    checkpoint_every: int = 0
    clips: bool = False
    has_scheduler: bool = False
    wrapper: str = "ddp"
    """How the model is distributed if there are several ranks: `ddp`, `fsdp` or `none`."""
    scale: Callable[[int], float] | None = None
    """The factor of the loss in a step."""
    gradient_scale: Callable[[int], float] | None = None
    """The factor of the gradients in a step."""
    step: int = 0
    """The number of the current step."""
    start: int = 0
    """The first step, in a process that continues an earlier one."""
    model: Any = None
    loss: Any = None
    norm: Any = None
    """The gradient norm before it is clipped."""
    _hooks: dict[str, list[Hook]] = field(default_factory=lambda: defaultdict(list))

    def on(self, place: str, hook: Hook) -> None:
        """Call a function at a place, in both twins."""
        assert place in PLACES, place
        self._hooks[place].append(hook)

    def plant(self, place: str, hook: Hook) -> None:
        """Call a function at a place, in the sick twin only."""
        if self.is_sick:
            self.on(place, hook)

    def sleep(
        self,
        place: str,
        seconds: float,
        when: Callable[[int], bool] = lambda _: True,
        rank: int | None = None,
    ) -> None:
        """Sleep at a place of the sick twin, in some steps, in one rank or in all."""
        if rank is None or rank == self.rank:
            self.plant(place, lambda step: time.sleep(seconds) if when(step) else None)

    def at(self, place: str, step: int | None = None) -> None:
        """Call the functions of a place."""
        for hook in self._hooks.get(place, ()):
            hook(self.step if step is None else step)


@dataclass(frozen=True, slots=True)
class Program:
    """A program, and what a report about it must have first."""

    name: str
    expected: Expected
    set_up: Callable[[Job], None]
    ranks: int = 1
    is_notice: bool = False
    """Whether the finding is a notice: the run is healthy, and the finding only describes it."""
    exit_code: int | None = 0
    """The exit code of the sick program; None if it only must not be 0."""
    restarts: int = 0
    """How often the launcher starts a failed job again."""
    is_launched: bool = False
    """Whether `cirron-otel run` and a launcher start it, as the end of a process needs."""
    variables: tuple[tuple[str, str], ...] = ()
    """Variables of its environment."""


PROGRAMS: Final[dict[str, Program]] = {}
"""By name, in the order of their definition."""


def program(
    *kinds: str, ranks: int = 1, is_notice: bool = False, exit_code: int | None = 0,
    restarts: int = 0, is_launched: bool = False, phase: str | None = None,
    variables: tuple[tuple[str, str], ...] = (),
    slow_ranks: tuple[int, ...] | None = None, units: tuple[tuple[int, int], ...] | None = None,
    every: int | None = None, moving: bool = False,
) -> Callable[[Callable[[Job], None]], Callable[[Job], None]]:  # fmt: skip
    """Register a function that prepares a job, with the finding that its cause must give."""
    expected = Expected(
        kinds, phase=phase, ranks=slow_ranks, units=units, every=every, moving=moving
    )

    def register(set_up: Callable[[Job], None]) -> Callable[[Job], None]:
        name = set_up.__name__
        assert name not in PROGRAMS, name
        PROGRAMS[name] = Program(
            name, expected, set_up, ranks, is_notice, exit_code, restarts, is_launched, variables
        )
        return set_up

    return register


def burn(seconds: float) -> None:
    """Use the CPU until this process has used it for some time."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def kill_this_process() -> None:
    """End this process with SIGKILL, when the records so far are written."""
    import cirron_otel as ci

    ci.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def rank_of_process() -> int:
    """Return the rank that the launcher has set, or 0."""
    return int(os.environ.get("RANK", "0"))
