"""The corpus: what the tiny coder and its world model read before reinforcement learning.

Every example is a dialogue in the environment's own words. The tasks are auxiliary ones with their
names, words and columns changed at every use, the outcomes are those of real executions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from wmrl_agents.policies.tiny_coder.auxiliary import docstring_sentences
from wmrl_agents.policies.tiny_coder.grammar import Plan, TaskShape, repair, sample_plan, write_script
from wmrl_envs.autoresearch.competition import Competition
from wmrl_envs.autoresearch.prompts import outcome_text, task_text
from wmrl_envs.evaluation import Evaluation
from wmrl_rewards.language_models.base import Message

__all__ = ["Execution", "agent_dialogues", "shape_of", "vary_task", "world_model_dialogues"]

OBSERVATION_CHARS = 300


@dataclass(frozen=True)
class Execution:
    """A script that was really executed on an auxiliary task; the grammar's have a plan."""

    competition: Competition
    plan: Plan | None
    code: str
    evaluation: Evaluation


def shape_of(competition: Competition) -> TaskShape:
    """What the grammar must know of a competition."""
    prediction = competition.metric.prediction
    assert prediction != "sample", "the grammar writes for metrics that are registered"
    return TaskShape(competition.category, prediction)


def agent_dialogues(
    executions: Sequence[Execution], number: int, rng: np.random.Generator
) -> Iterator[list[Message]]:
    """Dialogues of one or two turns: the task, a script, what came of it, another script."""
    for index in rng.integers(len(executions), size=number):
        first = executions[index]
        dialogue = [_user(vary_task(task_text(first.competition), rng)), _assistant(first.code)]
        if rng.random() < 0.7:
            observation = outcome_text(first.evaluation, first.competition, max_chars=OBSERVATION_CHARS)
            dialogue += [_user(observation), _assistant(write_script(_next_plan(first, rng), rng))]
        yield dialogue


def _next_plan(previous: Execution, rng: np.random.Generator) -> Plan:
    """What an author sends after seeing an outcome: mostly the repaired script, or another idea."""
    plan = previous.plan
    assert plan is not None, "the agent learns from the grammar's scripts"
    if previous.evaluation.status != "ok" and rng.random() < 0.6:
        return repair(plan)
    return sample_plan(plan.shape, rng, author=plan.author if rng.random() < 0.7 else None)


def world_model_dialogues(
    executions: Sequence[Execution], number: int, rng: np.random.Generator
) -> Iterator[list[Message]]:
    """Questions and answers: task and script, then the outcome's status and scores, or its error.

    Two in five scripts are failing ones, so that the model learns to look for what makes a script fail.
    """
    failing = np.array([execution.evaluation.status != "ok" for execution in executions])
    chances = np.where(failing, 0.4 / max(1, failing.sum()), 0.6 / max(1, (~failing).sum()))
    # The sum is not 1 where there are only failing scripts, or only valid ones.
    for index in rng.choice(len(executions), size=number, p=chances / chances.sum()):
        execution = executions[index]
        task = vary_task(task_text(execution.competition), rng)
        yield [
            _user(f"{task}\n\n```python\n{execution.code.strip()}\n```"),
            {"role": "assistant", "content": _short_outcome(execution)},
        ]


def _short_outcome(execution: Execution) -> str:
    """The outcome in the environment's words, without what nobody could predict.

    That is: scores to two or three digits, no printed output, and of an error only its last line.
    """
    grade, outcome = execution.evaluation.grade, execution.evaluation.outcome
    lines = [f"status: {execution.evaluation.status}"]
    if grade is not None and grade.score is not None:
        lines.append(f"{execution.competition.metric.name}: {_rounded(grade.score)}")
        lines.append(f"percentile: {grade.percentile:.2f}")
    elif outcome is not None and outcome.status == "error":
        lines += ["stderr:", outcome.stderr.strip().splitlines()[-1][:120]]
    return "\n".join(lines)


def _rounded(score: float) -> str:
    return f"{score:.2f}" if abs(score) < 10 else f"{score:.0f}"


def _user(content: str) -> Message:
    return {"role": "user", "content": content}


def _assistant(code: str) -> Message:
    return {"role": "assistant", "content": f"```python\n{code}```"}


def vary_task(text: str, rng: np.random.Generator) -> str:
    """The same task in other words: heading, description and the names of columns are drawn anew.

    What decides about a script stays: category, metric, files, and that the id comes first.
    """
    lines = text.splitlines()
    category = lines[0].rpartition("(")[2]
    lines[0] = f"# {' '.join(_words(rng, 2)).capitalize()} ({category}"
    if rng.random() < 0.7:
        verb = ("Predict", "Tell", "Find out", "Estimate")[rng.integers(4)]
        lines[1] = f"{verb} {' '.join(_words(rng, int(rng.integers(4, 14))))}."
    names: dict[str, str] = {}
    for number, line in enumerate(lines):
        if match := re.fullmatch(r"(- \w+\.csv: )(.*)", line):
            columns = [_rename(column, names, rng) for column in match[2].split(", ")]
            lines[number] = match[1] + ", ".join(columns)
    return "\n".join(lines)


def _rename(column: str, names: dict[str, str], rng: np.random.Generator) -> str:
    if column in ("id", "text") or column.startswith("... "):
        return column
    return names.setdefault(column, "_".join(_words(rng, int(rng.integers(1, 3)))))


def _words(rng: np.random.Generator, number: int) -> list[str]:
    vocabulary = _vocabulary()
    return [vocabulary[i] for i in rng.integers(len(vocabulary), size=number)]


@lru_cache(maxsize=1)
def _vocabulary() -> list[str]:
    sentences = docstring_sentences("numpy") + docstring_sentences("scipy.stats")
    return sorted({word for sentence in sentences for word in re.findall(r"\b[a-z]{3,10}\b", sentence)})
