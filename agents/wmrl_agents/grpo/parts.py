"""What a run is put together from: the policy, the sandbox, the world model, the competitions."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qsl

import torch
import yaml

from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.grpo.draws import derive_seed
from wmrl_agents.grpo.robot_parts import load_progress_model, load_robot_policy
from wmrl_agents.grpo.robots import RobotSuite
from wmrl_agents.grpo.roles import PlayingPolicy, TrainablePolicy
from wmrl_agents.grpo.rollouts import Executor
from wmrl_agents.policies import resolve_model
from wmrl_agents.policies.chat import ChatPolicy
from wmrl_agents.policies.templates import TEMPLATES
from wmrl_envs.autoresearch import Competition, load_competition
from wmrl_envs.autoresearch.competition import Half, competition_names
from wmrl_envs.autoresearch.sandbox_evaluator import SandboxEvaluator
from wmrl_envs.errors import ConfigError
from wmrl_envs.evaluation import Evaluator
from wmrl_envs.sandbox import ExecutionCache, Limits, make_sandbox
from wmrl_rewards.language_models.base import LanguageModel, Sampling
from wmrl_rewards.language_models.openai_client import OpenAIModel
from wmrl_rewards.prediction import WorldModel
from wmrl_rewards.world_models.cached import CachedWorldModel
from wmrl_rewards.world_models.controls import ConstantWorldModel, NoiseWorldModel
from wmrl_rewards.world_models.language_model import LanguageModelWorldModel
from wmrl_rewards.world_models.learned import LearnedWorldModel
from wmrl_rewards.world_models.predicted_evaluator import PredictedEvaluator

if TYPE_CHECKING:  # it imports transformers
    from wmrl_agents.policies.sampler import Sampler

__all__ = [
    "Parts",
    "build_parts",
    "load_competitions",
    "load_language_model",
    "load_playing_policy",
    "make_executor",
    "make_predictor",
    "make_world_model",
]

OWN_POLICY = "policy"
# World models that are no language models. One that learns says nothing of groups before it has learned.
OTHER_WORLD_MODELS: dict[str, Callable[[GRPOConfig], WorldModel]] = {
    "learned": lambda config: LearnedWorldModel(prior=0.5),
    "noise": lambda config: NoiseWorldModel(config.seed),
    "constant": lambda config: ConstantWorldModel(),
}
_VLLM = "vllm:"


@dataclass
class Parts:
    """Replaceable parts of a run.

    Attributes:
        load_policy: Makes a policy from a model directory or name.
        executor: Where solutions run; None if nothing is executed.
        predictor: The world model; None if nothing is predicted, or if the policy itself does it.
        predictor_of: Makes the world model of the frozen policy that training began with.
        learner: The world model, if it learns from the anchors of the run.
        world_model: A model of progress, for a robot.
        robots: Tasks of a robot in place of those that the config names.
    """

    load_policy: Callable[[str | Path], TrainablePolicy]
    executor: Executor | None = None
    predictor: Evaluator | None = None
    predictor_of: Callable[[Any], Evaluator] | None = None
    learner: LearnedWorldModel | None = None
    world_model: WorldModel | None = None
    robots: RobotSuite | None = None


def build_parts(config: GRPOConfig, cache: Path) -> Parts:
    """The parts that a config names.

    Args:
        config: The run's settings.
        cache: File of stored executions, unless the config names one.

    Raises:
        ConfigError: Predictions are to be stored of a world model that they cannot be stored of.
        WMRLError: The sandbox or a model cannot be had.
    """
    if config.task_suite != "autoresearch":
        progress = load_progress_model(config) if config.uses_world_model else None
        return Parts(lambda source: load_policy(config, source), world_model=progress)
    parts = Parts(lambda source: load_policy(config, source), make_executor(config, cache))
    if config.uses_world_model and config.world_model == OWN_POLICY:
        parts.predictor_of = lambda policy: make_predictor(config, policy.language_model)
    elif config.uses_world_model and config.world_model in OTHER_WORLD_MODELS:
        if config.prediction_cache is not None:
            raise ConfigError(
                f"prediction_cache: what the world model '{config.world_model}' says is made anew each time, "
                "and is not stored: leave the setting out."
            )
        world_model = OTHER_WORLD_MODELS[config.world_model](config)
        parts.predictor = PredictedEvaluator(world_model)
        parts.learner = world_model if isinstance(world_model, LearnedWorldModel) else None
    elif config.uses_world_model:
        parts.predictor = make_predictor(config, load_language_model(config))
    return parts


def load_policy(config: GRPOConfig, source: str | Path) -> TrainablePolicy:
    """A policy, with the config's sampling, device and number format: a language model, or of chunks.

    Args:
        config: The run's settings.
        source: What to load: the model that the config names, a checkpoint of the run, or another model.

    Raises:
        WMRLError: It cannot be loaded, or is served by an engine that cannot train it.
    """
    if config.task_suite != "autoresearch":
        return load_robot_policy(config, source)
    if is_served(source):
        raise ConfigError(
            f"'{source}' cannot be trained: name a model directory or a model on the hub as the policy."
        )
    from wmrl_agents.policies.language_model import LanguageModelPolicy
    from wmrl_agents.policies.low_rank import LoRAConfig
    from wmrl_rewards.language_models.loading import is_adapter

    model = resolve_model(source) if isinstance(source, str) else source
    lora, adapter = None, None
    if config.lora_rank is not None:
        lora = LoRAConfig(config.lora_rank, config.lora_alpha, derive_seed(config.seed, "lora"))
        if str(source) != config.policy and is_adapter(model):
            model, adapter = resolve_model(config.policy), model
    return LanguageModelPolicy(
        model,
        max_new_tokens=config.max_new_tokens,
        temperature=config.temperature,
        device=config.device,
        dtype=getattr(torch, config.dtype),
        chat_template=_chat_template(config),
        thinking=config.thinking,
        stop_after_code=config.stop_after_code,
        lora=lora,
        adapter=adapter,
        gradient_checkpointing=config.gradient_checkpointing,
        sampler=_sampler(config, model),
    )


def _sampler(config: GRPOConfig, model: str | Path) -> Sampler | None:
    """Where replies come from; None for the policy's own weights.

    Raises:
        ConfigError: There is no such sampler.
    """
    if config.sampler == "transformers":
        return None
    from wmrl_agents.policies.vllm_sampler import InProcess, Server, VLLMSampler
    from wmrl_rewards.language_models.loading import load_tokenizer, plain_decode

    if config.sampler == "vllm":
        engine: InProcess | Server = InProcess(model, config.dtype, config.vllm_memory_fraction)
    elif is_endpoint(config.sampler):
        engine = Server(*split_address(config.sampler))
    else:
        raise ConfigError(
            f"sampler must be transformers, vllm or http://host:port#model, not '{config.sampler}'."
        )
    return VLLMSampler(engine, partial(plain_decode, load_tokenizer(model)))


def _chat_template(config: GRPOConfig) -> str | None:
    if config.chat_template is None or config.chat_template in TEMPLATES:
        return TEMPLATES.get(config.chat_template or "")
    path = Path(config.chat_template)
    if not path.is_file():
        known = ", ".join(TEMPLATES)
        raise ConfigError(f"chat_template: there is no file {path}, and no template of this name ({known}).")
    return path.read_text(encoding="utf-8")


def load_playing_policy(config: GRPOConfig, source: str | Path) -> PlayingPolicy:
    """A policy to evaluate: a language model, or a chat model behind an endpoint or in vLLM's engine."""
    if not is_served(source):
        return load_policy(config, source)
    return ChatPolicy(
        open_served(str(source)), max_new_tokens=config.max_new_tokens, temperature=config.temperature
    )


