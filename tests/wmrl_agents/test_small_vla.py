"""The small VLA: the contract of a policy that is trained, exact gradients, and that it learns."""

import json

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, kl_divergence

from wmrl_agents.grpo.gradients import accumulate_gradients
from wmrl_agents.policies.base import Policy, Prompt, Sample
from wmrl_agents.policies.vla.action_tokens import ResidualCodec
from wmrl_agents.policies.vla.chunk_policy import _inverse
from wmrl_agents.policies.vla.records import ChunkRecord, Observation
from wmrl_agents.policies.vla.small_vla import SmallVLA
from wmrl_envs.errors import ConfigError, WMRLError

TASKS = ["open", "close"]


def codec(codes=8, tokens=7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return ResidualCodec(torch.randn(tokens, codes, 56, generator=generator) * 0.3)


def policy_of(**settings):
    return SmallVLA(TASKS, **{"codec": codec(), "state_size": 3, "hidden": 16} | settings)


def see(seed, pictures=False):
    generator = np.random.default_rng(seed)
    image = generator.integers(0, 256, (20, 30, 3), dtype=np.uint8) if pictures else None
    return Observation(generator.normal(size=3).astype(np.float32), image)


def play(policy, seed=0, lengths=(1, 3, 2), pictures=False):
    """Whole trajectories of several decisions."""
    trajectories = []
    for number, length in enumerate(lengths):
        record = policy.begin(TASKS[number % 2], see((seed, number, 0), pictures))
        for turn in range(length):
            if turn:
                record = policy.extend(record, see((seed, number, turn), pictures))
            [record] = policy.sample([record], seed=seed + turn)
        trajectories.append(record)
    return trajectories


def gradients(policy):
    return [None if p.grad is None else p.grad.clone() for p in policy.parameters()]


def test_it_is_a_policy_whose_records_are_samples():
    policy = policy_of()
    assert isinstance(policy, Policy)
    [record] = play(policy, lengths=(3,))
    assert isinstance(record, Sample)
    assert record.num_own_tokens == 21
    assert (record.token_ids[0], record.mask[0], record.log_probs[0]) == (0, False, 0.0)
    assert [len(decision) for decision in record.decisions] == [7, 7, 7]
    assert len(record.observations) == 3
    assert not record.waiting
    assert policy.chunk(record).shape == (8, 7)
    assert policy.chunk(record) == pytest.approx(policy.codec.decode([record.token_ids[-7:]])[0])


def test_recorded_log_probabilities_are_those_of_training():
    policy = policy_of(temperature=0.7)
    records = play(policy)
    log_probs = policy.log_probs(records)
    assert log_probs.shape == (3, 21)
    for row, record in zip(log_probs.tolist(), records, strict=True):
        assert row == pytest.approx([*record.log_probs[1:], *[0.0] * (22 - len(record.log_probs))], abs=1e-5)


@pytest.mark.parametrize("pictures", [False, True])
def test_a_decision_depends_on_its_record_and_seed_alone(pictures):
    policy = policy_of(pictures=pictures)
    records = [policy.begin(TASKS[i % 2], see(i, pictures)) for i in range(5)]
    together = policy.sample(records, seed=3)
    alone = [policy.sample([record], seed=3)[0] for record in records]
    turned = policy.sample(records[::-1], seed=3)[::-1]
    small_batches = policy_of(pictures=pictures, batch_size=2).sample(records, seed=3)
    for others in (alone, turned, small_batches):
        assert [one.token_ids for one in others] == [one.token_ids for one in together]
    other_seed = policy.sample(records, seed=4)
    assert [one.token_ids for one in other_seed] != [one.token_ids for one in together]


def test_equal_records_get_decisions_of_their_own():
    policy = policy_of()
    records = [policy.begin("open", see(0)) for _ in range(16)]
    samples = policy.sample(records, seed=0)
    assert len({sample.token_ids for sample in samples}) > 8
    assert [one.token_ids for one in policy.sample(records, seed=0)] == [one.token_ids for one in samples]


def test_sampling_leaves_the_global_generators_alone():
    policy = policy_of()
    torch.manual_seed(5)
    np.random.seed(5)
    expected = torch.rand(1), np.random.random()
    torch.manual_seed(5)
    np.random.seed(5)
    play(policy)
    policy_of(seed=9)
    assert (torch.rand(1), np.random.random()) == expected


def test_greedy_takes_the_likeliest_token_each_time():
    policy = policy_of()
    [sample] = policy.sample([policy.begin("open", see(1))], seed=0, greedy=True)
    said = torch.zeros((1, 0), dtype=torch.long)
    context = policy._context(["open"], [see(1)])
    for token in sample.decisions[0]:
        logits = policy._next_logits(context, said)
        assert token == logits.argmax()
        said = torch.cat([said, torch.tensor([[token]])], dim=1)


def test_tokens_are_drawn_with_the_probabilities_of_the_policy():
    policy = policy_of()
    count = 4000
    samples = policy.sample([policy.begin("open", see(2))] * count, seed=0)
    first = np.bincount([sample.token_ids[1] for sample in samples], minlength=8) / count
    expected = policy._next_logits(policy._context(["open"], [see(2)]), torch.zeros((1, 0), dtype=torch.long))
    expected = expected.softmax(-1).detach().numpy()[0]
    assert first == pytest.approx(expected, abs=4 * np.sqrt(0.25 / count))


def test_the_inverse_of_the_distribution_by_hand():
    log_probs = torch.tensor([[0.25, 0.0, 0.5, 0.25]]).log()
    drawn = [0.0, 0.2499, 0.2501, 0.7499, 0.7501, 1 - 1e-16]  # beside the edges: they are rounded
    found = [_inverse(log_probs, torch.tensor([u], dtype=torch.float64)).item() for u in drawn]
    assert found == [0, 0, 2, 2, 3, 3]


def test_kl_and_entropy_are_those_of_the_distributions():
    policy, reference = policy_of(temperature=1.5), policy_of(temperature=1.5, seed=1)
    records = play(policy, lengths=(2, 1))
    seen = policy.token_statistics(records, reference, entropy=True)
    for row, record in enumerate(records):
        for place, tokens in enumerate(record.decisions):
            for k in range(7):
                said = torch.tensor([tokens[:k]], dtype=torch.long).reshape(1, k)
                ours, theirs = (
                    Categorical(
                        logits=p._next_logits(p._context([record.task], [record.observations[place]]), said)
                        / 1.5
                    )
                    for p in (policy, reference)
                )
                at = 7 * place + k
                chosen = ours.log_prob(torch.tensor([tokens[k]]))
                assert seen.log_probs[row, at].item() == pytest.approx(chosen.item(), abs=1e-5)
                assert seen.kl[row, at].item() == pytest.approx(kl_divergence(ours, theirs).item(), abs=1e-5)
                assert seen.entropy[row, at].item() == pytest.approx(ours.entropy().item(), abs=1e-5)
    assert seen.mask.sum(dim=1).tolist() == [14, 7]
    assert seen.kl[1, 7:].abs().sum() == 0


def test_the_gradient_is_the_weighted_sum_of_the_trajectories_scores():
    policy = policy_of()
    records, coefficients = play(policy), [0.5, -0.25, 1.0]
    for parameter in policy.parameters():
        parameter.grad = None
    accumulate_gradients(policy, records, coefficients)
    found = gradients(policy)
    expected = None
    for record, a in zip(records, coefficients, strict=True):
        score = torch.autograd.grad(policy.log_probs([record]).sum(), list(policy.parameters()))
        weighted = [-a * s for s in score]
        expected = weighted if expected is None else [e + w for e, w in zip(expected, weighted, strict=True)]
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("micro_batch", [1, 2, 5])
@pytest.mark.parametrize("loss_reduction", ["sum", "sequence_mean"])
def test_micro_batches_and_blocks_change_nothing(micro_batch, loss_reduction):
    found = []
    for size, block in ((8, 1024), (micro_batch, 4)):
        policy = policy_of(batch_size=block)
        records = play(policy, lengths=(1, 3, 2, 4, 1))
        statistics = accumulate_gradients(
            policy,
            records,
            [0.5, -1.0, 0.25, 0.75, -0.5],
            reference=policy_of(seed=1),
            kl_coefficient=0.04,
            entropy_coefficient=0.002,
            loss_reduction=loss_reduction,
            micro_batch=size,
        )
        assert statistics.tokens == 77
        assert statistics.mismatch < 1e-5
        found.append((gradients(policy), statistics.kl, statistics.entropy))
    (first, *numbers), (second, *others) = found
    assert numbers == pytest.approx(others, rel=1e-4)
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(first, second, strict=True))


