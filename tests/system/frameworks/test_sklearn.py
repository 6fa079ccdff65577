"""scikit-learn, XGBoost and LightGBM: trees, results and scores of wrapped estimators."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.sessions.processes import ROOT, environment
from tests.kit.sessions.spool_trees import read_spool

from . import Program
from .running import check, parameters
from .workers import Workers, python_of, workers_of

FRAMEWORK = "sklearn"
VERSIONS = ["sklearn", pytest.param("sklearn-oldest", marks=pytest.mark.matrix("oldest-trainers"))]
MODULES = ("sklearn.linear_model", "sklearn.ensemble", "xgboost", "lightgbm")


@pytest.fixture(scope="module", params=VERSIONS)
def workers(request: pytest.FixtureRequest) -> Iterator[Workers]:
    with workers_of(FRAMEWORK, MODULES, request.param) as both:
        yield both


@pytest.mark.parametrize("program", parameters(FRAMEWORK))
def test_a_program_computes_the_same_and_gives_its_tree(
    program: Program, workers: Workers, tmp_path: Path
) -> None:
    check(program, *workers, tmp_path)


def test_sklearn_is_not_hooked_until_an_estimator_is_wrapped(tmp_path: Path) -> None:
    text = """
import sys
import cirron_otel as ci
profiler = ci.profile(output_dir=sys.argv[1], exporters="none")
print(profiler.installed_hooks)
ci.wrap(object())
print(profiler.installed_hooks)
"""
    command = [sys.executable, "-c", text, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == ["[]", "['sklearn']"]


def _run(python: Path, text: str, directory: Path) -> str:
    program = directory / "program.py"
    program.write_text(text)
    variables = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "LOKY_MAX_CPU_COUNT": "2"}
    result = subprocess.run(
        [python, "-W", "error::UserWarning", program, "out"], cwd=directory,
        env=environment(**variables), capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout


_START = """
import sys
import numpy as np
import cirron_otel as ci
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

inputs = np.random.default_rng(3).normal(size=(60, 4))
labels = (inputs[:, 0] > 0).astype(int)

def begin():
    return ci.profile(output_dir=sys.argv[1], exporters="none")
"""

_JOBS = (
    _START
    + """
if __name__ == "__main__":
    begin()
    model = make_pipeline(StandardScaler(), LogisticRegression())
    search = GridSearchCV(model, {"logisticregression__C": [0.1, 1.0]}, cv=2, n_jobs=2)
    ci.wrap(search).fit(inputs, labels)
    print([float(each) for each in search.cv_results_["mean_test_score"]])
    from joblib.externals.loky import get_reusable_executor
    get_reusable_executor().shutdown(wait=True)
    ci.shutdown()
"""
)


@pytest.mark.parametrize("name", VERSIONS)
def test_each_worker_process_has_a_linked_session_with_its_folds(name: str, tmp_path: Path) -> None:
    printed = _run(python_of(name), _JOBS, tmp_path)
    spool = read_spool(tmp_path / "out")
    workers = [each for each in spool.sessions if "worker" in each.record["attrs"]]
    (parent,) = [each for each in spool.sessions if each not in workers]
    assert 1 <= len(workers) <= 2
    for worker in workers:
        (link,) = worker.record["otel"]["links"]
        assert link["span_id"] in parent.record["id"]
    folds = [fold for worker in workers for fold in worker.find("fold")]
    found = sorted((fold.record["attrs"]["candidate"], fold.record["index"]) for fold in folds)
    assert found == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for fold in folds:
        assert [each.name for each in fold.children] == ["fit", "score"]
        assert [each.name for each in fold.children[1].children] == ["transform", "score"]
    assert not parent.find("fold")
    scores = [value for mark, value in parent.children[0].values if mark == "mean_test_score"]
    assert str(scores) == printed.strip()


_CHECKS = (
    _START
    + """
import pickle, warnings
from sklearn.utils.estimator_checks import check_estimator

def outcomes(estimator, is_wrapped):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = check_estimator(ci.wrap(estimator) if is_wrapped else estimator, on_fail=None,
                               on_skip=None)
    return [(each["check_name"], each["status"]) for each in done]

