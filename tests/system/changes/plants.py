"""The planted changes: the two runs of each, and the truth about their difference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from .program import USUAL, Job, Wait


@dataclass(frozen=True)
class Plant:
    """A change from run A to run B."""

    name: str
    b: Job
    account: str | None
    """The account that explains it; None if a setting does."""
    a: Job = field(default_factory=Job)
    places: tuple[str, ...] = ()
    """The places whose planted time is the difference."""
    setting: str | None = None
    """The attribute of the run that differs."""
    is_slower: bool | None = True
    """None for a change of settings whose effect depends on the machine."""


def each(milliseconds: float) -> Wait:
    """Return a wait in every step."""
    return lambda _: milliseconds / 1e3


def every(number: int, milliseconds: float) -> Wait:
    """Return a wait in every step whose number is a multiple."""
    return lambda step: milliseconds / 1e3 if step % number == number - 1 else 0.0


def once(at: int, milliseconds: float) -> Wait:
    """Return a wait in one step."""
    return lambda step: milliseconds / 1e3 if step == at else 0.0


def _growing(step: int) -> float:
    return step * 0.0001


def _wait(name: str, account: str, place: str, wait: Wait, **more: object) -> Plant:
    return Plant(name, Job({place: wait}, **more), account, places=(place,))  # type: ignore[arg-type]


def _setting(name: str, attribute: str, **more: object) -> Plant:
    return Plant(name, Job(**more), None, setting=attribute, is_slower=None)  # type: ignore[arg-type]


def _faster(plant: Plant) -> Plant:
    return replace(plant, name=f"{plant.name}_removed", a=plant.b, b=plant.a, is_slower=False)


_ITEM = _wait("items", "input", "item", each(1.5))
_FORWARD = _wait("forward", "forward", "forward", each(4))
_LOGGING = _wait("logging", "logging", "log", each(4))
_TWO: Mapping[str, Wait] = {"forward": each(1.5), "collate": each(6)}

PLANTS: tuple[Plant, ...] = (
    _ITEM,
    _faster(_ITEM),
    _wait("collate", "input", "collate", each(5)),
    _wait("input_spikes", "input", "collate", every(20, 80), steps=240),
    _wait("transform", "unattributed", "transform", each(4)),
    _FORWARD,
    _faster(_FORWARD),
    _wait("growing_forward", "forward", "forward", _growing),
    _wait("loss_module", "loss", "loss", each(4)),
    _wait("loss_function", "unattributed", "loss_function", each(4)),
    _wait("backward", "backward", "backward", each(4)),
    _wait("after_backward", "unattributed", "after_backward", each(4)),
    _wait("optimizer", "optimizer", "optimizer", each(4)),
    _wait("schedule", "optimizer", "schedule", each(4)),
    _wait("own_scope", "other_scopes", "own", each(4)),
    _wait("between_steps", "between_units", "after", each(4)),
    _wait("between_some_steps", "between_units", "after", every(20, 100), steps=240),
    _LOGGING,
    _faster(_LOGGING),
    _wait("checkpoints", "checkpoint", "checkpoint", each(120), checkpoint_every=10),
    _wait("slow_evaluations", "evaluation", "evaluation", each(400)),
    Plant("more_evaluations", Job({"evaluation": each(200)}, epochs=6), "evaluation",
          Job({"evaluation": each(200)}, epochs=6, evaluate_every=6), ("evaluation",)),
    _wait("between_epochs", "between_units", "epoch_end", once(0, 600)),
    _wait("stall_in_backward", "backward", "backward", once(70, 1500)),
    _wait("stall_in_input", "input", "collate", once(90, 1500)),
    Plant("two_changes", Job(_TWO), "input", places=("collate",)),
    Plant("moved_to_backward", Job(usual={**USUAL, "forward": 0.001, "backward": 0.008}),
          "backward"),
    _setting("batch_size", "data_loader.batch_size", batch=8, steps=120),
    _setting("workers", "data_loader.workers", workers=2),
    _setting("accumulation", "samples per step", micro_steps=2),
    _setting("parameters", "model.parameters", hidden=2048),
    _setting("foreach", "optimizer.foreach", foreach=True),
    _setting("autocast", "autocast.dtype", autocast=True),
)  # fmt: skip
EQUAL = 20
"""The number of pairs of equal runs."""
