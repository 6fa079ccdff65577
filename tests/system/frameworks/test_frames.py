"""Frames of the hooks into the frameworks appear in no warning and no traceback of a program."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.kit.environments import SITE_PACKAGES
from tests.kit.sessions.processes import ROOT, environment

from .workers import python_of

UNREACHED = {
    "ray": [
        "ray.train._internal.session _TrainSession.finish",
        "ray.tune.experiment.trial Trial.set_status",
    ]
}
"""By framework: attributes whose hooks read their object, and so do not reach the probe here."""


def _output(python: Path, *arguments: str, cwd: Path) -> str:
    variables = environment(
        PYTHONPATH=os.pathsep.join(map(str, (ROOT, SITE_PACKAGES))), OMP_NUM_THREADS="1"
    )
    done = subprocess.run(
        [str(python), *arguments], cwd=cwd, env=variables, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize(
    ("name", "modules"),
    [
        ("ray", "ray.train ray.tune ray.tune.tuner ray.train.torch"),
        ("tensorflow", "tensorflow keras"),
        pytest.param(
            "lightning-oldest", "torch lightning.pytorch lightning.fabric",
            marks=pytest.mark.matrix("oldest-trainers"),
        ),
        pytest.param(
            "transformers-oldest", "torch transformers", marks=pytest.mark.matrix("oldest-trainers")
        ),
    ],
)  # fmt: skip
def test_no_frame_of_a_hook_is_visible_from_a_replaced_attribute(
    name: str, modules: str, tmp_path: Path
) -> None:
    program = ["-m", "tests.sdk.instrumentation.probed_attributes", *modules.split()]
    found = json.loads(_output(python_of(name), *program, cwd=tmp_path))
    assert found["called"] > 20
    assert (found["different"], found["missed"]) == ([], UNREACHED.get(name, []))


_SKLEARN = """
import sys, traceback, warnings
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.model_selection import cross_val_score
import cirron_otel as ci

class Estimator(ClassifierMixin, BaseEstimator):
    def fit(self, inputs, labels):
        for level in range(1, 9):
            warnings.warn(f"fit {level}", stacklevel=level)
        self.classes_ = [0, 1]
        return self

    def predict(self, inputs):
        raise ArithmeticError(len(inputs))

def show(message, category, file, line, *_):
    print(f"{file}:{line}: {message}")

warnings.showwarning = show
estimator = Estimator()
if sys.argv[1] == "traced":
    ci.profile(output_dir="out", exporters="none")
    ci.wrap(estimator)
for work in (lambda: estimator.fit([[0], [1]], [0, 1]).score([[0], [1]], [0, 1]),
             lambda: cross_val_score(estimator, [[0], [1]] * 5, [0, 1] * 5, error_score="raise")):
    try:
        work()
    except ArithmeticError:
        print(traceback.format_exc())
"""


def test_a_wrapped_estimator_has_the_frames_of_an_unwrapped_one(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_SKLEARN)
    python = python_of("sklearn")
    untraced, traced = (
        _output(python, str(program), way, cwd=tmp_path) for way in ("untraced", "traced")
    )
    assert untraced.count("ArithmeticError") >= 2
    assert traced == untraced
