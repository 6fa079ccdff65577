"""The logger that `cirron_otel.lightning` provides for Lightning."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ...session.errors import record_error
from ...session.handle import active
from ...session.run_details import add_hyperparameters
from ...tracing.mark import mark
from ...tracing.state import state
from ..logged_values import is_passed_on
from ..recording import is_recording
from .lightning_loop import NAME

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


class MarkingLogger:
    """Make marks of the values that reach Lightning's loggers.

    A value that the hooks into Lightning have marked is not marked again. Every rank has marks.
    The session must be open, or marks are lost: call `ci.profile()`, or start the program with
    `cirron-otel run`.
    """

    @property
    def name(self) -> str:
        """The name of the directory for the run's checkpoints."""
        return "cirron"

    @property
    def version(self) -> str:
        """The id of the session; `none` if no session is open."""
        return str(getattr(state.session, "id", None) or "none") if is_recording() else "none"

    @property
    def experiment(self) -> Any:
        """The profiler of the open session; None if no session is open."""
        return active.profiler

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Mark each value on the innermost open scope, with the attribute `step` if it is given."""
        try:
            if is_passed_on():
                return
            attrs: dict[str, Any] = {} if step is None else {"step": step}
            for name, value in metrics.items():
                mark(name, value, **attrs)
        except Exception as error:
            record_error(NAME, error)

    def log_hyperparams(self, params: Any, *_: Any, **__: Any) -> None:
        """Record a mapping or a namespace as attributes `cirron.config.*` of the run."""
        try:
            if is_recording():
                add_hyperparameters(dict(params if isinstance(params, Mapping) else vars(params)))
        except Exception as error:
            record_error(NAME, error)


def logger_class(name: str, module: str) -> Any:
    """Return a subclass of MarkingLogger that is a `Logger` of each imported package.

    `name` and `module` are the place from which pickle imports it. If no package is imported, the
    first that is installed is. Raises ImportError if none is.
    """
    packages = [each for each in _PACKAGES if each in sys.modules]
    if not packages:
        packages = [each for each in _PACKAGES if find_spec(each.partition(".")[0])][:1]
    if not packages:
        raise ImportError(f"{name} needs Lightning: pip install lightning")
    bases = [import_module(f"{each}.loggers").Logger for each in packages]
    attributes = {"__module__": module, "__doc__": MarkingLogger.__doc__}
    return type(bases[0])(name, (MarkingLogger, *bases), attributes)
