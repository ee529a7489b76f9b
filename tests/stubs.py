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


def parrot(path: Path, replies: dict[str, str], steps: int = 120) -> Path:
    """A tiny language model that has learned by heart what to reply to each message; returns its folder.

    A reply goes on after its end with the end-of-turn token.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tiny_language_model(path)
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path).train()
    rows = []
    for user, reply in replies.items():
        messages = [{"role": "user", "content": user}]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        rows.append(tokenizer(f"{prompt}{reply}<|im_end|>", add_special_tokens=False).input_ids)
    longest = max(map(len, rows))
    ids = torch.tensor([row + [tokenizer.pad_token_id] * (longest - len(row)) for row in rows])
    labels = torch.tensor([row + [-100] * (longest - len(row)) for row in rows])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(path)
    return path


def token_program(tokens) -> str:
    """What a `TabularPolicy` writes: a program that is nothing but its tokens."""
    return f"tokens = {list(tokens)}"


def program_tokens(code: str) -> list[int]:
    """The tokens of such a program."""
    return [int(token) for token in code.partition("[")[2].rstrip("]").split(",") if token.strip()]


class TabularPolicy:
    """A bigram model: the logits of a token are a row of a table, chosen by the token before it.

    The tokens 0 to 4 spell a program, 5 ends the reply; a reply of no tokens holds no program. It is a whole
    `TrainablePolicy`, small enough that every gradient can be worked out by other means.
    """

    END, START, OTHER = 5, 6, 7
    keeps_start = False

    def __init__(self, table=None, *, max_new_tokens: int = 6, max_context: int | None = None) -> None:
        import torch

        if table is None:
            table = torch.zeros(8, 6, dtype=torch.float64)
        self.table = torch.nn.Parameter(table.clone())
        self.max_new_tokens = max_new_tokens
        self.max_context = max_context

    @classmethod
    def load(cls, source):
        import torch

        path = Path(source) / "table.pt"
        return cls(torch.load(path, weights_only=True) if path.is_file() else None)

    def save(self, directory):
        import torch

        Path(directory).mkdir(parents=True, exist_ok=True)
        torch.save(self.table.detach(), Path(directory) / "table.pt")

    def parameters(self):
        return iter([self.table])

    def note_update(self):
        pass

    def frozen_copy(self):
        twin = TabularPolicy(self.table.detach())
        twin.table.requires_grad_(False)
        return twin

    def count_tokens(self, text):
        return len(text.split())

    def begin(self, system, user):
        return self._given((self.START,))

    def extend(self, sample, user):
        from wmrl_agents.policies.base import Prompt

        given = self._given((self.OTHER, self.START))
        return Prompt(
            sample.token_ids + given.token_ids, sample.mask + given.mask, sample.log_probs + given.log_probs
        )

    def _given(self, token_ids):
        from wmrl_agents.policies.base import Prompt

        return Prompt(token_ids, (False,) * len(token_ids), (0.0,) * len(token_ids))

    def sample(self, prompts, *, seed):
        import numpy as np
        import torch

        generator = np.random.default_rng(seed)
        with torch.no_grad():
            probabilities = torch.softmax(self.table, dim=1).numpy()
        return [self._reply(prompt, probabilities, generator) for prompt in prompts]

    def _reply(self, prompt, probabilities, generator):
        import numpy as np

        from wmrl_agents.policies.base import Sample

        last, reply, log_probs = prompt.token_ids[-1], [], []
        while len(reply) < self.max_new_tokens and last != self.END:
            last_row = probabilities[last] / probabilities[last].sum()
            token = int(generator.choice(6, p=last_row))
            log_probs.append(float(np.log(probabilities[last][token])))
            reply.append(token)
            last = token
        program = [token for token in reply if token != self.END]
        return Sample(
            prompt.token_ids + tuple(reply),
            prompt.mask + (True,) * len(reply),
            prompt.log_probs + tuple(log_probs),
            text=f"```python\n{token_program(program)}\n```" if program else "I do not know.",
            truncated=last != self.END,
        )

    def log_probs(self, samples):
        return self._rows(samples)[0]

    def token_statistics(self, samples, reference=None, *, entropy=False):
        from wmrl_agents.policies.token_statistics import TokenStatistics

        chosen, rows, mask = self._rows(samples)
        log_p = rows.log_softmax(-1)
        kl = None
        if reference is not None:
            log_q = reference._rows(samples)[1].log_softmax(-1)
            kl = (log_p.exp() * (log_p - log_q)).sum(-1) * mask
        bits = -(log_p.exp() * log_p).sum(-1) * mask if entropy else None
        return TokenStatistics(log_probs=chosen * mask, kl=kl, entropy=bits, mask=mask)

    def _rows(self, samples):
        """Log-probability of each token, the table's row at each, and the mask; padded to the longest."""
        import torch

        longest = max(len(sample.token_ids) for sample in samples)
        ids = torch.tensor([[*s.token_ids, *[0] * (longest - len(s.token_ids))] for s in samples])
        mask = torch.tensor([[*s.mask, *[False] * (longest - len(s.mask))] for s in samples])[:, 1:]
        rows = self.table[ids[:, :-1]]
        chosen = rows.log_softmax(-1).gather(2, ids[:, 1:, None].clamp(max=5)).squeeze(2)
        return chosen, rows, mask


class TokenEvaluator:
    """Evaluates the programs of a `TabularPolicy`: the share of ones; a 3 in it is a crash.

    Args:
        source: ``real`` or ``world_model``.
        score: Maps the share to a score.
        missing: Programs with this token get no score.
    """

    def __init__(self, source="real", score=lambda share: share, missing=None) -> None:
        self.source = source
        self.score = score
        self.missing = missing
        self.seen: list[list[int]] = []

    def evaluate(self, solutions):
        return [self.one(program_tokens(solution.code)) for solution in solutions]

    def one(self, tokens):
        from wmrl_envs.evaluation import Evaluation, Grade, Outcome

        self.seen.append(tokens)
        if self.missing is not None and self.missing in tokens:
            lost = None if self.source == "world_model" else Outcome("infrastructure")
            return Evaluation(lost, source=self.source, error="lost")
        if 3 in tokens:
            return Evaluation(Outcome("error", stderr="3"), source=self.source)
        score = self.score(tokens.count(1) / len(tokens))
        return Evaluation(Outcome("ok"), Grade("ok", score=score, percentile=score), source=self.source)

    def submit(self, solution, group=None, *, deadline=float("inf")):
        from concurrent.futures import Future

        future: Future = Future()
        future.set_result(self.evaluate([solution])[0])
        return future

    def close(self):
        """Nothing runs."""
