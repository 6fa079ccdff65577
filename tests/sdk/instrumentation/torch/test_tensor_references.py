"""References to parameters: programs convert models, and the hooks still know the parameters."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import cirron_otel as ci
from cirron_otel.sdk.instrumentation.patches import Patches
from cirron_otel.sdk.instrumentation.torch.tensor_references import TensorReferences
from tests.kit.sessions.spool_trees import Spool

from .one_session import recorded
from .trainings import loader

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _swaps() -> Iterator[None]:
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    gc.disable()  # objects of hooks are not collected at a random time
    yield
    gc.enable()
    torch.__future__.set_swap_module_params_on_conversion(before)
    ci.shutdown()


def _model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))


def _update(model: Any, x: Any, times: int = 1) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(times):
        model(x).sum().backward()
    optimizer.step()


def _without_loader(convert: Callable[[Any], object], x: Any) -> None:
    model = _model()
    model.eval()
    with torch.no_grad():
        model(x)
    convert(model)
    model.train()
    for times in (1, 2, 1):
        _update(model, x.double() if next(model.parameters()).dtype.itemsize == 8 else x, times)
        convert(model)


def _with_loader(convert: Callable[[Any], object], x: Any) -> None:
    model = _model()
    for (batch,) in loader():
        _update(model.float(), batch)
        convert(model)


def _by_functions(convert: Callable[[Any], object], x: Any) -> None:
    model = _model()
    weight = model[0].weight
    for _ in range(3):
        (x.to(weight.dtype) @ weight).sum().backward()
        with torch.no_grad():
            weight -= 0.1 * weight.grad
        weight.grad = None
        convert(model)


def _as_it_is(_: Any) -> None:
    pass


def _with_loaded_state(model: Any) -> None:
    model.load_state_dict(_model().state_dict())


PROGRAMS = [_without_loader, _with_loader, _by_functions]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_converts_a_model_between_its_steps(program: Any, tmp_path: Path) -> None:
    def labels(convert: Callable[[Any], object], name: str) -> list[tuple[str, int | None]]:
        return _labels(recorded(tmp_path / name, lambda: program(convert, torch.ones(4, 4))))

    expected = labels(_as_it_is, "not")
    assert len(expected) >= 4
    assert labels(lambda model: model.double(), "double") == expected
    assert labels(_with_loaded_state, "loaded") == expected


def _labels(spool: Spool) -> list[tuple[str, int | None]]:
    spans = sorted(spool.spans, key=lambda span: span["start_ns"])
    return [(span["name"], span["index"]) for span in spans]


def test_parameters_of_a_subclass_are_converted(tmp_path: Path) -> None:
    torch.__future__.set_swap_module_params_on_conversion(False)
    model = _model()
    for layer in (model[0], model[2]):
        for name, value in list(layer.named_parameters()):
            two = TwoTensor(value.detach(), value.detach().clone())
            setattr(layer, name, torch.nn.Parameter(two))

    def program() -> None:
        _update(model, torch.ones(4, 4))
        model.double()

    recorded(tmp_path, program)
    assert model[0].weight.dtype == torch.float64


def test_a_model_is_converted_after_the_session_and_in_a_later_one(tmp_path: Path) -> None:
    model = _model()
    x = torch.ones(4, 4)
    recorded(tmp_path / "first", lambda: _update(model, x))
    model.double()
    recorded(tmp_path / "second", lambda: _update(model, x.double()))
    recorded(tmp_path / "third", model.float)
    assert model[0].weight.dtype == torch.float32


@pytest.mark.parametrize("digest", ["step", "tensors"])
def test_a_model_that_is_never_called_is_converted(digest: str, tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 4)

    def program() -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            (torch.ones(2, 4) @ model.weight.t() + model.bias).sum().backward()
            optimizer.step()
        model.double()

    recorded(tmp_path, program, digest=digest)
    assert model.weight.dtype == torch.float64


def test_batches_that_were_fetched_ahead_are_swapped(tmp_path: Path) -> None:
    swapped = []

    def program() -> None:
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = None
        for (batch,) in loader():
            if before is not None:
                model(before).sum().backward()
                optimizer.step()
                torch.utils.swap_tensors(before, torch.zeros(2, 4))
                swapped.append(before)
            before = batch

    recorded(tmp_path, program)
    assert len(swapped) == len(loader()) - 1
    assert not any(each.any() for each in swapped)


def test_a_reference_survives_conversions_and_not_its_tensor() -> None:
    references, patches = TensorReferences(), Patches()
    model = _model()
    reference = references.first_trained(model)
    assert reference is not None
    with pytest.raises(RuntimeError, match="Couldn't swap"):
        model.double()
    references.install(patches)
    try:
        for convert in (model.double, lambda: model.load_state_dict(_model().state_dict())):
            convert()
            assert isinstance(reference.get, weakref.ref)
            assert reference.get() is model[0].weight
            assert references.of(model[0].weight) is reference
        weak = weakref.ref(model[0].weight)
        with pytest.raises(RuntimeError, match="weakref"):
            torch.utils.swap_tensors(t1=model[0].weight, t2=torch.ones(4, 4))
        assert reference.get() is weak()
        assert references.of(model[0].weight) is reference
    finally:
        patches.undo()
    references.release_all()
    assert reference.get() is None
    del weak
    model.double()


def test_another_thread_finds_a_tensor_while_it_is_converted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    references, patches, weight = TensorReferences(), Patches(), torch.ones(2)
    reference = references.of(weight)
    original = torch.utils.swap_tensors
    found = []

    def swap_tensors(t1: Any, t2: Any) -> None:
        found.append((reference.get() is t1, references.of(t1) is reference))
        original(t1, t2)

    monkeypatch.setattr(torch.utils, "swap_tensors", swap_tensors)
    references.install(patches)
    for _ in range(2):
        torch.utils.swap_tensors(weight, torch.zeros(2))
    patches.undo()
    assert found == [(True, True)] * 2


def test_an_error_of_a_conversion_is_raised_by_torch(tmp_path: Path) -> None:
    model = _model()
    original = torch.utils.swap_tensors

    def program() -> None:
        _update(model, torch.ones(4, 4))
        weak = weakref.ref(model[0].weight)
        with pytest.raises(RuntimeError, match="weakref") as raised:
            torch.utils.swap_tensors(model[0].weight, torch.ones(4, 4))
        files = [Path(entry.path).name for entry in raised.traceback]
        assert "tensor_references.py" not in files
        with pytest.raises(TypeError):
            torch.utils.swap_tensors(weak())
        del weak
        _update(model.double(), torch.ones(4, 4).double())

    steps = [span for span in recorded(tmp_path, program).spans if span["name"] == "step"]
    assert len(steps) == 2
    assert torch.utils.swap_tensors is original
