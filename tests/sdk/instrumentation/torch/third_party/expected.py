"""The trees that the programs of this directory must give."""

from __future__ import annotations

from dataclasses import dataclass

PLAIN = """
    step[0-5]
      data_load
      forward
      backward
      optimizer_step
"""


def _ignite(number: int) -> str:
    return f"""
  epoch[{number}]
    step[0-5]
      data_load
      forward
      loss
      backward
      optimizer_step
    eval[{number}]
      data_load
      forward
      loss
      data_load
      forward
      loss"""


KERAS = """
cirron.session
  forward x2
  loss
  data_load
  forward
  epoch[0]
    step[0-5]
      data_load
      forward
      backward
      optimizer_step
    eval[0]
      data_load
      forward
  epoch[1]
    step[0-5]
      data_load
      forward
      backward
      optimizer_step
    eval[1]
      data_load
      forward
"""
ACCUMULATING = """
    step[0-2]
      micro_step[0-1]
        data_load
        forward
        backward
      optimizer_step
"""


def _evaluation(number: int, level: int = 1) -> str:
    lines = [f"eval[{number}]", *["  data_load", "  forward"] * 2]
    return "\n" + "\n".join("  " * level + line for line in lines)


def _tree(steps: str, *, is_inside: bool) -> str:
    """Two epochs with an evaluation in each, or after each."""
    steps = "\n" + steps.strip("\n")
    parts = [
        f"\n  epoch[{number}]{steps}{_evaluation(number, 2 if is_inside else 1)}"
        for number in range(2)
    ]
    return "cirron.session" + "".join(parts)


@dataclass(frozen=True)
class Program:
    """A program, run in one way."""

    name: str
    option: str
    title: str
    tree: str
    """Empty where it is not as it should be yet: `note` says why."""
    note: str = ""


def _lightning(step: str) -> str:
    step = "\n" + step.strip("\n")
    epochs = [f"\n  epoch[{n}]{step}{_evaluation(n + 1, 2)}" for n in range(2)]
    check = _evaluation(0).replace("eval[0]", "eval[0]{sanity_check=true}")
    return f"cirron.session{check}{''.join(epochs)}"


PROGRAMS = [
    Program(
        "hf_trainer",
        "--accumulate=1",
        "The Trainer of transformers, which evaluates inside the loop of the epoch",
        _tree(PLAIN, is_inside=True),
    ),
    Program(
        "hf_trainer",
        "--accumulate=2",
        "The Trainer of transformers, which fetches both batches of a step before it uses them",
        _tree(ACCUMULATING, is_inside=True),
    ),
    Program(
        "lightning_fit",
        "--accumulate=2",
        "The Trainer of Lightning, with its sanity check; a step's last backward is in a closure",
        _lightning("""
    step[0-2]
      micro_step[0]
        data_load
        forward
        backward
      micro_step[1]
        data_load
      optimizer_step
        forward
        backward
"""),
    ),
    Program(
        "accelerate_loop",
        "--accumulate=2",
        "The loop of Accelerate's documentation, whose loaders fetch ahead",
        _tree(ACCUMULATING, is_inside=False).replace(
            "cirron.session", "cirron.session\n  prepare", 1
        ),
    ),
    Program(
        "stateful_loader",
        "--workers=1",
        "StatefulDataLoader of torchdata, stopped in the middle of an epoch and resumed",
        f"cirron.session\n  epoch[0]{PLAIN.rstrip()}{_evaluation(0)}"
        f"\n  epoch[1-2]{PLAIN.replace('0-5', '0-2').rstrip()}{_evaluation(1)}",
    ),
    Program(
        "ignite_engines",
        "--accumulate=1",
        "The engines of ignite, whose evaluator sets evaluation mode after the first fetch",
        f"cirron.session{_ignite(0)}{_ignite(1)}",
    ),
    Program(
        "keras_fit",
        "--accumulate=1",
        "Keras on torch: it calls layers to build the model, and validates on one batch",
        KERAS,
    ),
]
