"""Programs that train with scikit-learn, XGBoost and LightGBM, and wrap their estimators."""

from __future__ import annotations

import hashlib
import pickle
from typing import Any

from tests.system.frameworks import program

_FOLD = """
    fold[0-1]
      fit
      score"""


def _data(rows: int = 60, features: int = 4) -> tuple[Any, Any]:
    import numpy as np

    generator = np.random.default_rng(3)
    inputs = generator.normal(size=(rows, features))
    return inputs, (inputs[:, 0] + 0.3 * generator.normal(size=rows) > 0).astype(int)


def _digest(value: Any) -> str:
    data = value if isinstance(value, (bytes, bytearray)) else pickle.dumps(value)
    return hashlib.sha256(data).hexdigest()


def _logs(**values: Any) -> list[list[Any]]:
    return [[name, value] for name, given in values.items() for value in given]


@program("""
cirron.session
  fit{estimator=LogisticRegression, n_samples=60, n_features=4}
  predict{n_samples=60}
  predict_proba{n_samples=2}
  score{estimator=LogisticRegression}
""")
def one_estimator() -> dict[str, Any]:
    """One estimator is trained, predicts, and is scored."""
    from sklearn.linear_model import LogisticRegression

    import cirron_otel as ci

    inputs, labels = _data()
    model = ci.wrap(LogisticRegression(C=0.5))
    model.fit(inputs, labels)
    result = [model.predict(inputs).tolist(), model.predict_proba(inputs[:2]).tolist()]
    score = model.score(X=inputs, y=labels)
    return {"logs": _logs(score=[score]), "result": result, "model": _digest(model)}


@program("""
cirron.session
  fit{estimator=Pipeline}
    fit_transform{estimator=StandardScaler, step=standardscaler}
    fit_transform{estimator=PCA, step=pca, n_features=4}
    fit{estimator=LogisticRegression, step=logisticregression, n_features=2}
  predict
    transform{step=standardscaler}
    transform{step=pca}
    predict{step=logisticregression}
  score
    transform x2
    score
""")
def a_pipeline() -> dict[str, Any]:
    """The steps of a pipeline are scopes inside those of the pipeline."""
    from sklearn.decomposition import PCA
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    import cirron_otel as ci

    inputs, labels = _data()
    model = ci.wrap(make_pipeline(StandardScaler(), PCA(2), LogisticRegression()))
    result = model.fit(inputs, labels).predict(inputs).tolist()
    return {"logs": _logs(score=[model.score(inputs, labels)]), "result": result}


@program("""
cirron.session
  fit
    fit_transform{estimator=ColumnTransformer, step=prepare}
      fit_transform{estimator=Pipeline, step=numbers}
        fit_transform{estimator=SimpleImputer}
        fit_transform{estimator=StandardScaler}
      fit_transform{estimator=OneHotEncoder, step=kinds}
    fit{estimator=RandomForestClassifier, step=model}
  predict
    transform{step=prepare}
      transform{step=numbers}
        transform x2
      transform{step=kinds}
    predict
""")
def columns_of_several_kinds() -> dict[str, Any]:
    """A ColumnTransformer prepares columns of several kinds for a forest."""
    from sklearn.compose import ColumnTransformer
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import Pipeline, make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    import cirron_otel as ci

    inputs, labels = _data()
    inputs[:, 2] = inputs[:, 2] > 0
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    prepare = ColumnTransformer(
        [
            ("numbers", numbers, [0, 1]),
            ("kinds", OneHotEncoder(), [2]),
            ("rest", "passthrough", [3]),
        ]
    )
    forest = RandomForestClassifier(n_estimators=5)
    model = ci.wrap(Pipeline([("prepare", prepare), ("model", forest)]))
    return {"result": model.fit(inputs, labels).predict(inputs).tolist()}


