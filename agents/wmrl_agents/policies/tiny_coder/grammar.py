"""A grammar of machine-learning scripts, good and bad ones: what the tiny coder is pre-trained on.

A script is a `Plan` (how features are made, which model, how it predicts, which mistake if any) written
out as Python. Two kinds of author write plans. A *careful* one mostly picks models that suit the data
and seldom slips; a *hasty* one picks anything and slips in two cases of three. Like a language model
trained on public code, the tiny coder learns the mixture of both; telling them apart by what they are
worth is left to reinforcement learning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np

__all__ = ["MISTAKES", "Plan", "TaskShape", "repair", "sample_plan", "write_script"]

Author = Literal["careful", "hasty"]
AUTHORS: tuple[Author, ...] = ("careful", "hasty")
T = TypeVar("T")


@dataclass(frozen=True)
class TaskShape:
    """What a script must know of a task: its category, and what it predicts (see `Metric.prediction`)."""

    category: Literal["tabular", "text", "image"]
    prediction: Literal["probability", "label", "number"]


@dataclass(frozen=True)
class Plan:
    """All the choices behind one script.

    Attributes:
        shape: The task it is for.
        author: Who wrote it; shows in the first comment.
        features: Source lines that make ``X`` (train) and ``Z`` (test).
        steps: Expressions of the preprocessing steps of the pipeline.
        model: Expression of the estimator.
        predict: How the fitted model predicts: ``probability`` or ``label``.
        mistake: Key of `MISTAKES`, or None.
    """

    shape: TaskShape
    author: Author
    features: tuple[str, ...]
    steps: tuple[str, ...]
    model: str
    predict: Literal["probability", "label"]
    mistake: str | None = None


MISTAKES: dict[str, str] = {
    "missing_import": "forgets the import of the model",
    "misspelt": "misspells the model's class",
    "wrong_file": "reads a file that is not there",
    "wrong_target": "takes the target column to be called 'target'",
    "no_submission": "writes the predictions somewhere else",
    "unclosed": "leaves a bracket open",
    "extra_column": "writes the row index as a column",
    "wrong_predictions": "submits both classes' probabilities, or probabilities where labels are wanted",
}

MODULES = {
    "ComplementNB": "naive_bayes",
    "CountVectorizer": "feature_extraction.text",
    "DecisionTreeClassifier": "tree",
    "DecisionTreeRegressor": "tree",
    "DummyClassifier": "dummy",
    "DummyRegressor": "dummy",
    "ExtraTreesClassifier": "ensemble",
    "GaussianNB": "naive_bayes",
    "GradientBoostingRegressor": "ensemble",
    "KNeighborsClassifier": "neighbors",
    "KNeighborsRegressor": "neighbors",
    "LinearDiscriminantAnalysis": "discriminant_analysis",
    "LinearRegression": "linear_model",
    "LogisticRegression": "linear_model",
    "MinMaxScaler": "preprocessing",
    "MultinomialNB": "naive_bayes",
    "PCA": "decomposition",
    "RandomForestClassifier": "ensemble",
    "RandomForestRegressor": "ensemble",
    "Ridge": "linear_model",
    "SVC": "svm",
    "SVR": "svm",
    "StandardScaler": "preprocessing",
    "TfidfVectorizer": "feature_extraction.text",
}

_LOGISTIC = [f"LogisticRegression(C={c}, max_iter=1000)" for c in ("0.0001", "0.01", "1.0", "100.0")]
_MODELS: dict[tuple[str, bool], dict[Author, list[str]]] = {
    # (category, is_regression) -> what each author chooses from
    ("tabular", False): {
        "careful": [
            *_LOGISTIC[2:],
            "RandomForestClassifier(n_estimators=100)",
            "ExtraTreesClassifier(n_estimators=100)",
            "SVC(C=1.0)",
            "SVC(C=10.0)",
            "LinearDiscriminantAnalysis()",
            "KNeighborsClassifier(n_neighbors=15)",
        ],
        "hasty": [
            *_LOGISTIC[:2],
            "DummyClassifier()",
            "GaussianNB()",
            "DecisionTreeClassifier(max_depth=1)",
            "DecisionTreeClassifier(max_depth=3)",
            "KNeighborsClassifier(n_neighbors=1)",
            "KNeighborsClassifier(n_neighbors=5)",
            "RandomForestClassifier(n_estimators=3)",
        ],
    },
    ("tabular", True): {
        "careful": [
            "Ridge(alpha=1.0)",
            "LinearRegression()",
            "RandomForestRegressor(n_estimators=100)",
            "GradientBoostingRegressor(n_estimators=100)",
            "SVR(C=10.0)",
        ],
        "hasty": [
            "DummyRegressor()",
            "DecisionTreeRegressor(max_depth=1)",
            "DecisionTreeRegressor()",
            "KNeighborsRegressor(n_neighbors=1)",
            "KNeighborsRegressor(n_neighbors=5)",
            "Ridge(alpha=10000.0)",
        ],
    },
    ("text", False): {
        "careful": [
            *_LOGISTIC[2:],
            "MultinomialNB(alpha=0.1)",
            "ComplementNB(alpha=0.3)",
            "SVC(C=1.0, kernel='linear')",
        ],
        "hasty": [
            *_LOGISTIC[:2],
            "DummyClassifier()",
            "DecisionTreeClassifier(max_depth=3)",
            "KNeighborsClassifier(n_neighbors=1)",
            "KNeighborsClassifier(n_neighbors=5)",
            "MultinomialNB(alpha=50.0)",
        ],
    },
    ("text", True): {
        "careful": ["Ridge(alpha=1.0)", "Ridge(alpha=10.0)", "SVR(C=1.0)"],
        "hasty": [
            "DummyRegressor()",
            "KNeighborsRegressor(n_neighbors=1)",
            "DecisionTreeRegressor(max_depth=3)",
        ],
    },
}
_MODELS[("image", False)] = _MODELS[("tabular", False)]
_MODELS[("image", True)] = _MODELS[("tabular", True)]

_VECTORIZERS: dict[Author, list[str]] = {
    "careful": [
        "TfidfVectorizer()",
        "TfidfVectorizer(ngram_range=(1, 2))",
        "TfidfVectorizer(sublinear_tf=True)",
        "TfidfVectorizer(analyzer='char_wb', ngram_range=(2, 4))",
        "CountVectorizer()",
        "CountVectorizer(ngram_range=(1, 2))",
    ],
    "hasty": [
        "CountVectorizer(max_features=10)",
        "CountVectorizer(max_features=100)",
        "TfidfVectorizer(max_features=10)",
        "TfidfVectorizer(max_features=100)",
        "CountVectorizer()",
        "TfidfVectorizer()",
    ],
}
_SCALERS = {
    "careful": ["StandardScaler()", "StandardScaler()", "MinMaxScaler()"],
    "hasty": ["StandardScaler()"],
}


def sample_plan(shape: TaskShape, rng: np.random.Generator, author: Author | None = None) -> Plan:
    """Draw a plan for a task; half of the authors are hasty unless one is named."""
    return _sample_plan(shape, rng, _pick(AUTHORS, rng) if author is None else author)


def _sample_plan(shape: TaskShape, rng: np.random.Generator, author: Author) -> Plan:
    number = shape.prediction == "number"
    predict: Literal["probability", "label"] = "label"
    if shape.prediction == "probability" and rng.random() < (0.95 if author == "careful" else 0.7):
        predict = "probability"
    models = _MODELS[shape.category, number][author]
    model = _pick([m for m in models if predict == "label" or not m.startswith("SVC")], rng)
    plan = Plan(
        shape, author, _features(shape, author, rng), _steps(shape, author, model, rng), model, predict
    )
    return replace(plan, mistake=_mistake(plan, rng))


def _pick(options: Sequence[T], rng: np.random.Generator) -> T:
    return options[int(rng.integers(len(options)))]


def _mistake(plan: Plan, rng: np.random.Generator) -> str | None:
    if rng.random() > (0.12 if plan.author == "careful" else 0.66):
        return None
    options = [name for name in MISTAKES if name != "wrong_predictions" or plan.shape.prediction != "number"]
    return _pick(options, rng)


def _features(shape: TaskShape, author: Author, rng: np.random.Generator) -> tuple[str, ...]:
    hasty = author == "hasty"
    if shape.category == "text":
        return ('X = train["text"]', 'Z = test["text"]')
    if shape.category == "image":
        lines = [
            'images = np.load(data + "/images.npz")',
            'X = images["train"].reshape(len(train), -1)',
            'Z = images["test"].reshape(len(test), -1)',
        ]
        cuts = ["X, Z = X[:, :8], Z[:, :8]", "X, Z = X[:, ::4], Z[:, ::4]"]
    else:
        lines = ['X = train[test.columns].drop(columns="id")', 'Z = test.drop(columns="id")']
        if hasty and rng.random() < 0.3:
            lines = ["X = train[test.columns]", "Z = test"]
        cuts = ["X, Z = X.iloc[:, :2], Z.iloc[:, :2]", "X, Z = X.iloc[:, ::4], Z.iloc[:, ::4]"]
    if rng.random() < (0.4 if hasty else 0.05):
        lines.append(_pick(cuts, rng))
    return tuple(lines)


def _steps(shape: TaskShape, author: Author, model: str, rng: np.random.Generator) -> tuple[str, ...]:
    if shape.category == "text":
        return (_pick(_VECTORIZERS[author], rng),)
    steps = []
    if rng.random() < (0.75 if author == "careful" else 0.3):
        steps.append(_pick(_SCALERS[author], rng))
    if author == "hasty" and rng.random() < 0.25 and not model.startswith("Dummy"):
        steps.append(_pick(["PCA(n_components=1)", "PCA(n_components=2)"], rng))
    return tuple(steps)


def repair(plan: Plan) -> Plan:
    """The same plan without its mistake."""
    return replace(plan, mistake=None)


def write_script(plan: Plan, rng: np.random.Generator) -> str:
    """Write a plan out as a Python script, mistakes included."""
    model, mistake = plan.model, plan.mistake
    estimator = model if not plan.steps else f"make_pipeline({', '.join([*plan.steps, model])})"
    class_name = model.split("(")[0]
    if mistake == "misspelt":
        estimator = estimator.replace(class_name, class_name.replace("ss", "s", 1).replace("r", "rr", 1))
    if mistake == "unclosed":
        estimator = estimator[:-1]
    lines = [
        _comment(plan, rng),
        "import os",
        *_imports(plan, skip=class_name if mistake == "missing_import" else None),
        "",
        'data = os.environ["DATA_DIR"]',
        f'train = pd.read_csv(data + "/{"training" if mistake == "wrong_file" else "train"}.csv")',
        'test = pd.read_csv(data + "/test.csv")',
        'sample = pd.read_csv(data + "/sample_submission.csv")',
        'target = "target"' if mistake == "wrong_target" else "target = sample.columns[1]",
        *plan.features,
        f"model = {estimator}",
        "model.fit(X, train[target])",
        f"sample[target] = {_prediction(plan)}",
        _output(mistake),
    ]
    return "\n".join(lines) + "\n"


def _comment(plan: Plan, rng: np.random.Generator) -> str:
    openings = {
        "careful": ["Solid pipeline", "Tuned model", "Sound features"],
        "hasty": ["Quick try", "First idea", "Simple baseline"],
    }
    # Authors are recognisable but not labelled: one comment in five says what the other would have said.
    other: Author = "hasty" if plan.author == "careful" else "careful"
    opening = _pick(openings[plan.author if rng.random() < 0.8 else other], rng)
    return f"# {opening}: {plan.model.split('(')[0]}"


def _imports(plan: Plan, skip: str | None) -> list[str]:
    names = [expression.split("(")[0] for expression in (*plan.steps, plan.model)]
    by_module: dict[str, set[str]] = {}
    for name in names:
        if name != skip:
            by_module.setdefault(MODULES[name], set()).add(name)
    if plan.steps:
        by_module.setdefault("pipeline", set()).add("make_pipeline")
    lines = ["import numpy as np"] if plan.shape.category == "image" else []
    lines.append("import pandas as pd")
    lines += [f"from sklearn.{m} import {', '.join(sorted(names))}" for m, names in sorted(by_module.items())]
    return lines


def _prediction(plan: Plan) -> str:
    if plan.mistake == "wrong_predictions":
        return (
            "model.predict_proba(Z)"
            if plan.shape.prediction == "probability"
            else "model.predict_proba(Z)[:, 1]"
        )
    return "model.predict_proba(Z)[:, 1]" if plan.predict == "probability" else "model.predict(Z)"


def _output(mistake: str | None) -> str:
    if mistake == "no_submission":
        return 'sample.to_csv("predictions.csv", index=False)'
    if mistake == "extra_column":
        return 'sample.to_csv(os.environ["SUBMISSION_PATH"])'
    return 'sample.to_csv(os.environ["SUBMISSION_PATH"], index=False)'
