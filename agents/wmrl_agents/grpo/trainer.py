r"""`GRPOTrainer`: GRPO whose gradient is fused from executed and predicted groups.

One step (the paper's Section 3; Algorithm in the words of this project):

1. Draw m tasks and, before anything is generated, the anchor groups among them.
2. Roll out n trajectories a group: anchors are executed, the world model plays the others.
3. Score them. Map and weight, :math:`\hat f_{t-1}` and :math:`\rho_{t-1}`, come from earlier steps only.
4. :math:`\hat g = \sum a_{k,i} s_{k,i}` with KL and entropy, one step of AdamW at a constant rate.
5. Learn from the anchors: pairs, residuals, :math:`\hat f_t`, :math:`\rho_t`.

One optimiser step a batch, so there is no importance ratio and nothing is clipped. There is no division by
the standard deviation of a group. Run it with ``wmrl train``, or::

    GRPOTrainer(GRPOConfig(steps=10), "runs/mine").train()
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from wmrl_agents.grpo.checkpoint import latest_checkpoint, save_checkpoint
from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.grpo.draws import derive_seed, draw_tasks
from wmrl_agents.grpo.gradients import GradientStatistics, accumulate_gradients
from wmrl_agents.grpo.learning import teach, teach_again
from wmrl_agents.grpo.metrics import step_metrics
from wmrl_agents.grpo.parts import Parts, build_parts, load_competitions
from wmrl_agents.grpo.rollouts import Group, Rollouts, rollout_settings
from wmrl_agents.grpo.scores import StepScores, score_step
from wmrl_agents.runs import (
    EXECUTIONS,
    STORE,
    append_metrics,
    continue_run,
    create_run,
    is_run,
    truncate_metrics,
)
from wmrl_agents.store import RunStore
from wmrl_envs.autoresearch import Competition
from wmrl_envs.errors import ConfigError, WMRLError
from wmrl_envs.evaluation import Evaluator
from wmrl_rewards import PairPool, WorldModelReward

__all__ = ["GRPOTrainer"]

_LARGEST_MISMATCH = 0.05


class GRPOTrainer:
    """Trains a policy; goes on where the run directory's newest checkpoint stands.

    Args:
        config: What to run.
        run_dir: The run's directory, made if it is not there. What lies in it beyond the newest checkpoint
            (a step that was killed) is dropped.
        parts: Policy loader, sandbox and world model to use instead of those that the config names.

    Raises:
        WMRLError: A competition, a model or the sandbox cannot be had, or the directory holds another run.
    """

    def __init__(self, config: GRPOConfig, run_dir: str | Path, parts: Parts | None = None) -> None:
        self.config = config
        self.run_dir = Path(run_dir)
        self.competitions = load_competitions(config)
        _refuse_heldout(self.competitions)
        self.parts = parts or build_parts(config, self.run_dir / EXECUTIONS)
        checkpoint = latest_checkpoint(self.run_dir)
        self.next_step = 0 if checkpoint is None else checkpoint.step
        self.policy = self.parts.load_policy(config.policy if checkpoint is None else checkpoint.policy_dir)
        frozen = self._frozen_start(started=checkpoint is None)
        self.reference = frozen if config.kl_coefficient > 0 else None
        if is_run(self.run_dir):
            continue_run(self.run_dir, config)
        else:
            create_run(self.run_dir, config)
        self.optimizer = torch.optim.AdamW(
            self.policy.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
        )
        self.pool = PairPool(self.run_dir / STORE)
        self.reward = make_reward(config, self.pool)
        self.store = RunStore(self.run_dir / STORE)
        if checkpoint is None:
            self.pool.truncate(0)
        else:
            self.optimizer.load_state_dict(checkpoint.optimizer_state())
            self.reward.load_state_dict(checkpoint.reward_state())
        self.store.truncate(self.next_step)
        if self.parts.learner is not None and self.next_step > 0:
            teach_again(self.parts.learner, self.run_dir, config)
        truncate_metrics(self.run_dir, self.next_step)
        self.rollouts = Rollouts(
            self.policy, self.parts.executor, self._predictor(frozen), rollout_settings(config)
        )

    def train(
        self,
        on_step: Callable[[dict[str, Any]], None] = lambda metrics: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Run until all steps are done or somebody asks to stop, and leave a checkpoint.

        Args:
            on_step: Is told the metrics of each finished step.
            should_stop: Is asked after each step.

        Returns:
            Whether all steps are done.
        """
        while self.next_step < self.config.steps:
            on_step(self.step())
            stopping = should_stop()
            last = self.next_step == self.config.steps
            if stopping or last or self.next_step % self.config.checkpoint_every == 0:
                self.save()
            if stopping:
                break
        return self.next_step == self.config.steps

    def step(self) -> dict[str, Any]:
        """Do one step, write what happened to the run directory, and return its metrics."""
        step, started = self.next_step, perf_counter()
        groups = self.draw_groups(step)
        seed = derive_seed(self.config.seed, "rollouts", step)
        self.rollouts.play(groups, self.config.group_size, seed=seed)
        scores = score_step(groups, self.reward)
        rolled_out = perf_counter()
        gradient, grad_norm = self._update(groups, scores)
        used = self.reward.statistics()
        self.reward.observe(step, scores.sources, scores.real, scores.predicted)
        after = self.reward.statistics()
        executed = [e for group in groups for t in group.trajectories for e in t.executions]
        repeated = self.store.repeated([solution for solution, _ in executed])
        self.store.write(step, groups, scores)
        if self.parts.learner is not None:
            teach(self.parts.learner, groups)
        metrics = {
            "step": step,
            **step_metrics(
                groups,
                scores,
                gradient,
                num_groups=self.config.groups_per_step,
                grad_norm=grad_norm,
                repeated=repeated,
            ),
            **used,
            "flattened_groups": after["flattened_groups"],
            "bias": after["bias"],
            "seconds_rollouts": rolled_out - started,
            "seconds_gradient": perf_counter() - rolled_out,
            "seconds_step": perf_counter() - started,
        }
        append_metrics(self.run_dir, metrics)
        self.next_step += 1
        return metrics

    def draw_groups(self, step: int) -> list[Group]:
        """Tasks and anchors of a step."""
        config = self.config
        tasks = draw_tasks(self.competitions, config.groups_per_step, seed=config.seed, step=step)
        if config.reward_source == "real":
            return [Group(index, task, "real") for index, task in enumerate(tasks)]
        if config.reward_source == "world_model":
            return [Group(index, task, "world_model") for index, task in enumerate(tasks)]
        anchors = self.reward.draw_anchors(len(tasks))
        if config.reward_source == "anchors_alone":
            return [Group(index, tasks[index], "real") for index in anchors]
        return [
            Group(index, task, "real" if index in anchors else "world_model")
            for index, task in enumerate(tasks)
        ]

    def save(self) -> None:
        """Write a checkpoint."""
        save_checkpoint(
            self.run_dir,
            self.next_step,
            policy=self.policy,
            optimizer=self.optimizer,
            reward_state=self.reward.state_dict(),
            keep=self.config.keep_checkpoints,
        )

    def close(self) -> None:
        """Stop executions that still run and close the run's files; the trainer cannot be used after it."""
        if self.parts.executor is not None:
            self.parts.executor.close()
        self.pool.close()
        self.store.close()

    def _frozen_start(self, started: bool) -> Any:
        """The policy that training began with: the KL term holds on to it, and it may be the world model."""
        if self.config.kl_coefficient == 0 and self.parts.predictor_of is None:
            return None
        start = self.policy if started else self.parts.load_policy(self.config.policy)
        return start.frozen_copy()

    def _predictor(self, frozen: Any) -> Evaluator | None:
        """The world model, without a second copy of the weights where it is the frozen policy."""
        if not self.config.uses_world_model:
            return None
        return self.parts.predictor if self.parts.predictor_of is None else self.parts.predictor_of(frozen)

    def _update(self, groups: list[Group], scores: StepScores) -> tuple[GradientStatistics, float]:
        """One step of the optimiser; returns statistics and the gradient's length before clipping."""
        config = self.config
        records = [trajectory.sample for group in groups for trajectory in group.trajectories]
        gradient = accumulate_gradients(
            self.policy,
            [record for record in records if record is not None],
            scores.coefficients.ravel().tolist(),
            reference=self.reference,
            kl_coefficient=config.kl_coefficient,
            entropy_coefficient=config.entropy_coefficient,
            loss_reduction=config.loss_reduction,
            micro_batch=config.micro_batch,
        )
        longest = float("inf") if config.max_grad_norm is None else config.max_grad_norm
        grad_norm = float(torch.nn.utils.clip_grad_norm_(self.policy.parameters(), longest))
        self._check(gradient, grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return gradient, grad_norm

    def _check(self, gradient: GradientStatistics, grad_norm: float) -> None:
        """Refuse to train on a gradient that cannot be the right one."""
        if not grad_norm < float("inf"):
            raise WMRLError(
                f"The gradient of step {self.next_step} is not finite: lower the learning rate, "
                "or use a number format with a larger range."
            )
        if self.next_step == 0 and gradient.mismatch > _LARGEST_MISMATCH:
            raise WMRLError(
                f"Log-probabilities in training and in sampling differ by {gradient.mismatch:.3f} a token: "
                "the policy does not train what it samples."
            )


def _refuse_heldout(competitions: Sequence[Competition]) -> None:
    for competition in competitions:
        if competition.split != "train":
            raise ConfigError(f"Competition '{competition.name}' is held out: it is there to evaluate on.")


def make_reward(config: GRPOConfig, pool: PairPool) -> WorldModelReward:
    """The rewards that a config asks for: corrections are on only where the source is ``wmrl``."""
    corrected = config.reward_source == "wmrl"
    return WorldModelReward(
        anchor_fraction=config.anchor_fraction,
        seed=derive_seed(config.seed, "anchors"),
        min_pairs=config.min_pairs,
        refit_every=config.refit_every,
        window=config.anchor_window,
        maximum=config.max_anchor_weight,
        warmup_groups=config.warmup_groups,
        debias=corrected and config.debias,
        denoise=corrected and config.denoise,
        debiasing_method=config.debias_method,
        pair_window=config.debias_window,
        ignore_blind=config.ignores_blind,
        pool=pool,
    )