@program("""
cirron.session
  fit
    fit_transform{estimator=FeatureUnion, step=featureunion}
      fit_transform{step=pca}
      fit_transform{step=best}
    fit{estimator=Ridge}
  predict
    transform
      transform{step=pca}
      transform{step=best}
    predict
""")
def a_union_of_features() -> dict[str, Any]:
    """A FeatureUnion joins the outputs of two transformers."""
    from sklearn.decomposition import PCA
    from sklearn.feature_selection import SelectKBest
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import FeatureUnion, make_pipeline

    import cirron_otel as ci

    inputs, labels = _data()
    union = FeatureUnion([("pca", PCA(2)), ("best", SelectKBest(k=2))])
    model = ci.wrap(make_pipeline(union, Ridge()))
    return {"result": model.fit(inputs, labels).predict(inputs).tolist()}


@program(f"""
cirron.session
  fit{{estimator=GridSearchCV}}{_FOLD}{_FOLD}
    fit{{estimator=LogisticRegression}}
  predict{{estimator=GridSearchCV}}
    predict{{estimator=LogisticRegression}}
""")
def a_grid_search() -> dict[str, Any]:
    """Two candidates are compared on two folds each; the best is trained on everything."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    import cirron_otel as ci

    inputs, labels = _data()
    search = ci.wrap(GridSearchCV(LogisticRegression(), {"C": [0.01, 1.0]}, cv=2))
    search.fit(inputs, labels)
    results = search.cv_results_
    logs = _logs(
        mean_test_score=results["mean_test_score"].tolist(),
        best_score=[float(search.best_score_)],
        best_index=[int(search.best_index_)],
        test_score=[results[f"split{n}_test_score"][c].item() for c in range(2) for n in range(2)],
    )
    return {"logs": logs, "result": search.predict(inputs).tolist(), "best": search.best_params_}


@program("""
cirron.session
  fit{estimator=RandomizedSearchCV}
    fold[0-1]{candidate=0}
      fit
      predict
      predict_proba
      predict
      predict_proba
    fold[0-1]{candidate=1}
      fit
      predict
      predict_proba
      predict
      predict_proba
    fit
""")
def a_random_search_with_several_metrics() -> dict[str, Any]:
    """A random search computes two metrics, also of the training data."""
    from sklearn.model_selection import RandomizedSearchCV
    from sklearn.naive_bayes import GaussianNB

    import cirron_otel as ci

    inputs, labels = _data()
    search = ci.wrap(
        RandomizedSearchCV(
            GaussianNB(), {"var_smoothing": [1e-9, 1e-3, 0.1]}, n_iter=2, cv=2,
            scoring=["accuracy", "neg_log_loss"], refit="accuracy", return_train_score=True,
        )
    )  # fmt: skip
    search.fit(inputs, labels)
    names = [f"mean_{part}_{name}" for part in ("test", "train") for name in search.scorer_]
    return {"logs": _logs(**{name: search.cv_results_[name].tolist() for name in names})}


@program("""
cirron.session
  cross_validate{estimator=Ridge}
    fold[0-2]
      fit
      predict
""")
def cross_validation_with_a_scorer() -> dict[str, Any]:
    """cross_validate with a scorer, which predicts."""
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import cross_validate

    import cirron_otel as ci

    inputs, labels = _data()
    found = cross_validate(ci.wrap(Ridge()), inputs, labels, cv=3, scoring="neg_mean_squared_error")
    return {"logs": _logs(test_score=found["test_score"].tolist())}


@program("""
cirron.session
  cross_val_score{estimator=Pipeline}
    fold[0-1]
      fit
        fit_transform
        fit
      score
        transform
        score
""")
def cross_validation_of_a_pipeline() -> dict[str, Any]:
    """cross_val_score of a pipeline."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    import cirron_otel as ci

    inputs, labels = _data()
    model = ci.wrap(make_pipeline(StandardScaler(), LogisticRegression()))
    scores = cross_val_score(model, inputs, labels, cv=2).tolist()
    return {"logs": _logs(test_score=scores, score=scores)}


