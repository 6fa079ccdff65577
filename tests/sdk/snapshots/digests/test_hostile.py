"""Programs with objects of their own: digests call none of their methods, and raise nothing."""

from __future__ import annotations

import copy
import gc
import random
from collections import UserDict, namedtuple
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

import cirron_otel as ci
from cirron_otel.core.records.digest_marks import quantity_digest
from cirron_otel.sdk.instrumentation.torch import uncalled_models
from cirron_otel.sdk.snapshots import digest_tensors
from cirron_otel.sdk.snapshots.arrival import Arrival
from cirron_otel.sdk.snapshots.digest_sums import Summing
from cirron_otel.sdk.snapshots.digest_tensors import batch_tensors
from cirron_otel.sdk.snapshots.digests import Digests
from cirron_otel.sdk.tracing import device_scalar

from .loops import traced
from .reading import Digest, digests, first_difference


def _train(
    directory: Path | None, *, collate: Any = None, steps: int = 4, digest: str | None = "tensors"
) -> list[float]:
    """Train on batches of four rows; without a directory, without a session."""
    torch.manual_seed(3)
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    rows = torch.randn(4 * steps, 8)
    losses = []

    def loop() -> None:
        for batch in DataLoader(rows, 4, collate_fn=collate):
            inputs = batch if isinstance(batch, torch.Tensor) else batch["x"]
            loss = model(inputs).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())

    if directory is None:
        loop()
    else:
        with traced(directory, digest=digest):
            loop()
    return losses


def _of(directory: Path, quantity: str) -> list[Digest]:
    return [each for each in digests(directory) if each.mark.quantity == quantity]


@pytest.fixture
def _numpy_state() -> Any:
    generator = np.random.get_bit_generator()
    yield
    np.random.set_bit_generator(generator)


@pytest.mark.usefixtures("_numpy_state")
@pytest.mark.parametrize("kind", [np.random.Philox, np.random.PCG64, np.random.MT19937])
def test_any_bit_generator_of_numpy(kind: Any, tmp_path: Path) -> None:
    losses = _train(None)
    np.random.set_bit_generator(kind(1))
    assert _train(tmp_path / "a") == losses
    assert ci.health()["swallowed_errors"] == {}
    np.random.set_bit_generator(kind(1))
    with traced(tmp_path / "b", digest="tensors"):
        weight = torch.ones(3, requires_grad=True)
        for batch in DataLoader(torch.randn(8, 3), 2):
            np.random.random()
            (weight * batch).sum().backward()
            torch.optim.SGD([weight], 0.1).step()
    states = [each.tensors["numpy"].digest for each in _of(tmp_path / "b", "rng")]
    assert len(set(states)) == len(states) == 4


def test_a_generator_that_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = _train(None)

    def fail() -> Any:
        raise OSError("no state")

    monkeypatch.setattr(random, "getstate", fail)
    assert _train(tmp_path) == losses
    assert len(_of(tmp_path, "batch")) == 4
    for each in _of(tmp_path, "rng"):
        assert each.mark.failed == "python: OSError: no state"
        assert list(each.tensors)[-1] == "torch"


# --- batches --------------------------------------------------------------------------------------


class Augmenting(Mapping[str, torch.Tensor]):
    """A batch that computes an item when it is read, with random numbers."""

    def __init__(self, rows: list[torch.Tensor]) -> None:
        self.rows = torch.stack(rows)

    def __getitem__(self, key: str) -> torch.Tensor:
        return self.rows + torch.rand(4, 8)

    def __iter__(self) -> Iterator[str]:
        return iter(["x"])

    def __len__(self) -> int:
        return 1


def _refuse(*_: Any) -> Any:
    raise AssertionError("a method of the program was called")


class Key(str):
    """A key with methods of its own."""

    __slots__ = ()
    __str__ = __repr__ = __format__ = _refuse


class Dictionary(dict[Any, Any]):
    items = values = keys = __iter__ = __getitem__ = __len__ = _refuse
    get = _refuse


class List(list[Any]):
    __iter__ = __getitem__ = __len__ = _refuse


class Tuple(tuple[Any, ...]):
    __slots__ = ()
    __iter__ = __getitem__ = __len__ = _refuse


