"""The HTML report of a run."""

from wmrl_agents.report.page import write_report

__all__ = ["write_report"]
