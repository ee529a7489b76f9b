"""Make the tiny coder and its world model from nothing: ``wmrl tiny-coder build``.

1. Write the auxiliary tasks, and their leaderboards by executing the panel on them.
2. Sample scripts from the grammar and execute each on one auxiliary task.
3. Train a tokenizer, and the agent on dialogues.
4. Let the agent write scripts for the auxiliary tasks and execute these too.
5. Train the world model, from the agent's weights, on what came of all the scripts.

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
    vary_task,
    world_model_dialogues,
)
from wmrl_agents.policies.tiny_coder.executions import execute_all
from wmrl_agents.policies.tiny_coder.grammar import Plan, repair, sample_plan, write_script
from wmrl_envs.autoresearch.competition import Competition, load_competition
from wmrl_envs.autoresearch.panel import build_boards, panel_scripts
from wmrl_envs.autoresearch.prompts import AGENT_SYSTEM_PROMPT, task_text
from wmrl_envs.autoresearch.replies import parse
from wmrl_envs.evaluation import Evaluation, Grade, Outcome
from wmrl_rewards.language_models.base import Message

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

__all__ = ["BuildConfig", "build", "main"]

Job = tuple[Competition, Plan | None, str]


@dataclass(frozen=True, kw_only=True)
class BuildConfig:
    """Settings of a build."""

    scripts_per_task: int = 275
    """Scripts of the grammar executed on each auxiliary task."""
    agent_dialogues: int = 12_000
    """Dialogues that the agent is trained on."""
    agent_steps: int = 500
    """Optimiser steps of the agent."""
    agent_learning_rate: float = 2e-3
    """Its peak learning rate."""
    world_model_dialogues: int = 40_000
    """Questions that the world model is trained on."""
    world_model_steps: int = 2150
    """Optimiser steps of the world model, after those of the agent."""
    world_model_learning_rate: float = 1.5e-3
    """Its peak learning rate."""
    batch_size: int = 32
    """Dialogues in a step."""
    seed: int = 0
    """Seed of everything."""


def build(config: BuildConfig, out: Path, work: Path) -> int:
    """Build both models into ``out/agent`` and ``out/world_model``.

    Args:
        config: Settings.
        out: Folder of the two Hugging Face directories.
        work: Folder for tasks and executions; what was executed already is not executed again.

    Returns:
        Number of scripts that were executed for it, the panel's included.
    """
    roots = write_auxiliary_tasks(work / "tasks", seed=config.seed)
    panel_executions = sum(_ensure_boards(root) for root in track(roots, "Leaderboards"))
    competitions = [load_competition(root) for root in roots]
    by_grammar = _execute(list(_grammar_jobs(config, competitions)), work / "grammar.jsonl")
    model, tokenizer = _train_agent(config, by_grammar, out / "agent")
    by_agent = _execute(list(_agent_jobs(config, competitions, out / "agent")), work / "agent.jsonl")
    _train_world_model(config, [by_grammar, by_agent], model, tokenizer, out / "world_model")
    return panel_executions + len(by_grammar) + len(by_agent)


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


def _execute(jobs: Sequence[Job], path: Path) -> list[Execution]:
    """Execute scripts, going on where the file of what was executed ends."""
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


def _evaluation(row: dict[str, Any]) -> Evaluation:
    grade = None if row["grade"] is None else Grade(**row["grade"])
    return Evaluation(Outcome(**row["outcome"]), grade, row["source"], row["error"])


def _grammar_jobs(config: BuildConfig, competitions: Sequence[Competition]) -> Iterator[Job]:
    """Scripts of the grammar, a quarter of their mistakes repaired."""
    rng = np.random.default_rng(config.seed)
    for _ in range(config.scripts_per_task):
        for competition in competitions:
            plan = sample_plan(shape_of(competition), rng)
            if plan.mistake and rng.random() < 0.25:
                plan = repair(plan)
            yield competition, plan, write_script(plan, rng)


def _agent_jobs(config: BuildConfig, competitions: Sequence[Competition], agent: Path) -> Iterator[Job]:
    """Scripts that the agent itself writes: it makes mistakes which no grammar thought of.

    A third of them are sampled above the temperature of training, for more of those mistakes.
    """
    from wmrl_agents.policies.language_model import LanguageModelPolicy

    rng = np.random.default_rng(config.seed + 1)
    for temperature, share in ((1.0, 2 / 3), (1.3, 1 / 3)):
        policy = LanguageModelPolicy(agent, max_new_tokens=128, temperature=temperature)
        for competition in competitions:
            tasks = [vary_task(task_text(competition), rng) for _ in range(round(90 * share))]
            prompts = [policy.begin(AGENT_SYSTEM_PROMPT, task) for task in tasks]
            for sample in policy.sample(prompts, seed=int(rng.integers(2**31))):
                reply = parse(sample.text)
                if reply.kind == "code":
                    yield competition, None, reply.code


def _train_agent(
    config: BuildConfig, executions: Sequence[Execution], folder: Path
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """Train tokenizer and agent on dialogues of the grammar."""
    from wmrl_agents.policies.tiny_coder.model import new_model, train_tokenizer

    rng = np.random.default_rng(config.seed)
    corpus = list(agent_dialogues(executions, config.agent_dialogues, rng))
    questions = list(world_model_dialogues(executions, 1500, rng))
    texts = [message["content"] for dialogue in (*corpus[:3000], *questions) for message in dialogue[-3:]]
    tokenizer = train_tokenizer(texts)
    # Instructions that they have never seen would only put the two models off.
    tokenizer.init_kwargs["takes_instructions"] = False
    model = new_model(tokenizer, config.seed)
    _fit("agent", model, tokenizer, corpus, (config.agent_steps, config.agent_learning_rate), config)
    _save(model, tokenizer, folder)
    return model, tokenizer


def _train_world_model(
    config: BuildConfig,
    executions: Sequence[Sequence[Execution]],
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
) -> None:
    """Train the world model from the agent's weights, on each kind of executions in equal parts."""
    rng = np.random.default_rng(config.seed + 2)
    share = config.world_model_dialogues // len(executions)
    corpus = [dialogue for kind in executions for dialogue in world_model_dialogues(kind, share, rng)]
    pace = (config.world_model_steps, config.world_model_learning_rate)
    _fit("world model", model, tokenizer, corpus, pace, config)
    _save(model, tokenizer, folder)


def _fit(
    name: str,
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    corpus: Sequence[Sequence[Message]],
    pace: tuple[int, float],
    config: BuildConfig,
) -> None:
    """Train for so many steps with that peak learning rate."""
    from wmrl_agents.policies.tiny_coder.model import encode, train_language_model

    steps, learning_rate = pace
    train_language_model(
        model,
        [encode(tokenizer, dialogue) for dialogue in corpus],
        steps=steps,
        batch_size=config.batch_size,
        learning_rate=learning_rate,
        seed=config.seed,
        report=_Reporter(name, steps),
    )


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
    # Version 5 of transformers has a new name for the class, which 4 does not know; both know the old one.
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


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
