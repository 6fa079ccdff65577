"""The runs of a recording as the rows of one table (docs/dataframes.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ...core.analysis.metrics import LossMetric
from ...core.analysis.run_losses import settings_of, short_name
from ...core.analysis.runs import Run
from ...core.analysis.session_columns import TableColumn, columns_of

RUN_COLUMNS: Final = columns_of({
    "run_id": "string", "run_name": "string", "status": "string", "cause": "string",
    "script": "string", "start_ns": "int64", "end_ns": "int64", "duration_ns": "int64",
    "ranks": "int64", "steps": "int64", "spans": "int64", "loss": "string", "loss_last": "double",
    "loss_best": "double",
})  # fmt: skip
"""The columns that every table of runs has, ahead of those of its settings."""
_INT64: Final = range(-(2**63), 2**63)


class RunRows:
    """The runs of a recording, one row each, with a column for each setting."""

    def __init__(self, runs: Sequence[Run], losses: Mapping[str, LossMetric]) -> None:
        """`losses` has the loss of each run by its id."""
        self._runs, self._losses = runs, losses
        self._settings: dict[str, str] = {}
        """The name of a setting by that of its column; a hyperparameter comes first."""
        fixed = {each.name for each in RUN_COLUMNS}
        for name in settings_of([run.resource for run in runs]):
            short = short_name(name)
            taken = short in self._settings or short in fixed
            self._settings[name if taken else short] = name

    @property
    def columns(self) -> tuple[TableColumn, ...]:
        """The columns, in the order of the values of a row."""
        return (*RUN_COLUMNS, *(
            TableColumn(column, self._type(name)) for column, name in self._settings.items()
        ))  # fmt: skip

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield the values of each run, in order of start."""
        types = [self._type(name) for name in self._settings.values()]
        for run in self._runs:
            loss = self._losses.get(run.id)
            settings = [
                _value(run.resource.get(name), type_)
                for name, type_ in zip(self._settings.values(), types, strict=True)
            ]
            yield (
                run.id, run.name, run.status, run.cause, run.script, run.start_ns, run.end_ns,
                run.duration_ns, run.rank_count, run.steps, run.spans,
                *((None, None, None) if loss is None else (loss.title, loss.last, loss.best)),
                *settings,
            )  # fmt: skip

    def _type(self, name: str) -> str:
        """Return the type of a column: `string` if the values have several types."""
        values = [run.resource[name] for run in self._runs if run.resource.get(name) is not None]
        if all(type(each) is bool for each in values):
            return "bool"
        if all(type(each) is int and each in _INT64 for each in values):
            return "int64"
        is_number = all(
            type(each) is float or (type(each) is int and abs(each) <= 2**53) for each in values
        )
        return "double" if is_number else "string"


def _value(value: Any, type_: str) -> Any:
    if value is None:
        return None
    if type_ == "double":
        return float(value)
    return str(value) if type_ == "string" else value
