"""Competitions in which an agent writes machine-learning programs."""

from wmrl_envs.autoresearch.competition import Competition, load_competition

__all__ = ["Competition", "load_competition"]
