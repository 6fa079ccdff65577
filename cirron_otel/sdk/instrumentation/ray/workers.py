"""The sessions of the workers of a TorchTrainer, and of any other trainer of Ray Train."""

from __future__ import annotations

import sys
from typing import Any

from ...session.errors import record_error
from ...session.joining import inject
from ..patches import Patches
from .handover import ATTRIBUTE
from .runs import NAME, WorkerRuns, end_process


class WorkerHooks:
    """Replaces the methods that Ray calls in a worker process."""

    def __init__(self, patches: Patches, runs: WorkerRuns) -> None:
        self._patches, self._runs = patches, runs

    def worker(self, worker: Any) -> None:
        """Hook `RayTrainWorker`, the actor of Train V2."""
        self._patches.wrap(worker, "run_train_fn", self._run)
        self._patches.wrap(worker, "poll_status", self._poll)
        self._patches.wrap(worker, "shutdown", self._shutdown)

    def session(self, session: Any) -> None:
        """Hook `_TrainSession`, which runs the function in a worker of Train V1."""
        self._patches.wrap(session, "start", self._start)
        self._patches.wrap(session, "finish", self._finish)

    def _run(self, original: Any, worker: Any, args: Any, kwargs: Any) -> Any:
        try:
            module = sys.modules["ray.train.v2._internal.execution.context"]
            context = module.get_train_context()
            position, run = context.distributed_context, context.train_run_context
            attributes = {"ray.run": context.get_experiment_name()}
            self._runs.begin(
                position.world_rank, position.world_size, attributes, run.train_loop_config
            )
        except Exception as error:
            record_error(NAME, error)
        return original(worker, *args, **kwargs)

    def _poll(self, original: Any, worker: Any, args: Any, kwargs: Any) -> Any:
        status = original(worker, *args, **kwargs)
        try:
            if self._runs.process.is_begun:
                setattr(status, ATTRIBUTE, inject().get("traceparent", ""))
                if not status.running:
                    self._runs.process.end(getattr(status.error, "_base_exc", status.error))
        except Exception as error:
            record_error(NAME, error)
        return status

    def _shutdown(self, original: Any, worker: Any, args: Any, kwargs: Any) -> Any:
        end_process(self._runs.process)
        return original(worker, *args, **kwargs)

    def _start(self, original: Any, session: Any, args: Any, kwargs: Any) -> Any:
        try:
            if session.world_rank is not None:
                attributes = {"ray.run": session.experiment_name, "ray.trial": session.trial_id}
                self._runs.begin(session.world_rank, session.world_size, attributes)
        except Exception as error:
            record_error(NAME, error)
        return original(session, *args, **kwargs)

    def _finish(self, original: Any, session: Any, args: Any, kwargs: Any) -> Any:
        is_worker = session.world_rank is not None
        try:
            result = original(session, *args, **kwargs)
        except BaseException as error:
            if is_worker:
                end_process(self._runs.process, error.__cause__ or error)
            raise
        if is_worker:
            end_process(self._runs.process)
        return result
