"""The gradient audit against groups whose gradients are known."""

import numpy as np
import pytest
import torch

from tests.stubs import TabularPolicy, TokenEvaluator
from tests.wmrl_agents.test_gradients import flat, gradient_of, group_scores, trajectories
from wmrl_agents.grpo.audit import GradientAudit, excess_variance, group_coefficients, sketch_group
from wmrl_agents.grpo.config import GRPOConfig
from wmrl_agents.grpo.learners import Learners
from wmrl_agents.grpo.parts import Parts
from wmrl_agents.grpo.scores import StepScores
from wmrl_agents.grpo.sketches import GradientSketch
from wmrl_agents.grpo.trainer import GRPOTrainer
from wmrl_agents.runs import read_metrics
from wmrl_rewards import fuse


@pytest.fixture
def policy():
    return TabularPolicy(torch.randn(8, 6, dtype=torch.float64, generator=torch.manual_seed(3)))


def scores_of(sources, real, calibrated):
    real, calibrated = np.asarray(real, float), np.asarray(calibrated, float)
    anchors = np.array([[source == "real"] for source in sources])
    used = np.where(anchors, real, calibrated)
    return StepScores(sources, real, calibrated, calibrated, used, fuse(sources, real, calibrated, 2.0))


def test_a_sketch_keeps_lengths_and_angles():
    generator = torch.manual_seed(0)
    one, other = (torch.randn(100_000, generator=generator, dtype=torch.float64) for _ in range(2))
    other += 0.5 * one
    sketch = GradientSketch(seed=4)
    found = sketch([one]) @ sketch([other])
    # Standard deviation of the inner product: at most sqrt(2 / d) |x| |y|.
    allowed = 4 * (2 / sketch.dimension) ** 0.5 * float(one.norm() * other.norm())
    assert abs(float(found - one @ other)) < allowed
    assert float(sketch([one]).norm() / one.norm()) == pytest.approx(1, abs=4 * 0.5 * (2 / 8192) ** 0.5)


def test_sketches_are_unbiased_over_seeds():
    one, other = torch.tensor([1.0, 2.0, -1.0, 0.5]), torch.tensor([0.5, -1.0, 3.0, 2.0])
    found = [float(GradientSketch(4, seed)([one]) @ GradientSketch(4, seed)([other])) for seed in range(4000)]
    error = np.std(found) / len(found) ** 0.5
    assert abs(np.mean(found) - float(one @ other)) < 4 * error


def test_a_sketch_is_linear_and_takes_parameters_as_they_come():
    sketch, values = GradientSketch(64), torch.arange(10.0)
    assert torch.equal(sketch([values[:3].reshape(3, 1), values[3:]]), sketch([values]))
    assert torch.allclose(sketch([2 * values + 1]), 2 * sketch([values]) + sketch([torch.ones(10)]))
    first, second = torch.nn.Parameter(torch.zeros(4)), torch.nn.Parameter(torch.zeros(6))
    second.grad = values[:6]
    assert torch.equal(sketch.gradient([first, second]), sketch([torch.zeros(4), values[:6]]))
    assert not torch.equal(GradientSketch(64, seed=1)([values]), sketch([values]))


def test_long_tensors_are_taken_in_pieces(monkeypatch):
    values = torch.randn(1000, generator=torch.manual_seed(0))
    whole = GradientSketch(256)([values])
    monkeypatch.setattr("wmrl_agents.grpo.sketches._PIECE", 7)
    assert torch.allclose(GradientSketch(256)([values]), whole)


