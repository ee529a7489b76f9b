"""A policy behind an endpoint: evaluated like any other, but not trained."""

import pytest

from tests.stubs import tiny_language_model
from wmrl_agents.policies.base import Policy, Sample
from wmrl_agents.policies.chat import ChatPolicy
from wmrl_envs.errors import WMRLError
from wmrl_rewards.language_models import Generation, HuggingFaceModel


class Parrot:
    """Repeats the last message; what is marked as bad fails."""

    def __init__(self):
        self.seeds = []

    def generate(self, conversations, sampling, samples=1):
        self.seeds.append(sampling.seed)
        return [[self.reply(c[-1]["content"], sampling)] * samples for c in conversations]

    def reply(self, text, sampling):
        if text == "bad":
            return Generation("", finished=False, error="The server is down.")
        return Generation(text[: sampling.max_new_tokens], finished=len(text) <= sampling.max_new_tokens)

    def count_tokens(self, text):
        return len(text)


@pytest.fixture
def policy():
    return ChatPolicy(Parrot(), max_new_tokens=5)


def test_it_is_a_policy(policy):
    assert isinstance(policy, Policy)
    assert policy.max_context is None
    assert policy.max_new_tokens == 5
    assert policy.count_tokens("abc") == 3


def test_a_dialogue_grows_by_messages(policy):
    first, cut = policy.sample([policy.begin("Be brief.", "Hi"), policy.begin("", "too long")], seed=4)
    assert (first.text, first.truncated, first.num_own_tokens) == ("Hi", False, 0)
    assert (cut.text, cut.truncated) == ("too l", True)
    assert policy.language_model.seeds == [4]
    assert policy.extend(first, "status: ok").messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "status: ok"},
    )
    assert policy.extend(cut, "go on").messages[0] == {"role": "user", "content": "too long"}


def test_a_reply_that_could_not_be_had_is_an_error(policy):
    with pytest.raises(WMRLError, match=r"The policy gave no reply: The server is down\."):
        policy.sample([policy.begin("", "ok"), policy.begin("", "bad")], seed=0)


def test_it_cannot_be_trained(policy):
    with pytest.raises(WMRLError, match="evaluated, but not trained"):
        policy.log_probs(policy.sample([policy.begin("", "Hi")], seed=0))


def test_it_continues_its_own_records_only(policy):
    with pytest.raises(TypeError, match="its own records"):
        policy.extend(Sample((1,), (True,), (0.0,), text="x"), "Hi")


def test_a_local_model_speaks_the_same_through_either_door(tmp_path):
    from wmrl_agents.policies.language_model import LanguageModelPolicy

    folder = tiny_language_model(tmp_path)
    local = LanguageModelPolicy(folder, max_new_tokens=8, device="cpu")
    distant = ChatPolicy(HuggingFaceModel(folder, device="cpu"), max_new_tokens=8)
    prompts = ["Hi", "Write a program.", "Hi"]
    expected = local.sample([local.begin("Be brief.", text) for text in prompts], seed=2)
    found = distant.sample([distant.begin("Be brief.", text) for text in prompts], seed=2)
    assert [sample.text for sample in found] == [sample.text for sample in expected]
    assert found[0].text != found[2].text
