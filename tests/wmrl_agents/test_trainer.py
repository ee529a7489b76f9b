import json
import sqlite3

import numpy as np
import pytest
import torch

from tests.stubs import TabularPolicy, TokenEvaluator
from wmrl_agents import GRPOConfig, GRPOTrainer
from wmrl_agents.grpo.parts import Parts
from wmrl_agents.runs import read_metrics
from wmrl_envs.errors import CompetitionError, ConfigError, WMRLError

BASE = GRPOConfig(
    steps=6,
    groups_per_step=4,
    group_size=4,
    max_turns=2,
    learning_rate=0.05,
    anchor_fraction=0.25,
    min_pairs=4,
    refit_every=4,
    warmup_groups=1,
)


def trainer_in(folder, executor=None, predictor=None, policy=TabularPolicy.load, **changes):
    parts = Parts(
        policy,
        executor or TokenEvaluator(),
        predictor or TokenEvaluator("world_model", lambda share: 0.3 + 0.4 * share),
    )
    return GRPOTrainer(BASE.replace(**changes), folder, parts)


def table(run_dir, query):
    with sqlite3.connect(run_dir / "run.sqlite") as connection:
        return connection.execute(query).fetchall()


def test_a_run_leaves_its_directory(tmp_path):
    trainer = trainer_in(tmp_path / "run")
    assert trainer.train()
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        "config.yaml",
        "environment.json",
        "metrics.jsonl",
        "run.sqlite",
        "checkpoints",
    }
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["libraries"]["torch"] == torch.__version__
    assert environment["machine"]["cores"] >= 1
    assert [step["step"] for step in read_metrics(tmp_path / "run")] == list(range(6))
    assert len(table(tmp_path / "run", "SELECT * FROM trajectories")) == 6 * 4 * 4


def test_it_learns_what_the_executions_reward(tmp_path):
    trainer = trainer_in(tmp_path / "run", steps=60, learning_rate=0.1, entropy_coefficient=0.0)
    trainer.train()
    metrics = read_metrics(tmp_path / "run")
    early = np.mean([step["score"] for step in metrics[:5]])
    late = np.mean([step["score"] for step in metrics[-10:]])
    assert early < 0.4
    assert late > 0.8
    used = sum(step["executions"] for step in metrics)
    assert used < 0.3 * sum(step["executions_real_would_use"] for step in metrics)


# reward_source: (groups in a step, executed ones, predicted ones), and what is asked
STREAMS = {
    "real": (4, 4, 0),
    "world_model": (4, 0, 4),
    "mixture": (4, 1, 3),
    "wmrl": (4, 1, 3),
    "anchors_alone": (1, 1, 0),
}


@pytest.mark.parametrize("reward_source", STREAMS)
def test_each_reward_source_executes_and_predicts_what_it_should(tmp_path, reward_source):
    executor, predictor = TokenEvaluator(), TokenEvaluator("world_model", lambda share: 0.3 + 0.4 * share)
    trainer = trainer_in(tmp_path / "run", executor, predictor, reward_source=reward_source)
    groups, executed, predicted = STREAMS[reward_source]
    assert len(trainer.draw_groups(0)) == groups
    trainer.train()
    rows = table(tmp_path / "run", 'SELECT DISTINCT step, "group", source FROM trajectories')
    sources = [source for _, _, source in rows]
    assert sources.count("real") == 6 * executed
    assert sources.count("world_model") == 6 * predicted
    metrics = read_metrics(tmp_path / "run")
    assert sum(step["executions"] for step in metrics) == len(executor.seen)
    would_use = sum(step["executions_real_would_use"] for step in metrics)
    played = max(len(executor.seen), len(predictor.seen))  # anchors are predicted too
    assert would_use == played * 4 / groups
    assert bool(predictor.seen) == (reward_source in ("world_model", "mixture", "wmrl"))
    with_both = table(
        tmp_path / "run",
        "SELECT COUNT(*) FROM trajectories WHERE source = 'real' AND predicted IS NOT NULL",
    )
    assert len(table(tmp_path / "run", "SELECT * FROM pairs")) == with_both[0][0]
    assert (with_both[0][0] > 0) == (reward_source in ("mixture", "wmrl"))
    corrected = [step["rho"] != 1 for step in metrics]
    assert any(corrected) == (reward_source == "wmrl")


