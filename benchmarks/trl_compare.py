"""One step of GRPO here and in TRL, with the same model, prompts, group sizes, lengths and number format.

Both sample two groups of four replies to real tasks of the suite, score them by the same function, and make
one step of AdamW in float32. A step of ours follows each one of TRL's in one process, so that a busy machine
disturbs both alike. Peak memory comes from a process of each one's own.

- steps a minute: at least 1.3 times TRL's `GRPOTrainer` in the fastest configuration found for it (one batch
  a step, no gradient checkpointing, no reference model, fused AdamW);
- peak memory: not above TRL's;
- the gradient of the same batch: cosine at least 0.9999 with that of TRL's `dr_grpo`.

    python benchmarks/trl_compare.py MODEL_DIR [--steps 6] [--new-tokens 64]

It needs the extra `trl`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

from wmrl_agents.grpo.gradients import accumulate_gradients
from wmrl_agents.policies.base import Sample
from wmrl_agents.policies.language_model import LanguageModelPolicy
from wmrl_envs.autoresearch import load_competition
from wmrl_envs.autoresearch.prompts import AGENT_SYSTEM_PROMPT, task_text
from wmrl_rewards import fuse

TASKS = ("breast-cancer", "digits")
GROUP_SIZE = 4
LEARNING_RATE = 1e-6
LONGEST_GRADIENT = 1.0


class Check(NamedTuple):
    """One promise and what was measured."""

    claim: str
    measured: float
    holds: bool


def reward(text: str) -> float:
    """Anything that differs from reply to reply: the share of different words."""
    words = text.split()
    return len(set(words)) / (1 + len(words))


class Ours:
    """The trainer's own step, without environment and world model."""

    def __init__(self, model: str, new_tokens: int) -> None:
        self.policy = LanguageModelPolicy(
            model, max_new_tokens=new_tokens, dtype=torch.float32, device="cpu", stop_after_code=False
        )
        self.optimizer = torch.optim.AdamW(
            self.policy.parameters(), lr=LEARNING_RATE, weight_decay=0.0, fused=True
        )
        self.prompts = [
            self.policy.begin(AGENT_SYSTEM_PROMPT, task_text(load_competition(name)))
            for name in TASKS
            for _ in range(GROUP_SIZE)
        ]
        self.steps = 0

    def sample(self) -> tuple[list[Sample], list[float]]:
        """Replies of a step and the coefficients of their gradients."""
        samples = self.policy.sample(self.prompts, seed=self.steps)
        scores = np.array([reward(sample.text) for sample in samples]).reshape(len(TASKS), GROUP_SIZE)
        return samples, fuse(["real"] * len(TASKS), scores, scores, 1.0).ravel().tolist()

    def step(self) -> None:
        """Sample, score, differentiate, update."""
        samples, coefficients = self.sample()
        accumulate_gradients(self.policy, samples, coefficients, micro_batch=len(samples))
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), LONGEST_GRADIENT)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.steps += 1


def trl_trainer(model: str, new_tokens: int, steps: int, folder: str) -> Any:
    """TRL's trainer for the same steps."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    def score(completions: Sequence[Any], **columns: Any) -> list[float]:
        return [reward(completion[0]["content"]) for completion in completions]

    texts = [task_text(load_competition(name)) for name in TASKS]
    prompts = [
        [{"role": "system", "content": AGENT_SYSTEM_PROMPT}, {"role": "user", "content": text}]
        for text in texts
    ]
    config = GRPOConfig(
        output_dir=folder,
        max_steps=steps,
        per_device_train_batch_size=len(TASKS) * GROUP_SIZE,
        num_generations=GROUP_SIZE,
        max_completion_length=new_tokens,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        max_grad_norm=LONGEST_GRADIENT,
        beta=0.0,
        loss_type="dr_grpo",
        scale_rewards="none",
        temperature=1.0,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        optim="adamw_torch_fused",
        shuffle_dataset=False,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(model, padding_side="left"),
        reward_funcs=score,
        args=config,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts] * steps),
    )


def timed(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def in_turns(trainer: Any, ours: Ours) -> tuple[list[float], list[float]]:
    """Seconds of TRL's steps and of ours, which take turns; the first ones warm up and do not count."""
    from transformers import TrainerCallback

    theirs: list[float] = []
    mine: list[float] = []

    class Turns(TrainerCallback):
        begun = 0.0

        def on_step_begin(self, *arguments: Any, **named: Any) -> None:
            self.begun = time.perf_counter()

        def on_step_end(self, *arguments: Any, **named: Any) -> None:
            theirs.append(time.perf_counter() - self.begun)
            mine.append(timed(ours.step))

    trainer.add_callback(Turns())
    trainer.train()
    return theirs[1:], mine[1:]