class User(UserDict[Any, Any]):
    __getattribute__ = items = __iter__ = __getitem__ = __len__ = _refuse


class Object:
    __getattribute__ = _refuse


class Property:
    """An object that computes its attributes."""

    __dict__ = property(_refuse)
    __class__ = property(_refuse)


Pair = namedtuple("Pair", "first second")


@pytest.mark.parametrize("collate", [Augmenting, lambda rows: UserDict(x=torch.stack(rows))])
def test_the_items_of_a_mapping_are_not_computed(collate: Any, tmp_path: Path) -> None:
    losses = _train(None, collate=collate)
    assert _train(tmp_path, collate=collate) == losses
    assert ci.health()["swallowed_errors"] == {}
    names = {tuple(each.tensors) for each in _of(tmp_path, "batch")}
    assert names == {("rows",) if collate is Augmenting else ("x",)}


def test_no_method_of_a_batch_is_called() -> None:
    one = torch.ones(1)
    user, thing = User.__new__(User), Object()
    object.__setattr__(user, "data", {"u": one})
    object.__setattr__(thing, "value", one)
    batch = Dictionary({
        "list": List([one, one]), "tuple": Tuple([one]), "user": user, "thing": thing,
        "property": Property(), Key("key"): one, 7: one, "pair": Pair(one, [one]),
    })  # fmt: skip
    assert [name for name, _ in batch_tensors(batch)] == [
        "list.0", "list.1", "tuple.0", "user.u", "thing.value", "5", "7", "pair.first",
        "pair.second.0",
    ]  # fmt: skip


def test_an_object_that_contains_itself_is_read_once() -> None:
    class Node:
        pass

    node: Any = Node()
    node.x, node.me, node.nodes = torch.ones(3), node, [node, {"n": node}]
    assert [name for name, _ in batch_tensors([node, node])] == ["0.x", "1.x"]


