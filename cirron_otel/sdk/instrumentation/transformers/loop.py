"""The training loop of a Trainer, as its hooks see it."""

from __future__ import annotations

from typing import Any

from ....semconv import GRAD_NORM, LOSS
from ...session.errors import record_error
from ...tracing.mark import POINT, SUMMARY
from ...tracing.step_places import GLOBAL_STEP
from ..logged_values import is_number
from ..loop_scopes import EVALUATION
from ..training_loop import TrainingLoop, current_loop

NAME = "transformers"
CHECKPOINT = "checkpoint"
_POSITION = frozenset({"epoch", "step"})
"""Logged values that are not marks, because the scopes' numbers contain them."""
_LOGGED = frozenset({LOSS, GRAD_NORM})


class TrainerLoop(TrainingLoop):
    """A call of `train`, or of `evaluate`, `predict` or `save_model` outside of it."""

    def __init__(self, framework: str) -> None:
        super().__init__(framework)
        self.trainers: list[Any] = []
        """The Trainer of the loop, and others that evaluate inside it, the outermost first."""
        self.handler: Any = None
        """The callback handler of the outermost Trainer, once it has called an event."""
        self.global_step = 0
        """The Trainer's number of the last step that it ended."""
        self.is_step_closed = False
        """Whether a callback has ended the last step, and the Trainer has not logged its values."""
        self.last_epoch = -1
        """The number of the last epoch since the training began."""
        self.epoch: Any = None
        """The scope of the open epoch; None if the program opened an epoch itself."""
        self.is_in_epoch = False
        self.is_epoch_over = False
        """Whether only the evaluation, log and save at the end of the epoch are left."""
        self.marked: dict[str, Any] = {}
        """The values that were marked in the open evaluation, by name."""
        self.datasets_prefix: str | None = None
        """The prefix of the metrics of an evaluation of several datasets."""
        self.saved_to: str | None = None
        """The directory of the checkpoint that is saved now."""

    @property
    def logged(self) -> frozenset[str]:  # type: ignore[override]
        """The marks of torch's hooks that the Trainer logs at least once."""
        trainer = self.trainers[0] if self.trainers else None
        state = getattr(trainer, "state", None)
        strategy = getattr(getattr(trainer, "args", None), "logging_strategy", "steps")
        every, steps = getattr(state, "logging_steps", None), getattr(state, "max_steps", None)
        if strategy == "no" or (strategy == "steps" and every and steps and every > steps):
            return frozenset()
        return _LOGGED

    def is_own_handler(self, handler: Any) -> bool:
        """Return whether a callback handler belongs to a Trainer of this loop."""
        for trainer in self.trainers:
            if getattr(trainer, "callback_handler", None) is handler:
                if trainer is self.trainers[0]:
                    self.handler = handler
                return True
        return False

    def number_unended_step(self) -> None:
        """Number the open step if the Trainer does not end it: it has the number before it."""
        try:
            step = self.step
            if step is not None and step.is_begun and not step.is_over:
                self.set_attributes(**{GLOBAL_STEP: self.global_step})
        except Exception as error:
            record_error(NAME, error)

    def mark_logs(self, logs: Any) -> None:
        """Mark the numbers that the Trainer logs.

        They are summaries in an evaluation, and after the last epoch. If the step is closed, they
        have its number.
        """
        is_evaluation = self.is_open(EVALUATION)
        is_last = self.last_epoch >= 0 and not self.is_in_epoch
        for name, value in dict(logs or {}).items():
            if name in _POSITION or not is_number(value):
                continue
            if not is_evaluation and self.is_step_closed:
                self.mark(name, value, POINT, **{GLOBAL_STEP: self.global_step})
            elif not is_evaluation:
                self.mark(name, value, SUMMARY if is_last else POINT)
            elif name not in self.marked or self.marked[name] is not value:
                self.marked[name] = value
                self.mark(name, value, SUMMARY)

    def mark_metrics(self, result: Any) -> None:
        """Mark those metrics in the result of an evaluation or prediction that were not logged."""
        metrics = result if isinstance(result, dict) else getattr(result, "metrics", None)
        for name, value in dict(metrics or {}).items():
            if name not in self.marked and name not in _POSITION and is_number(value):
                self.marked[name] = value
                self.mark(name, value, SUMMARY)


def own_loop() -> TrainerLoop | None:
    """Return the innermost loop of this thread if it is a Trainer's."""
    loop = current_loop()
    return loop if isinstance(loop, TrainerLoop) else None
