"""The panel: a fixed crowd of solution scripts whose executions make the bundled leaderboards.

A leaderboard says what a score is worth only if somebody really competed. Here these are 112 scripts for each
kind of task: every pairing of some ways to prepare the features with some models, from a constant guess to
boosted trees. ``python -m wmrl_envs.autoresearch.panel [NAME ...]`` executes them in the sandbox on the named
competitions (all bundled ones by default) and writes both boards of each. A script that fails or runs out of
time is no entry.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from wmrl_envs.autoresearch.competition import Competition, Half, competition_names, load_competition
from wmrl_envs.autoresearch.grading import grade
from wmrl_envs.errors import CompetitionError

__all__ = ["build_boards", "panel_scripts"]

_SCRIPT = """\
import os
import warnings
import numpy as np
import pandas as pd
{imports}
warnings.simplefilter("ignore")
data = os.environ["DATA_DIR"]
train, test = pd.read_csv(data + "/train.csv"), pd.read_csv(data + "/test.csv")
sample = pd.read_csv(data + "/sample_submission.csv")
target = sample.columns[1]
{features}
model = make_pipeline({pipeline})
model.fit(X, train[target])
sample[target] = model.{predict}
sample.to_csv(os.environ["SUBMISSION_PATH"], index=False)
"""

_IMPORTS = {
    "sklearn.decomposition": "PCA TruncatedSVD",
    "sklearn.discriminant_analysis": "LinearDiscriminantAnalysis",
    "sklearn.dummy": "DummyClassifier DummyRegressor",
    "sklearn.ensemble": "AdaBoostClassifier BaggingRegressor ExtraTreesClassifier ExtraTreesRegressor "
    "GradientBoostingClassifier GradientBoostingRegressor HistGradientBoostingClassifier "
    "HistGradientBoostingRegressor RandomForestClassifier RandomForestRegressor",
    "sklearn.feature_extraction.text": "CountVectorizer HashingVectorizer TfidfVectorizer",
    "sklearn.kernel_approximation": "Nystroem",
    "sklearn.linear_model": "BayesianRidge ElasticNet HuberRegressor Lasso LinearRegression "
    "LogisticRegression Ridge SGDClassifier",
    "sklearn.naive_bayes": "BernoulliNB ComplementNB GaussianNB MultinomialNB",
    "sklearn.neighbors": "KNeighborsClassifier KNeighborsRegressor",
    "sklearn.neural_network": "MLPClassifier MLPRegressor",
    "sklearn.pipeline": "make_pipeline",
    "sklearn.preprocessing": "QuantileTransformer StandardScaler",
    "sklearn.svm": "SVR",
    "sklearn.tree": "DecisionTreeClassifier DecisionTreeRegressor",
}

_FEATURES = {
    "tabular": 'X, Z = train[test.columns].drop(columns="id"), test.drop(columns="id")',
    "text": 'X, Z = train["text"], test["text"]',
    "image": 'images = np.load(data + "/images.npz")\n'
    'X, Z = images["train"].reshape(len(train), -1) / 255.0, images["test"].reshape(len(test), -1) / 255.0',
}

_SCALERS = ["", "StandardScaler()", "QuantileTransformer(n_quantiles=50)", "StandardScaler(), PCA(0.9)"]
_VECTORIZERS = [
    "CountVectorizer(max_features=50)",
    "CountVectorizer()",
    "CountVectorizer(binary=True, min_df=2)",
    "TfidfVectorizer(max_features=300)",
    "TfidfVectorizer(min_df=2, sublinear_tf=True)",
    "TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)",
    "TfidfVectorizer(analyzer='char_wb', ngram_range=(2, 3), max_features=3000)",
    "HashingVectorizer(n_features=512, alternate_sign=False)",
]

_CLASSIFIERS = [
    "DummyClassifier()",
    *(f"LogisticRegression(C={c}, max_iter=500)" for c in (0.001, 0.01, 0.1, 1, 10, 100)),
    *(
        f"RandomForestClassifier({n}, min_samples_leaf={leaf})"
        for n, leaf in ((10, 1), (60, 1), (60, 5), (150, 2))
    ),
    *(f"ExtraTreesClassifier({n})" for n in (10, 60, 150)),
    *(f"KNeighborsClassifier({k})" for k in (1, 3, 7, 15, 40)),
    *(f"DecisionTreeClassifier(max_depth={d})" for d in (2, 5)),
    "GaussianNB()",
    "LinearDiscriminantAnalysis(solver='lsqr', shrinkage='auto')",
    "GradientBoostingClassifier(n_estimators=20)",
    "AdaBoostClassifier(n_estimators=30)",
    "SGDClassifier(loss='log_loss', alpha=0.001)",
    "MLPClassifier((32,), max_iter=150)",
    "Nystroem(n_components=60), LogisticRegression(C=10)",
]
_REGRESSORS = [
    "DummyRegressor()",
    "LinearRegression()",
    *(f"Ridge(alpha={a})" for a in (0.1, 1, 10, 100)),
    *(f"Lasso(alpha={a})" for a in (0.01, 0.1, 1)),
    "ElasticNet(alpha=0.1)",
    "BayesianRidge()",
    "HuberRegressor()",
    *(f"KNeighborsRegressor({k})" for k in (1, 3, 7, 15, 40)),
    *(f"DecisionTreeRegressor(max_depth={d})" for d in (2, 4)),
    *(f"RandomForestRegressor({n}, min_samples_leaf=2)" for n in (10, 60)),
    *(f"ExtraTreesRegressor({n})" for n in (20, 60)),
    "GradientBoostingRegressor(n_estimators=30)",
    "GradientBoostingRegressor(n_estimators=80, max_depth=2)",
    *(f"SVR(C={c})" for c in (1, 100)),
    "BaggingRegressor(n_estimators=15)",
]
_TEXT_CLASSIFIERS = [
    "DummyClassifier()",
    *(f"LogisticRegression(C={c}, max_iter=500)" for c in (0.1, 1, 10, 100)),
    *(f"MultinomialNB(alpha={a})" for a in (0.01, 0.1, 1)),
    *(f"ComplementNB(alpha={a})" for a in (0.1, 1)),
    "BernoulliNB(alpha=0.1)",
    "SGDClassifier(loss='log_loss', alpha=0.0001)",
    "KNeighborsClassifier(5)",
    "RandomForestClassifier(30)",
]
_TEXT_REGRESSORS = [
    "DummyRegressor()",
    *(f"Ridge(alpha={a})" for a in (0.1, 0.3, 1, 3, 10)),
    *(f"SVR(C={c})" for c in (0.3, 1, 10)),
    *(f"KNeighborsRegressor({k})" for k in (3, 10)),
    "DecisionTreeRegressor(max_depth=6)",
    "RandomForestRegressor(15)",
    "TruncatedSVD(30), Ridge()",
]


def panel_scripts(competition: Competition) -> list[str]:
    """The panel's scripts for a competition: at least 100, all different, all meant to be valid."""
    category, number = competition.category, competition.metric.prediction == "number"
    if category == "text":
        steps, models = _VECTORIZERS, _TEXT_REGRESSORS if number else _TEXT_CLASSIFIERS
    else:
        steps, models = _SCALERS, _REGRESSORS if number else _CLASSIFIERS
    predict = "predict_proba(Z)[:, 1]" if competition.metric.prediction == "probability" else "predict(Z)"
    return [
        _SCRIPT.format(
            imports="\n".join(_imports(pipeline)),
            features=_FEATURES[category],
            pipeline=pipeline,
            predict=predict,
        )
        for step in steps
        for model in models
        for pipeline in [f"{step}, {model}".removeprefix(", ")]
    ]


