r"""`GRPOTrainer`: GRPO whose gradient is fused from executed and predicted groups.

One step (the paper's Section 3; Algorithm in the words of this project):

1. Draw m tasks and, before anything is generated, the anchor groups among them. The others are left out where
   the world model was found blind, or has still to show that it sees.
2. Roll out n trajectories a group: anchors are executed, the world model plays the others.
3. Score them. Map and weight, :math:`\hat f_{t-1}` and :math:`\rho_{t-1}`, come from earlier steps only.
4. :math:`\hat g = \sum a_{k,i} s_{k,i}` with KL and entropy, one step of AdamW at a constant rate.
5. Learn from the anchors: pairs, residuals, :math:`\hat f_t`, :math:`\rho_t`.

One optimiser step a batch, so there is no importance ratio and nothing is clipped, unless
``updates_per_batch`` asks for more. There is no division by the standard deviation of a group. Run it with
``wmrl train``, or::

    GRPOTrainer(GRPOConfig(steps=10), "runs/mine").train()

Over several processes: ``torchrun --nproc-per-node 2 -m wmrl_agents.cli train``. Rank 0 is this trainer, the
others are its `Learners`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from wmrl_agents.grpo.audit import GradientAudit, group_coefficients
from wmrl_agents.grpo.checkpoint import latest_checkpoint, save_checkpoint
from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.grpo.draws import derive_seed
from wmrl_agents.grpo.learners import Learners
from wmrl_agents.grpo.metrics import step_metrics
from wmrl_agents.grpo.parts import Parts, build_parts
from wmrl_agents.grpo.played import PlayedGroup
from wmrl_agents.grpo.ranks import Ranks
from wmrl_agents.grpo.scores import StepScores, score_step
from wmrl_agents.grpo.suites import load_tasks, make_rollouts
from wmrl_agents.grpo.updates import Update, update_policy
from wmrl_agents.grpo.versions import check_prompts
from wmrl_agents.loggers import make_loggers
from wmrl_agents.memory import give_back_free_memory
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
from wmrl_envs.errors import ConfigError
from wmrl_envs.evaluation import Evaluator
from wmrl_rewards import PairPool, WorldModelReward

__all__ = ["GRPOTrainer"]


class GRPOTrainer:
    """Trains a policy; goes on where the run directory's newest checkpoint stands.

    Args:
        config: What to run.
        run_dir: The run's directory, made if it is not there. What lies in it beyond the newest checkpoint
            (a step that was killed) is dropped.
        parts: Policy loader, sandbox and world model to use instead of those that the config names.
        ranks: The processes of the run, of which this is rank 0 (the others `follow`); None for those that
            have met, or this one alone.

    Raises:
        WMRLError: A competition, a model or the sandbox cannot be had, or the directory holds another run.
    """

    def __init__(
        self,
        config: GRPOConfig,
        run_dir: str | Path,
        parts: Parts | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.config = config
        self.run_dir = Path(run_dir)
        self.tasks = load_tasks(config, parts)
        self.parts = parts or build_parts(config, self.run_dir / EXECUTIONS)
        ranks = ranks or Ranks()
        if ranks.size > 1 and config.sampler.startswith("http"):
            raise ConfigError(
                "Several processes would each send their weights to the one server: let them sample with "
                "--sampler transformers or vllm, or start a single process."
            )
        ranks.tell(("begin", config))
        checkpoint = latest_checkpoint(self.run_dir)
        self.next_step = 0 if checkpoint is None else checkpoint.step
        self.policy = self.parts.load_policy(config.policy if checkpoint is None else checkpoint.policy_dir)
        frozen = self._frozen_start(started=checkpoint is None)
        self.learners = Learners(config, self.policy, frozen if config.kl_coefficient > 0 else None, ranks)
        if is_run(self.run_dir):
            continue_run(self.run_dir, config)
        else:
            create_run(self.run_dir, config)
        self.loggers = make_loggers(config, self.run_dir, self.next_step)
        self.optimizer = torch.optim.AdamW(
            self.policy.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
        )
        self.optimizer.register_step_post_hook(lambda *_: self.policy.note_update())
        self.pool = PairPool(self.run_dir / STORE)
        self.reward = make_reward(config, self.pool)
        self.store = RunStore(self.run_dir / STORE)
        if checkpoint is None:
            self.pool.truncate(0)
        else:
            self.optimizer.load_state_dict(checkpoint.optimizer_state())
            self.reward.load_state_dict(checkpoint.reward_state())
        self.store.truncate(self.next_step)
        truncate_metrics(self.run_dir, self.next_step)
        self.rollouts = make_rollouts(
            config, self.tasks, self.parts, self.policy, self._predictor(frozen), self.learners.sample
        )
        if self.next_step > 0:
            self.rollouts.learn_again(self.run_dir)
        self.prompts = self.rollouts.versions()
        if checkpoint is not None:
            check_prompts(checkpoint.prompt_versions(), self.prompts)
        self.audit = GradientAudit(config.anchor_window) if config.audit_gradients else None
        if self.audit is not None and checkpoint is not None:
            self.audit.load(checkpoint.audit_file)
        self.learners.share_weights()

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
        step, phases = self.next_step, self.rollouts.phases
        phases.take()
        groups = self.draw_groups(step)
        seed = derive_seed(self.config.seed, "rollouts", step)
        self.rollouts.play(groups, self.config.group_size, seed=seed)
        scores = score_step(groups, self.reward)
        used = self.reward.statistics()
        with phases("train"):
            audited = self._audit(groups, scores, used)
            update = self._update(groups, scores)
            give_back_free_memory()
        self.reward.observe(step, scores.sources, scores.real, scores.predicted)
        after = self.reward.statistics()
        executed = [content for group in groups for t in group.trajectories for content, _ in t.executed]
        repeated = self.store.repeated(executed)
        self.store.write(step, groups, scores)
        self.rollouts.learn(groups)
        metrics = {
            "step": step,
            **step_metrics(
                groups,
                scores,
                update,
                num_groups=self.config.groups_per_step,
                repeated=repeated,
            ),
            **used,
            "flattened_groups": after["flattened_groups"],
            "bias": after["bias"],
            **audited,
            **self.learners.take_seconds(),
            **phases.take(),
        }
        append_metrics(self.run_dir, metrics)
        for logger in self.loggers:
            logger.log(metrics)
        self.next_step += 1
        return metrics

    def draw_groups(self, step: int) -> list[PlayedGroup]:
        """Tasks and anchors of a step: anchors alone where the groups of the world model would not count."""
        source, make = self.config.reward_source, self.rollouts.group
        tasks = self.rollouts.draw(step)
        if source in ("real", "world_model"):
            return [make(index, task, source) for index, task in enumerate(tasks)]
        anchors = self.reward.draw_anchors(len(tasks))
        if source == "anchors_alone" or self.reward.ignores_predictions:
            return [make(index, tasks[index], "real") for index in anchors]
        return [
            make(index, task, "real" if index in anchors else "world_model")
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
            prompts=self.prompts,
            audit=self.audit,
            keep=self.config.keep_checkpoints,
        )

    def close(self) -> None:
        """Stop executions that still run and close the run's files; the trainer cannot be used after it."""
        for logger in self.loggers:
            logger.close()
        self.rollouts.close()
        self.pool.close()
        self.store.close()

    def _frozen_start(self, started: bool) -> Any:
        """The policy that training began with: the KL term holds on to it, and it may be the world model."""
        if self.config.kl_coefficient == 0 and self.parts.predictor_of is None:
            return None
        kept = started or self.policy.keeps_start
        start = self.policy if kept else self.parts.load_policy(self.config.policy)
        return start.frozen_copy()

    def _predictor(self, frozen: Any) -> Evaluator | None:
        """The world model, without a second copy of the weights where it is the frozen policy."""
        if not self.config.uses_world_model:
            return None
        return self.parts.predictor if self.parts.predictor_of is None else self.parts.predictor_of(frozen)

    def _audit(self, groups: list[PlayedGroup], scores: StepScores, used: dict[str, Any]) -> dict[str, Any]:
        """Look at each group's own gradient; what the log says of it, nothing if there is no audit."""
        if self.audit is None:
            return {}
        self.audit.begin(used["fitted"])
        rows = [group_coefficients(scores, k) for k in range(len(groups))]
        usable = [k for k, (_, enough) in enumerate(rows) if enough]
        samples = [[t.sample for t in group.trajectories if t.sample is not None] for group in groups]
        for sketches in self.learners.sketch([(samples[k], rows[k][0]) for k in usable]):
            self.audit.observe(sketches)
        anchors = sum(scores.sources[k] == "real" for k in usable)
        return dict(self.audit.statistics(used["rho"], anchors, len(usable) - anchors))

    def _update(self, groups: list[PlayedGroup], scores: StepScores) -> Update:
        """The updates of one batch, of the trajectories that said anything at all."""
        members = [trajectory for group in groups for trajectory in group.trajectories]
        pairs = zip(members, scores.coefficients.ravel().tolist(), strict=True)
        batch = [(member.sample, a) for member, a in pairs if member.sample is not None]
        return update_policy(
            self.learners,
            self.optimizer,
            self.config,
            [sample for sample, _ in batch],
            [a for _, a in batch],
            step=self.next_step,
        )


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
        presume_blind=config.presume_blind,
        pool=pool,
    )
