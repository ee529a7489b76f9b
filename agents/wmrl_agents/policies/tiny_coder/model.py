"""The tiny coder's tokenizer and network, and the loop that pre-trains them: Hugging Face classes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from wmrl_rewards.language_models.base import Message

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["encode", "new_model", "train_language_model", "train_tokenizer"]

VOCABULARY = 1536
CONTEXT = 1536
END, PAD, USER, ASSISTANT = "<|end|>", "<|pad|>", "<|user|>", "<|assistant|>"
# A system message is not rendered: the model is too small to be instructed, it was trained for its one job.
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'user' %}<|user|>{{ message['content'] }}"
    "{% elif message['role'] == 'assistant' %}<|assistant|>{{ message['content'] }}<|end|>"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def train_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer on texts.

    Pieces end at line ends, opening brackets and commas, and digits stand alone: a script is then some forty
    tokens long, and equal code is always equal tokens.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"[^\n(,]*(\n|\(|, ?)|[^\n(,]+"), behavior="isolated"),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END, PAD, USER, ASSISTANT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, clean_up_tokenization_spaces=False
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.model_max_length = CONTEXT
    return fast


def new_model(tokenizer: PreTrainedTokenizerFast, seed: int = 0) -> LlamaForCausalLM:
    """A freshly initialised Llama of two million parameters: 4 layers of width 192."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=192,
            intermediate_size=512,
            num_hidden_layers=4,
            num_attention_heads=6,
            num_key_value_heads=2,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            attention_dropout=0.0,
        )
    )


def encode(tokenizer: PreTrainedTokenizerFast, dialogue: Sequence[Message]) -> tuple[list[int], list[bool]]:
    """Token ids of a dialogue, and which of them the assistant says (its end token included)."""
    ids: list[int] = []
    own: list[bool] = []
    for message in dialogue:
        assistant = message["role"] == "assistant"
        head = [tokenizer.vocab[ASSISTANT if assistant else USER]]
        body = list(tokenizer(message["content"], add_special_tokens=False)["input_ids"])
        tail = [tokenizer.eos_token_id] if assistant else []
        ids += head + body + tail
        own += [False] * len(head) + [assistant] * (len(body) + len(tail))
    return ids, own


def train_language_model(
    model: LlamaForCausalLM,
    examples: Sequence[tuple[list[int], list[bool]]],
    *,
    steps: int,
    batch_size: int,
    learning_rate: float,
    seed: int = 0,
    report: Callable[[int, float], None] = lambda step, loss: None,
) -> None:
    """Train on the assistant's tokens only, with AdamW, a warm-up, and a cosine decay to nothing."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.05)
    warmup = max(1, steps // 20)
    model.train()
    for step, batch in zip(range(steps), _batches(examples, batch_size, seed), strict=False):
        share = (step + 1) / warmup if step < warmup else 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * share
        loss = _loss(model, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        report(step, float(loss.detach()))
    model.eval()


def _batches(
    examples: Sequence[tuple[list[int], list[bool]]], size: int, seed: int
) -> Iterator[list[tuple[list[int], list[bool]]]]:
    """Endless shuffled batches of examples of similar length."""
    rng = np.random.default_rng(seed)
    while True:
        noise = rng.uniform(0.9, 1.1, size=len(examples))
        order = np.argsort([len(ids) * n for (ids, _), n in zip(examples, noise, strict=True)])
        starts = rng.permutation(np.arange(0, len(examples) - size + 1, size))
        for start in starts:
            yield [examples[i] for i in order[start : start + size]]


def _loss(model: LlamaForCausalLM, batch: Sequence[tuple[list[int], list[bool]]]) -> torch.Tensor:
    # Few different shapes: the matrix library keeps memory for each one that it has seen.
    longest = math.ceil(max(len(ids) for ids, _ in batch) / 64) * 64
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    labels = torch.full((len(batch), longest), -100)
    for row, (tokens, own) in enumerate(batch):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        labels[row, : len(tokens)] = torch.where(torch.tensor(own), torch.tensor(tokens), -100)
    # Padding stands on the right, where a causal model's earlier positions cannot see it.
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(input_ids=ids).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits.float().transpose(1, 2), labels[:, 1:])
