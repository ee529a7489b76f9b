"""`GRPOConfig`: everything that one run is made of, checked before anything expensive starts.

The defaults are the paper's settings; the presets in ``agents/presets`` scale them to other machines. There
is no switch for dividing advantages by their standard deviation: it would erase the weights of fusion. There
is none for top-p or top-k either: the gradient is that of the whole distribution that is sampled from.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_type_hints

import yaml

from wmrl_agents.grpo.settings_files import load_preset, load_settings, preset_names
from wmrl_agents.grpo.values import coerced
from wmrl_envs.errors import ConfigError
from wmrl_envs.libero.views import Camera
from wmrl_envs.sandbox.choose import SandboxName, check_choice
from wmrl_rewards.blindness import check_evidence

__all__ = ["GRPOConfig", "field_docs", "load_preset", "load_settings", "preset_names", "save_config"]

RewardSource = Literal["real", "world_model", "mixture", "wmrl", "anchors_alone"]


@dataclass(frozen=True, kw_only=True)
class GRPOConfig:
    """Settings of one training run.

    Example:
        >>> GRPOConfig(group_size=4, steps=2).group_size
        4
        >>> GRPOConfig.from_mapping({"grup_size": 4})
        Traceback (most recent call last):
        wmrl_envs.errors.ConfigError: Unknown setting 'grup_size': did you mean 'group_size'?

    Raises:
        ConfigError: A value has the wrong type or is out of its range.
    """

    # The agent, its judge and its tasks
    policy: str = "tiny-coder"
    """Agent to train: 'tiny-coder', a Hugging Face directory, or a name on the hub."""
    chat_template: str | None = None
    """File with a Jinja chat template for the agent, or 'chatml'; none means its tokenizer's own. A template
    that rewrites earlier turns (that drops their thinking, say) cannot be trained on over several turns."""
    thinking: bool | None = None
    """Whether the agent thinks before it answers, where its chat template lets one choose; none leaves it to
    the template."""
    agent_prompt: Literal["default", "with_example"] = "default"
    """System prompt of the agent; with_example shows a program for another task, which small models need."""
    lora_rank: int | None = None
    """Rank of a LoRA adapter that is trained in place of all weights; none trains all weights."""
    lora_alpha: float = 32.0
    """The adapter's product counts alpha / rank."""
    world_model: str = "tiny-coder-world-model"
    """Language model that predicts outcomes, named likewise, by vLLM (vllm:MODEL), or behind an endpoint
    (http://host/v1#model; several with commas between them). 'policy' is the agent's own initial weights,
    frozen, as in the paper: the copy that the KL term holds on to serves for both. 'learned' is a regressor
    that learns from the run's own anchors, without a language model; 'noise' and 'constant' know nothing, and
    are there to compare with."""
    competitions: tuple[str, ...] | None = None
    """Names or folders of the competitions to train on; none means every bundled one of the train split."""
    data_root: str | None = None
    """Folder of competition folders in which the names are looked up; none means the bundled ones. They may
    be in the layout of MLE-Dojo, MLE-bench or DSBench too."""
    dojo_root: str | None = None
    """Code tree of those competitions' authors, where their package is not installed."""
    seed: int = 0
    """Every draw of the run follows from this number."""

    # A robot in place of programs (docs/libero.md)
    task_suite: Literal["autoresearch", "libero_10"] = "autoresearch"
    """What is played: programs on competitions, or a robot arm in LIBERO-Long (extra libero)."""
    libero_tasks: tuple[str, ...] = ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
    """Tasks of LIBERO-Long, by their numbers."""
    init_states: tuple[str, ...] = ("0-15",)
    """Initial states to train on, of 50 for each task; a task and one of its states make a group."""
    horizon: int = 520
    """Actions in an episode of the robot at most."""
    reduction: Literal["potential", "final", "mean", "max"] = "potential"
    """How a score is made of the progress that its world model sees."""
    observations: Literal["state", "images", "both"] = "state"
    """What is seen of the scene, by the policy and by its world model: numbers, pictures, or both."""
    image_size: int = 128
    """Height and width of these pictures."""
    camera: Camera = "agentview"
    """Whose pictures."""
    simulators: int = 1
    """Simulators at once, each in a process of its own; 1 simulates in this process."""

    # One step
    steps: int = 100
    """Optimiser steps in all, those before a resume included."""
    groups_per_step: int = 8
    """Groups (tasks drawn) in a step."""
    group_size: int = 8
    """Trajectories in a group."""
    max_turns: int = 4
    """Turns in a trajectory at most."""
    trajectory_score: Literal["final", "best"] = "final"
    """Score of a trajectory: that of its last turn with code, or of its best turn."""
    max_new_tokens: int = 4096
    """Tokens in a reply at most."""
    max_observation_tokens: int = 1024
    """Tokens in an observation at most; the middle of longer ones is cut."""
    temperature: float = 1.0
    """Sampling temperature."""
    stop_after_code: bool = True
    """Whether a reply ends where its first program is closed, or where the agent ends it."""
    sampler: str = "transformers"
    """Where replies come from: 'transformers', with the weights that are trained; 'vllm', in this process; or
    a vLLM server (http://host:8000#model) that sees this machine's files. The last two get new weights after
    each step."""
    vllm_memory_fraction: float = 0.4
    """Share of the GPU's memory for vLLM in this process."""
    generation_batch: int = 64
    """Prompts in one call of the policy at most."""

    # The optimiser
    learning_rate: float = 1e-6
    """Constant learning rate of AdamW."""
    weight_decay: float = 0.0
    """AdamW's decoupled weight decay; 0, because the KL term already holds the policy near its reference."""
    max_grad_norm: float | None = None
    """Gradients longer than this are shortened to it; none leaves them as they are."""
    kl_coefficient: float = 0.04
    """Weight of the KL divergence to the frozen starting policy."""
    entropy_coefficient: float = 0.002
    """Weight of the entropy bonus."""
    loss_reduction: Literal["sum", "sequence_mean"] = "sum"
    """Over a trajectory's own tokens: their sum, or their mean."""
    micro_batch: int = 8
    """Trajectories in one backward pass at most; changes memory and speed, never the gradient."""
    micro_batch_tokens: int | None = None
    """Tokens in one backward pass at most, padding included: with a large micro_batch, short trajectories
    share a pass and long ones do not overflow the memory. None for no limit."""
    updates_per_batch: int = 1
    """Updates that each batch is used for. After the first one the ratio to the policy that sampled the batch
    is clipped."""
    clip_low: float = 0.2
    """How far below 1 that ratio counts."""
    clip_high: float = 0.2
    """How far above 1 it counts."""
    audit_gradients: bool = False
    """Whether to measure the variance and the bias of group gradients, which takes about as long again as the
    gradient itself."""
    gradient_checkpointing: bool = False
    """Whether activations are computed again in the backward pass: less memory, a third more time."""

    # Rewards
    reward_source: RewardSource = "wmrl"
    """Execution of every group, of none, the uncorrected mixture, WMRL, or WMRL's anchor groups alone."""
    debias: bool = True
    """Online Debiasing (only with reward_source wmrl)."""
    denoise: bool = True
    """Inverse-Variance Denoising (only with reward_source wmrl)."""
    anchor_fraction: float = 0.1
    """Share of the groups that are executed for real; at least one is."""
    min_pairs: int = 200
    """The debiasing map is the identity until there are this many pairs."""
    refit_every: int = 64
    """New pairs after which the map is fitted again."""
    debias_window: int | None = None
    """The map is fitted to this many of the latest pairs; none means all of them."""
    debias_method: Literal["regression", "inverse"] = "regression"
    """Isotonic regression of real on predicted scores (Eq. 4), or the inverse of the other one."""
    anchor_window: int = 64
    """Anchor groups over which the noise of the world model is measured."""
    max_anchor_weight: float = 4.0
    """Upper bound of rho."""
    warmup_groups: int = 8
    """Anchor groups scored with a fitted map until rho leaves 1."""
    ignore_blind: bool = True
    """While the anchors show no signal of the world model inside groups, it plays none: a step then has its
    anchors alone (only with reward_source wmrl)."""
    presume_blind: bool = False
    """Whether it has to show that signal before it plays any group, which takes a few anchors; without this
    it plays until the anchors have shown that there is none (only with ignore_blind)."""
    missing: Literal["execute", "drop"] = "execute"
    """A trajectory without a prediction is executed for real, or left out of its group."""
    world_model_context: int = 12288
    """Tokens that the world model reads at most."""
    world_model_max_new_tokens: int = 1024
    """Tokens that the world model writes at most."""
    world_model_retries: int = 1
    """How often the world model is asked again where its answer cannot be read."""
    world_model_structured: bool = True
    """Bind its answers to a JSON schema where its engine can; better not if it has to think in writing."""
    world_model_predicts: Literal["outcome", "percentile"] = "outcome"
    """The world model is asked for the metric's value, which then goes through the leaderboard, or for the
    percentile itself."""
    prediction_cache: str | None = None
    """File of stored predictions, which runs may share; none asks the world model each time."""

    # Execution
    sandbox: SandboxName = "bubblewrap"
    """Where solutions run: 'bubblewrap', 'docker', or 'unsafe', a plain subprocess with no protection."""
    solution_python: str | None = None
    """Python that runs solutions, as `wmrl sandbox setup` makes one; none means the one that runs this.
    Docker takes the Python of its image."""
    solution_image: str | None = None
    """Docker's image for solutions; none means wmrl-solution. Only with sandbox docker."""
    solution_gpus: tuple[str, ...] | None = None
    """GPUs for solutions, by number or UUID, one for each execution; none means no GPU. Only with sandbox
    docker."""
    timeout_s: float = 60.0
    """Wall time of one execution."""
    memory_bytes: int = 2 * 1024**3
    """Memory of one execution."""
    cpus: int = 1
    """Processor cores of one execution."""
    workers: int | None = None
    """Executions at once; none means as many as the cores allow."""
    on_infrastructure: Literal["continue", "stop"] = "continue"
    """When the machine fails in an execution, again and again: go on without its score, or stop the run."""
    step_deadline_s: float | None = None
    """Time after which a step starts no more executions: their scores are missing. None, unless there must be
    one: what it leaves out is what is slow, and corrections learned from the others are wrong."""
    recheck_fraction: float = 0.02
    """Share of the programs that are run twice, to mark those that do not compute the same each time."""
    execution_cache: str | None = None
    """File of stored executions; none keeps one in the run directory."""

    # The machine
    device: str = "cpu"
    """Where the policy lives: 'cpu', 'cuda', 'cuda:1', ..."""
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """Number format to compute in. With bfloat16 the optimiser still moves float32 weights, or a float32
    adapter: small steps would vanish."""
    threads: int | None = None
    """Threads that torch computes with; none leaves that to torch."""

    # The run
    tensorboard: bool = False
    """Whether to write event files for TensorBoard to the run directory (extra tensorboard)."""
    wandb: Literal["online", "offline"] | None = None
    """Weights & Biases (extra wandb), 'online' or 'offline': numbers only, never a prompt or a program."""
    checkpoint_every: int = 1
    """Steps between checkpoints; the last step always makes one."""
    keep_checkpoints: int = 2
    """Checkpoints kept, the newest ones."""
    evaluate_before: bool = True
    """Whether `wmrl train` evaluates the policy on the private half before training."""
    evaluate_after: bool = True
    """Whether it does so after training."""
    evaluation_repeats: int = 8
    """Trajectories per competition in an evaluation."""

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            object.__setattr__(self, name, _checked(name, value))
        check_choice(self.sandbox, self.solution_python, self.solution_image, self.solution_gpus)
        if self.presume_blind:
            check_evidence(self.anchor_window, self.group_size)

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any]) -> GRPOConfig:
        """Make a config from a mapping, as read from YAML or the command line.

        Raises:
            ConfigError: A key is unknown, or a value is wrong.
        """
        for name in settings:
            if name not in _types():
                raise ConfigError(_unknown(str(name)))
        return cls(**settings)

    def replace(self, **changes: Any) -> GRPOConfig:
        """A copy with some settings changed."""
        return dataclasses.replace(self, **changes)

    @property
    def uses_world_model(self) -> bool:
        """Whether anything in this run is predicted."""
        return self.reward_source in ("world_model", "mixture", "wmrl")

    @property
    def ignores_blind(self) -> bool:
        """Whether groups of a world model that is found blind do not count."""
        return self.ignore_blind and self.reward_source == "wmrl"