def test_a_frozen_copy_stays_as_it_is():
    policy = policy_of()
    reference = policy.frozen_copy()
    records = play(policy)
    assert list(reference.parameters()) == []
    before = reference.log_probs(records)
    optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
    accumulate_gradients(policy, records, [1.0, 1.0, 1.0])
    optimizer.step()
    assert torch.equal(reference.log_probs(records), before)
    assert not torch.allclose(policy.log_probs(records), before)
    assert policy.token_statistics(records, reference).kl.sum() > 0


@pytest.mark.parametrize("pictures", [False, True])
def test_saved_and_loaded_it_is_the_same(tmp_path, pictures):
    policy = policy_of(pictures=pictures, seed=3)
    policy.standardise(np.random.default_rng(0).normal(2, 3, (50, 3)))
    records = play(policy, pictures=pictures)
    policy.save(tmp_path / "policy")
    loaded = SmallVLA.load(tmp_path / "policy")
    assert torch.equal(loaded.log_probs(records), policy.log_probs(records))
    again = [record.token_ids for record in play(loaded, pictures=pictures)]
    assert again == [record.token_ids for record in records]
    assert SmallVLA.load(tmp_path / "policy", temperature=0.5).temperature == 0.5


def test_the_same_seed_gives_the_same_weights_and_another_one_others():
    first, again, other = (policy_of(seed=s).network.state_dict() for s in (0, 0, 1))
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    assert not torch.equal(first["said"], other["said"])


