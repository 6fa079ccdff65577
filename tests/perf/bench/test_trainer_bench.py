"""The trainers section prints all its figures; its sizes here mean nothing for times."""

from __future__ import annotations

import importlib.util
import re

import pytest

from tests.conftest import leave_out, need_torch

from . import trainer_cost
from .printing import has_rows, printed_by

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.xdist_group("torch bench")]
FIGURES = r" +\d+\.\d +[+-]\d+\.\d   ± \d+\.\d"


@pytest.fixture(scope="module")
def printed() -> str:
    need_torch()
    return printed_by("trainers")


@pytest.mark.parametrize("trainer", trainer_cost.TRAINERS)
def test_a_trainer_is_measured_beside_the_written_out_loop(trainer: str, printed: str) -> None:
    if importlib.util.find_spec(trainer) is None:
        leave_out(f"{trainer} is not installed here")
    assert has_rows(printed, f"cirron-otel, {trainer}{FIGURES}"), printed
    assert has_rows(printed, f"cirron-otel, written out{FIGURES}"), printed
    assert has_rows(printed, f"torch's hooks alone, {trainer}{FIGURES}"), printed
    assert has_rows(printed, r"cirron-otel / written out: -?[\d.]+ \(bar 1\.2"), printed
    assert has_rows(printed, r"torch's hooks alone / written out: -?[\d.]+"), printed


def test_the_neighbour_is_measured_in_the_same_run(printed: str) -> None:
    if "without cirron-sdk" in printed:
        leave_out("cirron-sdk cannot be installed here")
    assert has_rows(printed, f"cirron-sdk, transformers{FIGURES}"), printed
    assert has_rows(printed, r"cirron-otel / cirron-sdk: -?[\d.]+ \(bar 0\.35"), printed


def test_no_record_is_lost(printed: str) -> None:
    assert set(re.findall(r"lost by cirron-otel: (.*)", printed)) == {"nothing"}


@pytest.mark.parametrize(("cost", "end"), [(119.0, "(bar 1.2)"), (121.0, "(bar 1.2, ABOVE)")])
def test_ratio_exceeding_its_bar_is_marked(cost: float, end: str) -> None:
    assert trainer_cost.verdict("written out", cost, 100.0, 1.2).endswith(end)
