from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event

import numpy as np
import pytest

from tests.stubs import TabularPolicy, TokenEvaluator, program_tokens
from wmrl_agents.grpo.rollouts import Group, Rollouts, RolloutSettings
from wmrl_agents.grpo.scores import score_step
from wmrl_envs.autoresearch import load_competition
from wmrl_envs.errors import InfrastructureError
from wmrl_rewards import WorldModelReward

DIGITS = load_competition("digits")


class Noting(TokenEvaluator):
    """Notes the order of what it is asked for."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.orders = []

    def submit(self, solution, group=None, *, deadline=float("inf")):
        self.orders.append((solution.turn, group, deadline))
        return super().submit(solution)


def groups_of(*sources):
    return [Group(index, DIGITS, source) for index, source in enumerate(sources)]


def played(groups, executor=None, predictor=None, size=3, seed=0, policy=None, **settings):
    rollouts = Rollouts(policy or TabularPolicy(), executor, predictor, RolloutSettings(**settings))
    rollouts.play(groups, size, seed=seed)
    return groups


def everyone(groups):
    return [trajectory for group in groups for trajectory in group.trajectories]


def story(groups):
    """All that was said, and all scores."""
    return [
        (
            t.sample.token_ids,
            [turn.observation for turn in t.episode.turns],
            t.episode.score,
            t.predicted_score,
        )
        for t in everyone(groups)
    ]


def test_groups_of_the_world_model_execute_nothing():
    executor, predictor = TokenEvaluator(), TokenEvaluator("world_model")
    groups = played(groups_of("world_model", "world_model"), executor, predictor, max_turns=3)
    assert executor.seen == []
    assert len(predictor.seen) == sum(len(t.episode.evaluations) for t in everyone(groups)) > 6
    assert all(trajectory.executions == [] for trajectory in everyone(groups))


def test_every_turn_of_an_anchor_is_executed_and_predicted():
    executor = TokenEvaluator()
    groups = played(groups_of("real"), executor, TokenEvaluator("world_model", lambda s: s / 2), max_turns=3)
    programs = [
        program_tokens(t.solution.code) for m in everyone(groups) for t in m.episode.turns if t.solution
    ]
    assert sorted(programs) == sorted(executor.seen)
    for trajectory in everyone(groups):
        assert len(trajectory.executions) == len(trajectory.episode.evaluations)
        for turn, prediction in zip(trajectory.episode.turns, trajectory.predictions, strict=True):
            assert (prediction is None) == (turn.solution is None)
            if prediction is not None:
                assert prediction.score == turn.evaluation.score / 2


def test_predicted_score_of_an_anchor_follows_the_rule_of_the_episode():
    for rule in ("final", "best"):
        groups = played(
            groups_of("real"),
            TokenEvaluator(),
            TokenEvaluator("world_model", lambda share: 1 - share),
            max_turns=4,
            trajectory_score=rule,
            size=8,
        )
        for trajectory in everyone(groups):
            scores = [prediction.score for prediction in trajectory.predictions if prediction]
            if scores:
                assert trajectory.predicted_score == (scores[-1] if rule == "final" else max(scores))


def test_a_group_goes_on_when_its_own_evaluations_are_there():
    """The first group's executions end only after the second one's next turn was submitted."""
    second_turn = Event()
    pool = ThreadPoolExecutor(16)
    real = TokenEvaluator()

    class Executor:
        def submit(self, solution, group=None, *, deadline=None):
            if solution.competition is DIGITS:
                if solution.turn == 1:
                    second_turn.set()
                return real.submit(solution)
            return pool.submit(self.late, solution)

        def late(self, solution):
            assert second_turn.wait(timeout=60), "the second group waited for the first"
            return real.evaluate([solution])[0]

    groups = [Group(0, load_competition("sms-spam"), "real"), Group(1, DIGITS, "real")]
    played(groups, Executor(), max_turns=2, size=4)
    assert all(trajectory.episode.done for trajectory in everyone(groups))


class ShuffledExecutor:
    """Real results in an order that depends on a seed, from several threads."""

    def __init__(self, seed, workers):
        self.random = np.random.default_rng(seed)
        self.pool = ThreadPoolExecutor(workers)
        self.inner = TokenEvaluator()
        self.held = []

    def submit(self, solution, group=None, *, deadline=None):
        future = Future()
        self.held.insert(int(self.random.integers(len(self.held) + 1)), (future, solution))
        self.pool.submit(self.release)
        return future

    def release(self):
        future, solution = self.held.pop(0)
        future.set_result(self.inner.evaluate([solution])[0])


def test_results_do_not_depend_on_who_is_faster():
    sources = ("real", "world_model", "real", "world_model", "real")
    predictor = TokenEvaluator("world_model", lambda share: 0.3 + 0.3 * share)
    expected = story(played(groups_of(*sources), TokenEvaluator(), predictor, max_turns=4))
    for seed, workers in ((0, 1), (1, 1), (2, 4)):
        groups = played(groups_of(*sources), ShuffledExecutor(seed, workers), predictor, max_turns=4)
        assert story(groups) == expected


def test_seeds_decide_and_groups_differ():
    first = story(played(groups_of("real", "real"), TokenEvaluator(), seed=1))
    assert first == story(played(groups_of("real", "real"), TokenEvaluator(), seed=1))
    assert first != story(played(groups_of("real", "real"), TokenEvaluator(), seed=2))
    assert first[:3] != first[3:]


def test_batches_stay_within_their_size():
    sizes = []

    class Watched(TabularPolicy):
        def sample(self, prompts, *, seed):
            sizes.append(len(prompts))
            return super().sample(prompts, seed=seed)

    predictor = TokenEvaluator("world_model")
    played(
        groups_of(*["world_model"] * 3), None, predictor, policy=Watched(), generation_batch=4, max_turns=1
    )
    assert sizes == [4, 4, 1]


def test_own_tokens_stay_as_they_were_sampled():
    groups = played(groups_of("real"), TokenEvaluator(), max_turns=3, size=6)
    for trajectory in everyone(groups):
        record = trajectory.sample
        assert len(record.token_ids) == len(record.mask) == len(record.log_probs)
        own = [token for token, mine in zip(record.token_ids, record.mask, strict=True) if mine]
        said = []
        for turn in trajectory.episode.turns:
            said += program_tokens(turn.solution.code) if turn.solution else []
        assert [token for token in own if token != TabularPolicy.END] == said
        assert all((p < 0) == m for p, m in zip(record.log_probs, record.mask, strict=True))


def test_a_full_context_ends_the_trajectory_and_keeps_its_score():
    policy = TabularPolicy(max_context=12)  # room for a first reply of 6 tokens, seldom for a second one
    groups = played(groups_of("real"), TokenEvaluator(), policy=policy, max_turns=4, size=8)
    full = [trajectory for trajectory in everyone(groups) if trajectory.context_full]
    assert full
    for trajectory in everyone(groups):
        assert len(trajectory.sample.token_ids) <= 12
        assert trajectory.episode.score is not None
        assert len(trajectory.truncated) == trajectory.episode.turn


def lost_program(groups, missing):
    """Members whose last program holds the token that the world model cannot predict."""
    return [
        trajectory
        for trajectory in everyone(groups)
        if trajectory.episode.scored and missing in program_tokens(trajectory.episode.scored[0].code)
    ]


@pytest.mark.parametrize("missing", ["execute", "drop"])
def test_missing_predictions_are_executed_or_dropped(missing):
    executor, predictor = TokenEvaluator(), TokenEvaluator("world_model", missing=4)
    groups = played(groups_of("world_model"), executor, predictor, size=8, missing=missing, max_turns=2)
    lost = lost_program(groups, 4)
    assert 0 < len(lost) < 8
    assert len(executor.seen) == (len(lost) if missing == "execute" else 0)
    scores = score_step(groups, WorldModelReward())
    for member, trajectory in enumerate(everyone(groups)):
        used, coefficient = scores.used[0, member], scores.coefficients[0, member]
        if trajectory not in lost:
            assert used == trajectory.episode.score
        elif missing == "execute":
            assert used == trajectory.rescue.score == scores.real[0, member]
            assert len(trajectory.executions) == 1
        else:
            assert np.isnan(used)
            assert coefficient == 0


def test_broken_infrastructure_is_missing_never_zero():
    groups = played(groups_of("real"), TokenEvaluator(missing=4), size=8, max_turns=1)
    lost = lost_program(groups, 4)
    scores = score_step(groups, WorldModelReward())
    for member, trajectory in enumerate(everyone(groups)):
        assert np.isnan(scores.used[0, member]) == (trajectory in lost)
        assert np.isnan(scores.real[0, member]) == (trajectory in lost)


def test_a_trajectory_without_a_program_scores_zero_in_both_streams_and_gives_no_pair():
    import torch

    silent = torch.zeros(8, 6, dtype=torch.float64)
    silent[TabularPolicy.START, TabularPolicy.END] = 3.0  # most replies end before they begin
    groups = played(
        groups_of("real", "world_model"),
        TokenEvaluator(),
        TokenEvaluator("world_model"),
        policy=TabularPolicy(silent),
        size=6,
        max_turns=1,
    )
    reward = WorldModelReward(min_pairs=2)
    reward.observe(0, ["real"], [[0.5, 0.9]], [[0.0, 1.0]])  # the map sends a predicted 0 to 0.5
    scores = score_step(groups, reward)
    mute = np.array([[t.episode.scored is None for t in group.trajectories] for group in groups])
    assert mute.any(axis=1).all()
    assert (scores.used[mute] == 0).all()
    assert np.isnan(scores.predicted[mute]).all()
    spoken = scores.predicted[1][~mute[1]]
    assert np.array_equal(scores.used[1][~mute[1]], reward.calibrate(spoken))
    pairs = len(reward.pool)
    reward.observe(1, scores.sources, scores.real, scores.predicted)
    assert len(reward.pool) - pairs == int((~mute[0]).sum())


def test_observations_are_cut_to_their_limit():
    heard = []

    class Listening(TabularPolicy):
        def extend(self, sample, user):
            heard.append(self.count_tokens(user))
            return super().extend(sample, user)

    class Wordy(TokenEvaluator):
        def one(self, tokens):
            from wmrl_envs.evaluation import Evaluation, Outcome

            return Evaluation(Outcome("error", stderr="word " * 700), source="real")

    groups = groups_of("real")
    played(groups, Wordy(), policy=Listening(), max_turns=2, max_observation_tokens=64)
    assert heard
    assert max(heard) <= 64


def test_an_execution_is_queued_under_its_group_and_without_a_deadline():
    executor = Noting()
    played(groups_of("real", "world_model", "real"), executor, TokenEvaluator("world_model"), max_turns=1)
    assert {group for _, group, _ in executor.orders} == {0, 2}
    assert {deadline for _, _, deadline in executor.orders} == {float("inf")}


def test_the_deadline_of_a_step_counts_from_its_beginning():
    executor, times = Noting(), iter([100.0, 500.0])
    settings = RolloutSettings(max_turns=3, step_deadline_s=60)
    rollouts = Rollouts(TabularPolicy(), executor, None, settings, clock=lambda: next(times))
    for expected in (160.0, 560.0):
        executor.orders.clear()
        rollouts.play(groups_of("real"), 3, seed=0)
        assert {deadline for _, _, deadline in executor.orders} == {expected}
        assert {turn for turn, _, _ in executor.orders} > {0}


def test_where_the_machine_fails_the_score_is_missing_or_the_run_stops():
    groups = played(groups_of("real"), TokenEvaluator(missing=1), max_turns=1, size=12)
    scores = [t.episode.score for t in everyone(groups) if t.executions and t.executions[0][1].machine_failed]
    assert scores
    assert set(scores) == {None}
    with pytest.raises(InfrastructureError, match=r"lost .*--on-infrastructure continue"):
        played(groups_of("real"), TokenEvaluator(missing=1), max_turns=1, size=12, on_infrastructure="stop")


def test_the_world_models_groups_are_played_to_their_end_while_anchors_execute():
    """Executions of the anchors end only once all other groups have said their last word, and are kept."""
    last_words = Event()
    pool = ThreadPoolExecutor(16)
    real, asked = TokenEvaluator(), []

    class Slow:
        def submit(self, solution, group=None, *, deadline=None):
            return pool.submit(self.late, solution)

        def late(self, solution):
            assert last_words.wait(timeout=60), "the groups of the world model waited for the anchors"
            return real.evaluate([solution])[0]

    class Predictor(TokenEvaluator):
        def evaluate(self, solutions):
            if any(solution.competition.name == "sms-spam" for solution in solutions):
                asked.extend(solution.turn for solution in solutions)
                if asked[-1] == 2:
                    last_words.set()
            return super().evaluate(solutions)

    groups = [
        Group(0, DIGITS, "real"),
        Group(1, load_competition("sms-spam"), "world_model"),
        Group(2, DIGITS, "real"),
    ]
    played(groups, Slow(), Predictor("world_model"), policy=TabularPolicy(talkative()), max_turns=3, size=4)
    assert set(asked) == {0, 1, 2}
    for group in (groups[0], groups[2]):
        for trajectory in group.trajectories:
            assert trajectory.episode.turn == 3
            assert len(trajectory.executions) == 3
            assert trajectory.episode.score is not None


def talkative():
    """A table whose every reply holds a program."""
    import torch

    table = torch.zeros(8, 6, dtype=torch.float64)
    table[TabularPolicy.START, TabularPolicy.END] = -30.0
    return table


def test_what_the_leader_does_adds_up_to_the_step_and_executions_run_beside_it():
    from wmrl_agents.grpo.phases import Phases

    now = 0.0
    phases = Phases(clock=lambda: now)
    future = Future()
    phases.watch(future)
    with phases("generate"):
        now = 2.0
    with phases("predict"):
        now = 5.0
    now = 6.0  # something else
    second = Future()
    phases.watch(second)
    with phases("wait"):
        now = 10.0
        future.set_result(None)
        now = 11.0
        second.set_result(None)
    with phases("train"):
        now = 18.0
    assert phases.take() == {
        "seconds_generate": 2.0,
        "seconds_predict": 3.0,
        "seconds_wait": 5.0,
        "seconds_train": 7.0,
        "seconds_other": 1.0,
        "seconds_execute": 11.0,
        "seconds_step": 18.0,
    }
    now = 20.0
    done = Future()
    done.set_result(None)
    phases.watch(done)
    assert phases.take() == {
        **dict.fromkeys(
            ("seconds_generate", "seconds_predict", "seconds_wait", "seconds_train", "seconds_execute"), 0.0
        ),
        "seconds_other": 2.0,
        "seconds_step": 2.0,
    }


def test_batches_may_be_sampled_by_somebody_else_and_all_the_same():
    calls = []
    policy = TabularPolicy()

    def backwards(batches):
        calls.append(len(batches))
        replies = {
            n: policy.sample(*batches[n][:1], seed=batches[n][1]) for n in reversed(range(len(batches)))
        }
        return [replies[number] for number in range(len(batches))]

    predictor = TokenEvaluator("world_model")
    expected = story(
        played(groups_of("world_model", "real"), TokenEvaluator(), predictor, generation_batch=2)
    )
    groups = groups_of("world_model", "real")
    settings = RolloutSettings(generation_batch=2)
    Rollouts(policy, TokenEvaluator(), predictor, settings, sample=backwards).play(groups, 3, seed=0)
    assert story(groups) == expected
    assert max(calls) > 1
