"""Stand-ins shared by the tests: small, real where it matters, and the same on every machine."""

from __future__ import annotations

from pathlib import Path

CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CORPUS = [
    "import os\nimport pandas as pd\ntrain = pd.read_csv(os.environ['DATA_DIR'] + '/train.csv')\n",
    "status: ok\nroc_auc: 0.9712\npercentile: 0.50\nstatus: error\nstderr:\nTraceback (most recent)\n",
    "system user assistant\nYou are a machine-learning engineer. Write one program in a ```python block.\n",
]


def tiny_tokenizer(chat_template: str | None = CHATML, vocab_size: int = 320):
    """A byte-level BPE tokenizer of a few hundred tokens with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        additional_special_tokens=["<|endoftext|>", "<|im_start|>"],
    )
    fast.chat_template = chat_template
    return fast


def tiny_language_model(
    path: Path, *, chat_template: str | None = CHATML, max_context: int = 512, seed: int = 0
) -> Path:
    """Write a randomly initialised two-layer Llama and its tokenizer to a folder; returns the folder."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = tiny_tokenizer(chat_template)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=max_context,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"]),
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    path.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path
