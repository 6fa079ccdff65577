"""Objects that a program copies, saves or sends contain no hooks, and hooks keep no objects."""

from __future__ import annotations

import copy
import functools
import io
import json
import multiprocessing
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import cirron_otel as ci
from tests.kit.forked_scripts import ForkedScripts
from tests.kit.sessions.processes import ROOT, environment

from . import trees
from .programs.spawned import look_at

HOOKED = (
    "torch.utils.data.dataloader", "torch.nn.modules.module", "torch.autograd",
    "torch.optim.optimizer", "torch.amp.grad_scaler", "torch.utils.checkpoint", "torch._tensor",
    "torch._dynamo.eval_frame",
)  # fmt: skip


class Net(nn.Module):
    """A model with a checkpointed layer and a compiled one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.middle = nn.Linear(4, 4)
        self.head = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(checkpoint(self.middle, self.first(x), use_reentrant=False))


class Training:
    """Everything that a program holds while it trains."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = Net()
        self.criterion = nn.MSELoss()
        self.optimizer = torch.optim.Adam(self.model.parameters(), fused=True)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        points = torch.arange(24.0).reshape(6, 4) / 24
        self.loader = DataLoader(TensorDataset(points, points.sum(1, keepdim=True)), 2)
        self.compiled = torch.compile(self._compiled, backend="eager")

    def _compiled(self, x: Tensor) -> Tensor:
        return self.model.first(x)

    def run(self, between: Callable[[], None] = lambda: None) -> None:
        """Two epochs; `between` is called in the middle of every step."""
        for _ in range(2):
            for x, y in self.loader:
                self.optimizer.zero_grad()
                loss = self.criterion(self.model(x), y) + self.compiled(x).square().mean()
                between()
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
            with torch.no_grad():
                self.model(x)
        torch.autograd.grad(self.model(x).sum(), list(self.model.parameters()))
        self.model.forward(x).sum().backward()

    def saved(self) -> dict[str, bytes]:
        """Everything that can be, as bytes."""
        found = {}
        for name in ("model", "criterion", "optimizer", "scaler", "loader"):
            thing = getattr(self, name)
            stream = io.BytesIO()
            torch.save(thing, stream)
            found[f"{name}, saved"] = stream.getvalue()
            found[f"{name}, pickled"] = pickle.dumps(thing)
            found[f"{name}, copied"] = pickle.dumps(copy.deepcopy(thing))
            if hasattr(thing, "state_dict"):
                found[f"{name}, its state"] = pickle.dumps(thing.state_dict())
        return found


def _profile(directory: Path) -> Any:
    profiler = ci.profile(
        output_dir=str(directory), frameworks=["torch"], exporters="none", join="none",
        handle_signals=False,
    )  # fmt: skip
    assert "torch" in profiler.installed_hooks
    return profiler


@pytest.fixture
def _closed() -> Iterator[None]:
    yield
    ci.shutdown()


def _traces_of_ours(saved: dict[str, bytes]) -> list[str]:
    return [name for name, data in saved.items() if b"cirron" in data]


@pytest.mark.usefixtures("_closed")
def test_saved_copied_and_pickled_objects_contain_no_sdk_state(tmp_path: Path) -> None:
    training = Training()
    training.run()
    before = set(vars(training.model)), set(vars(training.optimizer)), set(vars(training.loader))
    _profile(tmp_path)
    ci.watch(training.model)
    met: list[str] = []
    training.run(lambda: met.extend(_traces_of_ours(training.saved())))
    assert met == []
    assert _traces_of_ours(training.saved()) == []
    ci.shutdown()
    assert _traces_of_ours(training.saved()) == []
    assert before == (
        set(vars(training.model)), set(vars(training.optimizer)), set(vars(training.loader))
    )  # fmt: skip


@pytest.mark.usefixtures("_closed")
def test_a_copy_and_a_loaded_model_train_like_the_original(tmp_path: Path) -> None:
    _profile(tmp_path)
    training = Training()
    training.run()
    stream = io.BytesIO()
    torch.save(training.model, stream)
    stream.seek(0)
    x = torch.ones(1, 4)
    expected = training.model(x)
    for other in (copy.deepcopy(training.model), torch.load(stream, weights_only=False)):
        assert type(other) is Net
        out = other(x)
        assert torch.equal(out, expected)
        out.sum().backward()
        assert other.head.weight.grad is not None


@pytest.mark.usefixtures("_closed")
def test_a_model_goes_to_a_spawned_process_without_us(tmp_path: Path) -> None:
    _profile(tmp_path)
    training = Training()
    training.run()
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    # Layers that torch brings: the process that gets them imports no test.
    layers = nn.Sequential(training.model.first, training.model.head)
    expected = layers(torch.ones(1, 4)).item()
    while_hooked = context.Process(target=look_at, args=(layers, answers))
    while_hooked.start()
    found = [answers.get(timeout=120)]
    while_hooked.join(60)
    ci.shutdown()
    afterwards = context.Process(target=look_at, args=(layers, answers))
    afterwards.start()
    found.append(answers.get(timeout=120))
    afterwards.join(60)
    assert found == [(pytest.approx(expected), [])] * 2


# --- what is replaced, and put back -----------------------------------------------------------


def _classes(root: type) -> Iterator[type]:
    for each in root.__subclasses__() if root is not type else ():
        yield each
        yield from _classes(each)


