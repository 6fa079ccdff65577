"""The resource of the SDK's provider, and the part of it that a batch contains.

It merges three sources, in ascending precedence: the host, the cluster, and the interpreter; OTel
Python's `Resource.create()`, which includes `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME`; and
Cirron's ids.
"""

from __future__ import annotations

import base64
import math
import os
import platform
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from opentelemetry.sdk.resources import Resource

from ... import semconv as sc
from ...core.config.options import Config
from ...ids import INT64_LIMIT
from ...semconv import (
    DEFAULT_SERVICE_NAME,
    DEPLOYMENT_ID,
    JOB_ID,
    MODEL_ID,
    PIPELINE_ID,
    RUN_ID,
    WORKSPACE_ID,
)
from ..tracing.state import state
from .detector import CirronDetector
from .identity import Identity
from .run_details import is_wanted, run_attributes
from .run_identity import RunIdentity

WORLD_SIZE: Final = "cirron.world_size"
LOCAL_RANK: Final = "cirron.local_rank"
NODE_RANK: Final = "cirron.node_rank"
RESTART_COUNT: Final = "cirron.restart_count"

# OTel Python's service name if none is configured.
_UNKNOWN_SERVICE: Final = "unknown_service"
_RECORDED: Final = frozenset({sc.PROCESS_PID, sc.RANK, sc.SESSION_ID})
"""Attributes that are already in the records; the translator reads them from there."""


def resource_of(
    config: Config,
    identity: Identity,
    session_id: str | None = None,
    run: RunIdentity | None = None,
    hyperparameters: Mapping[str, Any] | None = None,
) -> Resource:
    """Return the resource of a provider that the SDK creates.

    It reads the process's environment, as OTel Python's detectors do. `session_id` becomes
    `cirron.session.id`, for other exporters on the provider. Unless the environment sets the
    service name, it is the name of the run's script.
    """
    attributes = _cirron(config, identity, session_id)
    if run is not None:
        attributes |= run_attributes(run, config, hyperparameters)
    surroundings = {**CirronDetector().detect().attributes, **_process()}
    detected = {key: value for key, value in surroundings.items() if is_wanted(key, config)}
    merged = Resource(detected).merge(Resource.create(attributes))
    if str(merged.attributes.get(sc.SERVICE_NAME, "")).startswith(_UNKNOWN_SERVICE):
        service = DEFAULT_SERVICE_NAME if run is None else run.script
        merged = merged.merge(Resource({sc.SERVICE_NAME: service}))
    return merged


def batch_attributes(resource: Resource) -> dict[str, Any]:
    """Return the `otel.resource.attributes` of a batch as plain JSON values.

    The process id, the rank, and the session are omitted because the batch's records contain them.
    Invalid UTF-8 is repaired. Bytes become base64, NaN and infinities their names, and integers
    beyond 64 bits their digits, because JSON and OTLP cannot represent them.
    """
    attributes = resource.attributes.items()
    return {_clean(key): _plain(value) for key, value in attributes if key not in _RECORDED}


def _process() -> dict[str, str]:
    return {
        "host.name": _host_name(),
        "process.runtime.name": sys.implementation.name,
        "process.runtime.version": platform.python_version(),
        "process.runtime.description": " ".join(sys.version.split()),
    }


def _host_name() -> str:
    try:
        return socket.gethostname()
    except OSError:
        return os.environ.get("HOSTNAME", "")


def _cirron(config: Config, identity: Identity, session_id: str | None) -> dict[str, Any]:
    values: dict[str, str | int | None] = {
        WORKSPACE_ID: config.workspace_id,
        RUN_ID: config.run_id,
        PIPELINE_ID: config.pipeline_id,
        DEPLOYMENT_ID: config.deployment_id,
        MODEL_ID: config.model_id,
        JOB_ID: identity.job_id,
        RESTART_COUNT: identity.restart_count or None,
        sc.SESSION_ID: session_id,
    }
    known = {
        key: _clean(value) if isinstance(value, str) else value
        for key, value in values.items()
        if value is not None
    }
    return known | rank_attributes(identity)


def rank_attributes(identity: Identity) -> dict[str, str | int]:
    """Return the known resource attributes of a process's position in its job."""
    values = {
        WORLD_SIZE: identity.world_size if identity.rank is not None else None,
        LOCAL_RANK: identity.local_rank,
        NODE_RANK: identity.node_rank,
        sc.RANK: identity.rank,
    }
    return {key: value for key, value in values.items() if value is not None}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _clean(value)
    if isinstance(value, int):
        return value if -INT64_LIMIT <= value < INT64_LIMIT else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Mapping):
        return {_clean(str(key)): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return _clean(str(value))


def _clean(text: str) -> str:
    """Replace bytes that are not UTF-8; Python represents them as lone surrogates."""
    return text.encode("utf-8", "replace").decode("utf-8")


class SessionResource:
    """The resource of a session's batches; attributes may be added while the session is open."""

    def __init__(self, resource: Resource, changed: Callable[[dict[str, Any]], None]) -> None:
        """`changed` is called after each change with the attributes that batches contain."""
        self.value = resource
        self._changed = changed
        self._lock = threading.Lock()

    def merge(self, resource: Resource) -> None:
        """Add another resource, whose attributes take precedence, to all batches from now on."""
        with self._lock:
            self.value = self.value.merge(resource)
            state.resource = self.value
            self._changed(batch_attributes(self.value))

    def add(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes to the resource of all batches from now on."""
        if attributes:
            self.merge(Resource(attributes))
