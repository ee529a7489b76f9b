"""The tabular competitions of the bundled suite, as `RawTask`."""

from __future__ import annotations

import pandas as pd

from wmrl_envs.autoresearch.sources.downloads import Downloads
from wmrl_envs.autoresearch.sources.raw_task import RawTask

__all__ = ["bike_hours", "breast_cancer", "fair_health", "wages"]

UCI = "https://archive.ics.uci.edu/dataset"
WEATHER = {"clear": 0, "cloudy/misty": 1, "light rain/snow": 2, "heavy rain/snow": 3}


def breast_cancer() -> RawTask:
    """Benign or malignant, from measurements of cell nuclei."""
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer(as_frame=True)
    table = data.frame.rename(columns=lambda column: column.replace(" ", "_"))
    table["malignant"] = 1 - table.pop("target")
    return RawTask(
        settings={
            "name": "breast-cancer",
            "title": "Breast cancer diagnosis",
            "category": "tabular",
            "metric": "roc_auc",
            "split": "train",
            "licence": "CC BY 4.0",
            "source": f"Breast Cancer Wisconsin (Diagnostic), {UCI}/17",
        },
        description="Predict from measurements of cell nuclei whether a tumour is malignant (1) or "
        "benign (0).",
        table=table,
        target="malignant",
        test_fraction=0.6,
    )


def bike_hours(downloads: Downloads) -> RawTask:
    """How many bicycles are rented in an hour; its two addends, casual and registered users, are left out."""
    table = pd.read_csv(downloads.wheel("islp", "ISLP/data/Bikeshare.csv"))
    table = table.drop(columns=["casual", "registered"])
    table["mnth"] = table["mnth"].factorize()[0] + 1  # the months stand in their order
    table["weathersit"] = table["weathersit"].map(WEATHER)
    names = {"mnth": "month", "hr": "hour", "weathersit": "weather", "hum": "humidity", "bikers": "rented"}
    return RawTask(
        settings={
            "name": "bike-hours",
            "title": "Bicycles rented in an hour",
            "category": "tabular",
            "metric": "rmsle",
            "split": "train",
            "licence": "CC BY 4.0",
            "source": f"Bike Sharing (hours of 2011), {UCI}/275",
        },
        description="Predict how many bicycles were rented in an hour from the time and the weather. `day` "
        "is the day of the year, `weather` goes from clear (0) to heavy rain or snow (3).",
        table=_sample(table.rename(columns=names), "rented", 2500),
        target="rented",
        test_fraction=0.6,
    )


def fair_health(downloads: Downloads) -> RawTask:
    """Whose health is fair or poor: 9 % of the people, each there once; other ratings of it are left out."""
    raw = pd.read_csv(downloads.wheel("statsmodels", "statsmodels/datasets/randhie/src/randhie.csv"))
    first = raw.drop_duplicates("zper").dropna(subset=["educdec"])
    names = {
        "site": "site",
        "xage": "age",
        "female": "female",
        "educdec": "education_years",
        "income": "income",
        "num": "family_size",
        "coins": "coinsurance",
        "idp": "deductible_plan",
        "disea": "chronic_diseases",
        "physlm": "limited",
        "mhi": "mental_health",
        "mdvis": "doctor_visits",
        "notmdvis": "other_visits",
        "mentvis": "therapist_visits",
        "totadm": "hospital_stays",
    }
    table = first[list(names)].rename(columns=names).round(3)
    table["fair_or_poor"] = ((first["hlthf"] + first["hlthp"]) > 0).astype(int)
    return RawTask(
        settings={
            "name": "fair-health",
            "title": "Fair or poor health",
            "category": "tabular",
            "metric": "average_precision",
            "split": "train",
            "licence": "public domain",
            "source": "RAND Health Insurance Experiment, https://www.rand.org/health-care/projects/hie.html",
        },
        description="Predict from circumstances, diseases and visits to doctors who rates his or her own "
        "health as fair or poor (1). Few do.",
        table=_sample(table, "fair_or_poor", 3300),
        target="fair_or_poor",
        test_fraction=0.6,
    )


def wages(downloads: Downloads) -> RawTask:
    """What a worker earns; the logarithm of the wage and the constant region are left out, and so is race."""
    raw = pd.read_csv(downloads.wheel("islp", "ISLP/data/Wage.csv"))
    codes = raw[["maritl", "education", "jobclass", "health", "health_ins"]].apply(
        lambda column: column.str.split(".").str[0].astype(int)
    )
    table = pd.DataFrame(
        {
            "year": raw["year"],
            "age": raw["age"],
            "education": codes["education"],
            "married": (codes["maritl"] == 2).astype(int),
            "never_married": (codes["maritl"] == 1).astype(int),
            "information_job": codes["jobclass"] - 1,
            "good_health": codes["health"] - 1,
            "health_insured": 2 - codes["health_ins"],
            "wage": raw["wage"].round(2),
        }
    )
    return RawTask(
        settings={
            "name": "wages",
            "title": "Wages in the Mid-Atlantic region",
            "category": "tabular",
            "metric": "mae",
            "split": "heldout",
            "licence": "public domain (a work of the United States government)",
            "source": "Current Population Survey, March supplements of 2003 to 2009, "
            "https://www.census.gov/programs-surveys/cps.html",
        },
        description="Predict the wage of a worker, in thousands of dollars a year. `education` goes from no "
        "high school degree (1) to an advanced degree (5); yes is 1 and no is 0.",
        table=_sample(table, "wage", 2400),
        target="wage",
        test_fraction=0.6,
    )


def _sample(table: pd.DataFrame, target: str, rows: int) -> pd.DataFrame:
    """At most so many rows that differ in their features, so that no test row stands among the train rows."""
    distinct = table.drop_duplicates([column for column in table.columns if column != target])
    return distinct.sample(min(rows, len(distinct)), random_state=0)
