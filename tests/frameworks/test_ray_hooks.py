"""The hooks into Ray in a process that starts no cluster: they are removed, and parts may fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.conftest import leave_out
from tests.environments import EnvironmentUnavailableError, run_in
from tests.frameworks.environments import ENVIRONMENTS
from tests.sdk.processes import ROOT
from tests.sdk.spool_trees import OVERHEAD, read_spool

PROGRAM = """
import importlib, json, logging, sys
import cirron_otel as ci

MODULES = {
    "ray.train.v2.api.data_parallel_trainer": [
        "DataParallelTrainer.fit", "get_env_vars_to_propagate"],
    "ray.tune.tuner": ["Tuner.fit"],
    "ray.tune.tune": ["run"],
    "ray.tune": ["run"],
    "ray.tune.execution.class_cache": ["_ActorClassCache.get"],
    "ray.tune.experiment.trial": ["_TrialInfo.__init__", "Trial.set_status", "Trial.handle_error"],
    "ray.tune.execution.tune_controller": ["TuneController._process_trial_result"],
    "ray.train.v2._internal.execution.train_fn_utils": [
        "DistributedTrainFnUtils.report", "LocalTrainFnUtils.report"],
    "ray.train._internal.session": [
        "_TrainSession.report", "_TrainSession.start", "_TrainSession.finish"],
    "ray.train.v2._internal.execution.worker_group.worker": [
        "RayTrainWorker.run_train_fn", "RayTrainWorker.poll_status", "RayTrainWorker.shutdown"],
    "ray.train.v2._internal.execution.worker_group.worker_group": [
        "WorkerGroup._get_worker_runtime_env", "WorkerGroup.poll_status"],
    "ray.tune.trainable.trainable": [
        "Trainable.__init__", "Trainable.reset", "Trainable.stop", "Trainable.train",
        "Trainable.save", "Trainable.restore"],
}

def attributes():
    found = {}
    for module, names in MODULES.items():
        for name in names:
            owner = importlib.import_module(module)
            *classes, last = name.split(".")
            for each in classes:
                owner = getattr(owner, each)
            found[f"{module}.{name}"] = vars(owner).get(last)
    return found

class Warnings(logging.Handler):
    messages = []
    def emit(self, record):
        self.messages.append(record.getMessage())

logging.getLogger("cirron_otel").addHandler(Warnings(logging.WARNING))
import ray
for name in MODULES:
    importlib.import_module(name)
missing = sys.argv[1:]
if missing:
    from ray.tune.execution.tune_controller import TuneController
    from ray.train.v2._internal.execution.worker_group.worker import RayTrainWorker
    del TuneController._process_trial_result
    del RayTrainWorker.shutdown
before = attributes()
profiler = ci.profile(output_dir="out", exporters="none", join="none")
during = attributes()
health = profiler.health()
from ray.train import DataConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

def loop():
    ray.train.report({"loss": 0.1 + 0.2, "deep": {"er": 7}, "list": [1]})
    raise ValueError("half-way")

try:
    TorchTrainer(loop, scaling_config=ScalingConfig(num_workers=0), run_config=RunConfig(name="r",
                 storage_path="/tmp")).fit()
    error = None
except ValueError as raised:
    error = str(raised)
ci.shutdown()
after = attributes()
print(json.dumps({
    "patched": sorted(name for name in before if during[name] is not before[name]),
    "kept": sorted(name for name in before if after[name] is not before[name]),
    "all": sorted(before), "warnings": Warnings.messages, "error": error,
    "initialised": ray.is_initialized(), "lost": health["hooks"]["ray"]["not_recorded"],
    "swallowed": health["swallowed_errors"],
}))
"""


def _run(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    try:
        done = run_in(
            ENVIRONMENTS["ray"],
            ["-c", PROGRAM, *arguments],
            cwd=tmp_path,
            variables={"PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"},
        )
    except EnvironmentUnavailableError as error:
        leave_out(str(error))
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_hooks_are_removed_and_do_not_initialise_ray(tmp_path: Path) -> None:
    found = _run(tmp_path)
    assert found["patched"] == found["all"]
    assert found["kept"] == []
    assert not found["initialised"]
    assert found["error"] == "half-way"
    assert found["warnings"] == []
    assert found["lost"] == []
    spool = read_spool(tmp_path / "out")
    marks = {mark["name"]: mark["value"] for mark in spool.marks if mark["name"] != OVERHEAD}
    assert marks == {"loss": 0.1 + 0.2, "deep/er": 7}
    [fit] = [span for span in spool.spans if span["name"] == "fit"]
    assert fit["otel"]["status"]["code"] == 2


def test_a_missing_internal_costs_its_part_and_one_warning_for_each_reason(tmp_path: Path) -> None:
    found = _run(tmp_path, "missing")
    assert sorted(found["lost"]) == ["stopped", "workers"]
    assert len(found["warnings"]) == 2
    assert found["kept"] == []
    assert found["error"] == "half-way"
