"""MiniVLA on a tiny random checkpoint of the published format, against a second forward pass."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.robots import byte_tokenizer, tiny_mini_vla
from tests.wmrl_agents.straight_prismatic import Straight
from wmrl_agents.cli import main
from wmrl_agents.grpo.gradients import accumulate_gradients
from wmrl_agents.policies.base import Policy
from wmrl_agents.policies.vla.mini_vla import MiniVLA, prompt_of
from wmrl_agents.policies.vla.prismatic_checkpoint import newest_checkpoint
from wmrl_agents.policies.vla.records import Observation
from wmrl_envs.errors import ConfigError, WMRLError

TASKS = ("Put both moka pots on the stove", "open it")
SIDE = 42


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("minivla")
    return directory, tiny_mini_vla(directory)


@pytest.fixture(scope="module")
def policy(run):
    return MiniVLA(run[0])


@pytest.fixture
def copy(run, tmp_path):
    return shutil.copytree(run[0], tmp_path / "copy")


def see(seed, side=SIDE):
    return Observation(image=np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8))


def play(policy, lengths=(1, 3, 2), seed=0):
    trajectories = []
    for number, length in enumerate(lengths):
        record = policy.begin(TASKS[number % 2], see(number))
        for turn in range(length):
            record = policy.extend(record, see(10 * number + turn)) if turn else record
            [record] = policy.sample([record], seed=seed + turn)
        trajectories.append(record)
    return trajectories


def test_the_prompt_is_that_of_the_training_data():
    assert prompt_of("Open the Drawer") == (
        "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nWhat action should the robot take to open the drawer?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("task", TASKS)
def test_the_forward_pass_is_the_one_that_is_written_down(run, policy, task):
    codes = np.random.default_rng(0).integers(0, 128, 7)
    size = len(policy.tokenizer)
    ids = policy.tokenizer(prompt_of(task), add_special_tokens=False)["input_ids"]
    # Code c is the token len(tokenizer) - 1 - c; the last logits before each code are those that say it.
    everything = Straight(run[1])(see(3).image, ids + [size - 1 - int(c) for c in codes])
    expected = everything[len(ids) - 1 : -1].flip(1)[:, everything.shape[1] - size :][:, :128]
    found = policy._all_logits(policy._context([task], [see(3)]), torch.from_numpy(codes)[None])[0]
    assert found.detach().numpy() == pytest.approx(expected.numpy(), abs=2e-4)
    assert expected.std() > 0.1  # else nothing was compared


def test_vision_features_are_those_of_timms_layout(run, policy):
    picture = see(4).image
    pixels = torch.tensor(picture).permute(2, 0, 1)[None].float() / 255
    assert policy.network.see(pixels)[0].detach().numpy() == pytest.approx(
        Straight(run[1]).see(picture).numpy(), abs=1e-4
    )


def test_it_is_a_policy_whose_records_are_trained_as_any(policy):
    assert isinstance(policy, Policy)
    records = play(policy)
    assert [record.num_own_tokens for record in records] == [7, 21, 14]
    for row, record in zip(policy.log_probs(records).tolist(), records, strict=True):
        length = len(record.log_probs) - 1
        assert row[:length] == pytest.approx(record.log_probs[1:], abs=1e-4)
    statistics = accumulate_gradients(
        policy, records, [1.0, -0.5, 0.5], reference=policy.frozen_copy(), kl_coefficient=0.04, micro_batch=2
    )
    assert (statistics.tokens, statistics.clipped) == (42, 0)
    assert statistics.kl == pytest.approx(0, abs=1e-5)
    assert all(parameter.grad is None for parameter in policy.network.dino.parameters())
    trained = [n for n, p in policy.network.named_parameters() if p.grad is not None and p.grad.any()]
    assert {name.split(".")[0] for name in trained} == {"projector", "llm"}
    policy.network.zero_grad()


def test_a_decision_depends_on_its_record_and_seed_alone(run, policy):
    records = [policy.begin(TASKS[i % 2], see(i)) for i in range(4)]
    together = [sample.token_ids for sample in policy.sample(records, seed=1)]
    assert [policy.sample([record], seed=1)[0].token_ids for record in records] == together
    assert [s.token_ids for s in MiniVLA(run[0], batch_size=3).sample(records, seed=1)] == together
    assert [s.token_ids for s in policy.sample(records, seed=2)] != together


def test_only_codes_are_said_and_greedy_says_the_likeliest(policy):
    records = [policy.begin("open it", see(i)) for i in range(20)]
    said = np.array([sample.decisions[0] for sample in policy.sample(records, seed=0)])
    assert said.min() >= 0
    assert said.max() < 128
    [greedy] = policy.sample(records[:1], seed=0, greedy=True)
    logits = policy._all_logits(policy._context(["open it"], [see(0)]), torch.tensor([greedy.decisions[0]]))
    assert logits.argmax(-1)[0].tolist() == list(greedy.decisions[0])


def test_the_whole_chunk_is_decoded_unnormalised_and_its_gripper_turned(policy):
    [sample] = policy.sample([policy.begin("open it", see(5))], seed=0)
    chunk = policy.chunk(sample)
    latent = sum(policy.codec.codebooks[i][c] for i, c in enumerate(sample.decisions[0]))
    raw = (policy.codec.decoder(latent) * 2.0).reshape(8, 7).detach().numpy()
    assert chunk.shape == (8, 7)
    assert chunk[:, :6] == pytest.approx(0.5 * (raw[:, :6] + 1) * 1.25 - 0.5, abs=1e-5)
    assert chunk[:, 6].tolist() == np.where(raw[:, 6] > 0.5, -1.0, 1.0).tolist()


def test_pictures_of_another_size_are_reduced_by_lanczos(policy):
    large = see(6, 128)
    small = np.asarray(Image.fromarray(large.image).resize((SIDE, SIDE), Image.Resampling.LANCZOS))
    codes = torch.zeros((1, 7), dtype=torch.long)
    first, second = (
        policy._all_logits(policy._context(["open it"], [seen]), codes)
        for seen in (large, Observation(image=small))
    )
    assert torch.equal(first, second)


def test_another_orientation_is_refused(policy):
    policy.check_orientation("vertical_flip")
    for other in ("rotate_180", "none"):
        with pytest.raises(ConfigError, match="make the environment with orientation='vertical_flip'"):
            policy.check_orientation(other)


def test_saved_and_loaded_it_is_the_same(run, tmp_path):
    policy = MiniVLA(run[0])
    records = play(policy)
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.01)
    accumulate_gradients(policy, records, [1.0, -1.0, 1.0])
    optimizer.step()
    policy.save(tmp_path / "trained")
    assert newest_checkpoint(tmp_path / "trained").name == "step-000121-trained.pt"
    loaded = MiniVLA(tmp_path / "trained")
    assert torch.equal(loaded.log_probs(records), policy.log_probs(records))
    assert not torch.allclose(loaded.log_probs(records), MiniVLA(run[0]).log_probs(records))
    assert np.array_equal(loaded.chunk(records[0]), policy.chunk(records[0]))


def test_the_newest_checkpoint_is_taken(copy):
    old = copy / "checkpoints" / "step-000120-epoch-01-loss=0.1234.pt"
    (copy / "checkpoints" / "step-000099-epoch-09-loss=0.0001.pt").write_bytes(b"old")
    assert newest_checkpoint(copy) == old
    new = copy / "checkpoints" / "step-1000000-epoch-00-loss=9.pt"
    new.write_bytes(b"")
    assert newest_checkpoint(copy) == new


def test_nothing_in_a_checkpoint_is_executed(copy, tmp_path):
    class Attack:
        def __reduce__(self):
            return (Path(tmp_path / "owned").touch, ())

    torch.save({"model": Attack()}, copy / "checkpoints" / "step-000200.pt")
    with pytest.raises(WMRLError, match="not the checkpoint of a Prismatic VLA"):
        MiniVLA(copy)
    assert not (tmp_path / "owned").exists()


def vla(**changes):
    def change(directory):
        path = directory / "config.json"
        found = json.loads(path.read_text())
        path.write_text(json.dumps({"vla": found["vla"] | changes}))

    return change


def weights(change):
    def edit(directory):
        path = newest_checkpoint(directory)
        found = torch.load(path, weights_only=True)
        change(found["model"])
        torch.save(found, path)

    return edit


FAULTS = {
    "no config": (lambda d: (d / "config.json").unlink(), "not the configuration of a Prismatic VLA"),
    "no vla": (lambda d: (d / "config.json").write_text("[]"), "not the configuration"),
    "llama": (vla(base_vlm="prism-dinosiglip-224px+7b"), "names the base"),
    "bins": (vla(action_tokenizer="extra_action_tokenizer"), "only a residual code"),
    "history": (vla(image_sequence_len=2), "2 pictures are seen at once"),
    "no checkpoint": (lambda d: newest_checkpoint(d).unlink(), "no checkpoints/step"),
    "broken": (lambda d: newest_checkpoint(d).write_bytes(b"PK"), "not the checkpoint of a Prismatic VLA"),
    "no vision": (weights(lambda m: m.pop("vision_backbone")), "not the checkpoint"),
    "missing": (
        weights(lambda m: m["vision_backbone"].pop("dino_featurizer.blocks.0.ls1.gamma")),
        "not those of a MiniVLA: KeyError.*ls1.gamma",
    ),
    "shape": (
        weights(lambda m: m["projector"].update({"projector.0.bias": torch.zeros(3)})),
        "not those of a MiniVLA: .*0.bias",
    ),
    "statistics": (lambda d: (d / "dataset_statistics.json").unlink(), "does not hold statistics"),
    "codec": (lambda d: shutil.rmtree(d / "codec"), "no codec of actions"),
    "tokenizer": (
        lambda d: byte_tokenizer(*(f"<|t{i}|>" for i in range(200))).save_pretrained(d / "tokenizer"),
        "not the tokenizer that they were trained with",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_broken_folder_is_one_sentence(copy, name):
    breaking, sentence = FAULTS[name]
    breaking(copy)
    with pytest.raises(WMRLError, match=sentence):
        MiniVLA(copy)


@pytest.mark.parametrize(
    ("task", "seen", "sentence"),
    [
        (" ", see(0), "needs the task in words"),
        ("go", Observation(), "looks at pictures"),
        ("go", Observation(image=np.zeros((4, 4, 3))), "looks at pictures"),
    ],
)
def test_what_cannot_be_decided_on_is_refused(policy, task, seen, sentence):
    with pytest.raises(ConfigError, match=sentence):
        policy.begin(task, seen)


def test_the_doctor_says_whether_a_folder_is_fine(run, copy, capsys):
    assert main(["doctor", "--mini-vla", str(run[0])]) == 0
    said = capsys.readouterr().out
    assert "pictures of 42 pixels" in said
    assert re.search(r"it says the codes( \d+){7}\n", said)
    shutil.rmtree(copy / "codec")
    assert main(["doctor", "--mini-vla", str(copy)]) == 1
    assert "There is no codec of actions" in capsys.readouterr().out
    assert main(["doctor", "--mini-vla", str(copy), "--codec", str(run[0] / "codec")]) == 0