_MINIMA: dict[str, float] = {
    "steps": 1,
    "groups_per_step": 1,
    "group_size": 2,
    "horizon": 1,
    "image_size": 8,
    "simulators": 1,
    "lora_rank": 1,
    "max_turns": 1,
    "max_new_tokens": 1,
    "max_observation_tokens": 16,
    "generation_batch": 1,
    "weight_decay": 0,
    "kl_coefficient": 0,
    "entropy_coefficient": 0,
    "micro_batch": 1,
    "micro_batch_tokens": 1,
    "updates_per_batch": 1,
    "min_pairs": 2,
    "refit_every": 1,
    "debias_window": 2,
    "anchor_window": 1,
    "max_anchor_weight": 1,
    "warmup_groups": 1,
    "world_model_context": 128,
    "world_model_max_new_tokens": 1,
    "world_model_retries": 0,
    "memory_bytes": 64 * 1024**2,
    "cpus": 1,
    "recheck_fraction": 0,
    "workers": 1,
    "threads": 1,
    "checkpoint_every": 1,
    "keep_checkpoints": 1,
    "evaluation_repeats": 1,
    "seed": 0,
}
_POSITIVE = (  # and all seconds
    "temperature",
    "learning_rate",
    "max_grad_norm",
    "anchor_fraction",
    "clip_low",
    "clip_high",
    "lora_alpha",
)
_WHY_NOT = {
    **dict.fromkeys(
        (
            "scale_rewards",
            "normalize_std",
            "normalize_advantages",
            "norm_adv_by_std_in_grpo",
            "grpo_norm_by_std",
        ),
        "advantages are never divided by their standard deviation, which would erase the fusion weights",
    ),
    **dict.fromkeys(
        ("top_p", "top_k"), "replies are sampled from the whole distribution, the one that the gradient is of"
    ),
}


