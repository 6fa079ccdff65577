"""The configuration of a training is recorded as attributes of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import cirron_otel as ci
from cirron_otel.core.run.opening import open_run
from cirron_otel.core.spool.reader import SpoolReader
from cirron_otel.semconv import CONFIGURATION
from tests.kit.sessions.spool_trees import read_spool

Record = Callable[..., dict[str, Any]]
LOADER, MODEL, OPTIMIZER = "cirron.data_loader.", "cirron.model.", "cirron.optimizer."


@pytest.fixture
def record(tmp_path: Path) -> Iterator[Record]:
    """Return a function that records a program and returns its configuration."""

    def run(program: Callable[[], Any], **options: Any) -> dict[str, Any]:
        profiler = ci.profile(
            output_dir=tmp_path / "run", exporters="none", join="none", handle_signals=False,
            **options,
        )  # fmt: skip
        try:
            program()
        finally:
            ci.shutdown()
        assert not any(profiler.health()["swallowed_errors"].values())
        reader = SpoolReader(tmp_path / "run")
        with open_run(reader, reader) as opened:
            assert all(len(values) == 1 for values in opened.settings.values())
            return {name: next(iter(values)) for name, values in opened.settings.items()}

    yield run
    ci.shutdown()


def _loader(size: int = 4, **options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(8, 3)), batch_size=size, **options)


def _train(model: Any, optimizer: Any, *loaders: DataLoader[Any]) -> None:
    for loader in loaders:
        for (batch,) in loader:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()


def test_loader_model_optimizer_and_threads(record: Record) -> None:
    def program() -> None:
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
        model[0].weight.requires_grad_(False)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.25, foreach=True)
        _train(model, optimizer, _loader(sampler=RandomSampler(range(8)), drop_last=True))

    found = record(program)
    assert {LOADER + name: value for name, value in {
        "workers": 0, "batch_size": 4, "drop_last": True, "sampler": "RandomSampler",
        "pin_memory": False, "persistent_workers": False,
    }.items()}.items() <= found.items()  # fmt: skip
    assert LOADER + "prefetch_factor" not in found
    assert {
        MODEL + "class": "Sequential", MODEL + "parameters": 11, MODEL + "trainable_parameters": 5,
        MODEL + "dtype": "float32", MODEL + "device": "cpu", MODEL + "compiled": False,
        OPTIMIZER + "name": "AdamW", OPTIMIZER + "learning_rate": 0.25, OPTIMIZER + "foreach": True,
        "cirron.torch.threads": torch.get_num_threads(),
    }.items() <= found.items()  # fmt: skip
    assert OPTIMIZER + "fused" not in found
    assert "cirron.autocast.dtype" not in found
    assert 1 <= found["cirron.cpu.allowed"] <= found["cirron.cpu.count"]


def test_workers_and_prefetching(record: Record) -> None:
    def program() -> None:
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        _train(model, optimizer, _loader(num_workers=1, persistent_workers=True, prefetch_factor=3))

    found = record(program)
    assert found[LOADER + "workers"] == 1
    assert found[LOADER + "prefetch_factor"] == 3
    assert found[LOADER + "persistent_workers"] is True


def test_the_loader_is_the_one_that_trains(record: Record) -> None:
    """Neither a pass for statistics nor an evaluation ahead of the training counts."""

    def program() -> None:
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sum(batch.sum() for (batch,) in _loader(1))
        model.eval()
        with torch.no_grad():
            for (batch,) in _loader(8):
                model(batch)
        model.train()
        _train(model, optimizer, _loader(2))

    assert record(program)[LOADER + "batch_size"] == 2


def test_a_loader_that_does_not_train_is_not_recorded(record: Record) -> None:
    def program() -> None:
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        sum(batch.sum() for (batch,) in _loader(4))
        for batch in torch.randn(3, 2, 3):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()

    found = record(program)
    assert found[OPTIMIZER + "name"] == "SGD"
    assert LOADER + "batch_size" not in found


class _Counting(TorchFunctionMode):
    """Counts the functions of torch that run."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.calls.append(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))


def test_a_mode_of_the_program_sees_no_reads(record: Record) -> None:
    calls = []

    def program() -> None:
        torch.manual_seed(1)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with _Counting() as mode:
            _train(model, optimizer, _loader())
        calls.append(mode.calls)

    record(program)
    program()
    assert calls[0] == calls[1]


