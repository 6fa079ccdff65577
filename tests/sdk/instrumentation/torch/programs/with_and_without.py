"""Uses of models, optimizers and loaders beside the hooks; each prints a result that tracing keeps.

The results are one JSON document. A use that raises has its error as its result.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import hashlib
import inspect
import io
import json
import pickle
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import cirron_otel as ci

USES: dict[str, Callable[[], Any]] = {}


def use(function: Callable[[], Any]) -> Callable[[], Any]:
    """Add a use to the table under its name."""
    USES[function.__name__] = function
    return function


class Net(nn.Module):
    """A model of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x)))


def digest(*values: Any) -> str:
    """Return a hash of tensors, of a module's state, or of bytes."""
    found = hashlib.sha256()
    for value in values:
        if isinstance(value, nn.Module):
            state = value.state_dict()
            found.update(digest(*[state[name] for name in sorted(state)]).encode())
        elif isinstance(value, (list, tuple)):
            found.update(digest(*value).encode())
        elif isinstance(value, Tensor):
            found.update(value.detach().contiguous().numpy().tobytes())
        else:
            found.update(value if isinstance(value, bytes) else repr(value).encode())
    return found.hexdigest()


def batches() -> DataLoader[Any]:
    points = torch.linspace(-1, 1, 32).reshape(8, 4)
    return DataLoader(TensorDataset(points, points.sum(1, keepdim=True)), 2)


def train(model: Any, *, after: Callable[[], object] = lambda: None) -> Any:
    """Train one epoch; call `after` in the middle of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for x, y in batches():
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        after()
        loss.backward()
        optimizer.step()
    return optimizer


@use
def deepcopy() -> Any:
    model = Net()
    copies: list[Any] = []
    optimizer = train(model, after=lambda: copies.append(copy.deepcopy(model)))
    other = copy.deepcopy(model)
    train(other)
    return digest(*copies, other), sorted(vars(other)), digest(str(copy.deepcopy(optimizer)))


@use
def jit_script() -> Any:
    model = torch.jit.script(Net())
    train(model)
    stream = io.BytesIO()
    torch.jit.save(model, stream)
    stream.seek(0)
    loaded = torch.jit.load(stream)
    return digest(model, loaded(torch.ones(2, 4))), model.code, str(model.graph)


@use
def jit_trace() -> Any:
    model = Net()
    train(model)
    traced = torch.jit.trace(model, torch.ones(2, 4))
    return digest(traced(torch.ones(3, 4))), str(traced.inlined_graph).count("aten::")


@use
def jit_script_of_a_called_model() -> Any:
    model = Net()
    train(model)
    return torch.jit.script(model).code


@use
def export() -> Any:
    model = Net()
    train(model)
    program = torch.export.export(model, (torch.ones(2, 4),))
    stream = io.BytesIO()
    torch.export.save(program, stream)
    stream.seek(0)
    loaded = torch.export.load(stream).module()
    return str(program.graph), digest(loaded(torch.ones(2, 4)))


@use
def export_strict() -> Any:
    model = Net()
    train(model)
    program = torch.export.export(model, (torch.ones(2, 4),), strict=True)
    return str(program.graph)


def compilations(work: Callable[[Callable[..., Any]], Any]) -> Any:
    """Return the result of `work`, and the number of graphs, breaks and recompilations."""
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counters.clear()
    graphs: list[str] = []

    def backend(graph: Any, _inputs: Any) -> Any:
        graphs.append(str(graph.graph))
        return graph

    result = work(backend)
    return result, graphs, dict(counters["graph_break"]), dict(counters["frames"])


@use
def compile_fullgraph() -> Any:
    def work(backend: Any) -> str:
        model = Net()
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        train(compiled)
        return digest(model, compiled(torch.ones(3, 4)))

    return compilations(work)


@use
def compile_breaks() -> Any:
    class Breaking(Net):
        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            torch._dynamo.graph_break()
            return self.last(torch.relu(x))

    def work(backend: Any) -> str:
        model = Breaking()
        compiled = torch.compile(model, backend=backend)
        train(compiled)
        for size in (3, 4, 5):
            compiled(torch.ones(size, 4))
        return digest(model)

    return compilations(work)


@use
def compile_step() -> Any:
    def work(backend: Any) -> str:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

        @torch.compile(backend=backend)
        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss

        for x, y in batches():
            step(x, y)
        return digest(model)

    return compilations(work)


@use
def compile_aot_autograd() -> Any:
    from torch._dynamo.utils import counters

    torch.compiler.reset()
    counters.clear()
    model = Net()
    train(torch.compile(model, backend="aot_eager"))
    return digest(model), dict(counters["aot_autograd"]), dict(counters["graph_break"])


@contextlib.contextmanager
def process_group() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=0, world_size=1
        )
        try:
            yield
        finally:
            torch.distributed.destroy_process_group()


@use
def fsdp2_forward_method() -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    class Encoding(Net):
        def encode(self, x: Tensor) -> Tensor:
            return self.first(x)

    with process_group():
        mesh = init_device_mesh("cpu", (1,))
        model = Encoding()
        fully_shard(model, mesh=mesh)
        register_fsdp_forward_method(model, "encode")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for x, y in batches():
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            model.encode(x).sum().backward()
            optimizer.step()
        values = [each.full_tensor() for each in model.parameters()]  # type: ignore[attr-defined]
        return digest(values), type(model).__name__


class Checkpointed(Net):
    """A model whose layers are computed again in the backward."""

    is_reentrant = True
    calls = 0

    def _first(self, x: Tensor) -> Tensor:
        self.calls += 1
        return torch.relu(self.first(x)) + torch.rand(1)

    def forward(self, x: Tensor) -> Tensor:
        x = x.requires_grad_()
        return self.last(checkpoint(self._first, x, use_reentrant=self.is_reentrant))


@use
def checkpoint_reentrant() -> Any:
    model = Checkpointed()
    train(model)
    return digest(model, torch.rand(1)), model.calls


@use
def checkpoint_not_reentrant() -> Any:
    model = Checkpointed()
    model.is_reentrant = False
    train(model)
    return digest(model, torch.rand(1)), model.calls


@use
def gc_freeze() -> Any:
    gc.collect()
    gc.freeze()
    try:
        model = Net()
        train(model, after=gc.collect)
        return digest(model)
    finally:
        gc.unfreeze()


@use
def save_on_cpu() -> Any:
    model = Net()
    with torch.autograd.graph.save_on_cpu():
        train(model)
    packed: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        train(model)
    return digest(model), packed


@use
def averaged_model() -> Any:
    model = Net()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    train(model, after=lambda: average.update_parameters(model))
    torch.optim.swa_utils.update_bn(batches(), average)
    stream = io.BytesIO()
    torch.save(average.state_dict(), stream)
    return digest(model, average, average(torch.ones(2, 4))), int(average.n_averaged)


@use
def functional_call() -> Any:
    model = Net()
    train(model)
    values = {name: value.detach() for name, value in model.named_parameters()}
    x = torch.ones(3, 4)

    def loss(values: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(model, values, (x[None],)).sum()

    gradients = torch.vmap(torch.func.grad(loss), (None, 0))(values, x)
    return digest(*[gradients[name] for name in sorted(gradients)])


@use
def fx_symbolic_trace() -> Any:
    model = Net()
    train(model)
    return str(torch.fx.symbolic_trace(model).graph)


@use
def parametrizations() -> Any:
    model = Net()
    nn.utils.parametrizations.weight_norm(model.first)
    nn.utils.parametrizations.spectral_norm(model.last)
    train(model)
    return digest(model)


@use
def profiler_with_stack() -> Any:
    model = Net()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True, record_shapes=True
    ) as profiled:
        train(model)
    counts = {each.key: each.count for each in profiled.key_averages()}
    return digest(model), dict(sorted(counts.items()))


class SeenFunctions(TorchFunctionMode):
    """Counts the functions and the properties of tensors that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        owner = getattr(func, "__self__", None)
        self.counts[f"{getattr(owner, '__name__', '')} {func.__name__}"] += 1
        return func(*args, **(kwargs or {}))