# --- the program's modes --------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "is_complete"), [(40, True), (60, False)])
def test_the_state_of_an_optimizer_is_read_up_to_a_number_of_objects(
    count: int, is_complete: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each list is one object, and so is the tensor in it."""
    monkeypatch.setattr(digest_tensors, "_MOST_OBJECTS", 1)  # so 100 objects of the state
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    optimizer.state[model.weight] = {"many": [[torch.ones(1)] for _ in range(count)]}
    names = [name for name, _ in digest_tensors.OptimizerTensors(optimizer, [model]).state()]
    expected = {f"weight.many.{number}.0" for number in range(count)}
    assert (expected <= set(names)) is is_complete


@pytest.mark.parametrize("is_default", [False, True])
def test_another_default_device(is_default: bool, tmp_path: Path) -> None:
    """As `torch.set_default_device("cuda")` on a machine with a GPU."""
    for run in ("a", "b"):
        torch.manual_seed(3)
        model = torch.nn.Linear(8, 1100)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        inputs = torch.randn(3, 8)
        with traced(tmp_path / run, digest="tensors", digest_keep="1"):
            torch.set_default_device("meta" if is_default and run == "b" else None)
            try:
                for index in range(2):
                    with ci.scope("step", index=index):
                        optimizer.zero_grad()
                        model(inputs).square().mean().backward()
                        optimizer.step()
            finally:
                torch.set_default_device(None)
        assert ci.health()["swallowed_errors"] == {}
    assert first_difference(tmp_path / "a", tmp_path / "b") is None
    assert len(digests(tmp_path / "b")) == 10
    assert len([*tmp_path.glob("b/snapshots/*/*.safetensors")]) == 5


class Operations(TorchDispatchMode):
    """Counts operations, as a FLOP counter does."""

    count = 0

    def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    """Counts calls of functions of torch."""

    count = 0

    def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [Operations, Functions])
def test_modes_of_the_program_do_not_see_digests(kind: Any, tmp_path: Path) -> None:
    counts = []
    for digest in (None, "tensors"):
        with kind() as mode:
            _train(tmp_path / str(digest), digest=digest)
        counts.append(mode.count)
    assert counts[0] == counts[1] > 0
    assert len(digests(tmp_path / "tensors")) == 24


# --- failures -------------------------------------------------------------------------------------


class Wrapped(torch.Tensor):
    """A tensor of which no bytes can be read."""

    @staticmethod
    def __new__(cls) -> Wrapped:
        return torch.Tensor._make_wrapper_subclass(cls, (3,))  # type: ignore[attr-defined]

    @classmethod
    def __torch_dispatch__(cls, *_: Any) -> Any:
        raise OSError("not today")


class Overriding(torch.Tensor):
    """A tensor with methods of the program."""

    detach = numel = element_size = is_contiguous = view = _refuse
    __torch_function__ = classmethod(_refuse)


def _collate(rows: list[torch.Tensor]) -> Any:
    return {"x": torch.stack(rows), "y": Wrapped(), "z": torch.ones(3).as_subclass(Overriding)}


def test_a_tensor_that_cannot_be_read(tmp_path: Path) -> None:
    losses = _train(None, collate=_collate)
    assert _train(tmp_path, collate=_collate) == losses
    for each in _of(tmp_path, "batch"):
        assert each.mark.failed == "y: OSError: not today"
        assert list(each.tensors) == ["x", "z"]


def test_a_model_without_names(tmp_path: Path) -> None:
    class Model(torch.nn.Linear):
        def named_buffers(self, *_: Any, **__: Any) -> Any:
            raise ValueError("no names")

    model = Model(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with traced(tmp_path, digest="tensors"), ci.scope("step", index=0):
        model(torch.ones(3, 8)).sum().backward()
        optimizer.step()
    failed = {each.mark.quantity: each.mark.failed for each in digests(tmp_path)}
    assert failed == {
        "rng": None, "loss": None, "grads": None, "weights": "Model: ValueError: no names",
        "optimizer": None,
    }  # fmt: skip
    assert list(_of(tmp_path, "weights")[0].tensors) == ["group0.0", "group0.1"]


def test_unreadable_param_groups_are_recorded_as_a_failed_digest(tmp_path: Path) -> None:
    class Optimizer(torch.optim.SGD):
        is_broken = False

        def __getattribute__(self, name: str) -> Any:
            if name == "param_groups" and type(self).is_broken:
                raise ValueError("no groups")
            return super().__getattribute__(name)

        def step(self, *_: Any) -> None:
            type(self).is_broken = False
            super().step()

    weight = torch.ones(3, requires_grad=True)
    optimizer = Optimizer([weight], 0.1)
    with traced(tmp_path, digest="step"), ci.scope("step", index=0):
        weight.sum().backward()
        Optimizer.is_broken = True
        optimizer.step()
    assert torch.equal(weight, torch.ones(3).mul_(0.9))
    (grads,) = _of(tmp_path, "grads")
    assert grads.mark.failed == "grads: ValueError: no groups"
    assert grads.mark.digest == quantity_digest([], [])


def test_a_failure_of_the_computation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("out of memory")

    losses = _train(None)
    monkeypatch.setattr(Summing, "sums", fail)
    assert _train(tmp_path) == losses
    found = digests(tmp_path)
    assert len(found) == 24
    for each in found:
        assert each.mark.failed == f"{each.mark.quantity}: RuntimeError: out of memory"
        assert each.mark.digest == quantity_digest([], [])
        assert each.tensors == {}


def test_a_device_that_does_not_finish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Arrival, "is_here", False)
    monkeypatch.setattr(device_scalar.patience, "seconds", 0.0)
    _train(tmp_path, steps=1)
    found = digests(tmp_path)
    assert len(found) == 6
    for each in found:
        assert str(each.mark.failed).startswith(f"{each.mark.quantity}: TimeoutError: ")


class Closure:
    """A closure with an attribute that its optimizer uses."""

    factor = 3

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight

    def __call__(self) -> torch.Tensor:
        self.weight.grad = None
        loss = self.weight.square().sum()
        loss.backward()
        return loss


class UsesClosure(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        closure()
        with torch.no_grad():
            self.param_groups[0]["params"][0].mul_(closure.factor)


class UsesScale(torch.optim.SGD):
    """An optimizer with a callable argument that is no closure."""

    def step(self, scale: Any, closure: Any = None) -> None:  # type: ignore[override]
        assert isinstance(scale, Closure)
        assert closure is None
        super().step()


@pytest.mark.parametrize("is_named", [False, True])
def test_a_closure_stays_the_object_that_it_is(is_named: bool, tmp_path: Path) -> None:
    weight = torch.ones(3, requires_grad=True)
    optimizer = UsesClosure([weight], 0.1)
    with traced(tmp_path, digest="tensors"):
        for index in range(2):
            with ci.scope("step", index=index):
                closure = Closure(weight)
                optimizer.step(closure=closure) if is_named else optimizer.step(closure)
    assert ci.health()["swallowed_errors"] == {}
    assert torch.equal(weight, torch.full((3,), 9.0))
    found = digests(tmp_path)
    grads = [each.tensors["group0.0"].digest for each in found if each.mark.quantity == "grads"]
    assert len(set(grads)) == len(grads) == 2
    order = [each.mark.quantity for each in found if each.mark.step == 1]
    assert order.index("loss") < order.index("grads") < order.index("weights")


def test_callable_argument_other_than_a_closure_is_passed_unchanged(tmp_path: Path) -> None:
    weight = torch.ones(3, requires_grad=True)
    optimizer = UsesScale([weight], 0.1)
    with traced(tmp_path, digest="tensors"), ci.scope("step", index=0):
        weight.sum().backward()
        optimizer.step(Closure(weight))
    assert list(_of(tmp_path, "grads")[0].tensors) == ["group0.0"]


@pytest.mark.parametrize("kind", ["real", "complex", "sparse", "meta"])
def test_only_a_dense_real_loss_has_bits(kind: str, tmp_path: Path) -> None:
    device = "meta" if kind == "meta" else None
    dtype = torch.complex64 if kind == "complex" else torch.float32
    weight = torch.ones(1, dtype=dtype, device=device, requires_grad=True)
    with traced(tmp_path, digest="step"), ci.scope("step", index=0):
        loss = weight.to_sparse() if kind == "sparse" else weight * 2
        loss.backward(loss.detach())
    (mark,) = [each.mark for each in _of(tmp_path, "loss")]
    assert (mark.bits, mark.dtype) == ((0x40000000, "float32") if kind == "real" else (None, None))


def test_tensors_that_are_not_stored_have_a_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cirron_otel.sdk.snapshots.digests.MOST_BYTES", 100)
    with traced(tmp_path, digest="step", digest_keep="0..9"), ci.scope("step", index=0):
        model = torch.nn.Linear(8, 8)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model(torch.ones(1, 8)).sum().backward()
        optimizer.step()
    marks = [each.mark for each in digests(tmp_path)]
    assert {each.failed for each in marks} == {None}
    (weights,) = [each for each in marks if each.quantity == "weights"]
    assert weights.blob_uri is None
    assert "not stored: 288 bytes" in ci.health()["last_errors"]["digest file"]


def test_copies_of_dropped_marks_do_not_wait(tmp_path: Path) -> None:
    """A full buffer drops its oldest mark, with the digest in it."""
    taking = Digests("step", 1, (0, 9), tmp_path)
    marks = [taking.take("weights", lambda: [("w", torch.ones(3))], (0,)) for _ in range(3)]
    assert taking.waiting_bytes == 36
    dropped = marks.pop()
    assert dropped is not None
    taking.discard(dropped)
    assert taking.waiting_bytes == 24
    del dropped
    marks.clear()
    gc.collect()
    assert taking.waiting_bytes == 0


def test_losses_that_can_be_read_only_once(tmp_path: Path) -> None:
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)
    with traced(tmp_path, digest="tensors"):
        for index in range(2):
            with ci.scope("step", index=index):
                losses = [weight.sum(), weight.square().sum()]
                optimizer.zero_grad()
                torch.autograd.backward(iter(losses) if index else losses)
                assert weight.grad is not None
                optimizer.step()
    first, second = _of(tmp_path, "loss")
    assert list(first.tensors) == ["loss.0", "loss.1"]
    assert "cannot be read without a change" in str(second.mark.failed)


# --- models ---------------------------------------------------------------------------------------


class Task(torch.nn.Module):
    """One of several models with one encoder."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = encoder, torch.nn.Linear(4, 2)

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.head(self.encoder(inputs))


class Wrapper(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.inner(inputs)


def _several_heads(directory: Path, tasks: list[Task]) -> None:
    """Train tasks, called in the order in which they are listed here."""
    named = dict.fromkeys(each for task in tasks for each in task.parameters())
    optimizer = torch.optim.SGD(list(named), 0.1)
    inputs = torch.ones(3, 8)
    with traced(directory, digest="tensors"):
        for index in range(2):
            with ci.scope("step", index=index):
                optimizer.zero_grad()
                sum(task(inputs).square().mean() for task in tasks).backward()
                optimizer.step()


def test_the_names_do_not_depend_on_the_addresses_of_models(tmp_path: Path) -> None:
    """Eight models in a WeakSet would be in another order with a probability of 1 − 1/8!."""
    for run in range(2):
        torch.manual_seed(2)
        encoder = torch.nn.Linear(8, 4)
        tasks = [Task(encoder) for _ in range(8)]
        # The objects of the second run have other addresses, in another order.
        order = sorted(tasks, key=id, reverse=run == 1)
        for task, seed in zip(order, range(8), strict=True):
            torch.manual_seed(seed)
            torch.nn.init.normal_(task.head.weight)
            torch.nn.init.normal_(task.head.bias)
        _several_heads(tmp_path / str(run), order)
    assert first_difference(tmp_path / "0", tmp_path / "1") is None
    names = list(_of(tmp_path / "1", "grads")[1].tensors)
    assert names[:4] == ["encoder.weight", "encoder.bias", "head.weight", "head.bias"]
    assert names[4:6] == ["2:head.weight", "2:head.bias"]


def test_a_model_and_its_wrapper(tmp_path: Path) -> None:
    torch.manual_seed(2)
    model = Wrapper(torch.nn.Linear(8, 4))
    wrapper = Wrapper(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with traced(tmp_path, digest="tensors"):
        for index in range(4):
            with ci.scope("step", index=index):
                optimizer.zero_grad()
                (wrapper, model)[index % 2](torch.ones(3, 8)).sum().backward()
                optimizer.step()
    names = {tuple(each.tensors) for each in _of(tmp_path, "grads")}
    assert len(names) == 1


def _alternating(directory: Path, start: int, saved: dict[str, Any], holder: Any = list) -> None:
    """Train two models in turn, in six steps; `start` of them have been done."""
    torch.manual_seed(2)
    models = holder([torch.nn.Linear(8, 2), torch.nn.BatchNorm1d(8)])
    optimizer = torch.optim.SGD([each for model in models for each in model.parameters()], 0.1)
    inputs = torch.randn(6, 4, 8)
    if start:
        for model, each in zip(models, saved["models"], strict=True):
            model.load_state_dict(each)
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad = torch.zeros_like(parameter)
    with traced(directory, digest="tensors"):
        for index in ci.batches(range(start, 6), start=start):
            if not start and index == 3:
                saved["models"] = copy.deepcopy([model.state_dict() for model in models])
            optimizer.zero_grad(set_to_none=False)
            models[index % 2](inputs[index]).square().mean().backward()
            optimizer.step()


@pytest.mark.parametrize("holder", [list, torch.nn.ModuleList])
def test_the_names_do_not_depend_on_the_models_called_so_far(holder: Any, tmp_path: Path) -> None:
    saved: dict[str, Any] = {}
    _alternating(tmp_path / "complete", 0, saved, holder)
    _alternating(tmp_path / "resumed", 3, saved, holder)
    complete, resumed = digests(tmp_path / "complete"), digests(tmp_path / "resumed")
    assert {each.mark.failed for each in complete} == {None}
    of_models = ("grads", "weights", "optimizer")
    for quantity in of_models:
        ours = [each.mark.digest for each in complete if each.mark.quantity == quantity]
        theirs = [each.mark.digest for each in resumed if each.mark.quantity == quantity]
        assert ours[3:] == theirs
    names = {tuple(each.tensors)[:4] for each in complete if each.mark.quantity == "weights"}
    assert names == {("weight", "bias", "2:weight", "2:bias")}


def test_objects_are_searched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searches = []
    search = uncalled_models._search
    monkeypatch.setattr(
        uncalled_models, "_search", lambda *args: searches.append(args) or search(*args)
    )
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)
    with traced(tmp_path, digest="step"):
        for index in range(4):
            with ci.scope("step", index=index):
                weight.sum().backward()
                optimizer.step()
    assert len(searches) == 1
    assert len(_of(tmp_path, "weights")) == 4
