"""The distance of kept tensors is that of `ulp_distance`."""

from __future__ import annotations

import pytest

from cirron_otel.core.analysis.divergence.kept_tensors import _farthest
from cirron_otel.ulp import FORMATS, ulp_distance

SMALL = [name for name, form in FORMATS.items() if form.bits == 8]


@pytest.mark.parametrize("dtype", SMALL)
def test_all_pairs_of_the_small_formats(dtype: str) -> None:
    form = FORMATS[dtype]
    for one in range(256):
        for other in range(256):
            found = _farthest(bytes([one]), bytes([other]), dtype, form)
            assert found == ulp_distance(one, other, dtype), (one, other)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_edges_of_the_large_formats(dtype: str) -> None:
    form = FORMATS[dtype]
    sign, size = 1 << form.bits - 1, form.bits // 8
    edges = [0, 1, 2, form.largest - 1, form.largest, form.largest + 1, sign - 1]
    edges += [each | sign for each in edges]
    for one in edges:
        for other in edges:
            texts = [each.to_bytes(size, "little") for each in (one, other)]
            found = _farthest(*texts, dtype, form)
            assert found == ulp_distance(one, other, dtype), (one, other)
