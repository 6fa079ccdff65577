"""The resource of the SDK's provider, and the part of it that a batch contains.

The resource merges three sources, in ascending precedence: the host, the cluster, and the
interpreter; OTel Python's `Resource.create()`, which includes `OTEL_RESOURCE_ATTRIBUTES` and
`OTEL_SERVICE_NAME`; and Cirron's ids.

"""

from __future__ import annotations

import base64
import math
import os
import platform
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from opentelemetry.sdk.resources import Resource, ResourceDetector

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
from .errors import record_error
from .identity import Identity
from .run_details import is_wanted, run_attributes
from .run_identity import RunIdentity

LAUNCHER: Final = "cirron.launcher"
GPU_MODEL: Final = "cirron.gpu.model"
GPU_COUNT: Final = "cirron.gpu.count"

_SLURM: Final = {
    "SLURM_JOB_ID": "cirron.slurm.job.id",
    "SLURM_JOB_NAME": "cirron.slurm.job.name",
    "SLURM_CLUSTER_NAME": "cirron.slurm.cluster.name",
    "SLURM_JOB_PARTITION": "cirron.slurm.partition",
    "SLURM_JOB_NODELIST": "cirron.slurm.node_list",
    "SLURM_ARRAY_JOB_ID": "cirron.slurm.array.job.id",
    "SLURM_ARRAY_TASK_ID": "cirron.slurm.array.task.id",
    "SLURMD_NODENAME": "cirron.slurm.node.name",
}
_IN_CLUSTER = "KUBERNETES_SERVICE_HOST"
# The variables that manifests customarily use for these fields (the downward API defines none), in
# order of precedence.
_KUBERNETES: Final = {
    "k8s.pod.name": ("K8S_POD_NAME", "POD_NAME", "HOSTNAME"),
    "k8s.pod.uid": ("K8S_POD_UID", "POD_UID"),
    "k8s.namespace.name": ("K8S_NAMESPACE_NAME", "K8S_NAMESPACE", "POD_NAMESPACE"),
    "k8s.node.name": ("K8S_NODE_NAME", "NODE_NAME"),
    "k8s.container.name": ("K8S_CONTAINER_NAME", "CONTAINER_NAME"),
    "k8s.job.name": ("K8S_JOB_NAME", "JOB_NAME"),
}
_NAMESPACE = "var/run/secrets/kubernetes.io/serviceaccount/namespace"
_NVIDIA = "proc/driver/nvidia/gpus"
_NVIDIA_MODEL = re.compile(r"^Model:\s*(.+?)\s*$", re.MULTILINE)
_AMD = "sys/class/kfd/kfd/topology/nodes"
_MOST_BYTES = 4096
_MOST_CHARACTERS = 256
_MOST_DIGITS = 9
_UNKNOWN_AMD = "AMD GPU"


class CirronDetector(ResourceDetector):
    """An OpenTelemetry resource detector for the launcher, the cluster, and the GPUs.

    It is an entry point, which `OTEL_EXPERIMENTAL_RESOURCE_DETECTORS=cirron` enables. Attributes
    use OpenTelemetry's names where it defines them (semantic conventions, k8s), and `cirron.*`
    otherwise. The detector reads only environment variables and files of the kernel and of the pod;
    it uses no network, starts no process, and does not access the device.
    """

    def detect(self) -> Resource:
        """Return the resource of this process. Raises nothing."""
        try:
            return Resource(dict(surroundings(os.environ)))
        except Exception as error:
            record_error("resource", error)
            return Resource({})


def surroundings(environ: Mapping[str, str], root: Path = Path("/")) -> dict[str, str | int]:
    """Return the detector's attributes, from variables in `environ` and files below `root`."""
    source = Identity.from_environment(environ).source
    attributes: dict[str, str | int] = {} if source == "none" else {LAUNCHER: source}
    for variable, name in _SLURM.items():
        if environ.get("SLURM_JOB_ID") and environ.get(variable):
            attributes[name] = _shortened(environ[variable])
    if environ.get(_IN_CLUSTER):
        attributes |= _kubernetes(environ, root)
    return attributes | _gpus(environ, root)


def _kubernetes(environ: Mapping[str, str], root: Path) -> dict[str, str]:
    attributes = {}
    for name, variables in _KUBERNETES.items():
        values = (environ.get(variable) for variable in variables)
        value = next((value for value in values if value), None)
        if value is None and name == "k8s.namespace.name":
            value = _text(root / _NAMESPACE)
        if value:
            attributes[name] = _shortened(value)
    return attributes


def _gpus(environ: Mapping[str, str], root: Path) -> dict[str, str | int]:
    """Return the model and the count of the GPUs that the process may use.

    Several models are joined with commas. Numbers in `CUDA_VISIBLE_DEVICES` select devices; an id
    of a device or of a device's partition only counts as one more device.
    """
    models = [*_nvidia(root)]
    models = _visible(models, environ.get("CUDA_VISIBLE_DEVICES")) if models else [*_amd(root)]
    if not models:
        return {}
    return {GPU_MODEL: _shortened(", ".join(dict.fromkeys(models))), GPU_COUNT: len(models)}


def _visible(models: list[str], listed: str | None) -> list[str]:
    if listed is None:
        return models
    visible = []
    for each in filter(None, map(str.strip, listed.split(","))):
        if not each.isdecimal():
            if each.startswith("-"):
                break
            visible.append(models[0])
        elif len(each) < _MOST_DIGITS and int(each) < len(models):
            visible.append(models[int(each)])
        else:
            break  # CUDA ignores everything after an invalid number
    return visible


def _nvidia(root: Path) -> Iterator[str]:
    """Yield the models in PCI bus order, as nvidia-smi lists them."""
    for path in sorted((root / _NVIDIA).glob("*/information")):
        match = _NVIDIA_MODEL.search(_text(path))
        if match:
            yield match[1]


def _amd(root: Path) -> Iterator[str]:
    """Yield the models; nodes of the kernel's topology that have SIMDs are GPUs."""
    for path in sorted((root / _AMD).glob("*/properties")):
        if re.search(r"^simd_count [1-9]", _text(path), re.MULTILINE):
            yield _text(path.with_name("name")) or _UNKNOWN_AMD


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode(errors="replace").strip()
    except OSError:
        return ""


def _shortened(text: str) -> str:
    """Replace bytes that are not UTF-8, and cut the text to its maximum length."""
    return _clean(text)[:_MOST_CHARACTERS]


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
    Invalid UTF-8 is repaired. Values that JSON or OTLP cannot represent become text: bytes become
    base64, NaN and infinities their names, and integers beyond 64 bits their digits.
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
    """Return the resource attributes of a process's position in its job, if they are known."""
    values = {
        sc.WORLD_SIZE: identity.world_size if identity.rank is not None else None,
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

    def add(self, attributes: Mapping[str, Any], without: str | None = None) -> None:
        """Add attributes to the resource of all batches from now on, and remove one of them."""
        if without is not None:
            rest = {k: v for k, v in self.value.attributes.items() if k != without}
            self.value = Resource(rest, self.value.schema_url)
        if attributes:
            self.merge(Resource(attributes))
