"""Make the tiny coder and its world model from nothing: ``wmrl tiny-coder build``.

1. Write the auxiliary tasks, and their leaderboards by executing the panel on them.
2. Sample scripts from the grammar and execute each on one auxiliary task.
3. Train a tokenizer, the agent on dialogues, and from the agent's weights the world model on (task, script,
   outcome).

No bundled competition is touched. Executions are kept in the work folder, so an interrupted build goes on.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.progress import track

from wmrl_agents.policies.tiny_coder import WEIGHTS
from wmrl_agents.policies.tiny_coder.auxiliary import write_auxiliary_tasks
from wmrl_agents.policies.tiny_coder.corpus import (
    Execution,
    agent_dialogues,
    shape_of,
    world_model_dialogues,
)
from wmrl_agents.policies.tiny_coder.executions import execute_all
from wmrl_agents.policies.tiny_coder.grammar import Plan, repair, sample_plan, write_script
from wmrl_envs.autoresearch.competition import Competition, load_competition
from wmrl_envs.autoresearch.panel import build_boards, panel_scripts
from wmrl_envs.evaluation import Evaluation, Grade, Outcome

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

__all__ = ["BuildConfig", "build", "main"]


@dataclass(frozen=True, kw_only=True)
class BuildConfig:
    """Settings of a build."""

    scripts_per_task: int = 275
    """Scripts of the grammar executed on each auxiliary task."""
    agent_dialogues: int = 12_000
    """Dialogues that the agent is trained on."""
    agent_steps: int = 500
    """Optimiser steps of the agent."""
    world_model_dialogues: int = 40_000
    """Questions that the world model is trained on."""
    world_model_steps: int = 1700
    """Optimiser steps of the world model, after those of the agent."""
    batch_size: int = 32
    """Dialogues in a step."""
    learning_rate: float = 2e-3
    """Peak learning rate."""
    seed: int = 0
    """Seed of everything."""


def build(config: BuildConfig, out: Path, work: Path) -> int:
    """Build both models into ``out/agent`` and ``out/world_model``.

    Args:
        config: Settings.
        out: Folder of the two Hugging Face directories.
        work: Folder for tasks and executions; what is there already is not done again.

    Returns:
        Number of scripts that were executed for it, the panel's included.
    """
    roots = write_auxiliary_tasks(work / "tasks", seed=config.seed)
    panel_executions = sum(_ensure_boards(root) for root in track(roots, "Leaderboards"))
    executions = _ensure_executions(config, roots, work / "executions.jsonl")

    rng = np.random.default_rng(config.seed)
    agent_corpus = list(agent_dialogues(executions, config.agent_dialogues, rng))
    world_corpus = list(world_model_dialogues(executions, config.world_model_dialogues, rng))
    _train(config, agent_corpus, world_corpus, out)
    return panel_executions + len(executions)


def _ensure_boards(root: Path) -> int:
    """Execute the panel on an auxiliary task unless that was done before; the number of scripts in it."""
    competition = load_competition(root)
    scripts = panel_scripts(competition)
    done = root / "private" / "panel.done"
    if not done.exists():
        with tempfile.TemporaryDirectory() as folder:
            list(execute_all([(competition, code) for code in scripts], keep=Path(folder)))
            paths = [Path(folder) / f"{index}.csv" for index in range(len(scripts))]
            build_boards(competition, [path if path.exists() else None for path in paths])
        done.touch()
    return len(scripts)


def _ensure_executions(config: BuildConfig, roots: Sequence[Path], path: Path) -> list[Execution]:
    """Execute scripts of the grammar on every auxiliary task, going on where the file of them ends."""
    competitions = [load_competition(root) for root in roots]
    jobs = list(_grammar_jobs(config, competitions))
    rows = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rest = jobs[len(rows) :]
    with path.open("a", encoding="utf-8") as file:
        evaluations = execute_all([(competition, code) for competition, _, code in rest])
        for evaluation in track(evaluations, "Executions", total=len(rest)):
            rows.append(json.dumps(asdict(evaluation)))
            file.write(rows[-1] + "\n")
            file.flush()
    return [
        Execution(competition, plan, code, _evaluation(json.loads(row)))
        for (competition, plan, code), row in zip(jobs, rows, strict=True)
    ]


def _grammar_jobs(
    config: BuildConfig, competitions: Sequence[Competition]
) -> Iterator[tuple[Competition, Plan, str]]:
    rng = np.random.default_rng(config.seed)
    for _ in range(config.scripts_per_task):
        for competition in competitions:
            plan = sample_plan(shape_of(competition), rng)
            if plan.mistake and rng.random() < 0.25:
                plan = repair(plan)
            yield competition, plan, write_script(plan, rng)


def _evaluation(row: dict[str, Any]) -> Evaluation:
    grade = None if row["grade"] is None else Grade(**row["grade"])
    return Evaluation(Outcome(**row["outcome"]), grade, row["source"], row["error"])


def _train(config: BuildConfig, agent_corpus: list, world_corpus: list, out: Path) -> None:
    from wmrl_agents.policies.tiny_coder.model import encode, new_model, train_language_model, train_tokenizer

    some = (*agent_corpus[:3000], *world_corpus[:1500])
    texts = [message["content"] for dialogue in some for message in dialogue[-3:]]
    tokenizer = train_tokenizer(texts)
    model = new_model(tokenizer, config.seed)
    for name, corpus, steps, rate in (
        ("agent", agent_corpus, config.agent_steps, config.learning_rate),
        ("world_model", world_corpus, config.world_model_steps, config.learning_rate * 0.75),
    ):
        examples = [encode(tokenizer, dialogue) for dialogue in corpus]
        report = _Reporter(name, steps)
        train_language_model(
            model,
            examples,
            steps=steps,
            batch_size=config.batch_size,
            learning_rate=rate,
            seed=config.seed,
            report=report,
        )
        _save(model, tokenizer, out / name)


class _Reporter:
    """Prints the mean loss every hundred steps."""

    def __init__(self, name: str, steps: int) -> None:
        self.name, self.steps = name, steps
        self.losses: list[float] = []
        self.started = time.monotonic()

    def __call__(self, step: int, loss: float) -> None:
        self.losses.append(loss)
        if (step + 1) % 100 == 0 or step + 1 == self.steps:
            mean = float(np.mean(self.losses[-100:]))
            minutes = (time.monotonic() - self.started) / 60
            print(
                f"{self.name}: step {step + 1} of {self.steps}, loss {mean:.4f}, {minutes:.1f} min",
                flush=True,
            )


def _save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Save in half precision: half the download, and far finer than the training noise."""
    import copy

    copy.deepcopy(model).half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main(argv: Sequence[str] | None = None) -> None:
    """``wmrl tiny-coder build``: build, then say what it took."""
    parser = argparse.ArgumentParser(prog="wmrl tiny-coder build", description=__doc__)
    parser.add_argument("--out", type=Path, default=WEIGHTS, help="folder for the two models")
    parser.add_argument(
        "--work", type=Path, default=Path("runs/tiny-coder"), help="folder for tasks and executions"
    )
    defaults = BuildConfig()
    for name, value in asdict(defaults).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    args = vars(parser.parse_args(argv))
    out, work = args.pop("out"), args.pop("work")
    work.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    executed = build(replace(defaults, **args), out, work)
    minutes = (time.monotonic() - started) / 60
    print(f"Built {out} from {executed} executed scripts in {minutes:.0f} minutes.")