@program("""
cirron.session
  cross_val_predict
    fold[0-1]
      fit
      predict
""")
def predictions_of_the_folds() -> dict[str, Any]:
    """cross_val_predict."""
    from sklearn.model_selection import cross_val_predict
    from sklearn.tree import DecisionTreeClassifier

    import cirron_otel as ci

    inputs, labels = _data()
    return {
        "result": cross_val_predict(
            ci.wrap(DecisionTreeClassifier()), inputs, labels, cv=2
        ).tolist()
    }


@program("""
cirron.session
  learning_curve
    fold[0-3]
      fit
      score
      score
""")
def a_learning_curve() -> dict[str, Any]:
    """learning_curve trains on two sizes of the training data."""
    from sklearn.linear_model import RidgeClassifier
    from sklearn.model_selection import learning_curve

    import cirron_otel as ci

    inputs, labels = _data()
    _, train, test = learning_curve(
        ci.wrap(RidgeClassifier()), inputs, labels, cv=2, train_sizes=[0.5, 1.0]
    )
    return {"result": [train.tolist(), test.tolist()]}


@program("""
cirron.session
  epoch[0]
    step[0]
      partial_fit[0]{estimator=SGDClassifier, n_samples=20}
    step[1]
      partial_fit[1]
    step[2]
      partial_fit[2]
  epoch[1]
    step[0]
      partial_fit[3]
    step[1]
      partial_fit[4]
    step[2]
      partial_fit[5]
""")
def a_loop_of_batches() -> dict[str, Any]:
    """A loop of the program trains on one batch after the other."""
    from sklearn.linear_model import SGDClassifier

    import cirron_otel as ci

    inputs, labels = _data()
    model = ci.wrap(SGDClassifier())
    for _ in ci.epochs(range(2)):
        for at in ci.batches(range(0, 60, 20)):
            model.partial_fit(inputs[at : at + 20], labels[at : at + 20], classes=[0, 1])
    return {"result": model.coef_.tolist()}


@program(
    """
cirron.session
  fit!
    fit_transform
    fit!
""",
    error="ValueError: Unknown label type: continuous. Maybe you are trying to fit a classifier,"
    " which expects discrete classes on a regression target with continuous values.",
)
def a_fit_that_raises() -> dict[str, Any]:
    """The last step of a pipeline refuses the labels."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    import cirron_otel as ci

    inputs, _ = _data()
    ci.wrap(make_pipeline(StandardScaler(), LogisticRegression())).fit(inputs, inputs[:, 0])
    return {}


@program(f"""
cirron.session
  fit
    fold[0-1]{{candidate=0, params.C=-1.0}}
      fit!{_FOLD}
    fit
""")
def a_candidate_that_fails() -> dict[str, Any]:
    """The folds of an impossible candidate fail, and get a score of their own."""
    import warnings

    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    import cirron_otel as ci

    inputs, labels = _data()
    search = GridSearchCV(LogisticRegression(), {"C": [-1.0, 1.0]}, cv=2, error_score=-2.0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ci.wrap(search).fit(inputs, labels)
    scores = search.cv_results_["mean_test_score"].tolist()
    names = [each.category.__name__ for each in caught]
    return {"logs": _logs(mean_test_score=scores), "warnings": names}


@program("""
cirron.session
  fit{estimator=VotingClassifier}
    fit{estimator=LogisticRegression, step=line}
    fit{estimator=GaussianNB, step=bayes}
  predict
    predict{step=line}
    predict{step=bayes}
""")
def a_vote() -> dict[str, Any]:
    """Two classifiers vote."""
    from sklearn.ensemble import VotingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import GaussianNB

    import cirron_otel as ci

    inputs, labels = _data()
    model = ci.wrap(VotingClassifier([("line", LogisticRegression()), ("bayes", GaussianNB())]))
    return {"result": model.fit(inputs, labels).predict(inputs).tolist()}


@program("""
cirron.session
  fit{estimator=StackingClassifier}
    fit{step=line}
    fit{step=bayes}
    cross_val_predict{estimator=LogisticRegression}
      fold[0-1]
        fit
        predict_proba
    cross_val_predict{estimator=GaussianNB}
      fold[0-1]
        fit
        predict_proba
    fit{step=final_estimator}
