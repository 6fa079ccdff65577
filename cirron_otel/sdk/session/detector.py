"""The OpenTelemetry resource detector `cirron`: a process's position in a cluster, and its GPUs.

Names are OpenTelemetry's if it defines one (semantic conventions, k8s), otherwise `cirron.*`. The
detector reads only the environment and files of the kernel and of the pod; it uses no network,
starts no process, and does not access the device.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from opentelemetry.sdk.resources import Resource, ResourceDetector

from .errors import record_error
from .identity import Identity

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
    """The entry point; `OTEL_EXPERIMENTAL_RESOURCE_DETECTORS=cirron` enables it."""

    def detect(self) -> Resource:
        """Return the resource of this process. Raises nothing."""
        try:
            return Resource(dict(surroundings(os.environ)))
        except Exception as error:
            record_error("resource", error)
            return Resource({})


def surroundings(environ: Mapping[str, str], root: Path = Path("/")) -> dict[str, str | int]:
    """Return the attributes, from the variables in `environ` and the files below `root`."""
    source = Identity.from_environment(environ).source
    attributes: dict[str, str | int] = {} if source == "none" else {LAUNCHER: source}
    for variable, name in _SLURM.items():
        if environ.get("SLURM_JOB_ID") and environ.get(variable):
            attributes[name] = _clean(environ[variable])
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
            attributes[name] = _clean(value)
    return attributes


def _gpus(environ: Mapping[str, str], root: Path) -> dict[str, str | int]:
    """Return the model and the number of the GPUs that the process may use.

    Several models are joined with commas. Numbers in `CUDA_VISIBLE_DEVICES` select devices; ids of
    devices and of their partitions only determine how many there are.
    """
    models = [*_nvidia(root)]
    models = _visible(models, environ.get("CUDA_VISIBLE_DEVICES")) if models else [*_amd(root)]
    if not models:
        return {}
    return {GPU_MODEL: _clean(", ".join(dict.fromkeys(models))), GPU_COUNT: len(models)}


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
    """Yield the models in the order of the bus, as nvidia-smi lists them."""
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


def _clean(text: str) -> str:
    """Replace bytes that are not UTF-8; Python represents them as lone surrogates."""
    return text.encode("utf-8", "replace").decode("utf-8")[:_MOST_CHARACTERS]