class SeenOperations(TorchDispatchMode):
    """Counts the operations that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


@use
def modes() -> Any:
    found = []
    for mode in (SeenFunctions(), SeenOperations()):
        model, criterion = Net(), nn.MSELoss()
        with mode:
            for number, (x, y) in enumerate(batches()):
                criterion(model(x), y).backward()
                with torch.no_grad():
                    for each in model.parameters():
                        each.sub_(each.grad, alpha=0.1)
                        if number % 2:
                            each.grad.zero_()
                        else:
                            each.grad = None
            train(model)
        found.append(sorted(mode.counts.items()))
    return found


class Counted(DataLoader[Any]):
    """A loader whose `__iter__` is a generator function."""

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(super().__iter__()):
            yield number, *batch


class Halved(nn.Module):
    """A transform that does not call the constructor of `nn.Module`."""

    def __init__(self) -> None:
        pass

    def __call__(self, x: Tensor) -> Tensor:
        return x / 2


@use
def generator_function() -> Any:
    loader = Counted(TensorDataset(torch.linspace(-1, 1, 32).reshape(8, 4)), 2)
    model, halved = Net(), Halved()
    found = [model(halved(x)).sum().item() + number for number, x in loader]
    functions = Counted.__iter__, loader.__iter__
    return found, [inspect.isgeneratorfunction(each) for each in functions]


@use
def step_of_an_optimizer() -> Any:
    model = Net()
    optimizer = train(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    optimizer.step()
    scheduler.step()
    copied = copy.deepcopy(optimizer)
    copied.step()
    pickled = pickle.loads(pickle.dumps(optimizer))
    steps = torch.optim.AdamW.step, optimizer.step, copied.step, pickled.step
    return (
        digest(model), [str(inspect.signature(each)) for each in steps],
        [each.__qualname__ for each in steps], [each.hooked for each in steps],
        hasattr(optimizer.step, "_wrapped_by_lr_sched"),
        pickle.loads(pickle.dumps(torch.optim.AdamW)) is torch.optim.AdamW,
    )  # fmt: skip


@use
def compile_optimizer() -> Any:
    def work(backend: Any) -> str:
        model = Net()
        optimizer = train(model)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        step = torch.compile(optimizer.step, backend=backend)
        for x, y in batches():
            nn.functional.mse_loss(model(x), y).backward()
            step()
            scheduler.step()
            optimizer.zero_grad()
        return digest(model)

    return compilations(work)


def results() -> dict[str, Any]:
    """Run each use."""
    found = {}
    for name, function in USES.items():
        torch.manual_seed(0)
        try:
            found[name] = function()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def main() -> None:
    """Print the results; the arguments are a directory, and `traced` to open a session there."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    is_traced = "traced" in sys.argv
    if is_traced:
        ci.profile(
            output_dir=sys.argv[1], frameworks=["torch"], exporters="none", join="none",
            handle_signals=False, quiet=True,
        )  # fmt: skip
    found = results()
    errors = ci.health()["swallowed_errors"] if is_traced else {}
    print(json.dumps({"results": found, "errors": errors}, default=repr))


if __name__ == "__main__":
    main()
