"""Group-wise asynchronous rollouts: a group goes on when its own evaluations are there.

Replies are generated on the calling thread; executions run in the executor's pool meanwhile. Each group that
is executed is a cohort of its own; the groups that the world model plays are one cohort, because their
answers come at once from one batch. Who generates with whom, and under which seed, therefore follows from the
plan of the step and never from who was faster: a run is the same on a slow machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Literal, Protocol

from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.grpo.draws import derive_seed
from wmrl_agents.grpo.phases import Phases
from wmrl_agents.grpo.roles import PlayingPolicy
from wmrl_agents.grpo.trajectories import Group, Trajectory
from wmrl_agents.policies.base import Prompt, Sample
from wmrl_envs.autoresearch.competition import Competition
from wmrl_envs.autoresearch.episode import Episode, TrajectoryScore
from wmrl_envs.autoresearch.prompts import AGENT_SYSTEM_PROMPT, AGENT_SYSTEM_PROMPTS, fit
from wmrl_envs.errors import InfrastructureError
from wmrl_envs.evaluation import Evaluation, Evaluator, Solution

__all__ = [
    "Executor",
    "Group",
    "RolloutSettings",
    "Rollouts",
    "Trajectory",
    "rollout_settings",
    "stop_if_asked",
]

Wait = Iterator[list[Future[Evaluation]]]
Batch = tuple[list[Prompt], int]


class Executor(Protocol):
    """Real execution in the background."""

    def submit(
        self, solution: Solution, group: Hashable = None, *, deadline: float = float("inf")
    ) -> Future[Evaluation]:
        """Start an execution; infrastructure that fails gives an evaluation without a score.

        Args:
            solution: What to execute.
            group: Solutions of different groups take turns.
            deadline: Time, as `time.monotonic` has it, from which it is not started any more.
        """
        ...

    def close(self) -> None:
        """Stop what runs and drop what waits."""
        ...


@dataclass(frozen=True)
class RolloutSettings:
    """How trajectories are rolled out; see `GRPOConfig` for the meaning of each."""

    max_turns: int = 4
    trajectory_score: TrajectoryScore = "final"
    missing: Literal["execute", "drop"] = "execute"
    on_infrastructure: Literal["continue", "stop"] = "continue"
    step_deadline_s: float | None = None
    max_observation_tokens: int = 1024
    generation_batch: int = 64
    system_prompt: str = AGENT_SYSTEM_PROMPT


class Rollouts:
    """Plays groups of episodes.

    Args:
        policy: Who replies.
        executor: Where solutions run; needed as soon as anything is executed.
        predictor: The world model; needed for groups whose source it is. Where it is given, turns that
            are executed are predicted as well, while they run.
        settings: How to play.
        clock: Tells the time that deadlines are made of.
        sample: Samples batches of prompts, each with its seed; None asks the policy for one after the other.

    Attributes:
        phases: Where the time goes.
    """

    def __init__(
        self,
        policy: PlayingPolicy,
        executor: Executor | None,
        predictor: Evaluator | None,
        settings: RolloutSettings,
        clock: Callable[[], float] = time.monotonic,
        sample: Callable[[Sequence[Batch]], list[list[Sample]]] | None = None,
    ) -> None:
        self.policy = policy
        self.executor = executor
        self.predictor = predictor
        self.settings = settings
        self.phases = Phases()
        self._clock = clock
        self._deadline = float("inf")
        self._sample_batches = sample or self._one_after_the_other

    def play(self, groups: Sequence[Group], size: int, *, seed: int) -> None:
        """Fill groups with ``size`` finished trajectories each.

        Args:
            groups: Groups without trajectories.
            size: Trajectories in a group.
            seed: Decides all sampling.

        Raises:
            InfrastructureError: The machine failed in an execution, and the settings say to stop then.
        """
        if self.settings.step_deadline_s is not None:
            self._deadline = self._clock() + self.settings.step_deadline_s
        for group in groups:
            group.trajectories = [self._begin(group) for _ in range(size)]
        cohorts = [[group] for group in groups if group.source == "real"]
        predicted = [group for group in groups if group.source == "world_model"]
        plays = [self._play(cohort, seed) for cohort in [*cohorts, predicted] if cohort]
        _run(plays, self.phases)

    def _begin(self, group: Group) -> Trajectory:
        settings = self.settings
        rule = settings.trajectory_score
        return Trajectory(Episode(group.competition, max_turns=settings.max_turns, trajectory_score=rule))

    def _play(self, cohort: Sequence[Group], seed: int) -> Wait:
        """Play a cohort to its end; yields what it waits for, an empty list to let others go first."""
        everyone = [trajectory for group in cohort for trajectory in group.trajectories]
        advance = self._execute if cohort[0].source == "real" else self._predict
        for turn in range(self.settings.max_turns):
            live = self._reply(everyone, derive_seed(seed, "generation", turn, cohort[0].index))
            yield from advance([t for t in live if t.episode.waiting is not None], cohort[0].index)
        if cohort[0].source == "world_model" and self.settings.missing == "execute":
            yield from self._rescue(everyone, cohort[0].index)

    def _reply(self, everyone: Sequence[Trajectory], seed: int) -> list[Trajectory]:
        """Let the agent say its next reply in each trajectory that goes on; returns these."""
        prompts: dict[int, Prompt] = {}
        for index, trajectory in enumerate(everyone):
            if trajectory.episode.done or trajectory.context_full:
                continue
            prompt = self._prompt(trajectory)
            trajectory.context_full = trajectory.sample is not None and not self._has_room(prompt)
            if not trajectory.context_full:
                prompts[index] = prompt
        live = [everyone[index] for index in prompts]
        samples = self._sample(list(prompts.values()), seed)
        for trajectory, sample in zip(live, samples, strict=True):
            trajectory.sample = sample
            trajectory.truncated.append(sample.truncated)
            trajectory.predictions.append(None)
            trajectory.episode.reply(sample.text)
        return live

    def opening(self, competition: Competition) -> Prompt:
        """What the agent is told first on a task."""
        return self.policy.begin(self.settings.system_prompt, Episode(competition).observation)

    def _prompt(self, trajectory: Trajectory) -> Prompt:
        if trajectory.sample is None:
            return self.policy.begin(self.settings.system_prompt, trajectory.episode.observation)
        limit = self.settings.max_observation_tokens
        observation = fit(trajectory.episode.observation, limit, self.policy.count_tokens)
        return self.policy.extend(trajectory.sample, observation)

    def _has_room(self, prompt: Prompt) -> bool:
        limit = self.policy.max_context
        return limit is None or len(prompt.token_ids) + self.policy.max_new_tokens <= limit

    def _sample(self, prompts: Sequence[Prompt], seed: int) -> list[Sample]:
        size = self.settings.generation_batch
        starts = range(0, len(prompts), size)
        batches = [
            (list(prompts[start : start + size]), derive_seed(seed, "batch", number))
            for number, start in enumerate(starts)
        ]
        with self.phases("generate"):
            return [sample for batch in self._sample_batches(batches) for sample in batch]

    def _one_after_the_other(self, batches: Sequence[Batch]) -> list[list[Sample]]:
        return [self.policy.sample(prompts, seed=seed) for prompts, seed in batches]

    def _predict(self, waiting: Sequence[Trajectory], group: int) -> Wait:
        """Let the world model answer in place of an execution."""
        yield []
        for trajectory, evaluation in zip(waiting, self._ask(waiting), strict=True):
            trajectory.episode.receive(evaluation)

    def _execute(self, waiting: Sequence[Trajectory], group: int) -> Wait:
        """Run solutions for real and, while they run, ask the world model about them too."""
        futures = self._submit([_solution(trajectory) for trajectory in waiting], group)
        if self.predictor is not None:
            for trajectory, prediction in zip(waiting, self._ask(waiting), strict=True):
                trajectory.predictions[-1] = prediction
        yield futures
        for trajectory, future in zip(waiting, futures, strict=True):
            trajectory.episode.receive(self._result(future))

    def _rescue(self, everyone: Sequence[Trajectory], group: int) -> Wait:
        """Execute the program that should have been scored where the world model gave no score."""
        scored = [(trajectory, trajectory.episode.scored) for trajectory in everyone]
        lost = [(t, pair[0]) for t, pair in scored if pair is not None and pair[1].score is None]
        futures = self._submit([solution for _, solution in lost], group)
        yield futures
        for (trajectory, _), future in zip(lost, futures, strict=True):
            trajectory.rescue = self._result(future)

    def _ask(self, waiting: Sequence[Trajectory]) -> list[Evaluation]:
        assert self.predictor is not None, "groups of the world model need one"
        if not waiting:
            return []
        with self.phases("predict"):
            return self.predictor.evaluate([_solution(t) for t in waiting])

    def _submit(self, solutions: Sequence[Solution], group: int) -> list[Future[Evaluation]]:
        if not solutions:
            return []
        assert self.executor is not None, "groups that are executed need an executor"
        futures = [self.executor.submit(solution, group, deadline=self._deadline) for solution in solutions]
        for future in futures:
            self.phases.watch(future)
        return futures

    def _result(self, future: Future[Evaluation]) -> Evaluation:
        evaluation = future.result()
        stop_if_asked(evaluation, self.settings.on_infrastructure)
        return evaluation


def stop_if_asked(evaluation: Evaluation, on_infrastructure: str) -> None:
    """Where a run is to stop once the machine fails, stop if this evaluation says that it did.

    Raises:
        InfrastructureError: It did.
    """
    if on_infrastructure == "stop" and evaluation.machine_failed:
        raise InfrastructureError(
            f"The machine failed in an execution, and on_infrastructure is 'stop'. {evaluation.error} "
            "Mend that and resume the run, or resume it with --on-infrastructure continue."
        )


def _solution(trajectory: Trajectory) -> Solution:
    """The solution whose evaluation a trajectory waits for."""
    assert trajectory.episode.waiting is not None
    return trajectory.episode.waiting


def _run(plays: Sequence[Wait], phases: Phases) -> None:
    """Advance the first play that can go on; sleep only if none can."""
    waiting: list[tuple[Wait, list[Future[Evaluation]]]] = [(play, []) for play in plays]
    while waiting:
        places = (i for i, (_, futures) in enumerate(waiting) if all(f.done() for f in futures))
        place = next(places, None)
        if place is None:
            pending = [future for _, futures in waiting for future in futures if not future.done()]
            with phases("wait"):
                wait(pending, return_when=FIRST_COMPLETED)
            continue
        play, _ = waiting[place]
        futures = next(play, None)
        waiting[place : place + 1] = [] if futures is None else [(play, futures)]


def rollout_settings(config: GRPOConfig) -> RolloutSettings:
    """The part of a config that rollouts need."""
    return RolloutSettings(
        max_turns=config.max_turns,
        trajectory_score=config.trajectory_score,
        missing=config.missing,
        on_infrastructure=config.on_infrastructure,
        step_deadline_s=config.step_deadline_s,
        max_observation_tokens=config.max_observation_tokens,
        generation_batch=config.generation_batch,
        system_prompt=AGENT_SYSTEM_PROMPTS[config.agent_prompt],
    )
