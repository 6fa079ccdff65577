"""The position of this process in its job, from the environment variables of launchers.

In order of precedence: torchrun (and everything that sets its variables: Kubeflow, DeepSpeed,
Accelerate, Ray), Open MPI and launchers with PMIx or PMI, Slurm, Kubernetes. The first launcher
that sets a rank determines all values except the job id: that is the first one that any launcher
sets. A value that is not a number counts as unset.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

_NUMBER = re.compile(r"[0-9]{1,9}")
# torchrun's default for `--rdzv-id`.
_NO_RUN_ID = "none"
# Steps that srun does not start: batch, interactive, extern (slurm.h, SLURM_BATCH_SCRIPT …).
_FIRST_SPECIAL_STEP = 0xFFFFFFF0
_STEP = re.compile(r"[0-9]{1,10}")
_SLURM_NAMESPACE = "slurm."
NO_SOURCE: Final = "none"
"""The source of an identity if no launcher sets one."""
TORCH_DISTRIBUTED: Final = "torch.distributed"


@dataclass(frozen=True, slots=True)
class Identity:
    """The position of a process in its job."""

    rank: int | None = 0
    """None if this process starts the job's processes and is not one of them."""
    local_rank: int | None = None
    """The rank among the processes of the same node; None if it is unknown."""
    world_size: int = 1
    """Number of processes in the job, or the smallest possible number if it is unknown."""
    job_id: str | None = None
    """The launcher's name for the job.

    It is not unique: torchrun's is user input and often the same for each run. Never derive an id
    from it alone.
    """
    node_rank: int | None = None
    restart_count: int = 0
    """Number of times that the launcher has restarted the job's processes."""
    source: str = NO_SOURCE
    """The source of the rank: torchrun, openmpi, pmix, pmi, slurm, kubernetes, torch.distributed,
    or none."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Identity:
        """Read the launchers' variables in `environ`. Raises nothing."""
        job_id = _job_id(environ)
        for source, read in _LAUNCHERS.items():
            values = read(environ)
            if values is not None:
                return _checked(source, values, job_id)
        return cls(job_id=job_id)


_Found = dict[str, int | None]


def _checked(source: str, values: _Found, job_id: str | None) -> Identity:
    rank = values["rank"] or 0
    size = values.get("world_size")
    world_size = size if size is not None and size > rank else rank + 1
    local_rank = values.get("local_rank")
    return Identity(
        rank=rank,
        local_rank=local_rank if local_rank is not None and local_rank < world_size else None,
        world_size=world_size,
        job_id=job_id,
        node_rank=values.get("node_rank"),
        restart_count=values.get("restart_count") or 0,
        source=source,
    )


def _number(environ: Mapping[str, str], *variables: str) -> int | None:
    """Return the first variable that is a number from 0 to 999,999,999."""
    for variable in variables:
        text = environ.get(variable, "").strip()
        if _NUMBER.fullmatch(text):
            return int(text)
    return None


def _torchrun(environ: Mapping[str, str]) -> _Found | None:
    # LOCAL_RANK without RANK means a job on one node, as in cirron-sdk.
    local_rank = _number(environ, "LOCAL_RANK")
    rank = _number(environ, "RANK")
    if rank is None and not environ.get("RANK") and not _number(environ, "NODE_RANK", "GROUP_RANK"):
        rank = local_rank
    if rank is None:
        return None
    return {
        "rank": rank,
        "local_rank": local_rank,
        "world_size": _number(environ, "WORLD_SIZE"),
        "node_rank": _number(environ, "GROUP_RANK", "NODE_RANK"),
        "restart_count": _number(environ, "TORCHELASTIC_RESTART_COUNT"),
    }