def test_states_are_standardised_and_constant_numbers_do_no_harm():
    policy = policy_of()
    states = np.random.default_rng(0).normal(5, 2, (200, 3)).astype(np.float32)
    states[:, 1] = 7
    policy.standardise(states)
    assert policy.network.mean.numpy() == pytest.approx(states.mean(axis=0), rel=1e-4)
    assert policy.network.scale.numpy() == pytest.approx(
        [states[:, 0].std(), 1, states[:, 2].std()], rel=1e-4
    )
    odd = Observation(np.array([5, 1e6, 5], np.float32))
    [sample] = policy.sample([policy.begin("open", odd)], seed=0)
    assert np.isfinite(sample.log_probs).all()


def test_it_learns_by_imitation_to_say_what_it_sees():
    """The expert's chunk is one of eight, and the state says which."""
    policy = policy_of(hidden=32)
    generator = np.random.default_rng(0)
    states = generator.normal(size=(256, 3)).astype(np.float32)
    which = (states > 0) @ np.array([1, 2, 4])
    codes = np.random.default_rng(1).integers(0, 8, (8, 7))[which]
    seen = [Observation(state) for state in states]
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2)
    for _ in range(120):
        optimizer.zero_grad()
        loss = policy.imitation_loss(["open"] * 256, seen, codes)
        loss.backward()
        optimizer.step()
    samples = policy.sample([policy.begin("open", one) for one in seen], seed=0, greedy=True)
    right = np.mean([sample.decisions[0] == tuple(row) for sample, row in zip(samples, codes, strict=True)])
    assert right > 0.95


def test_it_learns_from_rewards_to_say_the_task():
    """GRPO by hand: the first token of each decision has to be the number of the task."""
    policy = policy_of()
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)

    def rollout(seed, count, greedy=False):
        records = [policy.begin(TASKS[i % 2], see(i)) for i in range(count)]
        samples = policy.sample(records, seed=seed, greedy=greedy)
        return samples, np.array([float(s.decisions[0][0] == i % 2) for i, s in enumerate(samples)])

    for step in range(40):
        samples, rewards = rollout(step, 32)
        advantages = np.zeros(32)
        for task in (0, 1):
            advantages[task::2] = (rewards[task::2] - rewards[task::2].mean()) / 16
        optimizer.zero_grad()
        accumulate_gradients(policy, samples, advantages.tolist(), micro_batch=32)
        optimizer.step()
    assert rollout(0, 32, greedy=True)[1].mean() == 1.0


