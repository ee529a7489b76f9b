"""Rollouts of a robot: groups of episodes in a simulator, chunk by chunk, decided on in batches.

Every member is simulated; there is no other way to play it. Anchor groups take the simulator's success, 0 or
1, as their real score; the model of progress looks at eight moments of every member and gives its predicted
one. The simulator knows of the success of the other groups too, at no further cost; that it is not used there
is what the setting ``anchor_fraction`` below 1 means.

What is drawn for a member follows from the seed of the step, from its number in it, and from what it has seen
and done: not from who else is decided on with it.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.grpo.phases import Phases
from wmrl_agents.grpo.played import EvaluationRow, TurnRow
from wmrl_agents.grpo.robots import RobotStart, RobotSuite, draw_starts
from wmrl_agents.grpo.roles import ActingPolicy
from wmrl_agents.grpo.simulators import Seen, Simulators
from wmrl_agents.policies.base import Prompt, Sample
from wmrl_agents.policies.vla.records import Observation
from wmrl_envs.errors import ConfigError
from wmrl_envs.evaluation import Evaluation, Grade, Outcome, Source
from wmrl_rewards.prediction import Prediction, PredictionRequest, WorldModel, predict_checked

__all__ = ["EmbodiedRollouts", "RobotGroup", "RobotTrajectory", "frames_of", "play_episodes"]

Batch = tuple[list[Prompt], int]
_ASKED_AT_ONCE = 64


@dataclass
class RobotTrajectory:
    """One episode of a robot.

    Attributes:
        start: Where it begins.
        instruction: The task in words.
        number: Its number in the step, from 0.
        uses_success: Whether the simulator's success is its score.
        sample: What was seen and decided so far; see `ChunkRecord`.
        moments: What was seen before each decision and at the end; dropped when it has been judged.
        success: Whether the goal held at any time.
        decisions: Chunks that were taken.
        steps: Single actions that were taken.
        over: Whether it has ended.
        seconds: What simulating it took.
        actions: Names the actions that were taken: equal ones have equal names.
        prediction: What the world model says of it; None if it was not asked.
    """

    start: RobotStart
    instruction: str
    number: int = 0
    uses_success: bool = True
    sample: Sample | None = None
    moments: list[Observation] = field(default_factory=list)
    success: bool = False
    decisions: int = 0
    steps: int = 0
    over: bool = False
    seconds: float = 0.0
    actions: str = ""
    prediction: Prediction | None = None
    rescued: bool = False

    def see(self, seen: Seen) -> None:
        """Take what the simulator shows next."""
        self.moments.append(seen.observation)
        self.success, self.over = seen.success, seen.over
        self.steps += seen.actions
        self.seconds += seen.seconds

    def act(self, chunk: NDArray[Any]) -> None:
        """Take down which actions are taken next."""
        self.decisions += 1
        self.actions = hashlib.sha256(self.actions.encode() + chunk.tobytes()).hexdigest()[:16]

    def scores(self, source: Source) -> tuple[float | None, float | None]:
        """See `PlayedTrajectory`."""
        real = float(self.success) if self.uses_success or self.rescued else None
        return real, None if self.prediction is None else self.prediction.score

    @property
    def executed(self) -> list[tuple[str, Evaluation]]:
        """The simulator's verdict, where it was used."""
        if not (self.uses_success or self.rescued):
            return []
        grade = Grade("ok", score=float(self.success), percentile=float(self.success))
        return [(self._content, Evaluation(Outcome("ok", seconds=self.seconds), grade))]

    @property
    def predicted(self) -> list[Evaluation]:
        """See `PlayedTrajectory`."""
        if self.prediction is None:
            return []
        if self.prediction.score is None:
            return [Evaluation(None, source="world_model", error=self.prediction.error)]
        grade = Grade("ok", score=self.prediction.score, percentile=self.prediction.score)
        return [Evaluation(Outcome("ok"), grade, source="world_model")]

    @property
    def num_evaluated(self) -> int:
        """One: an episode is scored at its end."""
        return 1

    @property
    def num_turns(self) -> int:
        """Chunks that were decided on."""
        return self.decisions

    @property
    def num_truncated(self) -> int:
        """None: all chunks have as many tokens as each other."""
        return 0

    def turn_rows(self) -> list[TurnRow]:
        """One row for the whole episode, in words."""
        begun = f"{self.decisions} chunks of actions ({self.actions}) from state {self.start.init_state}"
        verb = "held" if self.success else "did not hold"
        return [(0, "actions", begun, None, f"The goal {verb} after {self.steps} actions.", False)]

    def evaluation_rows(self) -> list[EvaluationRow]:
        """See `PlayedTrajectory`."""
        evaluations = [*(evaluation for _, evaluation in self.executed), *self.predicted]
        return [(0, self._content, evaluation) for evaluation in evaluations]

    @property
    def _content(self) -> str:
        start = self.start
        key = f"{start.task} {start.init_state} {start.env_seed} {self.actions}"
        return hashlib.sha256(key.encode()).hexdigest()[:32]


