"""Checks of the hooks into loggers. `test_loggers.py` runs them."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import mlflow
import numpy
import tensorboard.backend.event_processing.event_accumulator
import tensorboardX
import torch
import torch.utils.tensorboard
import wandb
from mlflow.entities import Metric
from mlflow.tracking.client import MlflowClient
from torch._subclasses.fake_tensor import FakeTensorMode
from wandb.sdk.lib.noop_run import NoopRun
from wandb.sdk.wandb_run import Run

import cirron_otel as ci
from cirron_otel.sdk.instrumentation.loggers import links, scalars
from cirron_otel.sdk.instrumentation.loggers import mlflow as mlflow_hooks
from cirron_otel.sdk.instrumentation.loggers import tensorboard as tensorboard_hooks
from cirron_otel.sdk.instrumentation.loggers import wandb as wandb_hooks
from tests.kit.sessions.spool_trees import read_spool

from .checking import (
    Checks,
    callables,
    fail,
    faults,
    profile,
    warnings,
)
from .programs.loggers import _mlflow, _tensorboard

SummaryWriter = torch.utils.tensorboard.SummaryWriter
XWriter = tensorboardX.SummaryWriter
OWNERS = {
    "tensorboard": (SummaryWriter, XWriter),
    "wandb": (Run, NoopRun),
    "mlflow": (MlflowClient,),
}
EVERY = tuple(owner for owners in OWNERS.values() for owner in owners)
HOOKED = (
    (SummaryWriter, "add_scalar"), (SummaryWriter, "add_scalars"), (XWriter, "add_scalar"),
    (XWriter, "add_scalars"), (Run, "_log"), (NoopRun, "log"), (MlflowClient, "log_metric"),
    (MlflowClient, "log_batch"), (MlflowClient, "create_run"),
)  # fmt: skip
check = Checks()


def _marks(directory: str = "run") -> list[tuple[str, Any]]:
    return [(each["name"], each["value"]) for each in read_spool(Path(directory)).program_marks]


def _resource(directory: str = "run") -> str:
    return "".join(path.read_text() for path in Path(directory, "spool").glob("*.json"))


def _traces() -> dict[int, str]:
    """Return the trace ids of the recorded sessions, by process."""
    return {
        each["spans"][0]["pid"]: each["otel"]["trace_id"]
        for each in read_spool(Path("run")).batches
        if each["spans"]
    }


def _texts(directory: str) -> list[str]:
    """Return the texts with the tag of this package in the event files of a directory."""
    module = tensorboard.backend.event_processing.event_accumulator
    events = module.EventAccumulator(directory, size_guidance={"tensors": 0})
    events.Reload()
    tag = f"{tensorboard_hooks.TAG}/text_summary"
    if tag not in events.Tags()["tensors"]:
        return []
    return [each.tensor_proto.string_val[0].decode() for each in events.Tensors(tag)]


def _disabled() -> Any:
    return wandb.init(mode="disabled")


def _log_everywhere(name: str) -> dict[str, Any]:
    """Log values to every logger; return the values that they have stored."""
    mlflow.set_tracking_uri("file:store")
    wandb_run = _disabled()
    with SummaryWriter(name) as writer, XWriter(f"{name}-x") as x, mlflow.start_run() as run:
        for step in range(2):
            writer.add_scalar("a", 0.5 + step, step)
            writer.add_scalars("b", {"c": step}, step)
            x.add_scalar("d", 1.5 + step, step)
            wandb_run.log({"e": step, "f": {"g": 2.5}})
            mlflow.log_metric("h", 3.5 + step, step=step)
            mlflow.log_metrics({"i": step, "j": torch.tensor(4.5)}, step=step)
    wandb_run.finish()
    tags = MlflowClient().get_run(run.info.run_id).data.tags
    return {
        "tensorboard": [_tensorboard(name), _tensorboard(f"{name}/b_c"), _tensorboard(f"{name}-x")],
        "mlflow": [_mlflow(run.info.run_id), sorted(set(tags) - {"cirron.trace_id"})],
    }


NAMES = {"a", "b/c", "d", "e", "f.g", "h", "i", "j"}


@check
def shutdown_restores_every_method() -> None:
    before = callables(*EVERY)
    originals = [vars(owner)[name] for owner, name in HOOKED]
    profile()
    for (owner, name), original in zip(HOOKED, originals, strict=True):
        assert vars(owner)[name] is not original, name
    ci.shutdown()
    assert callables(*EVERY) == before


@check
def capture_switches_each_logger() -> None:
    before = {name: callables(*owners) for name, owners in OWNERS.items()}
    choices: list[tuple[dict[str, Any], set[str]]] = [
        ({"capture": name}, {name}) for name in OWNERS
    ]
    choices += [
        ({}, set(OWNERS)), ({"capture": "none"}, set()), ({"frameworks": "none"}, set()),
        ({"frameworks": "none", "capture": "wandb,mlflow"}, {"wandb", "mlflow"}),
    ]  # fmt: skip
    for options, expected in choices:
        profile(**options)
        hooked = {name for name, owners in OWNERS.items() if callables(*owners) != before[name]}
        assert hooked == expected, options
        ci.shutdown()


@check
def a_missing_method_costs_its_part() -> None:
    messages = warnings()
    del MlflowClient.log_batch, XWriter.add_scalars, Run._log
    profiler = profile()
    hooks = profiler.health()["hooks"]
    lost = {name: each["not_recorded"] for name, each in hooks.items() if name in _LOST}
    assert lost == _LOST, lost
    assert len(messages) == 3, messages
    with SummaryWriter("runs") as writer, XWriter("x") as x:
        writer.add_scalar("a", 1.5)
        x.add_scalar("d", 2.5)
    mlflow.set_tracking_uri("file:store")
    client = MlflowClient()
    client.log_metric(client.create_run("0").info.run_id, "h", 3.5)
    ci.shutdown()
    assert _marks() == [("a", 1.5), ("d", 2.5), ("h", 3.5)]


_LOST = {
    "tensorboard": [], "tensorboardX": ["add_scalars"], "wandb": ["log"], "mlflow": ["log_batch"]
}  # fmt: skip


@check
def errors_of_the_hooks_never_reach_the_program() -> None:
    expected = _log_everywhere("untraced")
    for owner, name in (
        (scalars, "mark_all"), (scalars, "is_passed_on"), (scalars, "is_passed_on_value"),
        (scalars, "number_of"), (scalars, "_is_new"), (scalars, "_key"), (scalars, "mark"),
        (links.Links, "add"), (links.Links, "_announce"), (links, "trace_id"),
        (links, "add_attributes"), (tensorboard_hooks, "_absolute"),
        (tensorboard_hooks.TensorBoardHooks, "_link"), (wandb_hooks, "_flat"),
        (wandb_hooks.WandbHooks, "_link"), (mlflow_hooks, "_each"), (mlflow_hooks, "_tagged"),
        (mlflow_hooks, "trace_id"), (mlflow_hooks.MlflowHooks, "_link"),
    ):  # fmt: skip
        original = vars(owner)[name]
        setattr(owner, name, fail)
        directory = f"{owner.__name__}.{name}"
        profiler = profile(directory)
        found = _log_everywhere(f"{directory}-log")
        setattr(owner, name, original)
        counted = faults(profiler)
        ci.shutdown()
        assert found == expected, name
        assert counted, name
        marked = {each for each, _ in _marks(directory)}
        if owner is not scalars and name not in ("_flat", "_each"):
            assert marked == NAMES, (name, marked)


class _Hostile:
    """Every conversion raises."""

    def _raise(self, *_: Any) -> Any:
        raise RuntimeError("hostile")

    __float__ = __int__ = __index__ = __str__ = __repr__ = __eq__ = __bool__ = __len__ = _raise
    __hash__ = object.__hash__


class _HostileNumber(float):
    """Has the value 0.5, and only that: comparing and printing it raise."""

    __eq__ = __str__ = __repr__ = __float__ = _Hostile._raise  # type: ignore[assignment]
    __hash__ = float.__hash__


class _HostileArray(_Hostile):
    """Looks like an array."""

    dtype = numpy.dtype("float32")

    @property
    def shape(self) -> Any:
        raise RuntimeError("hostile")

    def item(self) -> Any:
        raise RuntimeError("hostile")


def _hostile_values() -> dict[str, Any]:
    with FakeTensorMode():
        fake = torch.ones(())
    return {
        "object": _Hostile(), "array": _HostileArray(), "number": _HostileNumber(0.5),
        "fake": fake, "meta": torch.ones((), device="meta"),
        "unmade": torch.nn.parameter.UninitializedParameter(), "several": torch.ones(2),
        "none": None, "empty": torch.ones(0), "complex": torch.tensor(1j), "imaginary": 1j,
        "text": "1.0", "bytes": b"1", "list": [1.0],
    }  # fmt: skip


class _AnyRun(Run):  # type: ignore[misc]
    """A run that accepts every value."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    @property
    def disabled(self) -> bool:
        return True

    def _log(self, data: Any, **_: Any) -> None:
        self.seen.append(data)