def test_dropout_is_for_imitation_alone():
    plain, dropped = policy_of(), policy_of(dropout=0.5)
    records = play(plain)
    assert [record.token_ids for record in play(dropped)] == [record.token_ids for record in records]
    dropped.network.train()
    assert torch.equal(plain.log_probs(records), dropped.log_probs(records))
    dropped.network.train()
    codes, seen = np.zeros((1, 7), np.int64), [see(0)]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        losses = {round(dropped.imitation_loss(["open"], seen, codes).item(), 4) for _ in range(4)}
    assert len(losses) > 1


def test_a_decision_that_waits_is_left_aside_in_training():
    policy = policy_of()
    [record] = play(policy, lengths=(2,))
    waiting = policy.extend(record, see(9))
    assert waiting.waiting
    assert torch.equal(policy.log_probs([waiting]), policy.log_probs([record]))
    empty = policy.token_statistics([policy.begin("open", see(0))], entropy=True)
    assert empty.mask.numel() == 0


@pytest.mark.parametrize(
    ("task", "seen", "sentence"),
    [
        ("fly", Observation(np.zeros(3, np.float32)), "does not know the task 'fly'"),
        ("open", Observation(), "states of 3 numbers, not of shape None"),
        ("open", Observation(np.zeros(4, np.float32)), r"not of shape \(4,\)"),
    ],
)
def test_what_cannot_be_decided_on_is_refused(task, seen, sentence):
    with pytest.raises(ConfigError, match=sentence):
        policy_of().begin(task, seen)


def test_pictures_have_to_be_pictures():
    policy = policy_of(pictures=True)
    for image in (None, np.zeros((4, 4, 3)), np.zeros((4, 4), np.uint8)):
        with pytest.raises(ConfigError, match="pictures: uint8"):
            policy.begin("open", Observation(np.zeros(3, np.float32), image))


def test_records_out_of_order_are_refused():
    policy = policy_of()
    record = policy.begin("open", see(0))
    with pytest.raises(ConfigError, match="after its decision"):
        policy.extend(record, see(1))
    [sample] = policy.sample([record], seed=0)
    with pytest.raises(ConfigError, match="extend it first"):
        policy.sample([sample], seed=0)
    with pytest.raises(ConfigError, match="its own records, not on a Prompt"):
        policy.sample([Prompt((0,), (False,), (0.0,))], seed=0)
    assert policy.sample([], seed=0) == []
    assert isinstance(sample, ChunkRecord)


@pytest.mark.parametrize(
    "settings",
    [
        {"tasks": []},
        {"tasks": ["a", "a"]},
        {"state_size": None},
        {"state_size": 0},
        {"hidden": 0},
        {"dropout": 1.0},
        {"temperature": 0},
        {"batch_size": 0},
    ],
)
def test_wrong_settings_are_refused(settings):
    with pytest.raises(ConfigError):
        SmallVLA(**{"tasks": TASKS, "codec": codec(), "state_size": 3} | settings)


def test_a_folder_that_is_none_is_one_sentence(tmp_path):
    with pytest.raises(WMRLError, match="no codebooks"):
        SmallVLA.load(tmp_path / "nothing")
    policy_of().save(tmp_path)
    (tmp_path / "vla.safetensors").write_bytes(b"\x08" * 20)
    with pytest.raises(WMRLError, match="no small VLA"):
        SmallVLA.load(tmp_path)
    settings = json.loads((tmp_path / "vla.json").read_text())
    (tmp_path / "vla.json").write_text(json.dumps(settings | {"surprise": 1}))
    with pytest.raises(WMRLError, match="surprise"):
        SmallVLA.load(tmp_path)
