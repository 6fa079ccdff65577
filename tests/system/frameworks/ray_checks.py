"""Checks of the hooks into Ray that need no cluster. `test_ray_hooks.py` runs them.

The methods that Ray runs in its controllers, workers and trials are replaced by simple ones, which
return values that the hooks must not change. Ray itself runs only a training without workers.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

import cirron_otel as ci
from cirron_otel.sdk.instrumentation.ray import (
    controller,
    fits,
    handover,
    reports,
    runs,
    trials,
    workers,
)
from cirron_otel.sdk.session import process_session
from tests.kit.sessions.spool_trees import read_spool

from .checking import (
    Checks,
    fail,
    faults,
    names,
    profile,
    warnings,
)

GROUP = "ray.train.v2._internal.execution.worker_group"
PARTS = {
    "ray.train.v2.api.data_parallel_trainer": {
        "DataParallelTrainer.fit": "fit", "get_env_vars_to_propagate": "trace context of workers",
    },
    "ray.tune.tuner": {"Tuner.fit": "tune"},
    "ray.tune.tune": {"run": "tune.run"},
    "ray.tune.execution.class_cache": {"_ActorClassCache.get": "trace context of trials"},
    "ray.tune.experiment.trial": {
        "Trial.set_status": "trial", "Trial.handle_error": "trial",
    },
    "ray.tune.execution.tune_controller": {"TuneController._process_trial_result": "stopped"},
    "ray.train.v2._internal.execution.train_fn_utils": {
        "DistributedTrainFnUtils.report": "report", "LocalTrainFnUtils.report": "report",
    },
    "ray.train._internal.session": {
        "_TrainSession.report": "report of Tune", "_TrainSession.start": "workers of Train V1",
        "_TrainSession.finish": "workers of Train V1",
    },
    f"{GROUP}.worker": {
        "RayTrainWorker.run_train_fn": "workers", "RayTrainWorker.poll_status": "workers",
        "RayTrainWorker.shutdown": "workers",
    },
    f"{GROUP}.worker_group": {
        "WorkerGroup._get_worker_runtime_env": "restarts", "WorkerGroup.poll_status": "restarts",
    },
    "ray.tune.trainable.trainable": {
        "Trainable.reset": "processes of trials", "Trainable.stop": "processes of trials",
        "Trainable.train": "iteration", "Trainable.save": "iteration",
        "Trainable.restore": "iteration",
    },
}  # fmt: skip
"""The attributes that are replaced, by module, with the part that needs them."""
for each in PARTS:
    importlib.import_module(each)
from ray.tune import Trainable  # noqa: E402
from ray.tune.execution.class_cache import _ActorClassCache  # noqa: E402
from ray.tune.execution.tune_controller import TuneController  # noqa: E402
from ray.tune.experiment.trial import Trial, _TrialInfo  # noqa: E402

check = Checks()


def _owner(module: str, path: str) -> tuple[Any, str]:
    owner: Any = importlib.import_module(module)
    *classes, name = path.split(".")
    for each in classes:
        owner = getattr(owner, each)
    return owner, name


PLACES = [(*_owner(module, path), part) for module, paths in PARTS.items()
          for path, part in paths.items()]  # fmt: skip


class _Trial(SimpleNamespace):
    """A trial: what the hooks read of one."""

    def should_recover(self) -> bool:
        return False


def _loop() -> None:
    ray.train.report({"loss": 0.5, "deep": {"er": 7}, "list": [1]})
    Path("kept").mkdir(exist_ok=True)
    ray.train.report({"loss": 0.25}, checkpoint=Checkpoint.from_directory("kept"))


def _fit(loop: Callable[[], None] = _loop) -> Any:
    return TorchTrainer(
        loop,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(name="r", storage_path=str(Path.cwd())),
    ).fit()


def _simple() -> None:
    """Replace the methods that run in other processes by simple ones."""

    def end(trial: Any, status: str) -> str:
        trial.status = status
        return status

    def initialise(info: Any, trial: Any) -> None:
        info.trial_id = trial.trial_id
        info.experiment_name = "r"

    def decide(_: Any, trial: Any, result: Any) -> str:
        trial.last_result = {**result, "done": True}
        return "STOP"

    for owner, name, replacement in (
        (_TrialInfo, "__init__", initialise), (_TrialInfo, "trial_id", None),
        (_TrialInfo, "experiment_name", None), (Trial, "set_status", end),
        (Trial, "handle_error", lambda *_: "handled"),
        (TuneController, "_process_trial_result", decide),
        (_ActorClassCache, "get", lambda _, kind: kind),
        (Trainable, "__init__", lambda *given: setattr(given[0], "_iteration", 0)),
        (Trainable, "reset", lambda *_: True), (Trainable, "stop", lambda _: "stopped"),
        (Trainable, "train", lambda _: {"at": 1.5, "pid": 1}),
        (Trainable, "save", lambda *_: "saved"), (Trainable, "restore", lambda *_: "restored"),
    ):  # fmt: skip
        setattr(owner, name, replacement)
    module = importlib.import_module(f"{GROUP}.worker")
    for name in ("run_train_fn", "shutdown"):
        setattr(module.RayTrainWorker, name, lambda _, name=name: name)
    context = SimpleNamespace(
        distributed_context=SimpleNamespace(world_rank=0, world_size=1),
        train_run_context=SimpleNamespace(train_loop_config={"lr": 0.1}),
        get_experiment_name=lambda: "r",
    )
    place = importlib.import_module("ray.train.v2._internal.execution.context")
    place.get_train_context = lambda: context
    module.RayTrainWorker.poll_status = lambda _: SimpleNamespace(running=False, error=None)
    module = importlib.import_module(f"{GROUP}.worker_group")
    module.WorkerGroup._get_worker_runtime_env = staticmethod(lambda: {"env_vars": {"A": "1"}})
    module.WorkerGroup.poll_status = lambda _: SimpleNamespace(
        worker_statuses={0: SimpleNamespace(**{handover.ATTRIBUTE: "00-1-2-01"})}
    )
    module = importlib.import_module("ray.train._internal.session")
    for name in ("start", "finish"):
        setattr(module._TrainSession, name, lambda _, name=name: name)
    module._TrainSession.experiment_name = module._TrainSession.trial_id = "r"
    module = importlib.import_module("ray.train.v2.api.data_parallel_trainer")
    module.get_env_vars_to_propagate = lambda: {"B": "2"}
    importlib.import_module("ray.tune.tune").run = _tuning
    importlib.import_module("ray.tune.tuner").Tuner.fit = _tuning


def _tuning(*_: Any) -> list[Any]:
    """Do what Tune does with a trial."""
    trial = _Trial(
        trial_id="1", config={"lr": 0.1}, status="RUNNING", last_result=None,
        run_metadata=SimpleNamespace(num_failures=1),
    )  # fmt: skip
    info = _TrialInfo(trial)
    kind = SimpleNamespace(_default_options={"runtime_env": {"env_vars": {}}})
    found = [vars(_ActorClassCache)["get"](None, kind) is kind]
    module = importlib.import_module("ray.train.v2.api.data_parallel_trainer")
    found.append(module.get_env_vars_to_propagate()["B"])
    trainable = Trainable({"__trial_info__": info, "lr": 0.1})
    found += [trainable.train()["at"], trainable.save("a"), trainable.restore("a")]
    found += [trainable.reset({"__trial_info__": info}), trainable.stop()]
    controls = vars(TuneController)["_process_trial_result"]
    found += [controls(None, trial, {"at": 1.5}), vars(Trial)["handle_error"](trial, OSError("x"))]
    return [*found, vars(Trial)["set_status"](trial, "ERROR")]


def _everything() -> list[Any]:
    """Call every method that is hooked; return what they return."""
    result = _fit()
    module = importlib.import_module(f"{GROUP}.worker")
    worker = object.__new__(module.RayTrainWorker)
    found = [result.metrics, worker.run_train_fn(), worker.poll_status().running]
    module = importlib.import_module(f"{GROUP}.worker_group")
    group = object.__new__(module.WorkerGroup)
    found += [module.WorkerGroup._get_worker_runtime_env()["env_vars"]["A"]]
    found += [list(group.poll_status().worker_statuses), worker.shutdown()]
    module = importlib.import_module("ray.train._internal.session")
    session = object.__new__(module._TrainSession)
    session.world_rank, session.world_size = 0, 1
    found += [session.start(), session.finish()]
    found += importlib.import_module("ray.tune.tuner").Tuner.fit(None)
    return found + importlib.import_module("ray.tune.tune").run()


def _attributes() -> list[Any]:
    """Return everything that the hooks replace."""
    return [vars(owner).get(name) for owner, name, *_ in (*PLACES, *COPIES)]


COPIES = (
    _owner("ray.tune", "run"), _owner("ray.tune.experiment.trial", "_TrialInfo.__init__"),
    _owner("ray.tune.trainable.trainable", "Trainable.__init__"),
)  # fmt: skip


def _fail_half_way() -> None:
    """Train in this process with a function that raises."""

    def loop() -> None:
        ray.train.report({"loss": 0.1 + 0.2, "deep": {"er": 7}, "list": [1]})
        raise ValueError("half-way")

    raised = ""
    try:
        _fit(loop)
    except ValueError as error:
        raised = str(error)
    assert raised == "half-way"


@check
def the_hooks_are_removed_and_do_not_initialise_ray() -> None:
    before, messages = _attributes(), warnings()
    profiler = profile()
    replaced = zip((*PLACES, *COPIES), before, _attributes(), strict=True)
    assert [place for place, one, other in replaced if one is other] == []
    assert profiler.health()["hooks"]["ray"]["not_recorded"] == []
    _fail_half_way()
    ci.shutdown()
    kept = zip((*PLACES, *COPIES), before, _attributes(), strict=True)
    assert [place for place, one, other in kept if one is not other] == []
    assert not ray.is_initialized()
    assert not messages
    spool = read_spool(Path("run"))
    marks = {mark["name"]: mark["value"] for mark in spool.program_marks}
    assert marks == {"loss": 0.1 + 0.2, "deep/er": 7}
    (fit,) = (span for span in spool.spans if span["name"] == "fit")
    assert fit["otel"]["status"]["code"] == 2


@check
def missing_internals_cost_a_warning_for_each_reason() -> None:
    module = importlib.import_module(f"{GROUP}.worker")
    del TuneController._process_trial_result, module.RayTrainWorker.shutdown
    before, messages = _attributes(), warnings()
    profiler = profile()
    assert sorted(profiler.health()["hooks"]["ray"]["not_recorded"]) == ["stopped", "workers"]
    _fail_half_way()
    ci.shutdown()
    assert len(messages) == 2, messages
    assert _attributes() == before


@check
def errors_of_the_hooks_never_reach_the_program() -> None:
    _simple()
    before = _attributes()
    expected = _everything()
    process = process_session.ProcessSession
    for owner, name in (
        (runs, "Scope"), (reports, "_values"), (reports, "_is_scalar"), (reports, "mark"),
        (fits, "runtime_variables"), (handover, "of_job"), (controller, "of_job"),
        (workers, "inject"), (runs.WorkerRuns, "begin"), (trials, "_OpenTrial"),
        (trials, "inject"), (trials._OpenTrial, "end"),
        (trials, "hyperparameter_attributes"), (trials, "Scope"), (process, "variables"),
        (process, "begin"), (process, "end"), (process, "renew"),
    ):  # fmt: skip
        directory = f"{owner.__name__}.{name}"
        original = vars(owner)[name]
        setattr(owner, name, fail)
        profiler = profile(directory)
        found = _everything()
        counted = faults(profiler)
        ci.shutdown()
        setattr(owner, name, original)
        assert found == expected, (directory, found)
        assert counted or name == "of_job", directory
        assert not fits._open.names, directory
    assert _attributes() == before


@check
def the_replaced_methods_are_recorded() -> None:
    _simple()
    profiler = profile()
    _everything()
    assert not faults(profiler), faults(profiler)
    ci.shutdown()
    spool = read_spool(Path("run"))
    scopes = names()
    assert {"fit", "tune", "trial", "iteration", "checkpoint"} <= set(scopes)
    assert scopes.count("tune") == scopes.count("trial") == 2
    (trial, _) = (each for each in spool.spans if each["name"] == "trial")
    assert trial["attrs"]["status"] == "ERROR"
    assert trial["attrs"]["failures"] == 1
    values = [(each["name"], each["value"]) for each in spool.program_marks]
    assert values.count(("at", 1.5)) == 2
    assert ("deep/er", 7) in values


@check
def each_missing_internal_costs_its_part_and_one_warning() -> None:
    before, messages = _attributes(), warnings()
    for owner, name, part in PLACES:
        original = vars(owner)[name]
        inherited = any(name in vars(each) for each in getattr(owner, "__mro__", ())[1:])
        delattr(owner, name)
        profiler = profile()
        lost = profiler.health()["hooks"]["ray"]["not_recorded"]
        ci.shutdown()
        setattr(owner, name, original)
        assert lost == ([] if inherited else [part]), (name, lost)
        assert len(messages) == len(lost), messages
        messages.clear()
    assert _attributes() == before


@check
def the_session_ends_in_the_middle_of_a_training() -> None:
    def loop() -> None:
        ray.train.report({"loss": 1.0})
        ci.shutdown()
        ray.train.report({"loss": 2.0})

    before = _attributes()
    expected = _fit(loop).metrics
    profile()
    assert _fit(loop).metrics == expected
    assert _attributes() == before
    spool = read_spool(Path("run"))
    assert [each["value"] for each in spool.marks if each["name"] == "loss"] == [1.0]
    assert names() == ["cirron.session", "fit"]
    assert all(each["end_ns"] for each in spool.spans)


@check
def the_session_ends_in_the_middle_of_a_tuning() -> None:
    _simple()
    controls = vars(TuneController)["_process_trial_result"]

    def decide(*args: Any) -> Any:
        ci.shutdown()
        return controls(*args)

    expected = _tuning()
    TuneController._process_trial_result = decide
    profile()
    assert importlib.import_module("ray.tune.tune").run() == expected
    spans = read_spool(Path("run")).spans
    assert {each["name"] for each in spans} >= {"tune", "trial", "iteration"}
    assert all(each["end_ns"] for each in spans)


if __name__ == "__main__":
    check.main()
