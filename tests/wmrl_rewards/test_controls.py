import numpy as np
import pytest
from scipy import stats

from wmrl_envs.errors import ConfigError
from wmrl_rewards import ConstantWorldModel, NoiseWorldModel, PredictionRequest, check_world_model


@pytest.mark.parametrize("model", [ConstantWorldModel(0.25), NoiseWorldModel(3)])
def test_they_keep_the_contract(model):
    check_world_model(model)
    frames = np.zeros((3, 4, 4, 3), dtype=np.uint8)
    videos = [PredictionRequest("walk", frames=frames), PredictionRequest("walk", frames=frames + 1)]
    check_world_model(model, videos)
    assert model.predict([PredictionRequest("walk")])[0].score is None


def test_noise_is_uniform_and_depends_on_task_program_history_frames_and_seed():
    requests = [PredictionRequest(f"task {k}", solution=f"print({i})") for k in range(20) for i in range(20)]
    scores = [prediction.score for prediction in NoiseWorldModel().predict(requests)]
    assert len(set(scores)) == 400
    assert stats.kstest(scores, "uniform").pvalue > 0.001
    frames = np.zeros((1, 2, 2, 3), dtype=np.uint8)
    alike = [
        PredictionRequest("a", solution="b"),
        PredictionRequest("a", solution="b", history=[("c", "d")]),
        PredictionRequest("a", solution="b", frames=frames),
        PredictionRequest("a", solution="b", frames=frames[:, ::1] + 1),
    ]
    scores = [prediction.score for prediction in NoiseWorldModel().predict(alike)]
    assert len({*scores, NoiseWorldModel(1).predict(alike)[0].score}) == 5


def test_a_constant_that_is_no_score_is_refused():
    with pytest.raises(ConfigError, match=r"not be 1\.5"):
        ConstantWorldModel(1.5)