@pytest.mark.parametrize("reduction", ["sum", "sequence_mean"])
@pytest.mark.parametrize("micro_batch", [1, 3, 8])
def test_sketches_of_groups_add_up_to_the_sketch_of_the_gradient(policy, micro_batch, reduction):
    """Σ w_k z_k / Σ w_k is the sketch of ĝ, exactly, since sketches are linear."""
    groups, scores = trajectories(policy, seed=1), group_scores()
    sources, rho = ["real", "world_model", "world_model"], 2.5
    config = GRPOConfig(micro_batch=micro_batch, loss_reduction=reduction)
    step = scores_of(sources, scores, scores)
    rows = [group_coefficients(step, k)[0][0] for k in range(3)]
    found = [sketch_group(policy, groups[k], [rows[k]], config)[0] for k in range(3)]
    assert policy.table.grad is None
    fused = (rho * found[0] + found[1] + found[2]) / (rho + 2)
    samples = [sample for group in groups for sample in group]
    coefficients = fuse(sources, scores, scores, rho).ravel().tolist()
    gradient_of(policy, samples, coefficients, loss_reduction=reduction)
    expected = GradientSketch(seed=config.seed)([-policy.table.grad])
    assert torch.allclose(fused, expected, rtol=1e-9, atol=1e-13)
    assert float(expected.norm()) > 0


def test_an_anchor_has_a_gradient_for_each_kind_of_score():
    nan = float("nan")
    step = scores_of(
        ["real", "world_model", "real"],
        [[0.0, 1.0, nan, 0.5], [nan, nan, 0.0, nan], [0.2, nan, nan, nan]],
        [[0.2, 0.4, 0.9, nan], [0.5, 1.0, nan, nan], [0.2, 0.3, 0.4, 0.5]],
    )
    anchor, usable = group_coefficients(step, 0)
    assert usable
    assert anchor[0] == pytest.approx([-0.5 / 3, 0.5 / 3, 0.0, 0.0])
    mean = (0.2 + 0.4 + 0.5) / 3  # nothing was predicted for the last one: its real score stands in
    assert anchor[1] == pytest.approx([(0.2 - mean) / 3, (0.4 - mean) / 3, 0.0, (0.5 - mean) / 3])
    predicted, usable = group_coefficients(step, 1)
    assert usable
    assert len(predicted) == 1
    assert predicted[0] == pytest.approx([0.0, 0.5 / 3, -0.5 / 3, 0.0])
    assert not group_coefficients(step, 2)[1]


def test_the_best_weight_has_no_excess_and_others_do():
    for ratio in (0.5, 1.0, 3.0):
        assert excess_variance(ratio, ratio, 1, 7) == pytest.approx(0, abs=1e-12)
        for rho in (ratio / 2, ratio * 2):
            assert excess_variance(ratio, rho, 1, 7) > 0
    # By simulation: one draw of variance 1 and seven of variance 4, weights 1 to 1 against 4 to 1.
    draws = np.random.default_rng(0).normal(size=(200_000, 8)) * ([1.0] + [2.0] * 7)
    plain = draws.mean(axis=1).var()
    best = ((4 * draws[:, 0] + draws[:, 1:].sum(axis=1)) / 11).var()
    assert excess_variance(4.0, 1.0, 1, 7) == pytest.approx(plain / best - 1, abs=0.01)


def linear_groups(number, bias, noise, size=50, seed=0):
    """Group gradients of a linear policy: mean of length 1, noise of variance 4, the world model's on top."""
    generator = np.random.default_rng(seed)
    mean = np.zeros(size)
    mean[0] = 1.0
    real = mean + generator.normal(size=(number, size)) * (4 / size) ** 0.5
    worse = real + generator.normal(size=(number, size)) * (noise / size) ** 0.5
    worse[:, 1] += bias
    return torch.from_numpy(real), torch.from_numpy(worse)


def test_known_variances_and_a_known_bias_are_measured():
    """V_E = 4, V_WM = 4 + 2, a bias of .75 at a right angle to a mean gradient of length 1."""
    audit, sketch = GradientAudit(window=4000), GradientSketch()
    real, worse = linear_groups(4000, bias=0.75, noise=2.0)
    for pair in zip(real, worse, strict=True):
        audit.observe([sketch([one]) for one in pair])
    for one in worse[:100]:
        audit.observe([sketch([one])])
    found = audit.statistics(rho=1.5, anchors=1, predicted=7)
    assert found["audit_groups"] == 4000
    assert found["audit_variance_real"] == pytest.approx(4, rel=0.05)
    assert found["audit_variance_calibrated"] == pytest.approx(6, rel=0.05)
    assert found["audit_variance_predicted"] == pytest.approx(6, rel=0.15)
    assert found["audit_ratio"] == pytest.approx(1.5, rel=0.03)
    assert found["audit_excess_variance"] == pytest.approx(0, abs=1e-3)
    assert found["audit_cosine"] == pytest.approx(1 / (1 + 0.75**2) ** 0.5, abs=0.02)
    assert found["audit_bias"] == pytest.approx(0.75, abs=0.05)
    assert found["audit_bias_by_chance"] == pytest.approx((2 / 4000) ** 0.5, rel=0.1)