def is_endpoint(source: str | Path) -> bool:
    """Whether a model's name is the address of an endpoint."""
    return str(source).startswith(("http://", "https://"))


def is_served(source: str | Path) -> bool:
    """Whether a model's name is the address of an endpoint, or asks for vLLM: neither can be trained."""
    return is_endpoint(source) or str(source).startswith(_VLLM)


def open_served(name: str, max_context: int | None = None) -> LanguageModel:
    """A model behind an endpoint or in vLLM's engine, by its name.

    Args:
        name: The name.
        max_context: Tokens that are needed at most; vLLM sets memory aside for so many.

    Raises:
        WMRLError: The name is incomplete, or the model cannot be loaded.
    """
    return _open_vllm(name, max_context) if name.startswith(_VLLM) else _open_endpoint(name)


def _open_vllm(name: str, max_context: int | None) -> LanguageModel:
    """A model in vLLM's engine: ``vllm:MODEL``, with settings of the engine as in ``?enforce_eager=true``."""
    from wmrl_rewards.language_models.vllm_engine import VLLMModel

    model, _, settings = name.removeprefix(_VLLM).partition("?")
    if not model:
        raise ConfigError(f"Name the model after '{_VLLM}': {_VLLM}DIRECTORY_OR_NAME.")
    engine = {key: yaml.safe_load(value) for key, value in parse_qsl(settings)}
    return VLLMModel(resolve_model(model), **{"max_context": max_context, **engine})