@pytest.mark.parametrize("debias", [True, False])
@pytest.mark.parametrize("denoise", [True, False])
def test_the_two_corrections_are_switches(tmp_path, debias, denoise):
    trainer = trainer_in(tmp_path / "run", debias=debias, denoise=denoise)
    trainer.train()
    last = read_metrics(tmp_path / "run")[-1]
    assert (last["rho"] != 1) == denoise
    moved = table(
        tmp_path / "run", "SELECT COUNT(*) FROM trajectories WHERE calibrated != predicted AND step = 5"
    )
    assert (moved[0][0] > 0) == debias


def test_map_and_weight_of_a_step_come_from_steps_before_it(tmp_path):
    trainer = trainer_in(tmp_path / "run", steps=6)
    for step in range(6):
        rho = trainer.reward.rho
        before = trainer.reward.calibrate(np.linspace(0, 1, 11))
        metrics = trainer.step()
        assert metrics["rho"] == rho
        rows = table(
            tmp_path / "run",
            f"SELECT predicted, calibrated FROM trajectories WHERE step = {step} AND predicted NOT NULL",
        )
        knots = {round(float(p), 10): float(c) for p, c in zip(np.linspace(0, 1, 11), before, strict=True)}
        for predicted, calibrated in rows:
            if round(predicted, 10) in knots:
                assert calibrated == pytest.approx(knots[round(predicted, 10)])


def test_coefficients_of_a_group_sum_to_zero_and_anchors_weigh_rho(tmp_path):
    trainer = trainer_in(tmp_path / "run")
    trainer.train()
    for metrics in read_metrics(tmp_path / "run"):
        rows = table(
            tmp_path / "run",
            'SELECT "group", source, COALESCE(real, calibrated), coefficient FROM trajectories '
            f"WHERE step = {metrics['step']}",
        )
        for group in {row[0] for row in rows}:
            _, sources, scores, coefficients = zip(*[row for row in rows if row[0] == group], strict=True)
            weight = metrics["rho"] if sources[0] == "real" else 1.0
            expected = [weight / (metrics["rho"] + 3) * (s - np.mean(scores)) / 4 for s in scores]
            assert coefficients == pytest.approx(expected)
            assert sum(coefficients) == pytest.approx(0)


def test_pairs_are_unique_and_in_the_pool(tmp_path):
    trainer = trainer_in(tmp_path / "run")
    trainer.train()
    pairs = table(tmp_path / "run", 'SELECT step, "group", member, predicted, real FROM pairs')
    assert len({pair[:3] for pair in pairs}) == len(pairs) == len(trainer.pool)
    stored = table(
        tmp_path / "run",
        'SELECT step, "group", member, predicted, real FROM trajectories '
        "WHERE source = 'real' AND predicted IS NOT NULL",
    )
    assert sorted(pairs) == sorted(stored)


def test_missing_scores_are_counted_and_never_zero(tmp_path):
    predictor = TokenEvaluator("world_model", missing=4)
    trainer = trainer_in(tmp_path / "run", predictor=predictor, missing="drop")
    metrics = trainer.step()
    rows = table(tmp_path / "run", "SELECT real, predicted, coefficient FROM trajectories")
    lost = [row for row in rows if row[0] is None and row[1] is None]
    assert len(lost) == metrics["missing"] > 0
    assert all(row[2] == 0 for row in lost)
    assert metrics["failures_predicted"]["missing"] > 0
    assert metrics["rescued"] == 0


