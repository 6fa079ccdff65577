"""The controller of a training with Train V2, an actor that starts the workers again."""

from __future__ import annotations

import functools
import json
import os
from typing import Any

from ...session.errors import record_error
from ...tracing.hidden_frames import strip
from ..patches import Patches
from .handover import ATTEMPT, ATTRIBUTE, PATH, PREVIOUS, of_job
from .runs import NAME


class ControllerHooks:
    """Replaces methods of `WorkerGroup`. They run in the controller's process only."""

    def __init__(self, patches: Patches) -> None:
        self._patches = patches
        self._started = 0
        self._previous: dict[str, str] = {}
        """The trace contexts of the workers' sessions, by world rank."""

    def worker_group(self, group: Any) -> None:
        """Hook the environment and the status of workers."""
        original = group._get_worker_runtime_env

        @functools.wraps(original)
        def get_worker_runtime_env(*args: Any, **kwargs: Any) -> Any:
            try:
                runtime_env = original(*args, **kwargs)
                self._extend(runtime_env)
                return runtime_env
            except BaseException as error:
                strip(error)
                raise

        self._patches.replace(
            group, "_get_worker_runtime_env", staticmethod(get_worker_runtime_env)
        )
        self._patches.wrap(group, "poll_status", self._poll)

    def _extend(self, runtime_env: Any) -> None:
        """Add the sessions before a restart; retain the hooks if the user sets PYTHONPATH."""
        try:
            env_vars = runtime_env["env_vars"]
            if PATH in env_vars and of_job("TRACEPARENT"):
                hooks = of_job(PATH).split(os.pathsep)[0]
                env_vars[PATH] = f"{hooks}{os.pathsep}{env_vars[PATH]}"
            if self._started:
                env_vars[ATTEMPT] = str(self._started)
                env_vars[PREVIOUS] = json.dumps(self._previous)
            self._started += 1
        except Exception as error:
            record_error(NAME, error)

    def _poll(self, original: Any, group: Any, args: Any, kwargs: Any) -> Any:
        result = original(group, *args, **kwargs)
        try:
            for rank, status in result.worker_statuses.items():
                found = status.__dict__.pop(ATTRIBUTE, "")
                if found:
                    self._previous[str(rank)] = found
        except Exception as error:
            record_error(NAME, error)
        return result
