"""The losses of a run, which the report lists apart from the other marks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ..records.rows import number_of
from .mark_series import MarkSeries

LOSSES = frozenset({
    "loss", "train_loss", "eval_loss", "val_loss", "valid_loss", "validation_loss", "test_loss",
})  # fmt: skip
"""The names of marks that are losses, without a prefix such as `train/`."""
_EVALUATIONS: Final = frozenset({"eval", "evaluation", "val", "valid", "validation", "test"})
_TRAINING: Final = frozenset({"loss", "train_loss", "loss/train", "loss/training", "losses/train"})


def is_loss(name: str) -> bool:
    """Return whether a mark is a loss, such as `eval/loss`, or `Loss/train` of TensorBoard."""
    head, _, last = name.lower().rpartition("/")
    return last in LOSSES or head in ("loss", "losses")


def is_evaluation(metric: LossMetric) -> bool:
    """Return whether a loss is that of evaluations, by its name or by its scopes."""
    name = metric.name.lower()
    is_training = name in _TRAINING or name.rpartition("/")[2] in _TRAINING
    return metric.is_eval or not is_training or name.rpartition("/")[0] in _EVALUATIONS


@dataclass(slots=True)
class LossMetric:
    """A loss over the run."""

    name: str
    is_eval: bool
    """Whether the marks were created during evaluations."""
    ranks: list[int | None]
    """The ranks that have these values; ranks whose values differ have a metric of their own."""
    count: int
    first: float | None
    last: float | None
    """The first and the last value; None if that is not a finite number."""
    best: float | None
    """The lowest finite value."""

    @property
    def title(self) -> str:
        """The name, with `(eval)` for a name that evaluations share with the training."""
        has_suffix = self.is_eval and self.name.rpartition("/")[2] == "loss"
        return f"{self.name} (eval)" if has_suffix else self.name


def losses(series: Iterable[MarkSeries]) -> list[LossMetric]:
    """Return the losses among the series of marks; ranks with the same values share a metric."""
    metrics: dict[tuple[object, ...], LossMetric] = {}
    for each in series:
        if not is_loss(each.name):
            continue
        key = (each.name, each.is_eval, each.count, each.first, each.last, each.min)
        metric = metrics.get(key)
        if metric is None:
            metrics[key] = LossMetric(
                each.name, each.is_eval, [each.rank], each.count,
                number_of(each.first), number_of(each.last), each.min,
            )  # fmt: skip
        else:
            metric.ranks.append(each.rank)
    return sorted(metrics.values(), key=lambda metric: (metric.is_eval, metric.name))
