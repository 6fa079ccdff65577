"""The scopes of one run of Lightning's Trainer. docs/lightning.md defines the rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...session.errors import record_error
from ...tracing.mark import POINT, SUMMARY
from ...tracing.step_places import GLOBAL_STEP
from ..loop_scopes import EVALUATION
from ..training_loop import TrainingLoop, current_loop

NAME = "lightning"


class LightningLoop(TrainingLoop):
    """The loop of a call of `fit`, `validate`, `test` or `predict`. Its methods raise nothing."""

    def __init__(self, framework: str) -> None:
        super().__init__(framework)
        self._is_accumulating = False
        """Whether the open step continues with the next batch."""
        self._fetched = 0
        """The number of batches of this epoch before the current one."""
        self._evaluation: dict[str, Any] | None = None
        """The attributes of an evaluation that has not begun yet."""
        self._is_evaluating = False
        """Whether an evaluation has begun and not ended."""
        self._late: int | None = None
        """The global step of a step that closed before Lightning logged its values."""

    def epoch(self, index: int) -> None:
        """Open an epoch."""
        self._is_accumulating = False
        self.begin_epoch(index)

    def epoch_work_ended(self) -> None:
        """Close the last step of the epoch, so that subsequent marks belong to the epoch."""
        self._is_accumulating = False
        self._late = None
        self.close_step()

    # --- batches --------------------------------------------------------------------------------

    def batch_begins(self, epoch_loop: Any) -> None:
        """Open the step of the next batch, or the next micro step of an accumulating step."""
        try:
            trainer = epoch_loop.trainer
            batches = trainer.accumulate_grad_batches
            self._fetched = epoch_loop.batch_progress.current.ready
            self._late = None
            if self.step is None or not self._is_accumulating:
                self.begin_step(self._fetched // batches)
            if batches > 1:
                self.begin_micro_step()
        except Exception as error:
            record_error(NAME, error)

    def batch_ends(self, epoch_loop: Any) -> None:
        """End the micro step, and the step unless it continues with the next batch."""
        try:
            if epoch_loop.batch_progress.current.ready == self._fetched:
                self._drop_batch()  # a resumed run skips what it has done already
                return
            module = epoch_loop.trainer.lightning_module
            if module.automatic_optimization and epoch_loop._should_accumulate():
                self._is_accumulating = self.step is not None
                self.end_micro_step()
            else:
                self._is_accumulating = False
                self.end_step(epoch_loop.global_step, expects_next=False)
        except Exception as error:
            record_error(NAME, error)

    def batch_refused(self) -> None:
        """Discard the step of a batch that was not fetched, or that the module skipped."""
        try:
            step = self.step
            if step is not None and all(each._name == "data_load" for each in step.children):
                self._drop_batch()
        except Exception as error:
            record_error(NAME, error)

    def _drop_batch(self) -> None:
        if not self._is_accumulating:
            self.drop_step()

    # --- evaluations ----------------------------------------------------------------------------

    def expect_evaluation(self, **attrs: Any) -> None:
        """Let `evaluation_begins` open an evaluation with these attributes."""
        self._evaluation = attrs

    def evaluation_begins(self) -> None:
        """Open the expected evaluation, which has data."""
        attrs, self._evaluation = self._evaluation, None
        if attrs is not None:
            self._is_accumulating = False
            self._is_evaluating = True
            self.begin_evaluation(**attrs)

    def evaluation_ends(self, error: BaseException | None = None) -> None:
        """Close the evaluation, unless it has ended, or never began because there was no data."""
        self._evaluation = None
        if self._is_evaluating:
            self._is_evaluating = False
            self.end_evaluation(error)

    # --- checkpoints and values -----------------------------------------------------------------

    def open_checkpoint(self, trainer: Any, attrs: dict[str, Any]) -> Any:
        """Open a `checkpoint`. If a step is open, it ends before, unless a scope in it is open."""
        if self.step is not None and trainer is not None and not self.is_inside_step:
            self._late = trainer.global_step
            self.set_attributes(**{GLOBAL_STEP: self._late})
            self._is_accumulating = False
        return self.open("checkpoint", **attrs)

    def log(self, values: Mapping[str, Any], *, is_final: bool) -> None:
        """Mark values that Lightning logs; `is_final` if they summarise an epoch or evaluation."""
        try:
            attrs = {}
            if self._late is not None and not is_final and not self.is_open(EVALUATION):
                attrs[GLOBAL_STEP] = self._late
            for name, value in values.items():
                self.mark(name, value, SUMMARY if is_final else POINT, **attrs)
        except Exception as error:
            record_error(NAME, error)


def own_loop() -> LightningLoop | None:
    """Return the innermost loop of this thread if it is one of Lightning's Trainer."""
    loop = current_loop()
    return loop if isinstance(loop, LightningLoop) else None


def safely(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of the hooks; record its exception and return None if it raises one."""
    try:
        return function(*args)
    except Exception as error:
        record_error(NAME, error)
        return None