""")
def a_stack() -> dict[str, Any]:
    """The predictions of two classifiers train a third."""
    from sklearn.ensemble import StackingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import GaussianNB

    import cirron_otel as ci

    inputs, labels = _data()
    members = [("line", LogisticRegression()), ("bayes", GaussianNB())]
    model = StackingClassifier(members, final_estimator=LogisticRegression(), cv=2)
    ci.wrap(model).fit(inputs, labels)
    return {"result": model.final_estimator_.coef_.tolist()}


@program("""
cirron.session
  fit_predict{estimator=KMeans}
  transform
  predict
""")
def clusters() -> dict[str, Any]:
    """A clustering, whose inertia is a mark."""
    from sklearn.cluster import KMeans

    import cirron_otel as ci

    inputs, _ = _data()
    model = ci.wrap(KMeans(2, n_init=1))
    found = model.fit_predict(inputs).tolist()
    result = [model.transform(inputs).tolist(), model.predict(inputs).tolist()]
    return {"logs": _logs(n_iter=[model.n_iter_], inertia=[model.inertia_]), "r": [found, result]}


@program("""
cirron.session
  fit{estimator=MLPClassifier}
  score
""")
def a_network() -> dict[str, Any]:
    """A small network, whose loss and number of iterations are marks."""
    import warnings

    from sklearn.neural_network import MLPClassifier

    import cirron_otel as ci

    inputs, labels = _data()
    model = ci.wrap(MLPClassifier((4,), max_iter=5))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(inputs, labels)
    score = model.score(inputs, labels)
    logs = _logs(loss=[float(model.loss_)], n_iter=[model.n_iter_], score=[score])
    return {"logs": logs, "warnings": [str(each.message) for each in caught]}


@program("""
cirron.session
  fit{estimator=MLPRegressor}
""")
def a_network_of_single_precision() -> dict[str, Any]:
    """A network that is trained with float32; its loss is a scalar of numpy."""
    import warnings

    from sklearn.neural_network import MLPRegressor

    import cirron_otel as ci

    inputs, labels = (each.astype("float32") for each in _data())
    model = ci.wrap(MLPRegressor(hidden_layer_sizes=(3,), max_iter=2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(inputs, labels)
    values = {"loss": model.loss_, "best_loss": model.best_loss_, "n_iter": model.n_iter_}
    return {"logs": _logs(**{name: [float(value)] for name, value in values.items()})}


@program("""
cirron.session
  fit
  fit
  predict
""")
def copies() -> dict[str, Any]:
    """A clone is recorded; a copy and an unpickled estimator are not."""
    import copy

    from sklearn.base import clone
    from sklearn.linear_model import Ridge

    import cirron_otel as ci

    inputs, labels = _data()
    model = ci.wrap(Ridge()).fit(inputs, labels)
    clone(model).fit(inputs, labels)
    for other in (copy.copy(model), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        other.fit(inputs, labels)
    return {"result": model.predict(inputs).tolist()}


@program("""
cirron.session
  fit
    fit_transform{estimator=MinMaxScaler, step=scale}
    fit{estimator=Ridge, step=model}
""")
def other_steps() -> dict[str, Any]:
    """set_params replaces the steps of a wrapped pipeline."""
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import MinMaxScaler, StandardScaler

    import cirron_otel as ci

    inputs, labels = _data()
    model = ci.wrap(Pipeline([("scale", StandardScaler()), ("model", LogisticRegression())]))
    model.set_params(scale=MinMaxScaler(), model=Ridge(), model__alpha=2.0)
    model.fit(inputs, labels)
    return {"result": model[-1].coef_.tolist(), "params": sorted(map(str, model.get_params()))}


@program("""
cirron.session
  fit_transform{estimator=FeatureUnion}
    fit_transform{estimator=StandardScaler} x2
