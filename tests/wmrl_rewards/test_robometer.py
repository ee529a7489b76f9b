"""Robometer on a tiny random checkpoint of the published format, against a second forward pass."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from tests.robots import QWEN_TOKENS, ROBOMETER_TOKENS, byte_tokenizer, rollout, tiny_robometer, vlm_config
from tests.wmrl_rewards.straight_robometer import Straight
from wmrl_agents.cli import main
from wmrl_agents.doctor import check_robometer
from wmrl_envs.errors import ConfigError, WMRLError
from wmrl_rewards import PredictionRequest, RobometerWorldModel, check_world_model
from wmrl_rewards.world_models.robometer import patchify, resized

TASK = "put both moka pots on the stove"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    directory = tmp_path_factory.mktemp("robometer")
    return directory, tiny_robometer(directory)


@pytest.fixture(scope="module")
def model(checkpoint):
    return RobometerWorldModel(checkpoint[0])


@pytest.fixture
def copy(checkpoint, tmp_path):
    return shutil.copytree(checkpoint[0], tmp_path / "copy")


def ask(task=TASK, **rollouts):
    return PredictionRequest(task, frames=rollout(**rollouts))


def values(progress):
    assert [one.error for one in progress] == [None] * len(progress)
    return np.array([[one.values, one.success] for one in progress])


@pytest.mark.parametrize(
    ("height", "width", "task"), [(16, 24, TASK), (24, 16, "x"), (16, 16, "ouvre le tiroir, s'il te plaît")]
)
def test_the_forward_pass_is_the_one_that_is_written_down(checkpoint, model, height, width, task):
    frames = rollout(3, 15, height, width)
    progress, success = Straight(checkpoint[1], vlm_config())(
        frames[::2], task, lambda text: model.tokenizer(text, add_special_tokens=False)["input_ids"]
    )
    (found,) = values(model.progress([PredictionRequest(task, frames=frames)]))
    assert found == pytest.approx(np.stack([progress, success]), abs=1e-5)
    assert np.ptp(progress.numpy()) > 0.005  # else nothing was compared


def test_what_is_said_of_a_frame_depends_on_it_and_those_before_it_alone(model):
    frames = rollout(4, 8)
    changed = frames.copy()
    changed[5] = 255 - changed[5]
    before, after = values(model.progress([PredictionRequest(TASK, frames=f) for f in (frames, changed)]))
    assert before[:, :5] == pytest.approx(after[:, :5], abs=1e-6)
    assert np.abs(before[:, 5:] - after[:, 5:]).min(axis=0).max() > 1e-4


@pytest.mark.parametrize("side", ["left", "right"])
def test_batches_and_padding_change_nothing(checkpoint, model, side):
    asked = [
        ask(seed=0, task="go"),
        ask(seed=1, height=24, width=32),
        ask(seed=2, length=3, task="a much longer task in many words"),
        ask(seed=3, height=16, width=16),
    ]
    alone = np.concatenate([values(model.progress([request])) for request in asked])
    batched = RobometerWorldModel(checkpoint[0], batch_size=3, padding_side=side)
    assert values(batched.progress(asked)) == pytest.approx(alone, abs=1e-5)


def test_it_keeps_the_contract(model):
    check_world_model(model, [ask(seed=5), ask(seed=6, length=4)])


@pytest.mark.parametrize("reduction", ["potential", "final", "mean", "max"])
def test_the_score_is_the_reduction_of_the_values(checkpoint, reduction):
    model = RobometerWorldModel(checkpoint[0], reduction=reduction)
    (seen,), (prediction,) = model.progress([ask(seed=7)]), model.predict([ask(seed=7)])
    array = np.array(seen.values)
    expected = {
        "potential": max(0.0, array[-1] - array[0]),
        "final": array[-1],
        "mean": array.mean(),
        "max": array.max(),
    }
    assert prediction.score == pytest.approx(expected[reduction], abs=1e-6)
    assert prediction.seconds > 0


def test_short_rollouts_repeat_their_last_frame(model):
    frames = rollout(8, 3)
    repeated = np.concatenate([frames, np.repeat(frames[-1:], 5, axis=0)])
    short, long = values(model.progress([PredictionRequest(TASK, frames=f) for f in (frames, repeated)]))
    assert short == pytest.approx(long, abs=1e-6)


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        (PredictionRequest(TASK), "no frames"),
        (PredictionRequest(TASK, frames=rollout(0).astype(float)), "type uint8"),
        (PredictionRequest(TASK, frames=rollout(0)[:, :, :, :1]), "shape"),
        (PredictionRequest("  ", frames=rollout(0)), "names no task"),
        (PredictionRequest("go " * 2000, frames=rollout(0)), "6000 characters"),
        (PredictionRequest("see <|image_pad|>", frames=rollout(0)), "token of the model's own"),
        (PredictionRequest("<|prog_token|>", frames=rollout(0)), "token of the model's own"),
        (PredictionRequest(TASK, frames=rollout(0, 1, 2, 402)), "sides as unlike"),
    ],
)
def test_what_cannot_be_judged_costs_only_itself(model, request_, problem):
    good = ask(seed=9)
    first, bad, last = model.predict([good, request_, good])
    assert first.score == last.score is not None
    assert bad.score is None
    assert problem in bad.error


def test_weights_that_give_no_numbers_give_no_score(copy):
    state = load_file(copy / "model.safetensors")
    state["progress_head.4.bias"][3] = float("nan")
    save_file(state, copy / "model.safetensors")
    (prediction,) = RobometerWorldModel(copy).predict([ask(seed=0)])
    assert prediction.score is None
    assert "not finite" in prediction.error


def test_the_original_layout_and_shards_load_the_same(tmp_path, checkpoint, model):
    expected = values(model.progress([ask(seed=1)]))
    tiny_robometer(tmp_path / "original", layout="original")
    state, sharded = checkpoint[1], tmp_path / "sharded"
    shutil.copytree(checkpoint[0], sharded)
    (sharded / "model.safetensors").unlink()
    names = sorted(state)
    places = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(places.values()):
        save_file({name: state[name] for name in names if places[name] == file}, sharded / file)
    (sharded / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    for directory in (tmp_path / "original", sharded):
        found = values(RobometerWorldModel(directory).progress([ask(seed=1)]))
        assert np.array_equal(found, expected)


def test_weights_in_16_bits_give_nearly_the_same(checkpoint, model):
    half = RobometerWorldModel(checkpoint[0], dtype=torch.bfloat16)
    found, expected = values(half.progress([ask(seed=2)])), values(model.progress([ask(seed=2)]))
    assert found == pytest.approx(expected, abs=0.03)


def test_a_tokenizer_from_elsewhere_gets_the_tokens_in_their_order(copy, tmp_path, model):
    for path in copy.glob("tokenizer*"):
        path.unlink()
    byte_tokenizer().save_pretrained(tmp_path / "qwen")
    other = RobometerWorldModel(copy, tokenizer=tmp_path / "qwen")
    assert other.tokenizer.convert_tokens_to_ids(list(ROBOMETER_TOKENS)) == [263, 264, 265, 266, 267]
    assert values(other.progress([ask(seed=3)])) == pytest.approx(values(model.progress([ask(seed=3)])))


def rewrite(directory, **changes):
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_weights(change):
    def edit(directory):
        state = load_file(directory / "model.safetensors")
        change(state)
        save_file(state, directory / "model.safetensors")

    return edit


def other_tokenizer(*added):
    return lambda directory: byte_tokenizer(*added).save_pretrained(directory)


FAULTS = {
    "no folder": (shutil.rmtree, "There is no Robometer"),
    "no json": (lambda d: (d / "config.json").write_text("{"), "not valid JSON"),
    "a list": (lambda d: (d / "config.json").write_text("[]"), "not a Robometer in LeRobot's format"),
    "other model": (lambda d: rewrite(d, vlm_config={"model_type": "llama"}), "not a Robometer"),
    "video": (lambda d: rewrite(d, use_multi_image=False), "use_multi_image: False; only True"),
    "continuous": (lambda d: rewrite(d, progress_loss_type="l2"), "only 'discrete'"),
    "dtype": (lambda d: rewrite(d, torch_dtype="fast"), "torch_dtype"),
    "no weights": (lambda d: (d / "model.safetensors").unlink(), "There are no weights"),
    "cut off": (lambda d: (d / "model.safetensors").write_bytes(b"\x10" * 40), "cannot be read"),
    "missing": (edit_weights(lambda s: s.pop("success_head.4.weight")), "lack success_head.4.weight"),
    "unknown": (
        edit_weights(lambda s: s.update({"value_head.weight": torch.zeros(1)})),
        "unknown value_head.weight",
    ),
    "shape": (
        edit_weights(lambda s: s.update({"progress_head.4.bias": torch.zeros(9)})),
        r"progress_head.4.bias is of shape \(9,\), but the configuration says \(10,\)",
    ),
    "order": (other_tokenizer(*reversed(ROBOMETER_TOKENS)), "not one after the other in the order"),
    "too many": (other_tokenizer("<|more|>"), "268, but the weights have 268 rows"),
    "shard": (
        lambda d: (
            (d / "model.safetensors").rename(d / "old"),
            (d / "model.safetensors.index.json").write_text('{"weight_map": {"a": "one.safetensors"}}'),
        ),
        "one.safetensors missing",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_folder_is_one_sentence(copy, name):
    breaking, sentence = FAULTS[name]
    breaking(copy)
    with pytest.raises(WMRLError, match=sentence):
        RobometerWorldModel(copy)
    found = [check for check in check_robometer(str(copy)) if check.status == "error"]
    assert len(found) == 1
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError(found[0].message)


def test_another_image_token_is_refused(copy):
    config = vlm_config() | {"image_token_id": 262}
    rewrite(copy, vlm_config=config)
    with pytest.raises(WMRLError, match=r"<\|image_pad\|> at 261, the configuration has it at 262"):
        RobometerWorldModel(copy)


def test_the_doctor_says_that_a_folder_is_fine(checkpoint, capsys):
    assert main(["doctor", "--robometer", str(checkpoint[0])]) == 0
    said = capsys.readouterr().out
    assert "every name and shape is as it should be" in said
    assert "progress of eight frames from black to white: 0." in said
    assert "sandbox" not in said


def test_the_doctor_fails_with_a_broken_folder(copy, capsys):
    (copy / "model.safetensors").unlink()
    assert main(["doctor", "--robometer", str(copy)]) == 1
    assert "There are no weights" in capsys.readouterr().out


def test_wrong_settings_are_refused(checkpoint):
    for settings in ({"batch_size": 0}, {"padding_side": "middle"}, {"reduction": "sum"}):
        with pytest.raises(ConfigError):
            RobometerWorldModel(checkpoint[0], **settings)


def test_the_fingerprint_names_weights_and_reduction(checkpoint, copy):
    first = RobometerWorldModel(checkpoint[0]).fingerprint
    assert RobometerWorldModel(copy).fingerprint == first
    assert RobometerWorldModel(copy, reduction="mean").fingerprint != first
    edit_weights(lambda state: state["progress_head.4.bias"].add_(1))(copy)
    assert RobometerWorldModel(copy).fingerprint != first


def test_patches_are_those_of_the_library():
    frames = rollout(0, 2, 24, 40)
    processor = Qwen2VLImageProcessorPil(
        do_resize=False, patch_size=4, merge_size=2, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    expected = processor(images=list(frames), return_tensors="np")["pixel_values"]
    assert patchify(frames, 4, 2, 2) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("size", "new"),
    [
        ((256, 256), (256, 256)),
        ((128, 128), (128, 128)),
        ((200, 250), (192, 256)),
        ((20, 20), (64, 64)),
        ((10, 100), (32, 224)),
        ((8192, 4096), (5792, 2880)),
    ],
)
def test_sides_become_multiples_of_the_token_within_the_limits(size, new):
    frames = np.zeros((1, *size, 3), np.uint8)
    assert resized(frames, 32).shape == (1, *new, 3)


def test_control_tokens_of_the_test_are_qwens():
    assert QWEN_TOKENS[5] == "<|image_pad|>"
