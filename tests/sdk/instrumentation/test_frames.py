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


KERAS = {"KERAS_BACKEND": "torch"}


def _output(*command: object) -> str:
    done = subprocess.run(
        [str(each) for each in command], cwd=ROOT, env=environment(**KERAS),
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def _forked(scripts: ForkedScripts, *arguments: object) -> str:
    done = scripts.script(PROGRAM, *arguments, env=KERAS)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def untraced(scripts: ForkedScripts) -> str:
    return _forked(scripts)


def _changes(untraced: str, traced: str) -> str:
    changes = difflib.unified_diff(untraced.splitlines(), traced.splitlines(), n=0, lineterm="")
    return "\n".join(changes)


@pytest.mark.parametrize("way", ["profile", "digest"])
def test_python_attributes_the_same_to_each_frame(
    way: str, scripts: ForkedScripts, untraced: str, tmp_path: Path
) -> None:
    assert _changes(untraced, _forked(scripts, "traced", tmp_path, way)) == ""


def test_python_attributes_the_same_to_each_frame_below_run(tmp_path: Path) -> None:
    program = (sys.executable, PROGRAM)
    traced = _output(COMMAND, "run", "--output", tmp_path, "--", *program)
    assert _changes(_output(*program), traced) == ""


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
    done = scripts.module(program, *modules.split(), env=KERAS)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["called"] > 60
    assert (found["different"], found["missed"]) == ([], [])