def test_rescues_count_as_executions(tmp_path):
    executor, predictor = TokenEvaluator(), TokenEvaluator("world_model", missing=4)
    trainer = trainer_in(tmp_path / "run", executor, predictor)
    metrics = trainer.step()
    assert metrics["rescued"] > 0
    assert metrics["executions"] == len(executor.seen)
    assert metrics["missing"] == 0
    stored = table(tmp_path / "run", "SELECT COUNT(*) FROM evaluations WHERE source = 'real'")
    assert stored[0][0] == len(executor.seen)


def test_repeated_executions_are_counted_by_content(tmp_path):
    executor = TokenEvaluator()
    trainer = trainer_in(tmp_path / "run", executor, competitions=("digits",), reward_source="real")
    trainer.train()
    metrics = read_metrics(tmp_path / "run")
    programs = [tuple(tokens) for tokens in executor.seen]
    assert sum(step["executions_repeated"] for step in metrics) == len(programs) - len(set(programs)) > 0


class Rigged(TokenEvaluator):
    """Everything crashes, or everything is worth the same."""

    def __init__(self, tokens):
        super().__init__()
        self.tokens = tokens

    def one(self, tokens):
        return super().one(self.tokens)


def talkative(source):
    """A policy whose every reply holds a program."""
    start = torch.zeros(8, 6, dtype=torch.float64)
    start[TabularPolicy.START, TabularPolicy.END] = -30.0
    return TabularPolicy(start)


@pytest.mark.parametrize(("tokens", "kind"), [([3], "failed"), ([1, 0], "solved")])
def test_steps_without_any_advantage_are_steps(tmp_path, tokens, kind):
    trainer = trainer_in(
        tmp_path / "run",
        Rigged(tokens),
        policy=talkative,
        reward_source="real",
        kl_coefficient=0,
        entropy_coefficient=0,
    )
    before = trainer.policy.table.detach().clone()
    trainer.train()
    metrics = read_metrics(tmp_path / "run")
    assert [step["step"] for step in metrics] == list(range(6))
    assert (tmp_path / "run" / "checkpoints" / "step-6").is_dir()
    for step in metrics:
        assert step["grad_norm"] == 0
        assert step["equal_groups"] == {"failed": 0, "solved": 0, kind: 4}
    assert torch.equal(trainer.policy.table, before)


def test_a_policy_that_samples_something_else_is_refused(tmp_path):
    class Cold(TabularPolicy):
        def sample(self, prompts, *, seed):
            sharp = TabularPolicy(self.table.detach() * 3 + torch.randn(8, 6, dtype=torch.float64))
            return sharp.sample(prompts, seed=seed)

    trainer = trainer_in(tmp_path / "run", policy=lambda source: Cold())
    with pytest.raises(WMRLError, match="does not train what it samples"):
        trainer.step()


def test_a_broken_gradient_is_refused(tmp_path):
    trainer = trainer_in(tmp_path / "run")
    statistics = trainer.policy.token_statistics

    def broken(samples, reference=None, *, entropy=False):
        seen = statistics(samples, reference, entropy=entropy)
        return type(seen)(seen.log_probs * float("nan"), seen.kl, seen.entropy, seen.mask)

    trainer.policy.token_statistics = broken
    with pytest.raises(WMRLError, match="not finite"):
        trainer.step()


def test_long_gradients_are_shortened_only_on_request(tmp_path):
    moved = {}
    for name, limit in (("free", None), ("short", 1e-3)):
        trainer = trainer_in(tmp_path / name, max_grad_norm=limit)
        trainer.optimizer = torch.optim.SGD(trainer.policy.parameters(), lr=1.0)
        before = trainer.policy.table.detach().clone()
        norm = trainer.step()["grad_norm"]
        moved[name] = float((trainer.policy.table.detach() - before).norm())
        assert norm > 0.01
    assert moved["free"] == pytest.approx(norm)
    assert moved["short"] == pytest.approx(1e-3, rel=1e-3)


