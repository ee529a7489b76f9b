"""Where a reply ends: behind its program, and before anything that the agent made up after it."""

import pytest
import torch

from tests.stubs import CHATML, parrot, tiny_language_model
from wmrl_agents.policies.base import Sample
from wmrl_agents.policies.language_model import LanguageModelPolicy
from wmrl_agents.policies.templates import TEMPLATES
from wmrl_envs.errors import WMRLError
from wmrl_rewards.language_models.base import Generation

PROGRAM = "```python\nprint(1)\n```"
STRING = '```python\nx = """\n```\n"""\n```'
REPLIES = {
    "one": f"Here it is.\n{PROGRAM}\nObservation: status: ok\nroc_auc: 0.99\n",
    "two": f"{STRING}\nNow I wait.",
    "three": f"```text\nno program\n```\n{PROGRAM}",
    "four": "I do not know.\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return parrot(tmp_path_factory.mktemp("parrot"), REPLIES)


def load(folder, **settings):
    settings = {"temperature": 0.05, "max_new_tokens": 120} | settings
    return LanguageModelPolicy(folder, device="cpu", **settings)


def answers(policy, *users):
    return policy.sample([policy.begin("", user) for user in users], seed=0)


def reply_ids(policy, sample, user):
    start = len(policy.begin("", user).token_ids)
    return sample.token_ids[start:]


def test_the_parrot_speaks(folder):
    policy = load(folder, stop_after_code=False)
    assert answers(policy, "four")[0].text == REPLIES["four"]


def test_a_reply_ends_where_its_first_program_is_closed(folder):
    policy = load(folder)
    samples = answers(policy, *REPLIES)
    assert [sample.text for sample in samples] == [
        f"Here it is.\n{PROGRAM}\n",
        f"{STRING}\n",
        REPLIES["three"],  # its end is the agent's own: no line follows the fence
        REPLIES["four"],
    ]
    assert not any(sample.truncated for sample in samples)
    end = policy.language_model.chat.end_of_turn
    assert [sample.token_ids[-1] == end for sample in samples] == [False, False, True, True]


def test_up_to_there_it_is_token_by_token_what_would_have_been_sampled(folder):
    shorter, longer = (answers(load(folder, stop_after_code=stop), *REPLIES) for stop in (True, False))
    for short, long in zip(shorter, longer, strict=True):
        size = len(short.token_ids)
        assert short.token_ids == long.token_ids[:size]
        assert short.mask == long.mask[:size]
        assert short.log_probs == pytest.approx(long.log_probs[:size], abs=1e-5)


def test_the_turn_is_then_closed_by_a_token_that_is_not_the_agents(folder):
    policy = load(folder)
    (sample,) = answers(policy, "one")
    extended = policy.extend(sample, "status: ok")
    size = len(sample.token_ids)
    assert extended.token_ids[size] == policy.language_model.chat.end_of_turn
    assert not any(extended.mask[size:])
    text = policy.tokenizer.decode(extended.token_ids)
    assert text.endswith(
        f"{PROGRAM}\n<|im_end|>\n<|im_start|>user\nstatus: ok<|im_end|>\n<|im_start|>assistant\n"
    )


def test_what_is_invented_after_a_program_never_enters_the_record(folder):
    policy = load(folder, stop_after_code=False)
    (sample,) = answers(policy, "one")
    assert sample.text == f"Here it is.\n{PROGRAM}\n"
    assert "Observation" not in policy.tokenizer.decode(policy.extend(sample, "status: error").token_ids)
    ids = reply_ids(policy, sample, "one")
    assert policy.language_model.decode(ids) == sample.text
    assert sample.num_own_tokens == len(ids)
    assert len(sample.log_probs) == len(sample.token_ids)


class Fixed:
    """A sampler that says one thing, in the tokens that it is told to."""

    def __init__(self, token_ids, finished=True):
        self.reply = Generation("", tuple(token_ids), (-1.0,) * len(token_ids), finished)

    def sample(self, prompts, sampling, stop=None, ends=()):
        return [self.reply] * len(prompts)

    def load_weights(self, weights, version):
        """There are none."""


@pytest.mark.parametrize("piece", [1, 2, 7])
def test_the_cut_is_at_a_token_whatever_the_tokens_are(folder, piece):
    """The same text in other tokens than the tokenizer's own: nothing is encoded again."""
    policy = load(folder, stop_after_code=False)
    text = f"{PROGRAM}\nstatus: ok\nroc_auc: 1.0"
    pieces = [text[i : i + piece] for i in range(0, len(text), piece)]
    ids = [i for part in pieces for i in policy.tokenizer(part, add_special_tokens=False).input_ids]
    policy.sampler = Fixed(ids)
    (sample,) = answers(policy, "one")
    kept = reply_ids(policy, sample, "one")
    assert kept == tuple(ids[: len(kept)])
    assert sample.text == policy.language_model.decode(kept)
    assert f"{PROGRAM}\n".startswith(sample.text)
    assert sample.text.startswith(PROGRAM)


def test_much_that_is_invented_is_cut_without_reading_it_again_for_each_token(folder, monkeypatch):
    policy = load(folder, stop_after_code=False)
    program = policy.tokenizer(f"{PROGRAM}\n", add_special_tokens=False).input_ids
    invented = policy.tokenizer("Observation: it ran.\n" * 100, add_special_tokens=False).input_ids
    policy.sampler = Fixed([*program, *invented])
    read = []
    decode = policy.language_model.decode
    monkeypatch.setattr(policy.language_model, "decode", lambda ids: (read.append(len(ids)), decode(ids))[1])
    (sample,) = answers(policy, "one")
    assert reply_ids(policy, sample, "one") == tuple(program)
    assert sum(read) < 5 * len(program + invented)


def test_a_reply_at_the_token_limit_is_marked(folder):
    policy = load(folder, max_new_tokens=10)
    (sample,) = answers(policy, "one")
    assert sample.truncated
    assert sample.num_own_tokens == 10


def test_a_reply_of_nothing_is_none(folder):
    policy = load(folder)
    policy.sampler = Fixed([], finished=False)
    (sample,) = answers(policy, "one")
    assert sample.text == ""
    assert policy.extend(sample, "status: no_code")


def test_no_program_counts_before_the_end_of_thinking(tmp_path):
    """Where the template itself opens the thinking, the reply does not say so."""
    said = f"Perhaps\n{PROGRAM}\nor so.\n</think>\n{PROGRAM}\nObservation: ok"
    opens = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
    policy = load(tiny_language_model(tmp_path), chat_template=opens)
    stops = []

    class Asking(Fixed):
        def sample(self, prompts, sampling, stop=None, ends=()):
            stops.append(stop)
            return super().sample(prompts, sampling, stop)

    policy.sampler = Asking(policy.tokenizer(said, add_special_tokens=False).input_ids)
    (sample,) = answers(policy, "one")
    assert sample.text == f"<think>\n{said.partition('Observation')[0]}"
    (stop,) = stops
    assert not stop(f"Perhaps\n{PROGRAM}\n")
    assert stop(f"Perhaps\n{PROGRAM}\n</think>\n{PROGRAM}\n")


# Like Qwen 3: enable_thinking=False writes an empty thought, and earlier turns lose theirs.
QWEN3 = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'].split('</think>')[-1] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


def test_thinking_is_switched_by_the_template(tmp_path):
    folder = tiny_language_model(tmp_path, chat_template=QWEN3)
    ends = [
        load(folder, thinking=thinking).tokenizer.decode(
            load(folder, thinking=thinking).begin("", "x").token_ids
        )
        for thinking in (None, True, False)
    ]
    assert ends[0] == ends[1]
    assert ends[2] == f"{ends[0]}<think>\n\n</think>\n\n"


@pytest.mark.parametrize("thinking", [None, True, False])
def test_a_template_that_drops_earlier_thinking_is_refused_in_the_second_turn(tmp_path, thinking):
    policy = load(tiny_language_model(tmp_path, chat_template=QWEN3), thinking=thinking, max_new_tokens=4)
    (sample,) = answers(policy, "one")
    with pytest.raises(WMRLError, match="rewrites earlier turns"):
        policy.extend(sample, "status: ok")


@pytest.mark.parametrize("thinking", [None, True, False])
def test_chatml_that_comes_along_takes_its_place(tmp_path, thinking):
    template = TEMPLATES["chatml"]
    policy = load(tiny_language_model(tmp_path), chat_template=template, thinking=thinking)
    reply = policy.tokenizer("<think>\nhm\n</think>\n\ndone<|im_end|>", add_special_tokens=False).input_ids
    begun = policy.begin("Be brief.", "one")
    own = tuple(reply)
    sample = Sample(
        begun.token_ids + own, begun.mask + (True,) * len(own), begun.log_probs + (-1.0,) * len(own)
    )
    whole = policy.tokenizer.apply_chat_template(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "<think>\nhm\n</think>\n\ndone"},
            {"role": "user", "content": "two"},
        ],
        add_generation_prompt=True,
        return_dict=False,
        **({} if thinking is None else {"enable_thinking": thinking}),
    )
    assert list(policy.extend(sample, "two").token_ids) == whole


def test_a_template_that_knows_no_thinking_is_not_asked_for_any(tmp_path):
    with pytest.raises(WMRLError, match="does not know enable_thinking"):
        load(tiny_language_model(tmp_path), thinking=False)


def test_sampled_tokens_are_what_the_gradient_is_of(folder):
    policy = load(folder, temperature=1.0)
    samples = answers(policy, *REPLIES)
    statistics = policy.token_statistics(samples)
    assert int(statistics.mask.sum()) == sum(sample.num_own_tokens for sample in samples)
    for row, sample in zip(statistics.log_probs.detach(), samples, strict=True):
        recorded = torch.tensor(sample.log_probs[1:])
        torch.testing.assert_close(row[: len(recorded)], recorded, rtol=0, atol=1e-3)
