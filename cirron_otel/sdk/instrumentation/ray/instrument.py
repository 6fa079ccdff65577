"""The hooks into Ray of one session."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ...session.errors import record_error
from ..base import (
    FrameworkHooks,
    HookContext,
    Part,
    RankCallback,
    SessionAccess,
    install_parts,
)
from ..patches import Patches
from .controller import ControllerHooks
from .fits import FitHooks
from .reports import ReportHooks
from .runs import NAME, WorkerRuns
from .trainables import TrainableHooks
from .trials import TrialHooks
from .workers import WorkerHooks


class RayHooks(FrameworkHooks):
    """The hooks of one session, which are installed once and removed once."""

    def __init__(self) -> None:
        self.patches = Patches()
        self.runs: WorkerRuns | None = None
        self.trials = TrialHooks(self.patches)
        self.not_recorded: list[str] = []
        """The parts that this version of Ray does not allow to be hooked."""

    def install(self, context: HookContext) -> None:
        """Hook each module of Ray once it is imported: a process imports only some of them."""
        if context.process is None:
            return
        for module, parts in self._parts(context.process).items():
            context.on_import(module, partial(self._install, parts))

    def _parts(self, process: SessionAccess) -> dict[str, Callable[[Any], list[Part]]]:
        """Return the functions that return the parts of a module, by the module's name."""
        self.runs = WorkerRuns(process)
        fits, reports = FitHooks(self.patches, process, self.trials), ReportHooks(self.patches)
        workers, trainables = (
            WorkerHooks(self.patches, self.runs),
            TrainableHooks(self.patches, process),
        )
        controller = ControllerHooks(self.patches)
        group = "ray.train.v2._internal.execution.worker_group"
        return {
            "ray.train.v2.api.data_parallel_trainer": lambda module: [
                ("fit", lambda: fits.trainer(module.DataParallelTrainer)),
                ("trace context of workers", lambda: fits.controller_environment(module)),
            ],
            "ray.train.base_trainer": lambda module: [
                ("fit of Train V1", lambda: fits.trainer(module.BaseTrainer))
            ],
            "ray.tune.tuner": lambda module: [("tune", lambda: fits.tuner(module.Tuner))],
            "ray.tune.tune": lambda module: [("tune.run", lambda: fits.tune_run(module))],
            "ray.tune.execution.class_cache": lambda module: [
                ("trace context of trials", lambda: fits.trial_environment(module))
            ],
            "ray.tune.experiment.trial": lambda module: [
                ("trial", lambda: self.trials.trial(module.Trial, module._TrialInfo))
            ],
            "ray.tune.execution.tune_controller": lambda module: [
                ("stopped", lambda: self.trials.controller(module.TuneController))
            ],
            "ray.train.v2._internal.execution.train_fn_utils": lambda module: [
                ("report", lambda: reports.train(module))
            ],
            "ray.train._internal.session": lambda module: [
                ("report of Tune", lambda: reports.session(module._TrainSession)),
                ("workers of Train V1", lambda: workers.session(module._TrainSession)),
            ],
            f"{group}.worker": lambda module: [
                ("workers", lambda: workers.worker(module.RayTrainWorker))
            ],
            f"{group}.worker_group": lambda module: [
                ("restarts", lambda: controller.worker_group(module.WorkerGroup))
            ],
            "ray.tune.trainable.trainable": lambda module: [
                ("processes of trials", lambda: trainables.trainable(module.Trainable)),
                ("iteration", lambda: trainables.iterations(module.Trainable)),
            ],
        }

    def _install(self, parts: Callable[[Any], list[Part]], module: Any) -> None:
        self.not_recorded += install_parts(NAME, parts(module))
        self.patches.replace_copies()

    def ask_rank(self, callback: RankCallback) -> None:
        """Call `callback` when the training function of a worker begins."""
        if self.runs is not None:
            self.runs.rank_found = callback

    def health(self) -> dict[str, Any]:
        """Return the parts that are not recorded."""
        return {"not_recorded": list(self.not_recorded)}

    def remove(self) -> None:
        """Remove every hook, and close the open scopes. Raises nothing."""
        try:
            self.trials.end_all()
            self.patches.undo()
            self.patches.restore_all_copies()
        except Exception as error:
            record_error(NAME, error)
