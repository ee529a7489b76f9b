"""The trainer's gradient against ĝ of the method, computed per group and per trajectory by autograd."""

from itertools import groupby

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.stubs import TabularPolicy, TokenEvaluator, tiny_language_model
from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.grpo.gradients import GradientStatistics, accumulate_gradients, micro_batches
from wmrl_agents.grpo.parts import Parts
from wmrl_agents.grpo.trainer import GRPOTrainer
from wmrl_agents.policies.base import Sample
from wmrl_agents.policies.language_model import LanguageModelPolicy
from wmrl_rewards import fuse

SOURCES = ["real", "world_model", "world_model"]
RHO = 2.5


def group_scores(seed=0):
    """Scores of three groups of four, one score missing."""
    scores = np.random.default_rng(seed).random((3, 4))
    scores[1, 2] = np.nan
    return scores


def flat(parameters):
    return torch.cat([parameter.reshape(-1) for parameter in parameters])


def score_vector(policy, sample):
    """s_i: gradient of the sum of log-probabilities of the trajectory's own tokens, alone and unpadded."""
    parameters = list(policy.parameters())
    log_probs = policy.log_probs([sample])[0]
    own = torch.tensor(sample.mask[1:])
    return flat(torch.autograd.grad(log_probs[own].sum(), parameters))


def expected_gradient(policy, groups, scores, sources=SOURCES, rho=RHO, lengths=False):
    """(rho sum_E g_k + sum_WM g_k) / (rho |E| + |WM|) with g_k = 1/n sum_i (r_i - mean r) s_i."""
    total = 0
    weights = [rho if source == "real" else 1.0 for source in sources]
    for weight, samples, row in zip(weights, groups, scores, strict=True):
        present = [i for i in range(len(samples)) if not np.isnan(row[i])]
        mean = sum(row[i] for i in present) / len(present)
        for i in present:
            length = samples[i].num_own_tokens if lengths else 1
            total = (
                total + weight * (row[i] - mean) / len(present) * score_vector(policy, samples[i]) / length
            )
    return total / sum(weights)


def cut(sample, drop):
    kept = slice(0, len(sample.token_ids) - drop)
    return Sample(sample.token_ids[kept], sample.mask[kept], sample.log_probs[kept])


