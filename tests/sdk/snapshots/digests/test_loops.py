"""The digests of training loops: which there are, that they repeat, and that a fault is found."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import cirron_otel as ci
from cirron_otel.core.analysis.verify import verify_spool
from cirron_otel.core.spool.reader import SpoolReader
from tests.kit.sessions.processes import environment

from . import recompute
from .conftest import Recorded
from .loops import (
    AT,
    LOOPS,
    STEPS,
    Loop,
    plain,
    traced,
)
from .reading import digests, first_difference, values

USUAL = [("rng", 0), ("batch", 0), ("loss", 0), ("grads", 0), ("weights", 0), ("optimizer", 0)]
TWICE = [(quantity, number) for number in (0, 1) for quantity in ("grads", "weights", "optimizer")]
SEQUENCES: dict[str, list[tuple[str, int]]] = {
    **dict.fromkeys(("plain", "scaler", "manual", "batches", "evaluated", "compiled"), USUAL),
    "accumulation": [
        ("rng", 0), ("batch", 0), ("loss", 0), ("batch", 1), ("loss", 1), *USUAL[3:],
    ],
    "gan": [("rng", 0), ("loss", 0), *TWICE[:3], ("loss", 1), *TWICE[3:]],
    "lbfgs": [
        ("rng", 0),
        *((quantity, number) for number in range(3) for quantity in ("loss", "grads")),
        ("weights", 0), ("optimizer", 0),
    ],
}  # fmt: skip


def _run(directory: Path, name: str, loop: Loop | None = None, **options: Any) -> Loop:
    loop = loop or Loop()
    with traced(directory, digest="tensors", **options):
        LOOPS[name](loop)
    health = ci.health()
    assert health["swallowed_errors"] == {}
    return loop


@pytest.mark.parametrize("name", LOOPS)
def test_the_quantities_of_each_step(name: str, recorded: Recorded) -> None:
    directory = recorded(name)
    found = digests(directory)
    for step in range(STEPS):
        marks = [
            (each.mark.quantity, each.mark.occurrence) for each in found if each.mark.step == step
        ]
        expected = SEQUENCES[name]
        assert marks == expected, step
    assert {each.mark.step for each in found} == set(range(STEPS))
    spans = {each.mark.step: each.span["id"] for each in found}
    assert len(set(spans.values())) == STEPS
    for each in found:
        assert each.span["id"] == spans[each.mark.step]
        assert each.span["name"] in ("step", "batch")
        assert each.mark.failed is None
    assert [each.code for each in verify_spool(SpoolReader(directory))] == []


@pytest.mark.parametrize("name", LOOPS)
def test_a_run_can_be_repeated(name: str, recorded: Recorded) -> None:
    assert first_difference(recorded(name), recorded(name, "again")) is None


@pytest.mark.parametrize("name", LOOPS)
def test_losses_and_weights_are_the_same_without_digests(name: str, tmp_path: Path) -> None:
    found = []
    for mode in (None, "step", "tensors"):
        loop = Loop()
        loop.is_traced = mode is not None
        if mode is None:
            model = LOOPS[name](loop)
        else:
            with traced(tmp_path / mode, digest=mode, digest_keep="1..2"):
                model = LOOPS[name](loop)
        weights = {key: each.clone() for key, each in model.state_dict().items()}
        found.append((loop.losses, weights, torch.get_rng_state(), random.getstate()))
    for losses, weights, state, python in found[1:]:
        assert losses == found[0][0]
        assert all(torch.equal(each, found[0][1][key]) for key, each in weights.items())
        assert torch.equal(state, found[0][2])
        assert python == found[0][3]


@pytest.mark.parametrize("name", LOOPS)
def test_scaled_gradient_is_the_first_difference(name: str, recorded: Recorded) -> None:
    found = first_difference(recorded(name), recorded(name, "scaled"))
    assert found is not None
    assert found[:2] == (AT, "grads")
    names = _differing(recorded(name), recorded(name, "scaled"), found)
    assert names == ["weight" if name in ("gan", "lbfgs") else "0.weight"]


def _differing(a: Path, b: Path, key: tuple[int, str, int]) -> list[str]:
    """The tensors of a quantity that differ between two runs."""
    one, other = (next(each.tensors for each in digests(run) if each.key == key) for run in (a, b))
    assert list(one) == list(other)
    return [name for name in one if one[name].digest != other[name].digest]


def _one_bit(model: Any, *_: Any) -> None:
    model[4].weight.view(torch.int32)[0, 2] ^= 1 << 22


def _sample(_: Any, __: Any, loop: Loop) -> None:
    loop.set.tensors[0][7, 1] += 1


def _seed(*_: Any) -> None:
    torch.manual_seed(12)


def _python_draw(*_: Any) -> None:
    random.random()


def _buffer(model: Any, *_: Any) -> None:
    model[1].running_mean[0] += 1


def _lr(_: Any, optimizer: Any, __: Any) -> None:
    optimizer.param_groups[0]["lr"] *= 2


def _moment(model: Any, optimizer: Any, _: Any) -> None:
    optimizer.state[model[0].bias]["exp_avg"][1] += 1e-3


FAULTS: dict[str, tuple[Callable[..., None], str, tuple[int, str], list[str]]] = {
    "another seed": (_seed, "begin", (0, "rng"), ["torch"]),
    "an extra draw": (_python_draw, "stepped", (AT + 1, "rng"), ["python"]),
    "one bit of a weight": (_one_bit, "fetched", (AT, "loss"), ["loss"]),
    "a bit after the backward pass": (_one_bit, "backward", (AT, "weights"), ["4.weight"]),
    "another lr": (_lr, "backward", (AT, "weights"), ["0.weight"]),
    "a buffer": (_buffer, "backward", (AT, "weights"), ["1.running_mean"]),
    "the optimizer's state": (_moment, "backward", (AT, "weights"), ["0.bias"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_injected_fault_is_the_first_difference(
    fault: str, recorded: Recorded, tmp_path: Path
) -> None:
    plant, where, expected, tensors = FAULTS[fault]
    _run(tmp_path, "plain", Loop(plant, where))
    found = first_difference(recorded("plain"), tmp_path)
    assert found is not None
    assert found[:2] == expected
    assert _differing(recorded("plain"), tmp_path, found)[: len(tensors)] == tensors


def test_changed_sample_is_detected_in_its_batch(recorded: Recorded, tmp_path: Path) -> None:
    _run(tmp_path, "plain", Loop(_sample, "begin"))
    found = first_difference(recorded("plain"), tmp_path)
    assert found is not None
    assert found[1] == "batch"
    assert _differing(recorded("plain"), tmp_path, found) == ["0"]


# --- what is digested -----------------------------------------------------------------------------


def test_the_loss_has_its_bits(tmp_path: Path) -> None:
    with traced(tmp_path, digest="step"):
        plain(loop := Loop())
    losses = [each.mark for each in digests(tmp_path) if each.mark.quantity == "loss"]
    bits = [torch.tensor(loss).view(torch.int32).item() & 0xFFFFFFFF for loss in loop.losses]
    assert [(each.bits, each.dtype, each.tensors) for each in losses] == [
        (each, "float32", None) for each in bits
    ]


def test_the_quantity_is_the_digest_of_its_tensors(recorded: Recorded) -> None:
    for each in digests(recorded("plain")):
        pairs = [(name, bytes.fromhex(record.digest)) for name, record in each.tensors.items()]
        assert recompute.quantity_digest(pairs).hex() == each.mark.digest


def test_the_quantities_are_the_same_in_both_modes(tmp_path: Path) -> None:
    for mode in ("step", "tensors"):
        loop = Loop()  # seeded before: a generator that is seeded in a recording counts from there
        with traced(tmp_path / mode, digest=mode):
            plain(loop)
    assert values(tmp_path / "step") == values(tmp_path / "tensors")


def test_names_and_values_of_the_tensors(tmp_path: Path) -> None:
    random.seed(1)  # a state other than that in which the loop begins
    with traced(tmp_path, digest="tensors"):
        model = plain(Loop())
    last = {each.mark.quantity: each.tensors for each in digests(tmp_path)}
    weights = {
        name: recompute.tensor_digest(
            f"{str(each.dtype)[6:]} [{','.join(map(str, each.shape))}]",
            bytes(each.detach().reshape(-1).view(torch.uint8).tolist()),
        ).hex()
        for name, each in [*model.named_parameters(), *model.named_buffers()]
    }
    assert {name: each.digest for name, each in last["weights"].items()} == weights
    assert list(last["grads"]) == [name for name, _ in model.named_parameters()]
    assert list(last["batch"]) == ["0", "1"]
    assert next(iter(last["rng"])) == "python"
    assert "torch" in last["rng"]
    assert list(last["optimizer"])[:3] == [
        "0.weight.step", "0.weight.exp_avg", "0.weight.exp_avg_sq",
    ]  # fmt: skip
    assert "group0.lr" in last["optimizer"]
    assert "group0.betas.1" in last["optimizer"]


def test_each_session_has_the_names(recorded: Recorded) -> None:
    """A layout is written once, and its names are in the first mark that has it."""
    seen: set[str] = set()
    for each in digests(recorded("plain")):
        assert each.mark.tensors is not None
        assert ("names" in each.mark.tensors) == (each.mark.tensors["layout"] not in seen)
        seen.add(each.mark.tensors["layout"])


# --- options --------------------------------------------------------------------------------------


def test_every_and_keep(tmp_path: Path) -> None:
    _run(tmp_path, "plain", digest_every=4, digest_keep="1..2")
    found = digests(tmp_path)
    assert sorted({each.mark.step for each in found}) == [0, 1, 2, 4]
    assert {each.mark.step for each in found if each.mark.blob_uri is not None} == {1, 2}


def test_script_recomputes_the_digests_of_stored_tensors(tmp_path: Path) -> None:
    _run(tmp_path, "plain", digest_keep="2")
    kept = [each for each in digests(tmp_path) if each.mark.blob_uri is not None]
    assert [(each.mark.quantity, each.mark.occurrence) for each in kept] == USUAL
    for each in kept:
        assert each.mark.blob_uri is not None
        file = each.mark.blob_uri.removeprefix("file://")
        printed = subprocess.run(
            [sys.executable, "-I", recompute.__file__, file],
            capture_output=True, text=True, check=True, timeout=60, env=environment(),
        )  # fmt: skip
        *tensors, quantity = printed.stdout.splitlines()
        assert tensors == [f"{record.digest} {name}" for name, record in each.tensors.items()]
        assert quantity == each.mark.digest


def test_stored_files_are_readable_with_safetensors(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    with traced(tmp_path, digest="step", digest_keep="5..5"):
        model = plain(Loop())
    (weights,) = tmp_path.glob("snapshots/*/digest.weights.safetensors")
    stored = load_file(weights)
    assert set(stored) == set(model.state_dict())
    assert all(torch.equal(stored[name], each) for name, each in model.state_dict().items())


def test_nothing_is_digested_by_default(tmp_path: Path) -> None:
    with traced(tmp_path):
        plain(Loop())
    assert digests(tmp_path) == []
    assert ci.health()["digests"]["count"] == 0


def test_keeping_without_digests_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with traced(tmp_path, digest_keep="1"):
        pass
    assert "digest_keep is set without digest" in caplog.text


def test_the_hooks_are_removed(tmp_path: Path) -> None:
    from torch.optim import optimizer
    from torch.utils.data import dataloader

    def hooks() -> tuple[Any, ...]:
        return (
            dataloader._BaseDataLoaderIter.__next__, torch.autograd.backward,
            torch.amp.GradScaler.step, len(optimizer._global_optimizer_pre_hooks),
            len(optimizer._global_optimizer_post_hooks),
        )  # fmt: skip

    before = hooks()
    with traced(tmp_path, digest="step"):
        assert hooks() != before
    assert hooks() == before


@pytest.mark.parametrize("draws", [False, True])
def test_an_unused_generator_does_not_count(draws: bool, tmp_path: Path) -> None:
    """Python seeds its generator differently in every process, which some never use."""
    for run in ("a", "b"):
        torch.manual_seed(4)
        random.seed(run)
        model = torch.nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        data = [(torch.full((6,), number / 9), torch.ones(1)) for number in range(8)]
        with traced(tmp_path / run, digest="tensors"):
            for x, y in torch.utils.data.DataLoader(data, 2):
                noise = random.random() if draws else 0.0
                optimizer.zero_grad()
                (model(x + noise) - y).square().mean().backward()
                optimizer.step()
    found = first_difference(tmp_path / "a", tmp_path / "b")
    assert found == ((0, "rng", 0) if draws else None)


def test_an_optimizer_without_a_known_model(tmp_path: Path) -> None:
    torch.manual_seed(1)
    weight = torch.randn(3, requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)
    with traced(tmp_path, digest="tensors"):
        for _ in range(3):
            optimizer.zero_grad()
            weight.square().sum().backward()
            optimizer.step()
    found = {each.mark.quantity: list(each.tensors) for each in digests(tmp_path)}
    assert found["grads"] == found["weights"] == ["group0.0"]
