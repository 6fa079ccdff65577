"""Frames of the hooks appear in no warning, log record or traceback of a program."""

from __future__ import annotations

import difflib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.forked_scripts import ForkedScripts
from tests.kit.sessions.processes import ROOT, environment

from .torch.programs import attributed

PROGRAM = Path(attributed.__file__)
COMMAND = Path(sys.executable).with_name("cirron-otel")


def _output(*command: object) -> str:
    done = subprocess.run(
        [str(each) for each in command], cwd=ROOT, env=environment(KERAS_BACKEND="torch"),
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def untraced() -> str:
    return _output(sys.executable, PROGRAM)


@pytest.mark.parametrize("way", ["profile", "digest", "run"])
def test_python_attributes_the_same_to_each_frame(way: str, untraced: str, tmp_path: Path) -> None:
    arguments = [sys.executable, PROGRAM]
    if way == "run":
        traced = _output(COMMAND, "run", "--output", tmp_path, "--", *arguments)
    else:
        traced = _output(*arguments, "traced", tmp_path, way)
    changes = difflib.unified_diff(untraced.splitlines(), traced.splitlines(), n=0, lineterm="")
    assert "\n".join(changes) == ""


@pytest.mark.parametrize(
    "modules",
    [
        "torch torch._dynamo torch.distributed.checkpoint safetensors.torch"
        " torchdata.stateful_dataloader",
        "accelerate transformers lightning.pytorch",
        "keras",
    ],
)
def test_no_frame_of_a_hook_is_visible_from_a_replaced_attribute(
    modules: str, scripts: ForkedScripts
) -> None:
    program = "tests.sdk.instrumentation.probed_attributes"
    done = scripts.module(program, *modules.split(), env={"KERAS_BACKEND": "torch"})
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["called"] > 60
    assert (found["different"], found["missed"]) == ([], [])
