"""Hand the trace over to the processes that Ray starts, in their runtime environment."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

from ..base import SessionAccess

PATH: Final = "PYTHONPATH"
ATTEMPT: Final = "CIRRON_OTEL_RAY_ATTEMPT"
"""The number of times that Ray has started the workers of a run again."""
PREVIOUS: Final = "CIRRON_OTEL_RAY_PREVIOUS"
"""The trace contexts of the sessions before a restart: a JSON object by world rank."""
ATTRIBUTE: Final = "_cirron_otel"
"""The attribute with which Ray's own messages carry trace contexts between its processes."""


def runtime_variables(process: SessionAccess, user: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a runtime environment needs, and those of `user`."""
    own = dict(user)
    if PATH not in own and of_job(PATH):
        own[PATH] = of_job(PATH)
    return {**user, **process.variables(own)}


def of_job(name: str) -> str:
    """Return a variable of the runtime environment that this process runs in, or an empty text.

    Ray is not initialised for it.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return ""
    found = ray.get_runtime_context().runtime_env.get("env_vars") or {}
    return str(found.get(name, ""))
