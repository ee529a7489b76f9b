"""The auxiliary tasks: where the tiny world model learns what running a script comes to.

All of it is real data that ships inside packages which the project needs anyway, and none of it is the
data of a bundled competition:

- wine (UCI, Forina et al.), iris (Fisher 1936), diabetes (Efron et al. 2004), from scikit-learn;
- patches of two photographs, ``china.jpg`` and ``flower.jpg`` (CC BY), from scikit-learn;
- sentences of the docstrings of numpy, pandas, scipy and scikit-learn (BSD licences).

One data set becomes several tasks: other targets, other metrics, fewer rows or columns. Names and words
vary, so that the model reads the task instead of recognising it.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from wmrl_envs.autoresearch.sources.bundled import RawTask, write_competition
from wmrl_envs.errors import MissingExtraError

__all__ = ["auxiliary_tasks", "docstring_sentences", "write_auxiliary_tasks"]

_WORDS = [
    "alpha",
    "beta",
    "gamma",
    "delta",
    "score",
    "level",
    "amount",
    "grade",
    "kind",
    "state",
    "flag",
    "group",
    "type",
    "rank",
    "class",
    "mark",
    "value",
]


def write_auxiliary_tasks(folder: Path, seed: int = 0) -> list[Path]:
    """Write every auxiliary task as a competition's folder, its boards left to the panel.

    A folder that is there already is left as it is: the panel may have made its boards.
    """
    roots = []
    for index, task in enumerate(auxiliary_tasks(seed)):
        root = folder / task.settings["name"]
        if not (root / "competition.yaml").exists():  # written last, so a folder that has it is complete
            write_competition(task, root, seed=seed + index)
        roots.append(root)
    return roots


def auxiliary_tasks(seed: int = 0) -> Iterator[RawTask]:
    """All auxiliary tasks, in a fixed order."""
    rng = np.random.default_rng(seed)
    yield from _tabular(rng)
    yield from _text(rng)
    yield from _image(rng)


def _task(
    name: str,
    category: str,
    metric: str,
    description: str,
    features: pd.DataFrame,
    target: NDArray,
    rng: np.random.Generator,
    images: NDArray[np.uint8] | None = None,
) -> RawTask:
    word = _WORDS[int(rng.integers(len(_WORDS)))]
    column = word if word not in features.columns else f"{word}_y"
    return RawTask(
        settings={
            "name": f"{name}-{metric}".replace("_", "-"),
            "title": name.replace("-", " ").capitalize(),
            "category": category,
            "metric": metric,
        },
        description=description,
        table=features.assign(**{column: target}),
        target=column,
        images=images,
        test_fraction=0.6,
    )


def _tabular(rng: np.random.Generator) -> Iterator[RawTask]:
    from sklearn.datasets import load_diabetes, load_iris, load_wine

    wine, iris, diabetes = (load(as_frame=True) for load in (load_wine, load_iris, load_diabetes))
    wines = wine.data.rename(columns=lambda c: c.replace("/", "_"))
    flowers = iris.data.rename(columns=lambda c: c.split(" (")[0].replace(" ", "_"))
    patients = diabetes.data.rename(columns={f"s{i}": f"serum_{i}" for i in range(1, 7)})
    progress = diabetes.target.to_numpy()
    severe = (progress > np.median(progress)).astype(int)
    second = (wine.target.to_numpy() == 1).astype(int)
    versicolor = (iris.target.to_numpy() == 1).astype(int)

    def tabular(name: str, metric: str, what: str, features: pd.DataFrame, target: NDArray) -> RawTask:
        return _task(name, "tabular", metric, what, features, target, rng)

    yield tabular(
        "wine-cultivar", "accuracy", "Predict which of three growers a wine is from.", wines, wine.target
    )
    yield tabular(
        "second-grower",
        "roc_auc",
        "Predict from its chemistry whether a wine is of grower two (1) or not (0).",
        wines[["alcohol", "ash", "magnesium", "color_intensity", "hue"]],
        second,
    )
    yield tabular(
        "iris-sepals",
        "macro_f1",
        "Predict the species of a flower.",
        flowers[["sepal_length", "sepal_width"]],
        iris.target,
    )
    yield tabular("versicolor", "roc_auc", "Predict whether a flower is versicolor.", flowers, versicolor)
    yield tabular("severe-progress", "roc_auc", "Predict whether the illness gets worse.", patients, severe)
    yield tabular("severe-progress", "f1", "Predict whether a patient gets worse (1).", patients, severe)
    yield tabular(
        "severe-progress", "log_loss", "Predict from blood values who gets worse.", patients, severe
    )
    yield tabular(
        "illness", "rmse", "Predict how far the illness goes in a year.", patients, progress.round()
    )
    yield tabular(
        "illness", "r2", "Predict the illness from few values.", patients.iloc[:, :6], progress.round()
    )
    sex = (patients["sex"] > 0).astype(int).to_numpy()
    yield tabular(
        "patient-sex", "accuracy", "Predict the sex of a patient.", patients.drop(columns="sex"), sex
    )
    colours, photo = _colours(rng)
    yield tabular("photo-colours", "roc_auc", "Predict which photograph a colour is from.", colours, photo)
    yield tabular(
        "blue-channel",
        "mae",
        "Predict the blue of a pixel from its surroundings.",
        colours.drop(columns="blue_0"),
        colours["blue_0"].to_numpy(),
    )


def _photos() -> list[NDArray[np.uint8]]:
    from sklearn.datasets import load_sample_images

    if importlib.util.find_spec("PIL") is None:
        raise MissingExtraError("pillow", "dev")
    return [np.asarray(image) for image in load_sample_images().images]


def _colours(rng: np.random.Generator, rows: int = 900) -> tuple[pd.DataFrame, NDArray]:
    """Colours of pairs of neighbouring pixels, and which photograph they are from."""
    photos = _photos()
    which = rng.integers(2, size=rows)
    pixels = [photos[w][rng.integers(400), (c := int(rng.integers(600))) : c + 2].ravel() for w in which]
    columns = [f"{colour}_{i}" for i in range(2) for colour in ("red", "green", "blue")]
    return pd.DataFrame(np.array(pixels), columns=columns), which


def docstring_sentences(package: str) -> list[str]:
    """Sentences of the docstrings of a package's public names, in the order of these names."""
    module = importlib.import_module(package)
    found: dict[str, None] = {}
    for name in sorted(dir(module)):
        text = inspect.getdoc(getattr(module, name)) if not name.startswith("_") else None
        for sentence in re.split(r"(?<=[.:])\s+|\n\n", text or ""):
            words = re.sub(r"\s+", " ", sentence).strip()
            if 25 < len(words) < 160 and ">>>" not in words and "---" not in words:
                found.setdefault(words)
    return list(found)