def trajectories(policy, seed):
    """One or two turns, so that environment tokens stand between own ones, and lengths differ."""
    first = policy.sample([policy.begin("", "task")] * 12, seed=seed)
    longer = policy.sample([policy.extend(sample, "status: error") for sample in first[::2]], seed=seed + 1)
    samples = [longer[i // 2] if i % 2 == 0 else first[i] for i in range(12)]
    if policy.max_new_tokens > 6:  # an untrained language model never ends a reply itself
        samples = [cut(sample, 5 * (i % 4)) for i, sample in enumerate(samples)]
    assert len({len(sample.token_ids) for sample in samples}) > 3
    return [samples[:4], samples[4:8], samples[8:]]


@pytest.fixture(scope="module")
def language_model(tmp_path_factory):
    folder = tiny_language_model(tmp_path_factory.mktemp("model"))
    return LanguageModelPolicy(folder, max_new_tokens=24, device="cpu", dtype=torch.float64)


@pytest.fixture
def tabular():
    return TabularPolicy(torch.randn(8, 6, dtype=torch.float64, generator=torch.manual_seed(3)))


@pytest.mark.parametrize("reduction", ["sum", "sequence_mean"])
@pytest.mark.parametrize("micro_batch", [1, 2, 8])
@pytest.mark.parametrize("kind", ["tabular", "language_model"])
def test_gradient_is_the_fused_one(kind, micro_batch, reduction, request):
    policy = request.getfixturevalue(kind)
    groups, scores = trajectories(policy, seed=1), group_scores()
    expected = expected_gradient(policy, groups, scores, lengths=reduction == "sequence_mean")
    for parameter in policy.parameters():
        parameter.grad = None
    accumulate_gradients(
        policy,
        [sample for group in groups for sample in group],
        fuse(SOURCES, scores, scores, RHO).ravel().tolist(),
        loss_reduction=reduction,
        micro_batch=micro_batch,
    )
    ascent = -flat(parameter.grad for parameter in policy.parameters())
    assert float((ascent - expected).norm() / expected.norm()) < 1e-6
    assert float(expected.norm()) > 1e-4


@pytest.mark.parametrize("micro_batch", [1, 2, 8])
def test_a_step_of_the_trainer_moves_along_the_fused_gradient(tmp_path, micro_batch):
    config = GRPOConfig(
        groups_per_step=3,
        group_size=4,
        max_turns=2,
        anchor_fraction=0.34,
        kl_coefficient=0,
        entropy_coefficient=0,
        micro_batch=micro_batch,
        seed=4,
    )
    world_model = TokenEvaluator("world_model", lambda share: 0.2 + 0.5 * share)
    trainer = GRPOTrainer(config, tmp_path / "run", Parts(TabularPolicy.load, TokenEvaluator(), world_model))
    start = TabularPolicy(trainer.policy.table.detach())
    trainer.optimizer = torch.optim.SGD(trainer.policy.parameters(), lr=1.0)
    seen = {}
    play = trainer.rollouts.play
    trainer.rollouts.play = lambda groups, size, seed: (
        seen.update(groups=groups) or play(groups, size, seed=seed)
    )
    trainer.step()
    groups = seen["groups"]
    assert sorted(group.source for group in groups) == ["real", "world_model", "world_model"]
    # Before the first fit the map is the identity and rho is 1: scores are the episodes' own.
    scores = [[member.episode.score for member in group.trajectories] for group in groups]
    expected = expected_gradient(
        start,
        [[member.sample for member in group.trajectories] for group in groups],
        np.array(scores),
        [group.source for group in groups],
        rho=1.0,
    )
    moved = flat(trainer.policy.parameters()).detach() - flat(start.parameters()).detach()
    assert float((moved - expected).norm() / expected.norm()) < 1e-6


def regularised_gradient(policy, reference, samples, kl_coefficient, entropy_coefficient):
    """Gradient of mean over trajectories of the sum over own tokens of c KL - e H, from whole softmaxes."""
    total = 0
    for sample in samples:
        rows = policy.table[torch.tensor(sample.token_ids[:-1])][torch.tensor(sample.mask[1:])]
        others = reference.table[torch.tensor(sample.token_ids[:-1])][torch.tensor(sample.mask[1:])]
        p, q = rows.softmax(1), others.softmax(1)
        total = total + (kl_coefficient * p * (p / q).log() + entropy_coefficient * p * p.log()).sum()
    return torch.autograd.grad(total / len(samples), [policy.table])[0]


@pytest.mark.parametrize("micro_batch", [1, 5, 12])
def test_kl_and_entropy_are_means_over_trajectories_of_sums_over_own_tokens(tabular, micro_batch):
    reference = TabularPolicy()
    samples = [sample for group in trajectories(tabular, seed=2) for sample in group]
    expected = regularised_gradient(tabular, reference, samples, 0.3, 0.1)
    statistics = accumulate_gradients(
        tabular,
        samples,
        [0.0] * 12,
        reference=reference,
        kl_coefficient=0.3,
        entropy_coefficient=0.1,
        micro_batch=micro_batch,
    )
    assert torch.allclose(tabular.table.grad, expected, rtol=1e-9, atol=1e-12)
    assert statistics.tokens == sum(sample.num_own_tokens for sample in samples)
    assert statistics.kl > 0
    assert 0 < statistics.entropy < np.log(6)


def test_environment_tokens_get_no_gradient():
    policy = TabularPolicy()
    # The row of END is only ever used to predict the environment's token that follows it.
    sample = Sample((6, 1, 5, 7, 6, 2, 5), (False, True, True, False, False, True, True), (0.0,) * 7)
    accumulate_gradients(policy, [sample], [1.0])
    used = policy.table.grad.abs().sum(dim=1) > 0
    assert used.tolist() == [False, True, True, False, False, False, True, False]


def test_mismatch_is_the_gap_between_training_and_sampling(tabular):
    fresh = tabular.sample([tabular.begin("", "")] * 3, seed=0)
    assert accumulate_gradients(tabular, fresh, [0.0] * 3).mismatch < 1e-12
    shifted = [
        Sample(s.token_ids, s.mask, tuple(p + 0.25 * m for p, m in zip(s.log_probs, s.mask, strict=True)))
        for s in fresh
    ]
    assert accumulate_gradients(tabular, shifted, [0.0] * 3).mismatch == pytest.approx(0.25)


def test_lengths_must_agree(tabular):
    with pytest.raises(ValueError, match="as many coefficients"):
        accumulate_gradients(tabular, tabular.sample([tabular.begin("", "")], seed=0), [1.0, 2.0])


def gradient_of(policy, samples, coefficients, **settings):
    """What `accumulate_gradients` adds, as one vector, and its statistics."""
    for parameter in policy.parameters():
        parameter.grad = None
    statistics = accumulate_gradients(policy, samples, coefficients, **settings)
    return flat(parameter.grad for parameter in policy.parameters()).clone(), statistics


@given(
    lengths=st.lists(st.integers(1, 50), max_size=30),
    micro_batch=st.integers(1, 9),
    budget=st.none() | st.integers(1, 200),
    families=st.integers(1, 4),
)
def test_micro_batches_hold_each_trajectory_once_within_their_limits(lengths, micro_batch, budget, families):
    kin = [length % families for length in lengths]
    batches = micro_batches(lengths, micro_batch, budget, kin)
    in_order = [kin[j] for rows in batches for j in rows]
    assert len(list(groupby(in_order))) == len(set(kin))
    assert sorted(j for rows in batches for j in rows) == list(range(len(lengths)))
    for rows in batches:
        assert 1 <= len(rows) <= micro_batch
        padded = len(rows) * max(lengths[j] for j in rows)
        assert budget is None or len(rows) == 1 or padded <= budget


@pytest.mark.parametrize("budget", [1, 40, 100, 10_000])
@pytest.mark.parametrize("kind", ["tabular", "language_model"])
def test_a_token_budget_changes_no_gradient(kind, budget, request):
    policy = request.getfixturevalue(kind)
    samples = [sample for group in trajectories(policy, seed=5) for sample in group]
    coefficients = fuse(SOURCES, group_scores(), group_scores(), RHO).ravel().tolist()
    settings = {"reference": policy.frozen_copy(), "kl_coefficient": 0.1, "entropy_coefficient": 0.1}
    expected, _ = gradient_of(policy, samples, coefficients, micro_batch=1, **settings)
    found, _ = gradient_of(
        policy, samples, coefficients, micro_batch=12, micro_batch_tokens=budget, **settings
    )
    assert float((found - expected).norm() / expected.norm()) < 1e-6


@pytest.mark.parametrize("count", [1, 2, 3, 20])
def test_shares_add_up_to_the_whole(tabular, count):
    samples = [sample for group in trajectories(tabular, seed=5) for sample in group]
    coefficients = fuse(SOURCES, group_scores(), group_scores(), RHO).ravel().tolist()
    settings = {
        "reference": TabularPolicy(),
        "kl_coefficient": 0.1,
        "entropy_coefficient": 0.1,
        "micro_batch": 2,
    }
    expected, whole = gradient_of(tabular, samples, coefficients, **settings)
    tabular.table.grad = None
    parts = [
        accumulate_gradients(tabular, samples, coefficients, share=(number, count), **settings)
        for number in range(count)
    ]
    assert torch.allclose(flat([tabular.table.grad]), expected, rtol=1e-12, atol=1e-15)
    added = sum(parts, GradientStatistics())
    assert added.tokens == whole.tokens
    for name in ("kl", "entropy", "mismatch", "sequence_mismatch"):
        assert getattr(added, name) == pytest.approx(getattr(whole, name), rel=1e-12, abs=1e-15)


def test_sequence_mean_divides_every_term_by_own_tokens_only(tabular):
    """One trajectory of 3 own and 4 foreign tokens: its gradient is a third of that of the sum."""
    sample = Sample((6, 1, 2, 7, 7, 6, 5), (False, True, True, False, False, False, True), (0.0,) * 7)
    settings = {"reference": TabularPolicy(), "kl_coefficient": 0.3, "entropy_coefficient": 0.2}
    whole, _ = gradient_of(tabular, [sample], [0.7], **settings)
    mean, _ = gradient_of(tabular, [sample], [0.7], loss_reduction="sequence_mean", **settings)
    assert torch.allclose(mean, whole / 3, rtol=1e-12)


def three_states(logits):
    """A policy that says one of three things, then ends; the other rows of its table never count."""
    table = torch.full((8, 6), -1e4, dtype=torch.float64)
    table[6, :3] = torch.tensor(logits, dtype=torch.float64)
    return TabularPolicy(table)


def test_the_gradient_of_kl_is_the_analytic_one():
    """d KL(p || q) / d z_v = p_v (log p_v / q_v - KL) for a softmax p over three states with logits z."""
    policy, reference = three_states([0.3, -0.5, 1.1]), three_states([-0.2, 0.4, 0.1])
    p, q = policy.table[6, :3].detach().softmax(0), reference.table[6, :3].detach().softmax(0)
    kl = float((p * (p / q).log()).sum())
    sample = Sample((6, 1), (False, True), (0.0, float(p[1].log())))
    settings = {"reference": reference, "kl_coefficient": 1.0}
    _, statistics = gradient_of(policy, [sample], [0.0], **settings)
    assert statistics.kl == pytest.approx(kl, rel=1e-12)
    analytic = p * ((p / q).log() - kl)
    assert torch.allclose(policy.table.grad[6, :3], analytic, rtol=1e-10)


def test_the_gradient_of_entropy_is_the_analytic_one():
    """d H / d z_v = -p_v (log p_v + H), and the bonus is maximised."""
    policy = three_states([0.3, -0.5, 1.1])
    p = policy.table[6, :3].detach().softmax(0)
    entropy = float(-(p * p.log()).sum())
    _, statistics = gradient_of(
        policy, [Sample((6, 2), (False, True), (0.0, float(p[2].log())))], [0.0], entropy_coefficient=1.0
    )
    assert statistics.entropy == pytest.approx(entropy, rel=1e-12)
    assert torch.allclose(policy.table.grad[6, :3], p * (p.log() + entropy), rtol=1e-10)


def test_no_coefficient_touches_kl_and_entropy(tabular):
    """The gradient with both parts is the sum of each alone, whatever the coefficients are."""
    samples = [sample for group in trajectories(tabular, seed=2) for sample in group]
    settings = {"reference": TabularPolicy(), "kl_coefficient": 0.3, "entropy_coefficient": 0.1}
    coefficients = fuse(SOURCES, group_scores(), group_scores(), RHO).ravel().tolist()
    together, _ = gradient_of(tabular, samples, coefficients, **settings)
    alone, _ = gradient_of(tabular, samples, coefficients)
    held, _ = gradient_of(tabular, samples, [0.0] * 12, **settings)
    assert torch.allclose(together, alone + held, rtol=1e-10, atol=1e-14)


def clipped_gradient(policy, samples, coefficients, low, high):
    """PPO's clipped surrogate, token by token: a ratio past its bound on the gaining side gives nothing."""
    total = 0
    for sample, a in zip(samples, coefficients, strict=True):
        new = policy.log_probs([sample])[0]
        for position, own in enumerate(sample.mask[1:]):
            ratio = float((new[position].detach() - sample.log_probs[position + 1]).exp())
            bound = ratio > 1 + high if a > 0 else ratio < 1 - low
            if own and not bound:
                (grad,) = torch.autograd.grad(new[position], [policy.table], retain_graph=True)
                total = total - a * ratio * grad
    return total.reshape(-1)


def test_clipping_takes_the_gradient_of_tokens_that_have_moved_far_enough(tabular):
    samples = [sample for group in trajectories(tabular, seed=2) for sample in group]
    coefficients = fuse(SOURCES, group_scores(), group_scores(), RHO).ravel().tolist()
    moved = TabularPolicy(
        tabular.table.detach() + 0.5 * torch.randn(8, 6, dtype=torch.float64, generator=torch.manual_seed(1))
    )
    expected = clipped_gradient(moved, samples, coefficients, 0.2, 0.3)
    found, statistics = gradient_of(moved, samples, coefficients, clip=(0.2, 0.3))
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-13)
    assert 0 < statistics.clipped < statistics.tokens
    assert not torch.allclose(found, gradient_of(moved, samples, coefficients, clip=(1e3, 1e3))[0])


def test_clipping_changes_nothing_for_the_policy_that_sampled(tabular):
    samples = [sample for group in trajectories(tabular, seed=2) for sample in group]
    coefficients = fuse(SOURCES, group_scores(), group_scores(), RHO).ravel().tolist()
    expected, _ = gradient_of(tabular, samples, coefficients)
    found, statistics = gradient_of(tabular, samples, coefficients, clip=(0.2, 0.2))
    assert torch.allclose(found, expected, rtol=1e-10, atol=1e-14)
    assert statistics.clipped == 0


def test_the_mismatch_of_a_whole_trajectory_adds_up_over_its_tokens(tabular):
    """A hundredth a token is little; over many tokens it is not, and that is told apart."""
    (fresh,) = tabular.sample([tabular.begin("", "")], seed=3)
    own = fresh.num_own_tokens
    assert own > 1
    shifted = Sample(
        fresh.token_ids,
        fresh.mask,
        tuple(p + 0.01 * m for p, m in zip(fresh.log_probs, fresh.mask, strict=True)),
    )
    _, statistics = gradient_of(tabular, [shifted], [0.0])
    assert statistics.mismatch == pytest.approx(0.01)
    assert statistics.sequence_mismatch == pytest.approx(0.01 * own)