@check
def a_value_that_cannot_be_read_costs_only_its_own_mark() -> None:
    profiler = profile()
    hooks = wandb_hooks.WandbHooks(Run.__module__)
    patched = hooks._log
    run, values = _AnyRun(), _hostile_values()
    data = {"first": 1, **values, "last": 2}
    patched(_AnyRun._log, run, (data,), {})
    assert run.seen == [data] or run.seen[0] is data
    patched(_AnyRun._log, run, ({_Hostile(): 1},), {})
    patched(_AnyRun._log, run, (_Hostile(),), {})
    assert len(run.seen) == 3
    counted = faults(profiler)
    ci.shutdown()
    marked = dict(_marks())
    assert marked.pop("first") == 1
    assert marked.pop("last") == 2
    assert set(marked) <= {"number"}, marked
    assert len(counted) == 1, counted
    assert counted[0].startswith("wandb: "), counted


@check
def hostile_values_raise_what_the_logger_raises() -> None:
    mlflow.set_tracking_uri("file:store")
    found = []
    for is_traced in (False, True):
        if is_traced:
            profile()
        client = MlflowClient()
        run = client.create_run("0").info.run_id
        raised = []
        with SummaryWriter(f"runs-{is_traced}") as writer:
            for call in (writer.add_scalar, partial(client.log_metric, run), writer.add_scalars):
                raised += [_raised(call, *each) for each in _hostile_values().items()]
        found.append(raised)
    ci.shutdown()
    assert found[0] == found[1]
    assert sum(each is not None for each in found[0]) > 20, found[0]