def test_without_a_bias_the_difference_is_what_chance_makes_it():
    audit, sketch = GradientAudit(window=64), GradientSketch()
    for pair in zip(*linear_groups(64, bias=0.0, noise=2.0), strict=True):
        audit.observe([sketch([one]) for one in pair])
    found = audit.statistics(1.0, 1, 7)
    assert found["audit_bias"] == pytest.approx(found["audit_bias_by_chance"], rel=0.4)


def test_little_is_said_as_none_and_the_first_fit_forgets():
    audit = GradientAudit()
    assert set(audit.statistics(1.0, 1, 7).values()) == {0, None}
    audit.begin(fitted=False)
    for _ in range(3):
        audit.observe([torch.ones(4), torch.ones(4)])
    equal = audit.statistics(1.0, 1, 7)
    assert equal["audit_groups"] == 3
    assert equal["audit_ratio"] is None  # both variances are 0
    assert equal["audit_cosine"] == pytest.approx(1.0)
    audit.begin(fitted=True)
    assert audit.statistics(1.0, 1, 7)["audit_groups"] == 0
    audit.observe([torch.ones(4), torch.ones(4)])
    audit.begin(fitted=True)
    assert audit.statistics(1.0, 1, 7)["audit_groups"] == 1


AUDITED = GRPOConfig(
    steps=6,
    groups_per_step=4,
    group_size=4,
    max_turns=2,
    learning_rate=0.05,
    anchor_fraction=0.5,
    min_pairs=4,
    refit_every=4,
    warmup_groups=1,
    audit_gradients=True,
    checkpoint_every=1,
)


def trained(run_dir, **changes):
    world_model = TokenEvaluator("world_model", lambda share: 0.3 + 0.4 * share**2)
    parts = Parts(TabularPolicy.load, TokenEvaluator(), world_model)
    trainer = GRPOTrainer(AUDITED.replace(**changes), run_dir, parts)
    assert trainer.train()
    trainer.close()
    return [
        {name: value for name, value in step.items() if not name.startswith("seconds_")}
        for step in read_metrics(run_dir)
    ], trainer.policy.table.detach()


def test_an_audited_run_is_the_run_and_says_more(tmp_path):
    plain, table = trained(tmp_path / "plain", audit_gradients=False)
    audited, same = trained(tmp_path / "audited")
    assert torch.equal(same, table)
    for step, other in zip(audited, plain, strict=True):
        assert {name: value for name, value in step.items() if not name.startswith("audit_")} == other
    last = audited[-1]
    assert last["fitted"]
    assert last["audit_groups"] > 4
    assert last["audit_ratio"] > 0
    assert last["audit_excess_variance"] >= 0
    assert -1 <= last["audit_cosine"] <= 1


def test_the_window_of_an_audit_survives_a_resume(tmp_path):
    whole, _ = trained(tmp_path / "whole")
    trained(tmp_path / "parts", steps=4)
    parts, _ = trained(tmp_path / "parts")
    assert parts == whole


def test_groups_are_sketched_in_shares(policy):
    groups = trajectories(policy, seed=1)
    jobs = [(group, [[0.5, -0.5, 0.25, -0.25]]) for group in groups]
    learners = Learners(AUDITED, policy, None)
    found = learners.sketch(jobs)
    assert len(found) == 3
    for (group, rows), sketches in zip(jobs, found, strict=True):
        gradient_of(policy, group, rows[0])
        expected = GradientSketch(seed=AUDITED.seed)([-flat([policy.table.grad])])
        assert torch.allclose(sketches[0], expected, rtol=1e-9, atol=1e-14)
