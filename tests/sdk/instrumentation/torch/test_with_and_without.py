"""Copies, exports, compilations and other uses of models give the same with and without tracing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.kit.forked_scripts import ForkedScripts
from tests.kit.sessions.processes import ROOT

from .programs.with_and_without import USES

PROGRAM = "tests.sdk.instrumentation.torch.programs.with_and_without"
COMPILED = ("compile_breaks", "compile_step", "compile_optimizer")

pytestmark = pytest.mark.xdist_group("torch with and without")


@pytest.fixture(scope="module")
def results(
    scripts: ForkedScripts, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The results of every use in a process without tracing, and in one with it."""
    folder = tmp_path_factory.mktemp("spool")
    done = [scripts.module(PROGRAM, folder, *more) for more in ((), ("traced",))]
    bare, traced = (json.loads(each.stdout) for each in done)
    assert traced["errors"] == {}
    return bare["results"], traced["results"]


@pytest.mark.parametrize("use", USES)
def test_a_use_has_the_result_of_an_untraced_process(
    use: str, results: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    bare, traced = (each[use] for each in results)
    if use in COMPILED:
        # The reason of a break names a replaced function in other words, and dynamo counts the
        # frames that it is asked to skip. Graphs and the number of breaks are the same.
        bare, traced = ([*each[:2], sum(each[2].values())] for each in (bare, traced))
    assert not re.match(r"\w+Error: ", str(bare)), bare
    assert traced == bare


def test_each_use_is_in_the_table_of_the_page() -> None:
    page = Path(ROOT, "docs", "torch.md").read_text()
    table = page.partition("## Beside other uses of torch")[2].partition("\n## ")[0]
    assert re.findall(r"^\| [^|]+ \| `(\w+)` \|", table, re.MULTILINE) == list(USES)