def _openmpi(environ: Mapping[str, str]) -> _Found | None:
    rank = _number(environ, "OMPI_COMM_WORLD_RANK")
    if rank is None:
        return None
    # OMPI_COMM_WORLD_NODE_RANK counts processes on a node, not nodes.
    return {
        "rank": rank,
        "local_rank": _number(environ, "OMPI_COMM_WORLD_LOCAL_RANK"),
        "world_size": _number(environ, "OMPI_COMM_WORLD_SIZE"),
    }


def _pmix(environ: Mapping[str, str]) -> _Found | None:
    rank = _number(environ, "PMIX_RANK")
    # PMIx sets no world size; if srun is the PMIx server, Slurm's variables contain it.
    return None if rank is None else _within_slurm(environ) | {"rank": rank}


def _pmi(environ: Mapping[str, str]) -> _Found | None:
    rank = _number(environ, "PMI_RANK")
    if rank is None:
        return None
    values: _Found = {
        "rank": rank,
        "world_size": _number(environ, "PMI_SIZE"),
        "local_rank": _number(environ, "MPI_LOCALRANKID", "PMI_LOCAL_RANK"),
    }
    return _within_slurm(environ) | {k: v for k, v in values.items() if v is not None}


def _within_slurm(environ: Mapping[str, str]) -> _Found:
    return _slurm(environ) or {}


def _slurm(environ: Mapping[str, str]) -> _Found | None:
    rank = _number(environ, "SLURM_PROCID")
    # The shell of a batch script also has SLURM_PROCID=0 and SLURM_NTASKS=n, but is not a task.
    if rank is None or not _is_in_step(environ):
        return None
    return {
        "rank": rank,
        "local_rank": _number(environ, "SLURM_LOCALID"),
        "world_size": _number(environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"),
        "node_rank": _number(environ, "SLURM_NODEID"),
        "restart_count": _number(environ, "SLURM_RESTART_COUNT"),
    }


def _is_in_step(environ: Mapping[str, str]) -> bool:
    step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID") or ""
    return bool(_STEP.fullmatch(step)) and int(step) < _FIRST_SPECIAL_STEP


def slurm_step(environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the job and the srun step that a process belongs to; None outside of a step."""
    job = environ.get("SLURM_JOB_ID", "").strip()
    step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID") or ""
    return (job, step) if job and _slurm(environ) is not None else None


def _kubernetes(environ: Mapping[str, str]) -> _Found | None:
    rank = _number(environ, "JOB_COMPLETION_INDEX")
    if rank is None:
        return None
    return {"rank": rank, "world_size": _number(environ, "WORLD_SIZE")}


_LAUNCHERS: Final[dict[str, Callable[[Mapping[str, str]], _Found | None]]] = {
    "torchrun": _torchrun,
    "openmpi": _openmpi,
    "pmix": _pmix,
    "pmi": _pmi,
    "slurm": _slurm,
    "kubernetes": _kubernetes,
}


def _job_id(environ: Mapping[str, str]) -> str | None:
    run_id = environ.get("TORCHELASTIC_RUN_ID", "").strip()
    namespace = environ.get("PMIX_NAMESPACE", "").strip()
    candidates = (
        "" if run_id.lower() == _NO_RUN_ID else run_id,
        # Under srun, the namespace contains Slurm's job and step; the job id is read below.
        "" if namespace.startswith(_SLURM_NAMESPACE) else namespace,
        environ.get("SLURM_JOB_ID", "").strip(),
        _kubernetes_job(environ),
    )
    return next((each for each in candidates if each), None)


def _kubernetes_job(environ: Mapping[str, str]) -> str:
    """Return the name of an indexed Job; its pods are named `<job>-<index>[-<random>]`."""
    index = environ.get("JOB_COMPLETION_INDEX", "").strip()
    if not _NUMBER.fullmatch(index):
        return ""
    for variable in ("POD_NAME", "HOSTNAME"):
        match = re.fullmatch(rf"(.+)-{index}(?:-[a-z0-9]{{5}})?", environ.get(variable, "").strip())
        if match:
            return match[1]
    return ""