@dataclass
class RobotGroup:
    """Episodes that begin alike, scored by one source.

    Attributes:
        index: Number of the group in its step.
        start: Where they begin.
        suite: Name of the suite.
        source: Whose score counts.
        trajectories: Its members.
    """

    index: int
    start: RobotStart
    suite: str
    source: Source
    trajectories: list[RobotTrajectory] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Task and initial state."""
        return f"task {self.start.task}, state {self.start.init_state}"

    @property
    def category(self) -> str:
        """The suite."""
        return self.suite


class EmbodiedRollouts:
    """Plays groups of episodes of a robot; see `GroupRollouts`.

    Args:
        config: Settings of the run.
        suite: Its tasks.
        policy: Who acts.
        world_model: Who sees progress; needed for groups whose source it is.
        sample: Decides on batches of records, each with its seed.

    Raises:
        ConfigError: The world model was not made for one of the tasks.
    """

    def __init__(
        self,
        config: GRPOConfig,
        suite: RobotSuite,
        policy: ActingPolicy,
        world_model: WorldModel | None,
        sample: Callable[[Sequence[Batch]], list[list[Sample]]],
    ) -> None:
        self.config = config
        self.suite = suite
        self.policy = policy
        self.world_model = world_model if config.uses_world_model else None
        self.phases = Phases()
        self._sample_batches = sample
        self._simulators = Simulators(suite, config.simulators)
        known = getattr(self.world_model, "tasks", None)
        for task, instruction in suite.instructions.items():
            if known is not None and instruction not in known:
                raise ConfigError(
                    f"The model of progress does not know task {task} ({instruction!r}): train one that "
                    "does, or leave the task out of libero_tasks."
                )

    def draw(self, step: int) -> list[RobotStart]:
        """Where the groups of a step begin."""
        config = self.config
        return draw_starts(self.suite, config.groups_per_step, seed=config.seed, step=step)

    def group(self, index: int, task: RobotStart, source: Source) -> RobotGroup:
        """See `GroupRollouts`."""
        return RobotGroup(index, task, self.suite.name, source)

    def play(self, groups: Sequence[RobotGroup], size: int, *, seed: int) -> None:
        """Fill groups with ``size`` episodes each, which the world model judges. See `GroupRollouts`."""
        for group in groups:
            instruction, real = self.suite.instructions[group.start.task], group.source == "real"
            group.trajectories = [
                RobotTrajectory(group.start, instruction, group.index * size + member, real)
                for member in range(size)
            ]
        everyone = [member for group in groups for member in group.trajectories]

        def decide(prompts: list[Prompt]) -> list[Sample]:
            limit = self.config.generation_batch
            # The same seed for all: what a record holds tells draws apart.
            batches = [(prompts[start : start + limit], seed) for start in range(0, len(prompts), limit)]
            return [sample for batch in self._sample_batches(batches) for sample in batch]

        play_episodes(self.policy, self._simulators, everyone, decide, self.phases)
        if self.world_model is not None:
            self._judge(self.world_model, everyone)
        for member in everyone:
            member.moments = []

    def _judge(self, world_model: WorldModel, everyone: Sequence[RobotTrajectory]) -> None:
        """Ask for progress; where there is none, the simulator's success counts if the settings say so."""
        with self.phases("predict"):
            for start in range(0, len(everyone), _ASKED_AT_ONCE):
                part = everyone[start : start + _ASKED_AT_ONCE]
                requests = [
                    PredictionRequest(one.instruction, frames=frames_of(one.moments, world_model))
                    for one in part
                ]
                for one, prediction in zip(part, predict_checked(world_model, requests), strict=True):
                    one.prediction = prediction
                    lost = prediction.score is None and not one.uses_success
                    one.rescued = lost and self.config.missing == "execute"

    def versions(self) -> dict[str, str]:
        """Hashes of the tasks' words, and of the world model if it has one."""
        found = {"tasks": hashlib.sha256(json.dumps(dict(self.suite.instructions)).encode()).hexdigest()[:16]}
        fingerprint = getattr(self.world_model, "fingerprint", None)
        return found if fingerprint is None else {**found, "world model": str(fingerprint)[:16]}

    def learn(self, groups: Sequence[RobotGroup]) -> None:
        """Nothing: models of progress are trained before."""

    def learn_again(self, run_dir: Path) -> None:
        """Nothing, likewise."""

    def close(self) -> None:
        """Close the simulators."""
        self._simulators.close()