def _owners() -> dict[str, Any]:
    """Every module of torch, every class in one, and every module, optimizer and loader class."""
    found: dict[str, Any] = {}
    for name, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType) or not (name + ".").startswith("torch."):
            continue
        found[name] = module
        for value in list(vars(module).values()):
            if isinstance(value, type) and value.__module__.startswith("torch"):
                found[f"{value.__module__}.{value.__qualname__}"] = value
    for root in (nn.Module, torch.optim.Optimizer, DataLoader, torch.autograd.Function):
        for each in (root, *_classes(root)):
            found[f"{each.__module__}.{each.__qualname__} {id(each)}"] = each
    return found


_OF_CODE = (staticmethod, classmethod, property, functools.partial)


def _is_code(value: Any) -> bool:
    return callable(value) or isinstance(value, _OF_CODE)


def _inventory() -> dict[tuple[str, str], Any]:
    """What can be called, by where it stands, and the registries of hooks as they are filled."""
    found: dict[tuple[str, str], Any] = {}
    for where, owner in _owners().items():
        for name, value in list(vars(owner).items()):
            if _is_code(value):
                found[where, name] = value
            elif name.startswith("_global_") and hasattr(value, "keys"):
                found[where, name] = list(value)
    return found


def _changes(before: dict[tuple[str, str], Any], after: dict[tuple[str, str], Any]) -> list[str]:
    # Torch imports parts of itself when it needs them, and its compiled classes are freed.
    owners = {where for where, _ in before} & {where for where, _ in after}
    changed = []
    for key in before.keys() | after.keys():
        if key[0] not in owners:
            continue
        one, other = before.get(key), after.get(key)
        same = one == other if isinstance(one, list) else one is other
        if not same:
            changed.append(f"{key[0]}.{key[1]}: {one!r} -> {other!r}")
    return sorted(changed)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_every_attribute_is_the_original_again_after_every_round(tmp_path: Path) -> None:
    training = Training()
    training.run()  # torch wraps and caches things of its own when they are first used
    assert set(HOOKED) <= set(sys.modules)
    before = _inventory()
    for number in range(2):
        _profile(tmp_path / str(number))
        training.run()
        hooked = _changes(before, _inventory())
        assert any(change.startswith("torch.autograd.backward:") for change in hooked)
        ci.shutdown()
        assert _changes(before, _inventory()) == []
    training.run()
    assert _changes(before, _inventory()) == []


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_hooks_that_are_never_used_come_off_too(tmp_path: Path) -> None:
    Training().run()
    before = _inventory()
    _profile(tmp_path)
    assert _changes(before, _inventory()) != []
    ci.shutdown()
    assert _changes(before, _inventory()) == []


LATE = """
cirron.session
  epoch[0]
    step[0-1]
      data_load
      forward{function=predict}
      backward
      optimizer_step
"""


def test_torch_imported_later_is_hooked_and_comes_back_too(tmp_path: Path) -> None:
    program = [
        sys.executable,
        "-m",
        "tests.sdk.instrumentation.torch.programs.late_torch",
        str(tmp_path),
    ]
    ended = subprocess.run(
        program, cwd=ROOT, env=environment(CUDA_VISIBLE_DEVICES=""), capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert "torch.autograd.backward" in found["hooked"]
    assert found["left"] == []
    assert found["finders left"] == []
    (recorded,) = trees.read(tmp_path).values()
    assert trees.difference(trees.parse(LATE), recorded.root) == ""


_LOADER = """
import sys
from pathlib import Path
import cloudpickle
from torch.utils.data import DataLoader

class Own(DataLoader):
    def __iter__(self):
        yield from super().__iter__()

if __name__ == "__main__":
    import cirron_otel as ci
    ci.profile(output_dir=sys.argv[1], quiet=True)
    data = cloudpickle.dumps(Own([1, 2, 3], 2))
    ci.shutdown()
    Path("sent").write_bytes(data)
"""
_LOADED = """
import pickle, sys
from pathlib import Path
assert not any(name.startswith("cirron_otel") for name in sys.modules)
print([len(each) for each in pickle.loads(Path("sent").read_bytes())])
"""


def test_a_loader_whose_class_was_sent_by_value_loads_without_us(
    scripts: ForkedScripts, tmp_path: Path
) -> None:
    """As Ray, loky and submitit send the classes of `__main__`."""
    scripts.text(_LOADER, tmp_path, tmp_path / "out")
    done = scripts.text(_LOADED, tmp_path)
    assert done.stdout.strip() == "[2, 1]"


_OPTIMIZER = """
import sys
from pathlib import Path
import cloudpickle
import torch

class Own(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)

if __name__ == "__main__":
    import cirron_otel as ci
    ci.profile(output_dir=sys.argv[1], quiet=True)
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = Own([weight], lr=0.5)
    weight.sum().backward()
    optimizer.step()
    data = cloudpickle.dumps(optimizer)
    ci.shutdown()
    Path("sent").write_bytes(data)
"""
_STEPPED = """
import pickle, sys
from pathlib import Path
assert not any(name.startswith("cirron_otel") for name in sys.modules)
optimizer = pickle.loads(Path("sent").read_bytes())
(weight,) = optimizer.param_groups[0]["params"]
weight.sum().backward()
optimizer.step()
print(weight.item())
"""


def test_an_optimizer_whose_class_was_sent_by_value_steps_without_us(
    scripts: ForkedScripts, tmp_path: Path
) -> None:
    scripts.text(_OPTIMIZER, tmp_path, tmp_path / "out")
    done = scripts.text(_STEPPED, tmp_path)
    # The gradient is not pickled: only the first step has changed the weight.
    assert done.stdout.strip() == "0.0"
