"""`VLLMModel`: vLLM's engine in this program, without a server.

Prompts are made with the model's own chat template here and handed over as token ids. So the engine sees what
the other back ends see, and its replies come back as the ids that were sampled.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from transformers import AutoConfig

from wmrl_envs.errors import MissingExtraError, WMRLError, in_one_line
from wmrl_rewards.language_models.base import Generation, Message, Sampling
from wmrl_rewards.language_models.chat import ChatFormat
from wmrl_rewards.language_models.loading import (
    check_exists,
    files_digest,
    load_tokenizer,
    too_long,
)

__all__ = ["VLLMModel", "import_vllm"]


class VLLMModel:
    """Chat generation by vLLM, in this program: batches of any size, shared beginnings computed once.

    A reply depends on its prompt, the seed and the number of the sample; with other replies in the batch the
    engine may round differently, and so now and then choose another token.

    Args:
        model: A model directory, or a model's name.
        dtype: Type of the weights, as vLLM calls it; ``auto`` takes that of the checkpoint.
        max_context: Most tokens of prompt and reply together; None takes what the model was made for. The
            engine keeps memory for at least so many.
        chat_template: Jinja template to use instead of the tokenizer's.
        **engine: Any of vLLM's ``EngineArgs``, for example ``gpu_memory_utilization=0.4`` beside a policy on
            the same device, or ``kv_cache_memory_bytes=2 * 2**30``.

    Raises:
        MissingExtraError: vLLM is not installed.
        WMRLError: The model cannot be loaded, or the engine does not run on this machine.
    """

    takes_schema = True

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        dtype: str = "auto",
        max_context: int | None = None,
        chat_template: str | None = None,
        **engine: Any,
    ) -> None:
        self._vllm = import_vllm()
        check_exists(model)
        self.source = str(model)
        self.tokenizer = load_tokenizer(model)
        self.chat = ChatFormat(self.tokenizer, chat_template)
        self.dtype = dtype
        try:
            made_for = getattr(
                AutoConfig.from_pretrained(model).get_text_config(), "max_position_embeddings", None
            )
            known = [limit for limit in (max_context, made_for) if limit is not None]
            self.engine = self._vllm.LLM(
                self.source,
                dtype=dtype,
                max_model_len=min(known, default=None),
                # Of the sampling distribution, as `Generation` promises, not of the model's own.
                logprobs_mode="processed_logprobs",
                **engine,
            )
        except Exception as error:  # Its classes are many; whatever it is ends as one sentence.
            problem = in_one_line(error)
            raise WMRLError(f"vLLM cannot run the language model '{model}': {problem}") from error

    @property
    def max_context(self) -> int:
        """Most tokens, new ones included, that the engine takes."""
        return self.engine.model_config.max_model_len

    @property
    def takes_instructions(self) -> bool:
        """Whether the model can be told what to do; see `ChatFormat`."""
        return self.chat.takes_instructions

    @cached_property
    def fingerprint(self) -> str | None:
        """Names the files of the model's directory, chat template and type; None for a name on the hub."""
        folder = Path(self.source)
        if not folder.is_dir():
            return None
        parts = [files_digest(folder), self.tokenizer.chat_template, self.dtype]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def close(self) -> None:
        """End the engine's processes; they end with the program otherwise."""
        self.engine.llm_engine.engine_core.shutdown()

    def count_tokens(self, text: str) -> int:
        """Number of tokens of a text."""
        return len(self.tokenizer(text, add_special_tokens=False).input_ids)

    def generate(
        self, conversations: Sequence[Sequence[Message]], sampling: Sampling, samples: int = 1
    ) -> list[list[Generation]]:
        """Generate replies; see `LanguageModel`.

        A conversation that is too long for the engine gives generations with an ``error``.

        Raises:
            WMRLError: The engine refuses the request, a schema that it cannot compile for example.
        """
        prompts = [self.chat.prompt(conversation) for conversation in conversations]
        errors = [too_long(len(prompt), sampling.max_new_tokens, self.max_context) for prompt in prompts]
        fitting = [prompt for prompt, error in zip(prompts, errors, strict=True) if error is None]
        rows = [prompt for prompt in fitting for _ in range(samples)]
        replies = iter(self._complete(rows, sampling))
        return [
            [next(replies) for _ in range(samples)]
            if error is None
            else [Generation("", finished=False, error=error)] * samples
            for error in errors
        ]

    def _complete(self, rows: Sequence[list[int]], sampling: Sampling) -> list[Generation]:
        if not rows:
            return []
        parameters = [self._parameters(sampling, seed) for seed in _seeds(rows, sampling)]
        prompts = [{"prompt_token_ids": row} for row in rows]
        try:
            outputs = self.engine.generate(prompts, parameters, use_tqdm=False)
        except Exception as error:  # As above.
            raise WMRLError(f"vLLM refuses the request: {in_one_line(error)}") from error
        return [self._reply(output.outputs[0]) for output in outputs]

    def _parameters(self, sampling: Sampling, seed: int | None) -> Any:
        schema = sampling.schema
        structured = self._vllm.sampling_params.StructuredOutputsParams
        return self._vllm.SamplingParams(
            max_tokens=sampling.max_new_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            seed=seed,
            logprobs=0,  # that of the sampled token alone
            stop_token_ids=[] if self.chat.end_of_turn is None else [self.chat.end_of_turn],
            detokenize=False,
            structured_outputs=None if schema is None else structured(json=dict(schema)),
        )

    def _reply(self, output: Any) -> Generation:
        token_ids = tuple(output.token_ids)
        log_probs = tuple(
            float(known[token].logprob) for known, token in zip(output.logprobs, token_ids, strict=True)
        )
        text = self.tokenizer.decode(
            list(token_ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        if output.finish_reason not in ("stop", "length"):
            problem = f"vLLM ended the reply early (finish reason '{output.finish_reason}')."
            return Generation("", finished=False, error=problem)
        return Generation(text, token_ids, log_probs, output.finish_reason == "stop")


def _seeds(rows: Sequence[list[int]], sampling: Sampling) -> list[int | None]:
    """A seed for each row: a function of the sampling's seed, the prompt and the number of the sample."""
    if sampling.temperature == 0:
        return [None] * len(rows)
    seed = secrets.randbits(64) if sampling.seed is None else sampling.seed
    seen: Counter[str] = Counter()
    seeds: list[int | None] = []
    for row in rows:
        key = json.dumps([seed, row])
        digest = hashlib.sha256(f"{seen[key]} {key}".encode()).digest()
        seeds.append(int.from_bytes(digest[:4], "little") >> 1)
        seen[key] += 1
    return seeds


def import_vllm() -> ModuleType:
    """The package.

    Raises:
        MissingExtraError: It is not installed.
    """
    # It reports where and with which models it is used, unless it is told not to before it is imported.
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    try:
        import vllm
        import vllm.sampling_params
    except ImportError as error:
        raise MissingExtraError("vllm", "vllm") from error
    return vllm