profiler = begin()
for make in (Ridge, StandardScaler):
    assert outcomes(make(), False) == outcomes(make(), True), make
print(profiler.health()["swallowed_errors"])
"""
)


def test_check_estimator_gives_the_same_results(tmp_path: Path) -> None:
    assert _run(python_of("sklearn"), _CHECKS, tmp_path).strip() == "{}"


_PLAIN = (
    _START
    + """
import pickle
import subprocess
import cloudpickle

class Own(TransformerMixin, BaseEstimator):
    def fit(self, inputs, labels=None):
        self.mean_ = inputs.mean()
        return self
    def transform(self, inputs):
        return inputs - self.mean_

before = {cls: dict(vars(cls)) for cls in (Ridge, Own, LogisticRegression, BaseEstimator)}
bare, wrapped = Ridge(alpha=2.0), Ridge(alpha=2.0)
pipe = make_pipeline(Own(), Ridge())
params = pipe.get_params()
assert ci.wrap(wrapped) is wrapped
assert ci.wrap(pipe) is pipe
profiler = begin()
assert type(wrapped) is Ridge and repr(wrapped) == repr(bare) and vars(wrapped) == vars(bare)
assert pickle.dumps(wrapped) == pickle.dumps(bare)
assert all(value is params[name] for name, value in pipe.get_params().items())
assert Ridge.fit is before[Ridge]["fit"] and wrapped.fit == wrapped.fit
assert bare.fit.__func__ is Ridge.fit
wrapped.fit(inputs, labels)
loading = '''
import numpy, pickle, sys
own = pickle.load(sys.stdin.buffer)
assert own().fit_transform(numpy.ones((1, 1))) == 0
assert "cirron_otel" not in sys.modules
'''
data = cloudpickle.dumps(Own)
subprocess.run([sys.executable, "-c", loading], input=data, check=True)
bound = pickle.loads(pickle.dumps(wrapped.predict))
assert np.array_equal(bound(inputs), wrapped.predict(inputs))
assert not hasattr(ci.wrap(make_pipeline(Own())), "predict")
assert ci.wrap(Ridge) is Ridge and ci.wrap(3) == 3 and ci.get_default().wrap(bare) is bare

class Stops(Own):
    def fit(self, inputs, labels=None):
        ci.shutdown()
        return super().fit(inputs, labels)

assert ci.wrap(Stops()).fit(inputs).mean_ == inputs.mean()
after = {cls: dict(vars(cls)) for cls in before}
after[Ridge].pop("__slotnames__", None)  # of pickle
assert after == before
wrapped.fit(inputs, labels)
second = begin()
wrapped.fit(inputs, labels)
ci.shutdown()
print(profiler.health()["swallowed_errors"], second.health()["swallowed_errors"])
"""
)


@pytest.mark.parametrize("name", VERSIONS)
def test_estimator_and_its_class_are_unchanged(name: str, tmp_path: Path) -> None:
    assert _run(python_of(name), _PLAIN, tmp_path).strip() == "{} {}"
    first, second = read_spool(tmp_path / "out").sessions
    # the fit, a prediction, and the fit in which the session ends; then a fit of the next session
    assert [each.name for each in first.children] == ["fit", "predict", "fit"]
    assert [each.name for each in second.children] == ["fit"]


_LACKING = (
    _START
    + """
import logging, os
messages = []
class Keep(logging.Handler):
    def emit(self, record):
        messages.append(record.getMessage())
logging.getLogger("cirron_otel").addHandler(Keep())
del BaseEstimator.__sklearn_clone__
begin()
model = ci.wrap(Ridge()).fit(inputs, labels)
pid = os.fork()
if not pid:
    model.predict(inputs)
    ci.shutdown()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
ci.shutdown()
print(len(messages), "not recorded: clones" in messages[0])
"""
)


def test_missing_internal_costs_only_its_part_and_fork_has_a_new_session(
    tmp_path: Path,
) -> None:
    assert _run(python_of("sklearn"), _LACKING, tmp_path).strip() == "1 True"
    names = [[each.name for each in s.children] for s in read_spool(tmp_path / "out").sessions]
    assert sorted(names) == [["fit"], ["predict"]]