""")
def threads() -> dict[str, Any]:
    """Two threads train the transformers of a union: each scope has the right parent."""
    import threading

    from joblib import parallel_config
    from sklearn.pipeline import FeatureUnion
    from sklearn.preprocessing import StandardScaler

    import cirron_otel as ci

    inputs, _ = _data()
    both = threading.Barrier(2, timeout=120)

    class Waiting(StandardScaler):  # type: ignore[misc]
        def fit(self, *args: Any, **kwargs: Any) -> Any:
            both.wait()
            return super().fit(*args, **kwargs)

    Waiting.__name__ = "StandardScaler"
    union = ci.wrap(FeatureUnion([("a", Waiting()), ("b", Waiting(with_std=False))]))
    with parallel_config(backend="threading", n_jobs=2):
        return {"result": union.fit_transform(inputs).tolist()}


@program("""
cirron.session
  fit
    fit_transform
    fit
  fit
    fit
""")
def a_cached_pipeline() -> dict[str, Any]:
    """The second fit of a pipeline with a memory takes the transformer from the cache."""
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    import cirron_otel as ci

    inputs, labels = _data()
    model = ci.wrap(make_pipeline(StandardScaler(), Ridge(), memory="cache"))
    model.fit(inputs, labels).fit(inputs, labels)
    return {"result": model[-1].coef_.tolist()}


@program("""
cirron.session
  fit{estimator=Doubled}
  predict
  score
  score{estimator=Reporting}
""")
def an_estimator_of_the_program() -> dict[str, Any]:
    """A class of the program trains another estimator inside, and calls methods of its base.

    The score of a further one is no number, and no mark.
    """
    from sklearn.base import BaseEstimator, RegressorMixin
    from sklearn.linear_model import Ridge
    from sklearn.utils.metaestimators import available_if

    import cirron_otel as ci

    class Base(RegressorMixin, BaseEstimator):  # type: ignore[misc]
        def fit(self, inputs: Any, labels: Any) -> Any:
            self.model_ = Ridge().fit(inputs, labels)
            return self

        def predict(self, inputs: Any) -> Any:
            return self.model_.predict(inputs)

        @available_if(lambda _: False)
        def transform(self, inputs: Any) -> Any:
            return inputs

    class Doubled(Base):
        def fit(self, inputs: Any, labels: Any) -> Any:
            super().fit(inputs, 2 * labels)
            return self

    class Reporting(Doubled):
        def score(self, inputs: Any, labels: Any) -> Any:
            return {"rows": [len(inputs), len(labels)]}

    inputs, labels = _data()
    model = ci.wrap(Doubled())
    has = hasattr(model, "transform")
    result = model.fit(inputs, labels).predict(inputs).tolist()
    logs = _logs(score=[model.score(inputs, labels)])
    report = ci.wrap(Reporting()).score(inputs, labels)
    return {"logs": logs, "r": result, "has": has, "report": report}


@program("""
cirron.session
  transform
  transform
""")
def methods_of_a_class() -> dict[str, Any]:
    """Class methods and static methods are called as such, and are not recorded."""
    import cirron_otel as ci

    class Named:
        @staticmethod
        def fit(_: Any) -> str:
            return "fitted"

        @classmethod
        def predict(cls, _: Any) -> str:
            return cls.__name__

        def transform(self, _: Any) -> str:
            return self.predict(0) + self.fit(0)

    class Other(Named):
        pass

    found = []
    for kind in (Named, Other):
        model = ci.wrap(kind())
        found += [model.fit(0), model.predict(0), kind.predict(0), model.transform(0)]
    return {"r": found}


@program("""
cirron.session
  fold[0-1]{estimator=Ridge, candidate=0}
    fit
    score
  fit
  predict
