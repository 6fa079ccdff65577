"""The loss by which runs are compared, and the settings in which they differ."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...semconv import CONFIGURATION, HYPERPARAMETER
from .metrics import LossMetric, is_evaluation


def shared_losses(losses: Mapping[str, Sequence[LossMetric]]) -> dict[str, LossMetric]:
    """Return the same loss of each run that has it, by the id of the run.

    It is the loss of evaluations that most runs have, if at least half of the runs with a loss have
    it; else the loss of the training that most have. Of equally frequent names, the one without a
    prefix counts, then the shortest. Of ranks with different values, the first one counts.
    """
    counts: Counter[tuple[bool, str, bool]] = Counter()
    for metrics in losses.values():
        counts.update({(is_evaluation(each), each.name, each.is_eval) for each in metrics})
    if not counts:
        return {}
    half = sum(bool(metrics) for metrics in losses.values()) / 2
    wanted = min(counts, key=lambda key: (
        not (key[0] and counts[key] >= half), key[0], -counts[key], "/" in key[1], len(key[1]), key
    ))  # fmt: skip
    found = {}
    for run, metrics in losses.items():
        same = [e for e in metrics if (is_evaluation(e), e.name, e.is_eval) == wanted]
        if same:
            found[run] = same[0]
    return found


def loss_order(metric: LossMetric | None) -> float:
    """Return the key by which runs are sorted, the best first.

    It is the lowest loss of evaluations, or the last loss of the training. A run without a finite
    value comes last.
    """
    value = None
    if metric is not None:
        value = metric.best if is_evaluation(metric) else metric.last
    return math.inf if value is None or not math.isfinite(value) else value


def differing_settings(resources: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the hyperparameters and the settings of the training that differ between runs.

    A run that lacks one differs from a run that has it. Hyperparameters come first.
    """
    names = settings_of(resources)
    return [name for name in names if len({repr(each.get(name)) for each in resources}) > 1]


def short_name(setting: str) -> str:
    """Return the name of a setting without the prefix that hyperparameters or others have."""
    return setting.removeprefix(HYPERPARAMETER).removeprefix("cirron.")


def setting_text(value: Any) -> str:
    """Return the value of a setting as text; `-` for None."""
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def only_settings(resource: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hyperparameters and the settings of the training among some attributes."""
    return {name: resource[name] for name in _settings(resource)}


def settings_of(resources: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the hyperparameters and the settings of the training that any run has, in order."""
    names = {name for resource in resources for name in _settings(resource)}
    return sorted(names, key=lambda name: (name in CONFIGURATION, name))


def _settings(resource: Mapping[str, Any]) -> Iterator[str]:
    return (name for name in resource if name in CONFIGURATION or name.startswith(HYPERPARAMETER))
