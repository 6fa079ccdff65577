"""docs/torch-conformance.md contains the results that were measured with the current loops."""

from __future__ import annotations

from .loops import every
from .matrix import (
    OURS,
    SDK,
    TRACEML,
    digest,
    stored,
)
from .matrix_page import PAGE, page

AGAIN = "run `python -m tests.sdk.instrumentation.torch.matrix`"


def test_the_page_is_up_to_date() -> None:
    loops, told = every(), stored()
    assert sorted(told["loops"]) == sorted(loops), AGAIN
    changed = [name for name in loops if told["loops"][name]["digest"] != digest(loops[name])]
    assert changed == [], AGAIN
    assert PAGE.read_text() == page(loops, told), AGAIN


def test_ours_has_no_wrong_row() -> None:
    results = stored()["loops"]
    assert len(results) >= 40
    assert {name: result[OURS] for name, result in results.items() if result[OURS]} == {}


def test_every_neighbour_was_asked() -> None:
    for name, loop in every().items():
        result = stored()["loops"][name]
        assert result[SDK]["tree"] or result[SDK].get("raised"), name
        assert bool(result[TRACEML]) is (loop.ranks == 1), name