""")
def a_search_that_is_not_wrapped() -> dict[str, Any]:
    """The estimator inside a search is wrapped, the search is not."""
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GridSearchCV

    import cirron_otel as ci

    inputs, labels = _data()
    search = GridSearchCV(ci.wrap(Ridge()), {"alpha": [1.0]}, cv=2).fit(inputs, labels)
    return {"result": search.predict(inputs).tolist()}


@program("""
cirron.session
  fit{estimator=DecisionTreeClassifier} x3
""")
def a_bag_of_wrapped_trees() -> dict[str, Any]:
    """An ensemble that is not wrapped trains clones of a wrapped tree."""
    from sklearn.ensemble import BaggingClassifier
    from sklearn.tree import DecisionTreeClassifier

    import cirron_otel as ci

    inputs, labels = _data()
    model = BaggingClassifier(ci.wrap(DecisionTreeClassifier()), n_estimators=3)
    model.fit(inputs, labels)
    return {"result": [tree.get_n_leaves().item() for tree in model.estimators_]}


@program("""
cirron.session
  fit{estimator=HalvingGridSearchCV}
    fold[0-1]{candidate=0}
      fit
      score x2
    fold[0-1]{candidate=1}
      fit
      score x2
    fold[0-1]{candidate=0}
      fit
      score x2
    fit
""")
def a_halving_search() -> dict[str, Any]:
    """Two candidates on half of the data, then the better one on all of it."""
    from sklearn.experimental import enable_halving_search_cv  # noqa: F401
    from sklearn.linear_model import RidgeClassifier
    from sklearn.model_selection import HalvingGridSearchCV

    import cirron_otel as ci

    inputs, labels = _data()
    search = HalvingGridSearchCV(
        RidgeClassifier(), {"alpha": [0.1, 9.0]}, cv=2, factor=2, min_resources=30
    )
    ci.wrap(search).fit(inputs, labels)
    return {"logs": _logs(mean_test_score=search.cv_results_["mean_test_score"].tolist())}


@program("""
cirron.session
  fit{estimator=XGBClassifier}
    step[0-3]
  predict
  score
""")
def xgboost_with_an_evaluation_set() -> dict[str, Any]:
    """Boosting rounds are steps; the values of two metrics are marks on them."""
    from xgboost import XGBClassifier

    import cirron_otel as ci

    inputs, labels = _data()
    model = ci.wrap(XGBClassifier(n_estimators=4, n_jobs=1, eval_metric=["logloss", "error"]))
    model.fit(inputs[:40], labels[:40], eval_set=[(inputs[40:], labels[40:])], verbose=False)
    found = model.evals_result()["validation_0"]
    logs = _logs(**{f"validation_0-{name}": values for name, values in found.items()})
    result = model.predict(inputs).tolist()
    logs += _logs(score=[model.score(inputs, labels)])
    booster = _digest(model.get_booster().save_raw())
    return {"logs": logs, "r": result, "booster": booster, "callbacks": model.callbacks}


@program("""
cirron.session
  fit
    step[0-2]
""")
def xgboost_that_stops_early() -> dict[str, Any]:
    """A metric that never improves stops the training after two more rounds."""
    from xgboost import XGBRegressor

    import cirron_otel as ci

    def constant(_: Any, __: Any) -> float:
        return 1.0

    inputs, labels = _data()
    model = XGBRegressor(
        n_estimators=9, n_jobs=1, early_stopping_rounds=2, eval_metric=constant,
        disable_default_eval_metric=True,
    )  # fmt: skip
    ci.wrap(model).fit(inputs, labels, eval_set=[(inputs, labels)], verbose=False)
    logs = _logs(
        best_iteration=[model.best_iteration], best_score=[model.best_score],
        **{"validation_0-constant": model.evals_result()["validation_0"]["constant"]},
    )  # fmt: skip
    return {"logs": logs, "booster": _digest(model.get_booster().save_raw())}


@program(
    """
cirron.session
  fit!
    step[0-1]
    step[2]!
