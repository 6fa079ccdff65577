"""The files, read back with safetensors itself."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from cirron_otel.core.spool import snapshot_files
from cirron_otel.errors import TargetError
from cirron_otel.sdk.snapshots import capture


def read(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def written(path: Path, tensors: dict[str, Any]) -> dict[str, Any]:
    size = snapshot_files.write(
        path, {name: snapshot_files.copied(each) for name, each in tensors.items()}
    )
    assert path.stat().st_size == size
    return read(path)


@pytest.mark.parametrize("dtype", list(snapshot_files.DTYPES))
def test_every_dtype_comes_back_bit_by_bit(dtype: str, tmp_path: Path) -> None:
    kind = getattr(torch, dtype)
    data = torch.arange(48, dtype=torch.uint8) % 2 if kind is torch.bool else torch.arange(48)
    tensor = data.to(torch.uint8).view(kind)
    found = written(tmp_path / "a" / "b" / "w.safetensors", {"w": tensor})["w"]
    assert found.dtype is kind
    assert found.view(torch.uint8).equal(tensor.view(torch.uint8))


def test_every_shape_and_layout_and_any_name(tmp_path: Path) -> None:
    base = torch.randn(4, 6)
    tensors = {
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "turned": base.T,
        "gaps": base[::2, 1::2],
        "expanded": base[:1].expand(3, 6),
        "bytes": torch.ones(3, dtype=torch.bool),  # of odd length, before wider ones by name
        "layer/1.\u00e9\n\"weight\"": base,
        "": base[0],
        "negative": torch._neg_view(base),
        "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
    }  # fmt: skip
    found = written(tmp_path / "run" / "w.safetensors", tensors)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].shape == tensor.shape
        assert found[name].equal(tensor), name


def test_files_and_directories_are_the_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "snapshots" / "span" / "weights.safetensors"
    written(path, {"w": torch.ones(2)})
    modes = [stat.S_IMODE(each.stat().st_mode) for each in (path, path.parent, path.parents[1])]
    assert modes == [0o600, 0o700, 0o700]
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_existing_file_and_torn_temporary_file_are_replaced(
    tmp_path: Path,
) -> None:
    path = tmp_path / "span" / "weights.safetensors"
    written(path, {"w": torch.ones(2)})
    path.with_name(path.name + ".tmp").write_bytes(b"x" * 10_000)
    assert written(path, {"v": torch.zeros(3)})["v"].equal(torch.zeros(3))


def test_failed_write_leaves_no_files(tmp_path: Path) -> None:
    path = tmp_path / "span" / "weights.safetensors"
    (tmp_path / "span").mkdir()
    path.mkdir()
    (path / "held").touch()
    with pytest.raises(TargetError, match="cannot be written"):
        snapshot_files.write(path, {"w": torch.ones(2)})
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    (tmp_path / "file").touch()
    with pytest.raises(TargetError, match="cannot be written"):
        snapshot_files.write(tmp_path / "file" / "w.safetensors", {"w": torch.ones(2)})


def test_tensors_that_the_format_cannot_express_are_not_stored() -> None:
    assert not snapshot_files.can_store("w", torch.zeros(1, dtype=torch.complex128))
    assert not snapshot_files.can_store("w", torch.zeros(2).to_sparse())
    assert not snapshot_files.can_store("__metadata__", torch.zeros(1))
    assert snapshot_files.can_store("w", torch.zeros(1))


def test_copies_are_copies_and_as_many_as_fit() -> None:
    model = torch.nn.Linear(10, 10)
    model(torch.ones(1, 10)).sum().backward()
    size = 110 * 4
    both = capture.take(model, 2 * size)
    assert [(each.is_gradients, each.size) for each in both.copies] == [(False, size), (True, size)]
    before = both.copies[0].tensors["weight"].clone()
    with torch.no_grad():
        model.weight.zero_()
    assert both.copies[0].tensors["weight"].equal(before)
    one = capture.take(model, 2 * size - 1)
    assert ([each.is_gradients for each in one.copies], one.refused) == ([False], 1)
    stored = {each.name: each.is_stored for each in one.records()}
    assert stored == {"weight": True, "bias": True, "weight.grad": False, "bias.grad": False}
    none = capture.take(model, 0)
    assert (none.copies, none.refused) == ([], 2)
    assert (capture.take(model).copies, capture.take(model).refused) == ([], 0)
