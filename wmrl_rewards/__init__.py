"""World-model rewards: prediction, anchors, debiasing, denoising, fusion, and the wrapper around any env."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from wmrl_rewards.anchors import AnchorSampler
from wmrl_rewards.blindness import BlindnessTest
from wmrl_rewards.contract import check_world_model
from wmrl_rewards.debiasing import IsotonicDebiaser
from wmrl_rewards.denoising import AnchorWeight
from wmrl_rewards.errors import ContractError, RewardError
from wmrl_rewards.fusion import fuse, group_scale
from wmrl_rewards.pairs import Pair, PairPool, Pairs
from wmrl_rewards.prediction import Prediction, PredictionRequest, WorldModel
from wmrl_rewards.reward import WorldModelReward

if TYPE_CHECKING:
    from wmrl_rewards.bounds import Bounds, training_bounds
    from wmrl_rewards.fidelity import Fidelity, Judged, measure_fidelity
    from wmrl_rewards.vector_wrapper import WorldModelVectorRewardWrapper
    from wmrl_rewards.world_models.cached import CachedWorldModel
    from wmrl_rewards.world_models.controls import ConstantWorldModel, NoiseWorldModel
    from wmrl_rewards.world_models.language_model import LanguageModelWorldModel
    from wmrl_rewards.world_models.learned import LearnedWorldModel
    from wmrl_rewards.world_models.predicted_evaluator import PredictedEvaluator
    from wmrl_rewards.world_models.progress import ProgressModel, ProgressRollout
    from wmrl_rewards.world_models.robometer import RobometerWorldModel
    from wmrl_rewards.world_models.robometer_server import RobometerServer
    from wmrl_rewards.wrapper import WorldModelRewardWrapper

__all__ = [
    "AnchorSampler",
    "AnchorWeight",
    "BlindnessTest",
    "Bounds",
    "CachedWorldModel",
    "ConstantWorldModel",
    "ContractError",
    "Fidelity",
    "IsotonicDebiaser",
    "Judged",
    "LanguageModelWorldModel",
    "LearnedWorldModel",
    "NoiseWorldModel",
    "Pair",
    "PairPool",
    "Pairs",
    "PredictedEvaluator",
    "Prediction",
    "PredictionRequest",
    "ProgressModel",
    "ProgressRollout",
    "RewardError",
    "RobometerServer",
    "RobometerWorldModel",
    "WorldModel",
    "WorldModelReward",
    "WorldModelRewardWrapper",
    "WorldModelVectorRewardWrapper",
    "check_world_model",
    "fuse",
    "group_scale",
    "measure_fidelity",
    "training_bounds",
]

# Imported on first use: these need gymnasium, pandas or more, or are of use to few.
_LAZY = {
    "Bounds": "wmrl_rewards.bounds",
    "Fidelity": "wmrl_rewards.fidelity",
    "Judged": "wmrl_rewards.fidelity",
    "measure_fidelity": "wmrl_rewards.fidelity",
    "training_bounds": "wmrl_rewards.bounds",
    "CachedWorldModel": "wmrl_rewards.world_models.cached",
    "ConstantWorldModel": "wmrl_rewards.world_models.controls",
    "NoiseWorldModel": "wmrl_rewards.world_models.controls",
    "LanguageModelWorldModel": "wmrl_rewards.world_models.language_model",
    "LearnedWorldModel": "wmrl_rewards.world_models.learned",
    "PredictedEvaluator": "wmrl_rewards.world_models.predicted_evaluator",
    "ProgressModel": "wmrl_rewards.world_models.progress",
    "ProgressRollout": "wmrl_rewards.world_models.progress",
    "RobometerServer": "wmrl_rewards.world_models.robometer_server",
    "RobometerWorldModel": "wmrl_rewards.world_models.robometer",
    "WorldModelRewardWrapper": "wmrl_rewards.wrapper",
    "WorldModelVectorRewardWrapper": "wmrl_rewards.vector_wrapper",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