def cosine(trainer: Any, ours: Ours) -> float:
    """Between the gradients of one batch, from the same weights."""
    samples, coefficients = ours.sample()
    ours.optimizer.zero_grad()
    accumulate_gradients(ours.policy, samples, coefficients, micro_batch=3)
    mine = [p.grad for p in ours.policy.parameters()]
    trainer.model.load_state_dict(ours.policy.model.state_dict())
    trainer.model.zero_grad()
    trainer.current_gradient_accumulation_steps = 1
    trainer._compute_loss(trainer.model, _trl_batch(samples, coefficients)).backward()
    theirs = [p.grad for p in trainer.model.parameters()]
    dot = sum(float((a.double() * b.double()).sum()) for a, b in zip(mine, theirs, strict=True))
    norms = [sum(float(g.double().square().sum()) for g in gradient) ** 0.5 for gradient in (mine, theirs)]
    return dot / (norms[0] * norms[1])


def _trl_batch(samples: Sequence[Sample], coefficients: Sequence[float]) -> dict[str, Any]:
    """Samples in the form that TRL's loss takes; an advantage is a coefficient without its 1/n and 1/m."""
    firsts = [sample.mask.index(True) for sample in samples]
    prompts = [torch.tensor(sample.token_ids[:first]) for sample, first in zip(samples, firsts, strict=True)]
    replies = [torch.tensor(sample.token_ids[first:]) for sample, first in zip(samples, firsts, strict=True)]
    pad = torch.nn.utils.rnn.pad_sequence
    lengths = torch.tensor([len(reply) for reply in replies])
    return {
        "prompt_ids": pad(prompts, batch_first=True, padding_side="left"),
        "prompt_mask": pad([torch.ones_like(p) for p in prompts], batch_first=True, padding_side="left"),
        "completion_ids": pad(replies, batch_first=True),
        "completion_mask": pad([torch.ones_like(r) for r in replies], batch_first=True),
        "advantages": torch.tensor(coefficients, dtype=torch.float32) * len(samples),
        "num_items_in_batch": lengths.sum(),
    }


def peak_memory(who: str, arguments: argparse.Namespace) -> int:
    """Bytes that a process of its own held at most, over three steps."""
    command = [
        sys.executable,
        __file__,
        arguments.model,
        "--new-tokens",
        str(arguments.new_tokens),
        "--alone",
        who,
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(json.loads(done.stdout.splitlines()[-1]))


def alone(who: str, arguments: argparse.Namespace) -> None:
    """Three steps by one of the two, and the memory that they took."""
    with tempfile.TemporaryDirectory() as folder:
        if who == "trl":
            trl_trainer(arguments.model, arguments.new_tokens, 3, folder).train()
        else:
            ours = Ours(arguments.model, arguments.new_tokens)
            for _ in range(3):
                ours.step()
    print(_peak_of_this_process())


def _peak_of_this_process() -> int:
    """Bytes. What `getrusage` says of a process starts with what its parent held."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def compare(arguments: argparse.Namespace) -> list[Check]:
    """Everything that is promised."""
    ours = Ours(arguments.model, arguments.new_tokens)
    with tempfile.TemporaryDirectory() as folder:
        trainer = trl_trainer(arguments.model, arguments.new_tokens, arguments.steps + 1, folder)
        agreement = cosine(trainer, ours)
        trainer.model.zero_grad()
        ours.optimizer.zero_grad()
        theirs, mine = in_turns(trainer, ours)
    del trainer, ours
    print(f"seconds a step, median of {len(mine)}: {median(mine):.2f} here, {median(theirs):.2f} in TRL")
    memory = {who: peak_memory(who, arguments) for who in ("ours", "trl")}
    print(f"peak memory: {memory['ours'] / 1e9:.2f} GB here, {memory['trl'] / 1e9:.2f} GB in TRL")
    faster, share = median(theirs) / median(mine), memory["ours"] / memory["trl"]
    return [
        Check("steps a minute against TRL: at least 1.3", faster, faster >= 1.3),
        Check("peak memory against TRL: at most 1", share, share <= 1),
        Check("cosine with the gradient of TRL's dr_grpo: at least 0.9999", agreement, agreement >= 0.9999),
    ]


def main() -> int:
    """Measure and print; 1 if a promise is not kept."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="directory of a causal language model with a chat template")
    parser.add_argument("--steps", type=int, default=6, help="steps of each that count")
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--alone", choices=("ours", "trl"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        alone(arguments.alone, arguments)
        return 0
    checks = compare(arguments)
    for check in checks:
        print(f"{'ok  ' if check.holds else 'FAIL'}  {check.measured:8.5f}  {check.claim}")
    return 0 if all(check.holds for check in checks) else 1


if __name__ == "__main__":
    raise SystemExit(main())