def _unknown(name: str) -> str:
    if name in _WHY_NOT:
        return f"There is no setting '{name}': {_WHY_NOT[name]}."
    close = difflib.get_close_matches(name, _types(), n=1)
    hint = f"did you mean '{close[0]}'?" if close else "see `wmrl train --help` for all of them."
    return f"Unknown setting '{name}': {hint}"


@cache
def _types() -> dict[str, Any]:
    return get_type_hints(GRPOConfig)


def _checked(name: str, value: Any) -> Any:
    """The value in its field's own type, within its range."""
    value = coerced(name, value, _types()[name])
    if value is None:
        return None
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{name} must be a finite number, not {value}.")
    if name in _MINIMA and value < _MINIMA[name]:
        raise ConfigError(f"{name} must be at least {_MINIMA[name]}, not {value}.")
    if (name in _POSITIVE or name.endswith("_s")) and value <= 0:
        raise ConfigError(f"{name} must be above 0, not {value}.")
    if (name.endswith("_fraction") or name == "clip_low") and value > 1:
        raise ConfigError(f"{name} must be at most 1, not {value}.")
    if value == ():
        raise ConfigError(f"{name} names nothing: give at least one, or leave it out.")
    return value


def field_docs() -> dict[str, str]:
    """The sentence under each field, for the command line's help."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(GRPOConfig))).body
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            docs[field.target.id] = ast.literal_eval(text.value)  # type: ignore[attr-defined]
    return docs


def save_config(config: GRPOConfig, path: Path) -> None:
    """Write all settings to a YAML file that `load_settings` reads back to the same config."""
    values = dataclasses.asdict(config).items()
    settings = {name: list(value) if isinstance(value, tuple) else value for name, value in values}
    path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
