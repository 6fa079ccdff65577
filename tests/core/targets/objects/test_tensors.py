"""One tensor of a safetensors file as a file of its own, byte for byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st

from cirron_otel.core.targets.objects.tensors import TensorFile
from cirron_otel.errors import InputError

from .made import file_of, noise, written

TENSORS = {
    "weight": ("F32", [3, 4], noise(48)),
    "half": ("F16", [5], noise(10, 2)),
    "brain": ("BF16", [2, 3, 1], noise(12, 3)),
    "eight": ("F8_E4M3", [7], noise(7, 4)),
    "other eight": ("F8_E5M2", [2, 2], noise(4, 5)),
    "scalar": ("I64", [], noise(8, 6)),
    "empty": ("F64", [0, 9], b""),
    "bool": ("BOOL", [3], b"\0\1\1"),
    "ünïcødé/..\n": ("U8", [4], noise(4, 7)),
    "big": ("F32", [1000, 700], noise(2_800_000, 8)),
}


def test_each_extracted_tensor_is_exact_in_the_safetensors_reader(tmp_path: Path) -> None:
    whole = file_of(TENSORS, __metadata__={"format": "pt"})
    with written(tmp_path / "file", whole).open("rb") as file:
        tensors = TensorFile(file)
        assert set(tensors.tensors) == set(TENSORS)
        for name, (dtype, shape, data) in TENSORS.items():
            content = tensors.content(name, name)
            cut = b"".join(content.pieces(1000))
            assert len(cut) == content.size
            assert len(cut[: -len(data) or None]) % 8 == 0
            [(found, told)] = safetensors.deserialize(cut)
            assert (found, told["dtype"], told["shape"]) == (name, dtype, shape)
            assert bytes(told["data"]) == data


@pytest.mark.torch
def test_extracted_torch_tensors_load_back_bit_for_bit(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load, save_file

    torch.manual_seed(1)
    kinds = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn,
             torch.float8_e5m2, torch.complex64)  # fmt: skip
    tensors = {str(kind): torch.randn(6, 5).to(kind) for kind in kinds}
    tensors["odd"] = torch.tensor([float("nan"), -0.0, float("inf")], dtype=torch.bfloat16)
    save_file(tensors, tmp_path / "file")
    with (tmp_path / "file").open("rb") as file:
        cut = TensorFile(file)
        for name, tensor in tensors.items():
            [(_, found)] = load(b"".join(cut.content(name, name).pieces())).items()
            assert found.dtype == tensor.dtype
            assert found.shape == tensor.shape
            assert torch.equal(found.view(torch.uint8), tensor.view(torch.uint8))


def test_gradients_of_cirron_sdk_get_the_name_used_in_records(tmp_path: Path) -> None:
    with written(tmp_path / "f", file_of({"w": ("U8", [1], b"1")})).open("rb") as file:
        tensors = TensorFile(file)
        assert tensors.find("w.grad") == "w"
        assert tensors.find("w") == "w"
        assert tensors.find("x.grad") is None
        assert list(dict(safetensors.deserialize(
            b"".join(tensors.content("w", "w.grad").pieces())
        ))) == ["w.grad"]  # fmt: skip


def _with_header(header: object, body: bytes = b"12345678") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def _said(**other: object) -> bytes:
    return _with_header({"w": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8], **other}})


BROKEN = {
    "nothing": b"",
    "no header": b"\x05\0\0\0\0\0\0\0",
    "a length beyond the file": (1 << 60).to_bytes(8, "little") + b"{}",
    "a length beyond the limit": (33_000_000).to_bytes(8, "little") + b"{}",
    "no JSON": _with_header(b"{{{{"),
    "no object": _with_header([1]),
    "deep": _with_header(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "no UTF-8": _with_header(b'{"\xff": 1}'),
    "a name twice": _with_header(b'{"w": {}, "w": {}}'),
    "a lone surrogate": _with_header(
        b'{"\\ud800": {"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    ),
    "no entry": _with_header({"w": 5}),
    "beyond the end": _said(data_offsets=[0, 9], shape=[9]),
    "backwards": _said(data_offsets=[8, 0]),
    "negative": _said(data_offsets=[-8, 0]),
    "three offsets": _said(data_offsets=[0, 4, 8]),
    "another shape": _said(shape=[7]),
    "a shape of no numbers": _said(shape=["8"]),
    "a shape of floats": _said(shape=[8.0]),
    "a shape of bools": _said(shape=[True, 8]),
    "huge": _said(shape=[10**4000] * 60),
    "many dimensions": _said(shape=[1] * 65),
    "no type": _said(dtype=8),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_files_are_refused(what: str, tmp_path: Path) -> None:
    with written(tmp_path / "file", BROKEN[what]).open("rb") as file, pytest.raises(InputError):
        TensorFile(file)


_PARTS = {"a": ("F32", [2], noise(8)), "b": ("U8", [3], noise(3)), "c": ("F64", [0], b"")}


def test_a_complete_file_is_covered(tmp_path: Path) -> None:
    for name, tensors in (("parts", _PARTS), ("all", TENSORS), ("none", {})):
        with written(tmp_path / name, file_of(tensors)).open("rb") as file:
            TensorFile(file).check_coverage()


def test_a_file_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    whole = file_of(_PARTS)
    for size in range(len(whole)):
        with (
            written(tmp_path / "file", whole[:size]).open("rb") as file,
            pytest.raises(InputError),
        ):
            TensorFile(file).check_coverage()


UNCOVERED = {
    "bytes after the last tensor": ([0, 8], [8, 11], b"1"),
    "a gap": ([0, 8], [9, 12], b"1"),
    "an overlap": ([0, 8], [7, 10], b""),
    "a gap at the start": ([1, 9], [9, 12], b"1"),
}


@pytest.mark.parametrize("what", UNCOVERED)
def test_bytes_that_are_not_used_exactly_once_are_refused(what: str, tmp_path: Path) -> None:
    a, b, more = UNCOVERED[what]
    header = {
        "a": {"dtype": "U8", "shape": [8], "data_offsets": a},
        "b": {"dtype": "U8", "shape": [3], "data_offsets": b},
    }
    size = 11 - (what == "an overlap")
    with written(tmp_path / "file", _with_header(header, noise(size) + more)).open("rb") as file:
        with pytest.raises(InputError, match=r"adjacent|overlaps|after its last"):
            TensorFile(file).check_coverage()
        with pytest.raises(safetensors.SafetensorError):
            safetensors.deserialize((tmp_path / "file").read_bytes())


@given(st.binary(max_size=200), st.integers(0, 300))
def test_whatever_the_bytes_no_other_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, cut: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    whole = file_of({"w": ("F32", [3], noise(12))})
    for found in (data, len(data).to_bytes(8, "little") + data, whole[:cut] + data):
        with written(path, found).open("rb") as file:
            try:
                tensors = TensorFile(file)
            except InputError:
                continue
            for name in tensors.tensors:
                assert sum(map(len, tensors.content(name, name).pieces())) > 0
