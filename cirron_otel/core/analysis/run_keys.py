"""The keys by which runs are grouped: the value that each key has in a run.

A key is one of those below, or the name of a resource attribute; the prefixes `cirron.config.` and
`cirron.` may be left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Final

from ...ids import SHORT_ID_DIGITS
from ...semconv import BRANCH, COMMIT, HYPERPARAMETER, MODEL_ID, TORCH_VERSION
from ..durations import SECOND_NS
from .run_batch import SCRIPT
from .runs import Run

Values = tuple[Any, ...]
"""The distinct values of a key in the sessions of a run; empty if none has the key."""

MODEL, FRAMEWORK, FINDING = "model", "framework", "finding"
OF_RECORDS: Final = frozenset({MODEL, FRAMEWORK, FINDING})
"""The keys that are looked up in a run's records if no resource has them."""
ATTRIBUTES: Final[dict[str, tuple[str, ...]]] = {
    MODEL: (
        "cirron.config.model.class", "cirron.config.model", "cirron.config.model_name_or_path",
        "cirron.config.model_name", "cirron.config.arch", MODEL_ID,
    ),
    "parameters": ("cirron.config.model.parameters", "cirron.config.parameters"),
    "precision": ("cirron.config.precision",),
    "host": ("host.name",),
    "user": ("process.owner", "user.name", "enduser.id"),
    "script": (SCRIPT,),
    "gpu": ("cirron.gpu.model",),
    "commit": (COMMIT,),
    "branch": (BRANCH,),
    "torch": (TORCH_VERSION,),
    "service": ("service.name",),
}  # fmt: skip
"""The resource attributes of a key; the first one that a resource has counts."""
_CONFIGURATIONS: Final = {
    "transformers": ("cirron.config.model.class", "cirron.config.num_train_epochs"),
    "lightning": ("cirron.config.model", "cirron.config.trainer.strategy"),
    "keras": ("cirron.config.model", "cirron.config.steps_per_execution"),
}
"""The attributes that the hooks of a trainer always record together."""
_PREFIXES: Final = ("", HYPERPARAMETER, "cirron.")
_SEPARATORS: Final = re.compile(r"[-_./:\s]+")
_MOST_VALUES: Final = 100
MOST_CHARACTERS: Final = 500


def _name(run: Run) -> str | None:
    short_id = run.id[:SHORT_ID_DIGITS]
    return None if run.name == short_id else run.name.removesuffix(f"-{short_id}")


def _prefix(run: Run) -> str | None:
    name = _name(run)
    return None if name is None else _SEPARATORS.split(name, maxsplit=1)[0] or name


def _date(run: Run, digits: int) -> str | None:
    if run.start_ns is None:
        return None
    try:
        began = datetime.fromtimestamp(run.start_ns // SECOND_NS, UTC)
    except (OverflowError, ValueError, OSError):
        return None
    return began.date().isoformat()[:digits]


_OF_RUN: Final[dict[str, Callable[[Run], Any]]] = {
    "name": _name,
    "prefix": _prefix,
    "status": lambda run: run.outcome,
    "ranks": lambda run: run.rank_count,
    "day": lambda run: _date(run, 10),
    "month": lambda run: _date(run, 7),
}
KEYS: Final = (*_OF_RUN, *ATTRIBUTES, FRAMEWORK, FINDING)
"""The keys other than the names of attributes."""


def value_of_run(key: str, run: Run) -> Values | None:
    """Return the value of a key that follows from a run itself; None for any other key."""
    if key not in _OF_RUN:
        return None
    value = _OF_RUN[key](run)
    return () if value is None else (_cut(value),)


def values_of(key: str, resources: Iterable[dict[str, Any]]) -> Values:
    """Return the distinct values of a key, in the order of `resources`, one for each session.

    At most 100 values, and strings of at most 500 characters.
    """
    if key == FRAMEWORK:
        return _framework(resources)
    if key == FINDING or key in _OF_RUN:
        return ()
    attributes = ATTRIBUTES.get(key) or tuple(prefix + key for prefix in _PREFIXES)
    distinct: dict[str, Any] = {}
    for resource in resources:
        value = next(
            (resource[each] for each in attributes if resource.get(each) is not None), None
        )
        if value is not None and len(distinct) < _MOST_VALUES:
            distinct.setdefault(f"{type(value).__name__} {value!a}", _cut(value))
    return tuple(distinct.values())


def _framework(resources: Iterable[dict[str, Any]]) -> Values:
    """Return the trainer whose configuration is recorded, else `torch` if its version is."""
    keys = {key for resource in resources for key in resource}
    for framework, configuration in _CONFIGURATIONS.items():
        if keys.issuperset(configuration):
            return (framework,)
    return ("torch",) if TORCH_VERSION in keys else ()


def _cut(value: Any) -> Any:
    if isinstance(value, (bool, int, float)):
        return value
    text = value if isinstance(value, str) else str(value)
    return text[:MOST_CHARACTERS]