def _text(rng: np.random.Generator) -> Iterator[RawTask]:
    sources = {
        "numpy": docstring_sentences("numpy"),
        "pandas": docstring_sentences("pandas"),
        "scipy": docstring_sentences("scipy.signal") + docstring_sentences("scipy.stats"),
        "scikit": docstring_sentences("sklearn.ensemble")
        + docstring_sentences("sklearn.linear_model")
        + docstring_sentences("sklearn.metrics"),
    }

    def text(name: str, metric: str, what: str, labelled: list[tuple[list[str], int]]) -> RawTask:
        rows = [(sentence, label) for sentences, label in labelled for sentence in sentences[:900]]
        frame = pd.DataFrame(rows, columns=["text", "label"]).drop_duplicates("text")
        frame = frame.sample(min(len(frame), 1200), random_state=int(rng.integers(2**31)))
        return _task(name, "text", metric, what, frame[["text"]], frame["label"].to_numpy(), rng)

    numpy, pandas, scipy, scikit = sources.values()
    every = numpy + pandas + scipy + scikit
    optional = [s for s in every if re.search(r"\b(optional|default)\b", s)]
    others = [s for s in every if s not in set(optional)]
    yield text(
        "numpy-or-scipy", "f1", "Predict whether a sentence is about scipy (1).", [(numpy, 0), (scipy, 1)]
    )
    yield text(
        "learning",
        "f1",
        "Predict whether a sentence is about learning.",
        [(numpy[:300] + scipy, 0), (scikit, 1)],
    )
    yield text(
        "which-manual",
        "accuracy",
        "Predict which manual a sentence is from.",
        list(zip(sources.values(), range(4), strict=True)),
    )
    yield text(
        "pandas-or-scikit",
        "roc_auc",
        "Predict whether a sentence is from scikit-learn (1) or pandas (0).",
        [(pandas, 0), (scikit, 1)],
    )
    yield text(
        "optional", "f1", "Predict whether something may be left out.", [(others[::4], 0), (optional, 1)]
    )
    yield text(
        "long-words",
        "average_precision",
        "Predict whether a sentence has long words.",
        [
            ([s for s in every[::3] if len(s) / (s.count(" ") + 1) <= 6.4], 0),
            ([s for s in every[::3] if len(s) / (s.count(" ") + 1) > 6.4], 1),
        ],
    )
    yield text(
        "words",
        "mae",
        "Predict how many words of five letters or more a sentence has.",
        [([s for s in every[::2] if len(re.findall(r"\w{5,}", s)) == k], k) for k in range(16)],
    )


def _patches(rng: np.random.Generator, size: int, rows: int) -> tuple[NDArray[np.uint8], NDArray, NDArray]:
    """Grey square patches, which photograph each is from, and the row it was cut at."""
    photos = [photo.mean(axis=2) for photo in _photos()]
    which = rng.integers(2, size=rows)
    top = rng.integers(427 - 2 * size, size=rows)
    left = rng.integers(640 - 2 * size, size=rows)
    cut = [
        photos[w][t : t + 2 * size : 2, a : a + 2 * size : 2]
        for w, t, a in zip(which, top, left, strict=True)
    ]
    return np.array(cut).astype(np.uint8), which, top


def _image(rng: np.random.Generator) -> Iterator[RawTask]:
    for size, metrics in ((8, ("accuracy", "roc_auc")), (12, ("f1", "macro_f1"))):
        images, which, top = _patches(rng, size, rows=1000)
        empty = pd.DataFrame(index=range(len(images)))
        turned = rng.integers(4, size=len(images))
        rotated = np.array([np.rot90(image, k) for image, k in zip(images, turned, strict=True)])
        what = f"Predict which of two photographs a grey patch of {size} by {size} pixels is from."
        yield _task("patch-photo", "image", metrics[0], what, empty, which, rng, images)
        yield _task(
            "patch-height",
            "image",
            metrics[1],
            "Predict whether a patch is from the upper half (1).",
            empty,
            (top < 200).astype(int),
            rng,
            images,
        )
        yield _task(
            "patch-turn",
            "image",
            "accuracy" if size == 12 else "macro_f1",
            "Predict by how many quarter turns (0 to 3) a patch was turned.",
            empty,
            turned,
            rng,
            rotated,
        )
    bands = np.minimum(top // 80, 4)
    yield _task(
        "patch-band",
        "image",
        "accuracy",
        "Predict which band (0 to 4) of the picture a patch is from.",
        empty,
        bands,
        rng,
        images,
    )
    yield _task(
        "patch-brightness",
        "image",
        "rmse",
        "Predict how far from the top a patch was cut.",
        empty,
        top,
        rng,
        images,
    )