""",
    error="RuntimeError: enough",
)
def xgboost_with_a_callback_that_raises() -> dict[str, Any]:
    """A callback of the program raises in the third round."""
    from xgboost import XGBRegressor
    from xgboost.callback import TrainingCallback

    import cirron_otel as ci

    class Raises(TrainingCallback):  # type: ignore[misc]
        def after_iteration(self, _: Any, epoch: int, __: Any) -> bool:
            if epoch == 2:
                raise RuntimeError("enough")
            return False

    inputs, labels = _data()
    ci.wrap(XGBRegressor(n_estimators=5, n_jobs=1, callbacks=[Raises()])).fit(inputs, labels)
    return {}


@program("""
cirron.session
  fit{estimator=GridSearchCV}
    fold[0-1]
      fit{estimator=XGBRegressor}
        step[0-1]
      score
    fit
      step[0-1]
""")
def a_search_over_xgboost() -> dict[str, Any]:
    """A search trains models of XGBoost."""
    from sklearn.model_selection import GridSearchCV
    from xgboost import XGBRegressor

    import cirron_otel as ci

    inputs, labels = _data()
    model = XGBRegressor(n_estimators=2, n_jobs=1)
    search = ci.wrap(GridSearchCV(model, {"max_depth": [2]}, cv=2)).fit(inputs, labels)
    scores = search.cv_results_["mean_test_score"].tolist()
    return {"logs": _logs(mean_test_score=scores)}


@program("""
cirron.session
  fit{estimator=LGBMClassifier}
    step[0-3]
  predict_proba
""")
def lightgbm_with_evaluation_sets() -> dict[str, Any]:
    """Boosting rounds of LightGBM are steps; the values of two data sets are marks on them."""
    from lightgbm import LGBMClassifier

    import cirron_otel as ci

    inputs, labels = _data()
    model = ci.wrap(LGBMClassifier(n_estimators=4, n_jobs=1, verbose=-1, min_child_samples=5))
    sets = [(inputs[:40], labels[:40]), (inputs[40:], labels[40:])]
    model.fit(inputs[:40], labels[:40], eval_set=sets, eval_names=["seen", "new"])
    logs = [
        [f"{data}-{metric}", float(value)]
        for data, metrics in model.evals_result_.items()
        for metric, values in metrics.items()
        for value in values
    ]
    result = model.predict_proba(inputs).tolist()
    return {"logs": logs, "r": result, "booster": model.booster_.model_to_string()}


@program("""
cirron.session
  fit
    step[0-2]
""")
def lightgbm_that_stops_early() -> dict[str, Any]:
    """LightGBM stops after two rounds without an improvement."""
    from lightgbm import LGBMRegressor, early_stopping

    import cirron_otel as ci

    def constant(_: Any, __: Any) -> tuple[str, float, bool]:
        return "constant", 1.0, False

    inputs, labels = _data()
    model = LGBMRegressor(n_estimators=9, n_jobs=1, verbose=-1, metric="None")
    ci.wrap(model).fit(
        inputs, labels, eval_set=[(inputs[:30], labels[:30])], eval_metric=constant,
        callbacks=[early_stopping(2, verbose=False)],
    )  # fmt: skip
    logs = _logs(best_iteration=[model.best_iteration_], **{"valid_0-constant": [1.0] * 3})
    return {"logs": logs, "booster": model.booster_.model_to_string()}


@program("""
cirron.session
  fit{estimator=Pipeline}
    fit_transform
    fit{estimator=LGBMRegressor, step=lgbmregressor}
      step[0-1]
""")
def lightgbm_in_a_pipeline() -> dict[str, Any]:
    """LightGBM is the last step of a pipeline, without an evaluation set."""
    from lightgbm import LGBMRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    import cirron_otel as ci

    inputs, labels = _data()
    model = make_pipeline(StandardScaler(), LGBMRegressor(n_estimators=2, n_jobs=1, verbose=-1))
    ci.wrap(model).fit(inputs, labels)
    return {"booster": model[-1].booster_.model_to_string()}