def _open_endpoint(address: str) -> LanguageModel:
    """A model behind an endpoint, ``http://host/v1#model``, or several with commas between them.

    ``WMRL_API_KEY`` is sent if it is set.

    Raises:
        ConfigError: The address names no model.
    """
    urls, model = split_address(address)
    return OpenAIModel(
        urls.split(","), model, api_key_env="WMRL_API_KEY" if "WMRL_API_KEY" in os.environ else None
    )


def split_address(address: str) -> tuple[str, str]:
    """URL and model of an endpoint's address.

    Raises:
        ConfigError: It names no model.
    """
    urls, _, model = address.partition("#")
    if not model:
        raise ConfigError(f"Name the model behind an endpoint after a '#': {urls}#MODEL.")
    return urls, model


def make_executor(config: GRPOConfig, cache: Path, half: Half = "public") -> SandboxEvaluator:
    """The sandbox that a config asks for.

    Args:
        config: The run's settings.
        cache: File of stored executions, unless the config names one.
        half: Half of the test rows that is graded.

    Raises:
        SandboxError: It cannot be had on this machine.
    """
    limits = Limits(timeout_s=config.timeout_s, memory_bytes=config.memory_bytes, cpus=config.cpus)
    sandbox = make_sandbox(
        config.sandbox,
        limits,
        python=config.solution_python,
        image=config.solution_image,
        gpus=config.solution_gpus,
    )
    return SandboxEvaluator(
        sandbox,
        half=half,
        cache=ExecutionCache(config.execution_cache or cache),
        workers=config.workers,
        recheck_fraction=config.recheck_fraction,
    )


def make_predictor(config: GRPOConfig, language_model: LanguageModel) -> PredictedEvaluator:
    """A language model as the world model of a run, in an evaluator's place."""
    return PredictedEvaluator(make_world_model(config, language_model))


def make_world_model(config: GRPOConfig, language_model: LanguageModel) -> WorldModel:
    """A language model as the world model of a run, asked for the most likely outcome.

    Raises:
        ConfigError: Its predictions are to be stored, and cannot be.
    """
    world_model = LanguageModelWorldModel(
        language_model,
        sampling=Sampling(max_new_tokens=config.world_model_max_new_tokens, temperature=0),
        max_context_tokens=config.world_model_context,
        predict=config.world_model_predicts,
        retries=config.world_model_retries,
        structured=None if config.world_model_structured else False,
    )
    if config.prediction_cache is None:
        return world_model
    return CachedWorldModel(world_model, config.prediction_cache)


def load_language_model(config: GRPOConfig) -> LanguageModel:
    """The language model that a config names as its world model, by any engine."""
    if is_served(config.world_model):
        return open_served(config.world_model, config.world_model_context)
    from wmrl_rewards.language_models.hugging_face import HuggingFaceModel

    dtype = getattr(torch, config.dtype)
    return HuggingFaceModel(resolve_model(config.world_model), device=config.device, dtype=dtype)


def load_competitions(config: GRPOConfig, split: Literal["train", "heldout"] = "train") -> list[Competition]:
    """The competitions that a config names, or all bundled ones of a split.

    Raises:
        CompetitionError: One is unknown or its folder is not what the format says.
        ConfigError: There is none.
    """
    names = config.competitions
    if names is None:
        names = tuple(competition_names(config.data_root, split))
    chosen = [load_competition(name, config.data_root, config.dojo_root) for name in names]
    if not chosen:
        where = config.data_root or "this package"
        raise ConfigError(f"There are no competitions of the split '{split}' in {where}: name some.")
    return chosen
