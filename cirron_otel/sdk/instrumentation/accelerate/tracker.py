"""A tracker for Accelerate. Importing this module imports Accelerate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelerate.tracking import GeneralTracker

from ...session.errors import record_error
from ...session.handle import active
from ...session.run_details import add_hyperparameters
from ...tracing.mark import mark
from ..loggers.scalars import mark_all, number_of
from ..recording import is_recording


class CirronTracker(GeneralTracker):  # type: ignore[misc]
    """Make marks of the values that a program passes to `Accelerator.log`.

    The configuration of `init_trackers` is recorded as the hyperparameters of the run. Accelerate
    calls a tracker in the main process only. The session must be open, or marks are lost: call
    `ci.profile()`, or start the program with `cirron-otel run`.
    """

    name = "cirron"
    requires_logging_directory = False

    @property
    def tracker(self) -> Any:
        """The profiler of the open session; None if no session is open."""
        return active.profiler

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Record the configuration as attributes `cirron.config.*` of the run."""
        try:
            if is_recording():
                add_hyperparameters(dict(values))
        except Exception as error:
            record_error("accelerate", error)

    def log(self, values: Mapping[str, Any], step: int | None = None, **_: Any) -> None:
        """Mark each value on the innermost open scope, with the attribute `step` if it is given.

        A value that is marked already, because another tracker or a Trainer got it, makes no mark.
        """
        try:
            attrs: dict[str, Any] = {} if step is None else {"step": step}
            for name, value in values.items():
                if number_of(value) is None:
                    mark(name, value, **attrs)
                else:
                    mark_all("cirron", [(name, value, step)])
        except Exception as error:
            record_error("accelerate", error)