def test_stopping_leaves_a_checkpoint(tmp_path):
    trainer = trainer_in(tmp_path / "run", checkpoint_every=100)
    assert not trainer.train(should_stop=lambda: trainer.next_step == 2)
    assert (tmp_path / "run" / "checkpoints" / "step-2").is_dir()
    assert trainer_in(tmp_path / "run").next_step == 2


def test_a_step_can_be_saved_twice(tmp_path):
    trainer = trainer_in(tmp_path / "run", steps=2)
    assert trainer.train()
    trainer.save()
    trainer.save()
    folders = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert folders == ["step-1", "step-2"]
    assert trainer_in(tmp_path / "run", steps=2).next_step == 2


def test_what_an_update_that_was_refused_left_behind_is_not_in_the_next_gradient(tmp_path):
    norms = []
    for name in ("plain", "after"):
        trainer = trainer_in(tmp_path / name)
        if name == "after":
            trainer.policy.table.grad = torch.full_like(trainer.policy.table, 1e3)
        norms.append(trainer.step()["grad_norm"])
    assert norms[0] == norms[1]


def test_a_run_goes_on_as_it_began(tmp_path):
    trainer_in(tmp_path / "run", steps=2).train()
    with pytest.raises(ConfigError, match=r"made with learning_rate 0\.05, not 0\.1: within a run only"):
        trainer_in(tmp_path / "run", learning_rate=0.1)


def test_unknown_competitions_are_refused(tmp_path):
    with pytest.raises(CompetitionError, match="Unknown competition 'titanik'"):
        trainer_in(tmp_path / "run", competitions=("titanik",))
    assert not (tmp_path / "run").exists()


def test_held_out_competitions_are_not_trained_on(tmp_path):
    import shutil

    from wmrl_envs.autoresearch import load_competition

    root = tmp_path / "tasks" / "later"
    shutil.copytree(load_competition("digits").root, root)
    settings = (root / "competition.yaml").read_text().replace("split: train", "split: heldout")
    (root / "competition.yaml").write_text(settings.replace("name: digits", "name: later"))
    with pytest.raises(ConfigError, match="'later' is held out"):
        trainer_in(tmp_path / "run", competitions=("later",), data_root=str(tmp_path / "tasks"))
    with pytest.raises(ConfigError, match="no competitions of the split 'train'"):
        trainer_in(tmp_path / "run", data_root=str(tmp_path / "tasks"))


class Cold(TabularPolicy):
    """Samples from a sharper distribution than the one that it trains."""

    def sample(self, prompts, *, seed):
        return TabularPolicy(self.table.detach() * 3 + 1.0 * torch.arange(6)).sample(prompts, seed=seed)

    @classmethod
    def load(cls, source):
        return cls(TabularPolicy.load(source).table.detach())


def test_nothing_is_updated_or_written_where_training_and_sampling_differ(tmp_path):
    trainer = trainer_in(tmp_path / "run", policy=Cold.load)
    before = trainer.policy.table.detach().clone()
    with pytest.raises(WMRLError, match=r"Nothing was updated.*temperature.*top-p.*pads.*dtype"):
        trainer.step()
    assert torch.equal(trainer.policy.table, before)
    assert read_metrics(tmp_path / "run") == []
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_rounding_of_the_number_format_is_no_fault(tmp_path, dtype):
    """Two sound engines in bfloat16 differ by about 0.05 a token, which would be a fault in float32."""

    class Rounded(TabularPolicy):
        def sample(self, prompts, *, seed):
            noise = 0.24 * torch.randn(8, 6, generator=torch.Generator().manual_seed(1)).double()
            return TabularPolicy(self.table.detach() + noise).sample(prompts, seed=seed)

    trainer = trainer_in(tmp_path / "run", policy=lambda source: Rounded(), dtype=dtype, steps=1)
    if dtype == "float32":
        with pytest.raises(WMRLError, match=r"more than 0\.05"):
            trainer.step()
    else:
        assert 0.05 < trainer.step()["logp_mismatch"] < 0.15


