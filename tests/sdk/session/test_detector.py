"""The resource detector: what launchers, clusters and drivers say, as attributes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry.sdk.resources import Resource

from cirron_otel.sdk.session.resource import CirronDetector, surroundings
from tests.kit.sessions.processes import environment


def gpu(root: Path, place: str, model: str) -> None:
    """As NVIDIA's driver shows one."""
    path = root / "proc/driver/nvidia/gpus" / place / "information"
    path.parent.mkdir(parents=True)
    path.write_text(f"Model: \t\t {model}\nIRQ:   \t\t 46\nGPU UUID: \t GPU-1\n")


def test_a_process_like_any_has_none(tmp_path: Path) -> None:
    assert surroundings({"HOSTNAME": "laptop", "JOB_NAME": "x"}, tmp_path) == {}


def test_slurm_job_is_detected(tmp_path: Path) -> None:
    environ = {
        "SLURM_JOB_ID": "17", "SLURM_JOB_NAME": "train", "SLURM_JOB_PARTITION": "gpu",
        "SLURM_CLUSTER_NAME": "alps", "SLURM_JOB_NODELIST": "n[1-2]", "SLURMD_NODENAME": "n1",
        "SLURM_PROCID": "3", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "4",
    }  # fmt: skip
    assert surroundings(environ, tmp_path) == {
        "cirron.launcher": "slurm",
        "cirron.slurm.job.id": "17",
        "cirron.slurm.job.name": "train",
        "cirron.slurm.partition": "gpu",
        "cirron.slurm.cluster.name": "alps",
        "cirron.slurm.node_list": "n[1-2]",
        "cirron.slurm.node.name": "n1",
    }
    del environ["SLURM_JOB_ID"]
    assert surroundings(environ, tmp_path) == {"cirron.launcher": "slurm"}


def test_kubernetes_pod_is_detected(tmp_path: Path) -> None:
    account = tmp_path / "var/run/secrets/kubernetes.io/serviceaccount"
    account.mkdir(parents=True)
    (account / "namespace").write_text("research\n")
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "train-0", "RANK": "1"}
    found = {"cirron.launcher": "torchrun", "k8s.pod.name": "train-0"}
    assert surroundings(environ, tmp_path) == found | {"k8s.namespace.name": "research"}
    environ |= {"POD_NAME": "pod", "POD_NAMESPACE": "other", "NODE_NAME": "n1"}
    assert surroundings(environ, tmp_path) == found | {
        "k8s.pod.name": "pod", "k8s.namespace.name": "other", "k8s.node.name": "n1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("visible", "model", "count"),
    [
        (None, "NVIDIA H200, NVIDIA T4", 3),
        ("1", "NVIDIA H200", 1),
        ("2,0", "NVIDIA T4, NVIDIA H200", 2),
        ("0,7,1", "NVIDIA H200", 1),
        ("GPU-8932f937,MIG-1", "NVIDIA H200", 2),
        ("", None, None),
        ("-1", None, None),
        ("1," + "9" * 5000, "NVIDIA H200", 1),
    ],
)
def test_gpus_are_those_that_are_visible(
    tmp_path: Path, visible: str | None, model: str | None, count: int | None
) -> None:
    for place, name in (("0000:01:00.0", "H200"), ("0000:02:00.0", "H200"), ("0000:03:00.0", "T4")):
        gpu(tmp_path, place, f"NVIDIA {name}")
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    expected = {} if model is None else {"cirron.gpu.model": model, "cirron.gpu.count": count}
    assert surroundings(environ, tmp_path) == expected


def test_gpus_of_amd(tmp_path: Path) -> None:
    for number, simds, name in ((0, 0, ""), (1, 304, "gfx942")):
        path = tmp_path / "sys/class/kfd/kfd/topology/nodes" / str(number)
        path.mkdir(parents=True)
        (path / "properties").write_text(f"cpu_cores_count 0\nsimd_count {simds}\n")
        (path / "name").write_text(f"{name}\n")
    assert surroundings({}, tmp_path) == {"cirron.gpu.model": "gfx942", "cirron.gpu.count": 1}


def test_hostile_values_are_attributes_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "x")
    monkeypatch.setenv("POD_NAME", os.fsdecode(b"\xff" * 5000))
    found = CirronDetector().detect()
    assert isinstance(found, Resource)
    assert found.attributes["k8s.pod.name"] == "?" * 256


def test_opentelemetry_finds_it_by_its_name() -> None:
    program = (
        "from opentelemetry.sdk.resources import Resource\n"
        "found = Resource.create().attributes\n"
        "print(found['cirron.slurm.job.id'], found['telemetry.sdk.language'])"
    )
    env = environment(OTEL_EXPERIMENTAL_RESOURCE_DETECTORS="cirron", SLURM_JOB_ID="17")
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == "17 python\n"