def test_a_model_with_one_child_is_no_wrapper(record: Record) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = torch.nn.Linear(3, 1)
            self.scale = torch.nn.Parameter(torch.ones(7))

        def forward(self, x: Any) -> Any:
            return self.module(x) * self.scale.sum()

    def program() -> None:
        model = Model()
        _train(model, torch.optim.SGD(model.parameters(), lr=0.1), _loader())

    found = record(program)
    assert (found[MODEL + "class"], found[MODEL + "parameters"]) == ("Model", 11)


def test_autocast_and_compilation(record: Record) -> None:
    def program() -> None:
        model = torch.compile(torch.nn.Linear(3, 1), backend="eager")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with torch.autocast("cpu", torch.bfloat16):
            _train(model, optimizer, _loader())

    found = record(program)
    assert found["cirron.autocast.dtype"] == "bfloat16"
    assert found[MODEL + "compiled"] is True
    assert found[MODEL + "class"] == "Linear"
    assert found[MODEL + "parameters"] == 4


def test_fully_sharded_data_parallel(record: Record, one_process_group: None) -> None:
    def program() -> None:
        model = torch.nn.Sequential(torch.nn.Linear(3, 1))
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        _train(model, torch.optim.SGD(model.parameters(), lr=0.1), _loader())

    found = record(program)
    assert found["cirron.fsdp.version"] == 2
    assert found[MODEL + "class"] == "Sequential"


def test_distributed_data_parallel(record: Record, one_process_group: None) -> None:
    def program() -> None:
        model = DistributedDataParallel(
            torch.nn.Linear(3, 1), bucket_cap_mb=2, find_unused_parameters=True
        )
        _train(model, torch.optim.SGD(model.parameters(), lr=0.1), _loader())

    found = record(program)
    assert found["cirron.ddp.bucket_bytes"] == 2 * 2**20
    assert found["cirron.ddp.find_unused_parameters"] is True
    assert found["cirron.ddp.static_graph"] is False
    assert found[MODEL + "class"] == "Linear"


@pytest.fixture
def one_process_group(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("sizes", [(2, 2, 4), (4, 2)])
def test_a_change_of_the_loader_is_a_mark(
    record: Record, tmp_path: Path, sizes: Sequence[int]
) -> None:
    def program() -> None:
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        _train(model, optimizer, *map(_loader, sizes))

    assert record(program)[LOADER + "batch_size"] == sizes[0]
    spool = read_spool(tmp_path / "run")
    spans = {span["id"]: span for span in spool.spans}
    (mark,) = (each for each in spool.marks if each["name"].startswith("cirron.data_loader"))
    assert (mark["name"], mark["value"]) == (LOADER + "batch_size", sizes[-1])
    epoch = spans[mark["span_id"]]
    assert (epoch["name"], epoch["index"]) == ("epoch", len(sizes) - 1)


def test_nothing_is_recorded_if_it_is_switched_off(record: Record, tmp_path: Path) -> None:
    def program() -> None:
        model = torch.nn.Linear(3, 1)
        _train(model, torch.optim.SGD(model.parameters(), lr=0.1), _loader(2), _loader(4))

    assert record(program, run_details=["versions"]) == {}
    assert not {each["name"] for each in read_spool(tmp_path / "run").marks} & CONFIGURATION


class _Odd:
    """An attribute that cannot be read, in an object that trains."""

    def __get__(self, *_: object) -> Any:
        raise RuntimeError("odd")


def test_objects_that_cannot_be_read_do_not_disturb(tmp_path: Path) -> None:
    class Loader(DataLoader[Any]):
        batch_size = _Odd()

        def __setattr__(self, name: str, value: Any) -> None:
            if name != "batch_size":
                super().__setattr__(name, value)

    model = torch.nn.Sequential(torch.nn.LazyLinear(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1))
    profiler = ci.profile(output_dir=tmp_path, exporters="none", join="none", handle_signals=False)
    try:
        _train(model, optimizer, Loader(TensorDataset(torch.randn(8, 3)), batch_size=4))
    finally:
        ci.shutdown()
    assert profiler.health()["swallowed_errors"]["torch"] == 1
    names = [span["name"] for span in read_spool(tmp_path).spans]
    assert names.count("step") == 2
    attributes = read_spool(tmp_path).batches[-1]["otel"]["resource"]["attributes"]
    assert attributes[MODEL + "class"] == "Sequential"
    assert MODEL + "parameters" not in attributes
    assert OPTIMIZER + "learning_rate" not in attributes