def test_a_sampler_that_went_wrong_is_found_after_a_resume_too(tmp_path):
    trainer_in(tmp_path / "run", steps=2).train()
    resumed = trainer_in(tmp_path / "run", policy=Cold.load)
    before = resumed.policy.table.detach().clone()
    with pytest.raises(WMRLError, match="does not train what it samples"):
        resumed.train()
    assert torch.equal(resumed.policy.table, before)
    assert len(read_metrics(tmp_path / "run")) == 2


class Stale(TabularPolicy):
    """Samples with the weights that it was loaded with, whatever it has learned since."""

    def sample(self, prompts, *, seed):
        return TabularPolicy(self.first).sample(prompts, seed=seed)

    @classmethod
    def load(cls, source):
        policy = cls(TabularPolicy.load(source).table.detach())
        policy.first = policy.table.detach().clone()
        return policy


def test_a_sampler_that_misses_an_update_is_found(tmp_path):
    trainer = trainer_in(tmp_path / "run", policy=Stale.load, learning_rate=0.5)
    trainer.step()
    updated = trainer.policy.table.detach().clone()
    with pytest.raises(WMRLError, match="does not train what it samples"):
        trainer.step()
    assert torch.equal(trainer.policy.table, updated)
    assert len(read_metrics(tmp_path / "run")) == 1


def test_a_batch_can_feed_several_updates(tmp_path):
    """The first one is that of a single update; the later ones are clipped, and rewards are learned once."""
    once = trainer_in(tmp_path / "once", steps=1)
    thrice = trainer_in(tmp_path / "thrice", steps=1, updates_per_batch=3, clip_low=0.1, clip_high=0.1)
    first, several = once.step(), thrice.step()
    assert several["grad_norm"] == first["grad_norm"]
    assert several["kl"] == first["kl"]
    assert first["clipped_tokens"] is None
    assert 0 < several["clipped_tokens"] < 1
    assert several["pairs"] == first["pairs"]
    assert thrice.optimizer.state[thrice.policy.table]["step"] == 3
    start = TabularPolicy().table
    moved = [float((trainer.policy.table - start).detach().norm()) for trainer in (once, thrice)]
    assert moved[1] > 1.5 * moved[0]


def test_time_is_accounted_for_by_phase(tmp_path):
    metrics = trainer_in(tmp_path / "run").step()
    phases = ("generate", "predict", "train", "wait", "other")
    assert sum(metrics[f"seconds_{phase}"] for phase in phases) == pytest.approx(metrics["seconds_step"])
    for phase in ("generate", "predict", "train"):
        assert metrics[f"seconds_{phase}"] > 0
    assert 0 < metrics["seconds_workers_generate"] <= metrics["seconds_generate"]
    assert 0 < metrics["seconds_workers_train"] <= metrics["seconds_train"]


def test_a_lost_group_and_a_lost_step_are_still_a_step(tmp_path):
    """No score of any trajectory is known: the policy is only held to its reference, and the run goes on."""

    class Nothing(TokenEvaluator):
        def one(self, tokens):
            return TokenEvaluator(missing=tokens[0]).one(tokens)

    trainer = trainer_in(
        tmp_path / "run", Nothing(), reward_source="real", policy=talkative, entropy_coefficient=0, steps=2
    )
    trainer.train()
    for step in read_metrics(tmp_path / "run"):
        assert step["missing"] == 16
        assert step["score"] is None
        assert step["grad_norm"] == pytest.approx(0, abs=1e-12)
    rows = table(tmp_path / "run", "SELECT real, coefficient FROM trajectories")
    assert set(rows) == {(None, 0.0)}