def play_episodes(
    policy: ActingPolicy,
    simulators: Simulators,
    episodes: Sequence[RobotTrajectory],
    decide: Callable[[list[Prompt]], list[Sample]],
    phases: Phases,
) -> None:
    """Play episodes to their ends: all that sit in a simulator are decided on together, chunk by chunk.

    Args:
        policy: Who acts.
        simulators: Their seats; those whose episode has ended go to the next ones, task by task.
        episodes: Episodes that have not begun.
        decide: Decides on the next chunk of each record.
        phases: Where the time goes.
    """
    waiting = deque(sorted(episodes, key=lambda episode: episode.start.task))
    seats: dict[int, RobotTrajectory] = {}
    while waiting or seats:
        free = [number for number in range(simulators.count) if number not in seats]
        begun = {number: waiting.popleft() for number in free[: len(waiting)]}
        with phases("wait"):
            shown = simulators.reset({number: episode.start for number, episode in begun.items()})
        seats |= begun
        for number, episode in begun.items():
            episode.see(shown[number])
        order = sorted(seats)
        with phases("generate"):
            samples = decide([_prompt(policy, seats[number]) for number in order])
        chunks = {}
        for number, sample in zip(order, samples, strict=True):
            seats[number].sample, chunks[number] = sample, policy.chunk(sample)
            seats[number].act(chunks[number])
        with phases("wait"):
            shown = simulators.step(chunks)
        for number in order:
            seats[number].see(shown[number])
            if seats[number].over:
                del seats[number]


def _prompt(policy: ActingPolicy, episode: RobotTrajectory) -> Prompt:
    """The record that waits for a decision. Its first token, which nobody said, is the episode's number."""
    if episode.sample is None:
        return replace(policy.begin(episode.instruction, episode.moments[-1]), token_ids=(episode.number,))
    return policy.extend(episode.sample, episode.moments[-1])


def frames_of(moments: Sequence[Observation], world_model: WorldModel) -> NDArray[Any] | None:
    """What a world model looks at: states (T, D) if it says that it reads them, else pictures (T, H, W, 3).

    One that does not say, such as one that knows nothing, gets what there is.

    Args:
        moments: What was seen.
        world_model: Who is shown it.
    """
    observed = getattr(world_model, "observed", None)
    pictures = [one.image for one in moments if one.image is not None]
    states = [one.state for one in moments if one.state is not None]
    shown = states if observed == "states" or (observed is None and not pictures) else pictures
    return np.stack(shown) if shown else None