def _raised(call: Callable[[str, Any], object], name: str, value: Any) -> str | None:
    try:
        call(name, value)
    except Exception as error:
        return type(error).__name__
    return None


@check
def a_batch_of_any_type_is_logged() -> None:
    mlflow.set_tracking_uri("file:store")
    client = MlflowClient()
    run = client.create_run("0").info.run_id
    profile()
    batch = numpy.array([Metric("a", 1.5, 1, 0), Metric("b", 2.5, 1, 0)], dtype=object)
    client.log_batch(run, metrics=batch)
    ci.shutdown()
    assert _marks() == [("a", 1.5), ("b", 2.5)]


@check
def unusual_numbers_are_marks() -> None:
    values = {
        "nan": float("nan"), "inf": float("inf"), "minus": float("-inf"), "zero": -0.0,
        "huge": 2**70, "bool": True, "float16": numpy.float16(0.1), "float32": numpy.float32(0.1),
        "uint64": numpy.uint64(2**64 - 1), "numpy": numpy.array(0.1), "one": numpy.array([[0.25]]),
        "bool_": numpy.bool_(True), "gradient": torch.tensor(0.1, requires_grad=True),
        "bfloat16": torch.tensor(0.1, dtype=torch.bfloat16), "integer": torch.tensor(3),
    }  # fmt: skip
    profiler = profile()
    run = _disabled()
    run.log(values)
    run.log({"googol": 10**400})
    run.finish()
    assert not faults(profiler)
    ci.shutdown()
    marked = dict(_marks())
    assert marked.pop("googol") == 10**400
    assert list(marked) == list(values)
    stored = {each["name"]: each for each in read_spool(Path("run")).marks}
    for name in ("nan", "inf", "minus"):
        assert marked.pop(name) is None
        assert stored[name]["value_nonfinite"] == repr(values[name]), name
    for name, value in marked.items():
        given: Any = values[name]
        wanted = given.item() if hasattr(given, "item") else given
        assert (type(value), repr(value)) == (type(wanted), repr(wanted)), name


