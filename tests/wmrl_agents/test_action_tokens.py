"""Codecs of action chunks against residual quantisation by hand; the published format on a tiny one."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.robots import tiny_codec
from wmrl_agents.policies.vla.action_tokens import (
    ActionStatistics,
    PublishedCodec,
    ResidualCodec,
    gripper_to_libero,
)
from wmrl_envs.errors import ConfigError, WMRLError


def chunks(seed=0, count=400):
    """Smooth motions with a gripper that is open or closed."""
    generator = np.random.default_rng(seed)
    start, end = generator.uniform(-1, 1, (2, count, 1, 7))
    moves = start + (end - start) * np.linspace(0, 1, 8)[:, None]
    moves[..., 6] = np.where(generator.random((count, 1)) < 0.5, -1.0, 1.0)
    return moves.astype(np.float32)


@pytest.fixture(scope="module")
def codec():
    return ResidualCodec.fit(chunks(), codes=32)


def by_hand(books, vector):
    """Greedy residual quantisation, one code after the other."""
    codes, left = [], np.asarray(vector, dtype=np.float64)
    for book in books:
        distances = [np.linalg.norm(left - code) for code in book]
        codes.append(int(np.argmin(distances)))
        left = left - book[codes[-1]]
    return codes


def test_codes_are_those_by_hand(codec):
    moves = chunks(1, 20)
    books = codec.codebooks.double().numpy()
    expected = [by_hand(books, move.flatten()) for move in moves]
    assert codec.encode(moves).tolist() == expected


def test_decoding_sums_the_codes_of_all_levels(codec):
    codes = np.random.default_rng(0).integers(0, 32, (5, 7))
    books = codec.codebooks.numpy()
    for row, found in zip(codes, codec.decode(codes), strict=True):
        total = sum(books[level][code] for level, code in enumerate(row)).reshape(8, 7)
        assert found[:, :6] == pytest.approx(np.clip(total[:, :6], -1, 1), abs=1e-6)
        assert found[:, 6].tolist() == np.where(total[:, 6] > 0, 1.0, -1.0).tolist()


def test_each_level_makes_the_error_smaller(codec):
    moves = chunks(2)
    errors = []
    for level in range(1, 8):
        part = ResidualCodec(codec.codebooks[:level])
        errors.append(np.abs(part.decode(part.encode(moves)) - moves).mean())
    assert all(after < before for before, after in pairwise(errors))
    assert errors[-1] < errors[0] / 2


def test_what_was_learned_from_few_chunks_is_exact():
    few = chunks(3, 5)
    codec = ResidualCodec.fit(few, codes=8)
    assert codec.decode(codec.encode(few)) == pytest.approx(few, abs=1e-5)
    assert codec.codebooks.shape == (7, 8, 56)


def test_gripper_survives(codec):
    moves = chunks(4)
    decoded = codec.decode(codec.encode(moves))
    assert np.mean(decoded[..., 6] == moves[..., 6]) == 1.0


@given(st.lists(st.integers(0, 31), min_size=7, max_size=7))
def test_every_code_is_an_action_that_the_environment_takes(codes):
    books = torch.randn(7, 32, 56, generator=torch.Generator().manual_seed(0))
    chunk = ResidualCodec(books).decode([codes])[0]
    assert np.abs(chunk).max() <= 1
    assert set(np.unique(chunk[:, 6])) <= {-1.0, 1.0}


def test_the_same_seed_gives_the_same_codebooks():
    first, again, other = (ResidualCodec.fit(chunks(), codes=16, seed=s).codebooks for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_saved_and_loaded_it_is_the_same(codec, tmp_path):
    codec.save(tmp_path / "codebooks.safetensors")
    assert torch.equal(ResidualCodec.load(tmp_path / "codebooks.safetensors").codebooks, codec.codebooks)
    with pytest.raises(WMRLError, match="no codebooks"):
        ResidualCodec.load(tmp_path / "nothing")


def test_what_is_no_chunk_or_code_is_refused(codec):
    with pytest.raises(ConfigError, match="Chunks must be"):
        codec.encode(np.zeros((1, 7, 8)))
    with pytest.raises(ConfigError, match="Codes must be of shape"):
        codec.decode([[0] * 6])
    for code in (-1, 32):
        with pytest.raises(ConfigError, match="from 0 to 31"):
            codec.decode([[0] * 6 + [code]])
    with pytest.raises(ConfigError, match="finite"):
        ResidualCodec.fit(np.full((10, 8, 7), np.nan))
    with pytest.raises(ConfigError, match="Codebooks must be"):
        ResidualCodec(torch.zeros(7, 128, 55))


def straight(state, name, x):
    """A small network of the published file, layer by layer."""
    weights = state[name]
    for layer in ("encoder.0", "encoder.2"):
        x = np.maximum(weights[f"{layer}.weight"].numpy() @ x + weights[f"{layer}.bias"].numpy(), 0)
    return weights["fc.weight"].numpy() @ x + weights["fc.bias"].numpy()


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vq")
    return folder, tiny_codec(folder)


def test_the_published_format_is_read(published):
    folder, state = published
    codec = PublishedCodec.load(folder)
    assert (codec.num_tokens, codec.num_codes) == (7, 128)
    moves = chunks(5, 6)
    books = [state["vq_embedding"][f"layers.{i}._codebook.embed"][0].double().numpy() for i in range(7)]
    codes = [by_hand(books, straight(state, "encoder", move.flatten() / 2.0)) for move in moves]
    assert codec.encode(moves).tolist() == codes
    for row, chunk in zip(codes, codec.decode(codes), strict=True):
        latent = sum(books[level][code] for level, code in enumerate(row)).astype(np.float32)
        assert chunk == pytest.approx(straight(state, "decoder", latent).reshape(8, 7) * 2.0, abs=1e-5)


def test_nothing_in_the_published_file_is_executed(published, tmp_path):
    class Attack:
        def __reduce__(self):
            return (Path(tmp_path / "owned").touch, ())

    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.json").write_text((published[0] / "config.json").read_text())
    torch.save({"encoder": Attack()}, tmp_path / "checkpoints" / "model.pt")
    with pytest.raises(WMRLError, match="no codec of actions"):
        PublishedCodec.load(tmp_path)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("config", "drop", "sentence"),
    [
        ({"input_dim_h": 10}, None, r"chunks of \(10, 7\)"),
        ({"vqvae_n_embed": 64}, None, r"codebooks of \(7, 64, 16\) are needed"),
        ({"vqvae_groups": 9}, None, "not the weights"),
        ({}, "vq_embedding", "not the weights"),
        ({}, "decoder", "not the weights"),
    ],
)
def test_another_codec_is_refused(published, config, drop, sentence):
    folder, state = published
    settings = json.loads((folder / "config.json").read_text()) | config
    with pytest.raises(WMRLError, match=sentence):
        PublishedCodec(settings, {name: part for name, part in state.items() if name != drop})


def statistics(tmp_path, **changes):
    action = {
        "q01": [-0.5, 0.0, -1.0, 0.0, 0.0, -0.25, 0.0],
        "q99": [0.5, 1.0, 1.0, 0.0, 2.0, 0.25, 1.0],
        "mask": [True] * 6 + [False],
    }
    path = tmp_path / "dataset_statistics.json"
    path.write_text(json.dumps({"libero_90": {"action": action | changes}}))
    return path


def test_unnormalising_by_hand(tmp_path):
    loaded = ActionStatistics.load(statistics(tmp_path))
    low, middle, high = ([value] * 6 + [0.25] for value in (-1, 0, 1))
    assert loaded.unnormalise([low, middle, high]).tolist() == [
        [-0.5, 0.0, -1.0, 0.0, 0.0, -0.25, 0.25],
        [0.0, 0.5, 0.0, 0.0, 1.0, 0.0, 0.25],
        [0.5, 1.0, 1.0, 0.0, 2.0, 0.25, 0.25],
    ]
    back = loaded.normalise(loaded.unnormalise(np.array([low, middle, high])))
    expected = np.array([low, middle, high], dtype=float)
    expected[:, 3] = 0  # it never changes
    assert back == pytest.approx(expected)


def test_statistics_without_a_mask_leave_the_gripper(tmp_path):
    path = statistics(tmp_path)
    found = json.loads(path.read_text())
    del found["libero_90"]["action"]["mask"]
    path.write_text(json.dumps(found))
    assert ActionStatistics.load(path, "libero_90").mask.tolist() == [True] * 6 + [False]


def test_statistics_that_are_none_are_one_sentence(tmp_path):
    path = statistics(tmp_path)
    with pytest.raises(WMRLError, match="no data set 'bridge', only libero_90"):
        ActionStatistics.load(path, "bridge")
    found = json.loads(path.read_text())
    path.write_text(json.dumps(found | {"bridge": found["libero_90"]}))
    with pytest.raises(WMRLError, match="libero_90, bridge: name one"):
        ActionStatistics.load(path)
    with pytest.raises(WMRLError, match="does not hold statistics"):
        ActionStatistics.load(tmp_path / "nothing.json")
    with pytest.raises(WMRLError, match="actions have 7"):
        ActionStatistics.load(statistics(tmp_path, q01=[0] * 6, q99=[1] * 6, mask=[True] * 6))


@given(st.floats(0, 1))
def test_the_gripper_is_open_or_closed_and_never_nothing(grip):
    (action,) = gripper_to_libero([[0.1] * 6 + [grip]])
    assert action[:6].tolist() == [0.1] * 6
    assert action[6] == (-1.0 if grip > 0.5 else 1.0)