def _imports(pipeline: str) -> list[str]:
    """Import lines for the names that a pipeline uses."""
    used = {part.split("(")[0].strip() for part in pipeline.split("),")} | {"make_pipeline"}
    lines = []
    for module, names in _IMPORTS.items():
        wanted = [name for name in names.split() if name in used]
        if wanted:
            lines.append(f"from {module} import {', '.join(wanted)}")
    return lines


def build_boards(competition: Competition, submissions: Iterable[Path | None], minimum: int = 60) -> int:
    """Grade the panel's submissions on one competition and write its boards from them.

    Args:
        competition: Its present boards do not matter and are replaced.
        submissions: What the panel's scripts wrote; None for a script that failed.
        minimum: Smallest number of entries that makes a board.

    Returns:
        The number of entries.

    Raises:
        CompetitionError: There were fewer entries than ``minimum``.
    """
    scores: dict[Half, list[float]] = {"public": [], "private": []}
    for submission in submissions:
        for half, entries in scores.items():
            score = grade(competition, submission, half=half).score
            if score is not None:
                entries.append(score)
    number = min(map(len, scores.values()))
    if number < minimum:
        raise CompetitionError(
            f"Only {number} scripts of the panel are valid entries for {competition.name}."
        )
    _write_boards(competition, scores)
    return number


def _write_boards(competition: Competition, scores: Mapping[Half, Sequence[float]]) -> None:
    for half, values in scores.items():
        ordered = sorted(values, reverse=competition.metric.higher_is_better)
        board = pd.DataFrame({"rank": range(1, len(ordered) + 1), "score": [round(s, 6) for s in ordered]})
        board.to_csv(competition.private_dir / f"{half}_leaderboard.csv", index=False)


def main() -> None:
    """Execute the panel in the sandbox and write the boards of bundled competitions."""
    from wmrl_envs.sandbox import BubblewrapSandbox, Job, Limits, SandboxPool

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="bundled competitions; all of them by default")
    # Long enough for a busy machine: which scripts are entries should not depend on what else runs there.
    with SandboxPool(BubblewrapSandbox(Limits(timeout_s=600))) as pool:
        for name in parser.parse_args().names or competition_names():
            competition = load_competition(name)
            scripts = panel_scripts(competition)
            results = pool.map([Job(code, competition.public_dir) for code in scripts])
            submissions = [result.submission_path for result in results]
            number = build_boards(competition, submissions, minimum=100)
            for result in results:
                if result.submission_path is not None:
                    result.submission_path.unlink()
            print(f"{name}: {number} entries from {len(scripts)} scripts", flush=True)


if __name__ == "__main__":
    main()