@check
def the_session_ends_between_two_values() -> None:
    with SummaryWriter("runs") as writer, XWriter("x") as x:
        for directory, value in (("first", 1.0), ("", 2.0), ("second", 3.0)):
            if directory:
                profile(directory)
            writer.add_scalar("a", value)
            x.add_scalar("b", value)
            ci.shutdown()
    assert [value for _, value in _tensorboard("runs")] == [1.0, 2.0, 3.0]
    assert _marks("first") == [("a", 1.0), ("b", 1.0)]
    assert _marks("second") == [("a", 3.0), ("b", 3.0)]
    assert len(set(_texts("runs"))) == 2


@check
def a_child_has_values_and_directories_of_its_own() -> None:
    profile()
    with SummaryWriter("parent") as writer:
        writer.add_scalar("a", 1.0)
        pid = os.fork()
        if not pid:
            with SummaryWriter("child") as own:
                own.add_scalar("b", 2.0)
            # The parent's writer has lost its thread, and is not flushed here.
            writer.add_scalar("c", 3.0)
            ci.shutdown()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        writer.add_scalar("d", 4.0)
    ci.shutdown()
    assert sorted(_marks()) == [("a", 1.0), ("b", 2.0), ("c", 3.0), ("d", 4.0)]
    traces = _traces()
    assert _texts("child") == [traces[pid]]
    assert _texts("parent") == [traces[os.getpid()]]


@check
def two_packages_write_into_one_directory() -> None:
    profile()
    with SummaryWriter("runs") as writer, XWriter("runs") as x, XWriter("other") as other:
        for step in range(2):
            writer.add_scalar("loss", 0.5 + step, step)
            x.add_scalar("loss", 0.5 + step, step)
            other.add_scalar("lr", 0.1, step)
    ci.shutdown()
    (trace,) = _traces().values()
    assert _texts("runs") == [trace]
    assert _texts("other") == [trace]
    assert _marks() == [("loss", 0.5), ("lr", 0.1), ("loss", 1.5), ("lr", 0.1)]
    directories = f"{Path('runs').absolute()},{Path('other').absolute()}"
    assert directories in _resource()


@check
def a_run_without_a_url_has_no_attribute_of_it() -> None:
    os.environ["WANDB_MODE"] = "offline"
    mlflow.set_tracking_uri("file:store")
    client = MlflowClient()
    before = client.create_run("0").info.run_id
    profile()
    client.log_metric(before, "loss", 2.0)
    run = wandb.init(project="tests", dir=".")
    run.log({"loss": 1.0})
    tags = run.tags
    run.finish()
    ci.shutdown()
    text = _resource()
    assert "wandb.run.id" in text
    assert "wandb.run.url" not in text
    assert before in text
    assert "mlflow.experiment_id" not in text
    assert [each for each in tags if each.startswith(wandb_hooks.TAG)]


if __name__ == "__main__":
    check.main()
