"""The words of the environment: the task as the agent sees it, and the outcome of a reply."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Literal

import pandas as pd

from wmrl_envs.autoresearch.competition import Competition
from wmrl_envs.autoresearch.replies import Reply
from wmrl_envs.evaluation import Evaluation

__all__ = [
    "AGENT_SYSTEM_PROMPT",
    "AGENT_SYSTEM_PROMPTS",
    "EXAMPLE_PROGRAM",
    "FEEDBACK_SCORES",
    "FeedbackScore",
    "column_names",
    "cut_middle",
    "fit",
    "no_code_text",
    "outcome_text",
    "submitted_text",
    "task_text",
]

FeedbackScore = Literal["percentile+raw", "raw", "none"]

FEEDBACK_SCORES: tuple[FeedbackScore, ...] = ("percentile+raw", "raw", "none")

AGENT_SYSTEM_PROMPT = (
    "You are a machine-learning engineer who solves competitions with Python programs.\n"
    "Reply with exactly one complete program in a ```python block. It is run as it stands, "
    "in a fresh sandbox without\nnetwork. "
    "It reads the public files from the folder named by the environment variable DATA_DIR and writes its\n"
    "submission as CSV to the path named by SUBMISSION_PATH. "
    "You then see what happened and may send a better program."
)

# For a task that is not among the bundled ones: it shows the form of a program, not how to score.
EXAMPLE_PROGRAM = """\
import os

import pandas as pd
from sklearn.linear_model import LinearRegression

folder = os.environ["DATA_DIR"]
train = pd.read_csv(folder + "/train.csv")
test = pd.read_csv(folder + "/test.csv")
columns = [name for name in test.columns if name != "id"]
model = LinearRegression()
model.fit(train[columns], train["price"])
submission = test[["id"]].copy()
submission["price"] = model.predict(test[columns])
submission.to_csv(os.environ["SUBMISSION_PATH"], index=False)
"""

AGENT_SYSTEM_PROMPTS = {
    "default": AGENT_SYSTEM_PROMPT,
    "with_example": (
        f"{AGENT_SYSTEM_PROMPT}\n\n"
        "A program for a competition on house prices, as an example. Its files are train.csv: id, area, "
        "rooms,\nprice; test.csv: id, area, rooms; sample_submission.csv: id, price.\n"
        f"```python\n{EXAMPLE_PROGRAM}```"
    ),
}

_WHAT_TO_SUBMIT = {
    "probability": "the probability of class 1",
    "label": "the predicted label",
    "number": "the predicted number",
    "sample": "what sample_submission.csv shows",
}
_COLUMNS_SHOWN = 6


@lru_cache(maxsize=256)
def task_text(competition: Competition) -> str:
    """The observation of turn 0: description, metric, files and their columns, and where to write."""
    metric = competition.metric
    lines = [
        f"# {competition.title} ({competition.category})",
        competition.description,
        f"Metric: {metric.name}, {metric.direction}. Submit {_WHAT_TO_SUBMIT[metric.prediction]}.",
        "Files in DATA_DIR:",
    ]
    for path in sorted(competition.public_dir.iterdir()):
        if path.suffix == ".csv" and (columns := column_names(path)):
            lines.append(f"- {path.name}: {columns}")
        elif path.name != "description.md":
            lines.append(f"- {path.name}")
    lines.append("Write the submission to SUBMISSION_PATH.")
    return "\n".join(lines)


def column_names(path: Path) -> str:
    """The columns of a table; nothing for a file that is none in spite of its name."""
    try:
        columns = [str(column) for column in pd.read_csv(path, nrows=0).columns]
    except ValueError:  # not UTF-8, or empty: other people's folders hold such files
        return ""
    if len(columns) > _COLUMNS_SHOWN + 1:
        hidden = len(columns) - _COLUMNS_SHOWN
        columns = [*columns[: _COLUMNS_SHOWN - 1], f"... {hidden} more", columns[-1]]
    return ", ".join(columns)


def outcome_text(
    evaluation: Evaluation,
    competition: Competition,
    *,
    max_chars: int = 4000,
    feedback_score: FeedbackScore = "percentile+raw",
) -> str:
    """The observation after a reply with code; a world model is asked for the same words.

    Args:
        evaluation: What happened, or what is predicted to happen.
        competition: The competition.
        max_chars: Longest stretch of each output stream that is shown; the middle of longer ones is cut.
        feedback_score: What is told of the score: metric value and percentile, the metric value, or nothing.
    """
    lines = [f"status: {evaluation.status}"]
    grade, outcome = evaluation.grade, evaluation.outcome
    if grade is not None and grade.status == "ok":
        # A world model may predict the percentile alone.
        if grade.score is not None and feedback_score != "none":
            lines.append(f"{competition.metric.name}: {grade.score:.4f}")
        if feedback_score == "percentile+raw":
            lines.append(f"{competition.score_kind}: {grade.percentile:.2f}")
    elif grade is not None and grade.message:
        lines.append(f"message: {grade.message}")
    if outcome is not None:
        for name, text in (("stdout", outcome.stdout), ("stderr", outcome.stderr)):
            if text.strip():
                lines.append(f"{name}:\n{cut_middle(text.strip(), max_chars)}")
    return "\n".join(lines)


def no_code_text(reply: Reply) -> str:
    """The observation after a reply that holds no program: what was wrong and what is expected."""
    return (
        f"status: no_code\nmessage: {reply.problem} Send one complete program in a ```python block, "
        "or the word submit to keep the last result."
    )


def submitted_text(
    evaluation: Evaluation | None,
    competition: Competition,
    *,
    feedback_score: FeedbackScore = "percentile+raw",
) -> str:
    """The observation after the episode was ended by an explicit submit."""
    if evaluation is None:
        return "status: submitted\nmessage: No program was sent, so the score is 0."
    outcome = outcome_text(evaluation, competition, feedback_score=feedback_score)
    return f"status: submitted\nmessage: This result stands.\n{outcome}"


def cut_middle(text: str, max_chars: int) -> str:
    """Cut the middle out of a long text: an error's last line says what failed, its first where.

    The result is never longer than ``max_chars`` plus the note on what was cut.
    """
    if len(text) <= max_chars:
        return text
    head = max_chars // 3
    tail = max_chars - head
    return f"{text[:head]}\n[... {len(text) - max_chars} characters cut ...]\n{text[len(text) - tail :]}"


def fit(text: str, limit: int | None, measure: Callable[[str], int] = len) -> str:
    """Cut as little out of the middle of a text as makes it fit, the note on the cut included.

    Args:
        text: The text.
        limit: Largest measure that it may have; None for any.
        measure: What is limited: the number of characters, or of a tokenizer's tokens.

    Example:
        >>> fit("one two three four five six seven eight", 7, lambda text: len(text.split()))
        'one\\n[... 30 characters cut ...]\\n eight'
    """
    if limit is None or measure(text) <= limit:
        return text
    low, high = 0, len(text)
    while low < high:  # the most characters that can be kept
        middle = (low + high + 1) // 2
        if measure(cut_middle(text, middle)) <= limit:
            low = middle
        else:
            high = middle - 1
    return cut_middle(text, low)
