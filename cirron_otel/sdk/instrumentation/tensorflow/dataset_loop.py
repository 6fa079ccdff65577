"""The loop of an eager program over datasets, whose passes are named once their use is known."""

from __future__ import annotations

from ...session.errors import record_error
from ...tracing.phase import LoaderPassSpan
from ..iteration import opened_manually
from ..loop_scopes import EPOCH, STEP
from ..loop_step import open_micro
from ..training_loop import TrainingLoop


class DatasetLoop(TrainingLoop):
    """A loop that opens a scope for each pass before the pass is an epoch or an evaluation."""

    def begin_pass(self) -> LoaderPassSpan | None:
        """Open the scope of a pass, which counts as an epoch for the time being."""
        try:
            self._close_step()
            self._steps = 0
            return self._open(EPOCH, 0, {})
        except Exception as error:
            record_error(self.framework, error)
            return None

    def name_pass(self, scope: LoaderPassSpan | None, name: str) -> None:
        """Name the scope of a pass, and number it.

        An epoch inside another epoch, or inside one that the program opened, has no scope.
        """
        if scope is None:
            return
        is_inside = name == EPOCH and (
            opened_manually(scope._above, (EPOCH, STEP, "batch"))
            or any(each is not scope and each._name == EPOCH for each in self._scopes)
        )
        if is_inside:
            self._discard(scope)
        else:
            scope._name, scope._index = name, self._number(name, None)

    def end_pass(self, scope: LoaderPassSpan | None, *, is_dropped: bool) -> None:
        """Close the scope of a pass; discard it if its batches were not used."""
        try:
            if is_dropped and scope is not None:
                self._close_step()
                self._discard(scope)
            self.close(scope)
        except Exception as error:
            record_error(self.framework, error)

    def _discard(self, scope: LoaderPassSpan) -> None:
        scope._name = "pass"
        scope.drop()

    def next_micro_step(self) -> None:
        """Turn the phases of the open step into a micro step, and open the next."""
        if self.step is not None:
            self.step.next_micro(open_micro)

    def confirm_step(self) -> None:
        """Keep the open step, because its batch was used."""
        if self.step is not None:
            self.step.is_begun = True
