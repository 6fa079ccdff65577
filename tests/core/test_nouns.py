"""The plural of nouns in messages."""

from __future__ import annotations

import pytest

from cirron_otel.core.nouns import count, plural


@pytest.mark.parametrize(
    ("noun", "several"),
    [("step", "steps"), ("batch", "batches"), ("loss", "losses"), ("push", "pushes"),
     ("box", "boxes")],
)  # fmt: skip
def test_plural(noun: str, several: str) -> None:
    assert plural(noun) == several
    assert count(1, noun) == f"1 {noun}"
    assert count(1234, noun) == f"1,234 {several}"
