import pytest

from wmrl_envs.errors import WMRLError
from wmrl_rewards import WorldModelReward
from wmrl_rewards.groups import groups_per_step


def make_stream(fraction=0.25, **options):
    return WorldModelReward(anchor_fraction=fraction, min_pairs=1, refit_every=1, **options).stream


@pytest.mark.parametrize(
    ("fraction", "groups"),
    [(0.1, 10), (0.125, 8), (0.25, 4), (0.3, 10), (0.75, 4), (1.0, 1), (0.05, 20), (0.01, 100)],
)
def test_a_step_is_the_least_number_of_groups_with_a_whole_number_of_anchors(fraction, groups):
    assert groups_per_step(fraction) == groups


def test_anchors_have_the_exact_share_and_places_that_vary():
    stream = make_stream(0.25)
    anchors = []
    for _ in range(400):
        group = stream.begin()
        anchors.append(group.anchor)
        stream.finish(group, 0.5 if group.anchor else None, 0.5)
    per_step = [sum(anchors[k : k + 4]) for k in range(0, 400, 4)]
    assert set(per_step) == {1}
    assert {anchors[k : k + 4].index(True) for k in range(0, 400, 4)} == {0, 1, 2, 3}


def test_members_of_a_group_share_anchor_map_and_weight():
    stream = make_stream(1.0, warmup_groups=1)
    members = [stream.begin("task") for _ in range(3)]
    assert members[0] is members[1] is members[2]
    for member in members:
        stream.finish(member, 0.9, 0.1)
    later = stream.begin("next")
    assert members[0].step.calibrate(0.1) == 0.1  # the map of its step: still the identity
    assert later.step.calibrate(0.1) == 0.9


def test_a_step_is_observed_when_a_later_one_opens():
    stream = make_stream(1.0)
    for number in range(3):
        for scores in ((0.2, 0.3), (0.6, 0.5)):
            stream.finish(stream.begin(number), *scores)
    rows = [(p.step, p.group, p.member, p.real, p.predicted) for p in stream.reward.pool.pairs().rows()]
    assert rows == [(s, 0, i, *scores) for s in (0, 1) for i, scores in enumerate([(0.2, 0.3), (0.6, 0.5)])]


def test_an_episode_under_way_keeps_its_step_and_later_ones_from_being_observed():
    stream = make_stream(1.0)
    slow = stream.begin("slow")
    for number in range(3):
        stream.finish(stream.begin(number), 0.5, 0.5)
    assert len(stream.reward.pool) == 0
    stream.finish(slow, 0.1, 0.2)
    stream.begin("last")
    assert [pair.real for pair in stream.reward.pool.pairs().rows()] == [0.1, 0.5, 0.5, 0.5]


def test_an_abandoned_episode_leaves_its_place_to_the_next_one():
    stream = make_stream(0.25)
    for _ in range(40):
        abandoned = stream.begin()
        stream.abandon(abandoned)
        group = stream.begin()
        assert group is abandoned
        stream.finish(group, 0.5 if group.anchor else None, 0.5)
    assert len(stream.reward.pool) == 9  # the last of ten steps is still open


def test_an_abandoned_member_leaves_its_group_as_it_is():
    stream = make_stream(1.0)
    stream.finish(stream.begin("a"), 0.5, 0.5)
    stream.abandon(stream.begin("a"))
    stream.finish(stream.begin("a"), 0.7, 0.7)
    stream.begin("b")
    assert [pair.real for pair in stream.reward.pool.pairs().rows()] == [0.5, 0.7]


def test_an_id_that_comes_back_after_its_step_is_refused():
    stream = make_stream(1.0)
    for name in ("a", "b"):
        stream.finish(stream.begin(name), 0.5, 0.5)
    with pytest.raises(WMRLError, match=r"Group 'a' is over.*\(step, number\)"):
        stream.begin("a")


def test_missing_scores_give_no_pair():
    stream = make_stream(1.0)
    stream.finish(stream.begin("a"), None, 0.5)
    stream.finish(stream.begin("a"), 0.5, None)
    stream.finish(stream.begin("a"), 0.25, 0.75)
    stream.begin("b")
    assert [(p.member, p.real) for p in stream.reward.pool.pairs().rows()] == [(2, 0.25)]


def test_episodes_on_their_own_leave_rho_at_one():
    stream = make_stream(1.0, warmup_groups=1)
    for number in range(30):
        stream.finish(stream.begin(), number / 30, 0.5)
    assert stream.reward.statistics()["fitted"]
    assert stream.reward.rho == 1.0


def test_going_back_to_a_checkpoint_forgets_what_was_begun():
    stream = make_stream(1.0)
    state = stream.reward.state_dict()
    old = stream.begin()
    stream.reward.load_state_dict(state)
    fresh = stream.reward.stream
    fresh.abandon(old)
    assert fresh.begin() is not old
