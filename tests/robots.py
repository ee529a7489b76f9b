"""Tiny random checkpoints in the formats of published robot models, and rollouts to show them."""

import json

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3VLConfig, Qwen3VLForConditionalGeneration

QWEN_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
BYTES = 256
ROBOMETER_TOKENS = (
    "<|split_token|>",
    "<|reward_token|>",
    "<|pref_token|>",
    "<|sim_token|>",
    "<|prog_token|>",
)


def byte_tokenizer(*added):
    """A tokenizer of bytes with Qwen's control tokens behind them, then ``added``."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([*QWEN_TOKENS, *added])  # before pad and eos are named, which would come first
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def randomise(module, seed, spread=0.3):
    """Weights large enough that everything in a network matters to its output."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(module.named_parameters()):
            parameter.normal_(0, spread, generator=generator)
            if parameter.ndim == 1 and name.endswith("weight"):  # scales of normalisations
                parameter.add_(1)


def vlm_config():
    """As published configurations have it: rope in the older fields."""
    return {
        "model_type": "qwen3_vl",
        "image_token_id": BYTES + 5,
        "video_token_id": BYTES + 6,
        "vision_start_token_id": BYTES + 3,
        "vision_end_token_id": BYTES + 4,
        "tie_word_embeddings": True,
        "text_config": {
            "model_type": "qwen3_vl_text",
            "vocab_size": BYTES + len(QWEN_TOKENS) + len(ROBOMETER_TOKENS),
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 8192,
            "rms_norm_eps": 1e-6,
            "rope_theta": 5000000,
            "rope_scaling": {
                "mrope_interleaved": True,
                "mrope_section": [4, 2, 2],
                "rope_type": "default",
            },
        },
        "vision_config": {
            "model_type": "qwen3_vl",
            "depth": 3,
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_heads": 2,
            "patch_size": 4,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "out_hidden_size": 32,
            "num_position_embeddings": 25,
            "deepstack_visual_indexes": [0, 1],
        },
    }


def tiny_robometer(directory, *, layout="lerobot", seed=0):
    """A Robometer folder; returns the state dict in the names of the file."""
    given = vlm_config()
    config = Qwen3VLConfig(**{key: value for key, value in given.items() if key != "model_type"})
    body = Qwen3VLForConditionalGeneration(config)
    network = torch.nn.ModuleDict({"model": body})
    for name, outputs in (("progress_head", 10), ("preference_head", 1), ("success_head", 1)):
        network[name] = torch.nn.Sequential(
            torch.nn.Linear(32, 16),
            torch.nn.LayerNorm(16),
            torch.nn.GELU(),
            torch.nn.Dropout(0.1),
            torch.nn.Linear(16, outputs),
        )
    network["frame_pool_attn"] = torch.nn.Linear(32, 1, bias=False)
    randomise(network, seed)
    state = {name: value.clone() for name, value in network.state_dict().items()}
    if layout == "original":
        state = {name.replace("model.model.", "model."): value for name, value in state.items()}
        del state["model.lm_head.weight"]
    directory.mkdir(parents=True, exist_ok=True)
    save_file(state, directory / "model.safetensors")
    settings = {
        "type": "robometer",
        "base_model_id": "Qwen/Qwen3-VL-4B-Instruct",
        "torch_dtype": "float32",
        "use_multi_image": True,
        "use_per_frame_progress_token": True,
        "progress_loss_type": "discrete",
        "progress_discrete_bins": 10,
        "vlm_config": given,
    }
    (directory / "config.json").write_text(json.dumps(settings))
    byte_tokenizer(*ROBOMETER_TOKENS).save_pretrained(directory)
    return state


def rollout(seed, length=11, height=16, width=24):
    """Frames of noise: uint8 (length, height, width, 3)."""
    return np.random.default_rng(seed).integers(0, 256, (length, height, width, 3), dtype=np.uint8)


def tiny_codec(directory, seed=0):
    """A folder in the format of MiniVLA's codec, with 16 latent numbers; returns its state."""
    torch.manual_seed(seed)
    width = 16

    def network(inputs, outputs):
        layers = [torch.nn.Linear(inputs, 24), torch.nn.ReLU(), torch.nn.Linear(24, 24), torch.nn.ReLU()]
        encoder = torch.nn.ModuleDict(
            {"encoder": torch.nn.Sequential(*layers), "fc": torch.nn.Linear(24, outputs)}
        )
        randomise(encoder, seed)
        return encoder.state_dict()

    books = {f"layers.{i}._codebook.embed": torch.randn(1, 128, width) for i in range(7)}
    more = {f"layers.{i}._codebook.cluster_size": torch.ones(1, 128) for i in range(7)}
    state = {
        "encoder": network(56, width),
        "decoder": network(width, 56),
        "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": [{"lr": 1e-3}]},
        "vq_embedding": books | more,
    }
    (directory / "checkpoints").mkdir(parents=True, exist_ok=True)
    torch.save(state, directory / "checkpoints" / "model.pt")
    config = {
        "input_dim_h": 8,
        "input_dim_w": 7,
        "n_latent_dims": width,
        "vqvae_n_embed": 128,
        "vqvae_groups": 7,
        "encoder_loss_multiplier": 1.0,
        "act_scale": 2.0,
    }
    (directory / "config.json").write_text(json.dumps(config))
    return state


def _vit(prefix, dim, depth, mlp, side, **more):
    """Shapes of a timm ViT."""
    shapes = {
        "patch_embed.proj.weight": (dim, 3, 14, 14),
        "patch_embed.proj.bias": (dim,),
        "pos_embed": (1, side * side, dim),
        "norm.weight": (dim,),
        "norm.bias": (dim,),
    }
    for i in range(depth):
        for name, shape in {
            "norm1": (dim,),
            "attn.qkv": (3 * dim, dim),
            "attn.proj": (dim, dim),
            "norm2": (dim,),
            "mlp.fc1": (mlp, dim),
            "mlp.fc2": (dim, mlp),
        }.items():
            shapes[f"blocks.{i}.{name}.weight"] = shape
            shapes[f"blocks.{i}.{name}.bias"] = shape[:1]
        shapes |= {f"blocks.{i}.{name}": shape for name, shape in more.get("block", {}).items()}
    shapes |= more.get("also", {})
    return {prefix + name: shape for name, shape in shapes.items()}


def tiny_mini_vla(directory, seed=0):
    """A Prismatic run's folder with a tiny MiniVLA, its codec and tokenizer; returns the weights by part."""
    tokenizer = byte_tokenizer()
    rows = -(-(len(tokenizer) + 256) // 64) * 64
    width, hidden, mlp = 128, 128 + 144, 96
    scale = {"ls1.gamma": (128,), "ls2.gamma": (128,)}
    tokens = {"cls_token": (1, 1, 128), "reg_token": (1, 4, 128)}
    vision = _vit("dino_featurizer.", 128, 3, 256, 3, block=scale, also=tokens)
    vision |= _vit("siglip_featurizer.", 144, 3, 150, 3, also={"attn_pool.latent": (1, 1, 144)})
    sizes = [hidden, 4 * hidden, width, width]
    projector = {}
    for number, before, after in zip((0, 2, 4), sizes, sizes[1:], strict=False):
        projector |= {f"projector.{number}.weight": (after, before), f"projector.{number}.bias": (after,)}
    llm = {"llm.model.embed_tokens.weight": (rows, width), "llm.model.norm.weight": (width,)}
    for i in range(2):
        b = f"llm.model.layers.{i}."
        llm |= {b + "input_layernorm.weight": (width,), b + "post_attention_layernorm.weight": (width,)}
        llm |= {b + f"mlp.{name}_proj.weight": (mlp, width) for name in ("gate", "up")}
        llm |= {b + "mlp.down_proj.weight": (width, mlp), b + "self_attn.o_proj.weight": (width, 128)}
        for name, size in (("q", 128), ("k", 64), ("v", 64)):
            llm |= {
                f"{b}self_attn.{name}_proj.weight": (size, width),
                f"{b}self_attn.{name}_proj.bias": (size,),
            }
    generator = torch.Generator().manual_seed(seed)

    def filled(shapes):
        state = {}
        for name, shape in shapes.items():
            scale = name.endswith(("norm.weight", "norm1.weight", "norm2.weight", "gamma"))
            state[name] = torch.randn(shape, generator=generator) * 0.1 + (1.0 if scale else 0.0)
        return state

    model = {
        "vision_backbone": filled(vision),
        "projector": filled(projector),
        "llm_backbone": filled(llm),
    }
    language = model["llm_backbone"]
    language["llm.lm_head.weight"] = language["llm.model.embed_tokens.weight"]
    (directory / "checkpoints").mkdir(parents=True, exist_ok=True)
    torch.save({"model": model}, directory / "checkpoints" / "step-000120-epoch-01-loss=0.1234.pt")
    vla = {
        "base_vlm": "prism-qwen25-extra-dinosiglip-224px+0_5b",
        "action_tokenizer": "libero_vq_extra_action_tokenizer",
        "image_sequence_len": 1,
    }
    (directory / "config.json").write_text(json.dumps({"vla": vla, "seed": 7}))
    action = {"q01": [-0.5] * 6 + [0.0], "q99": [0.75] * 6 + [1.0], "mask": [True] * 6 + [False]}
    (directory / "dataset_statistics.json").write_text(json.dumps({"libero_90": {"action": action}}))
    tiny_codec(directory / "codec")
    tokenizer.save_pretrained(directory / "tokenizer")
    return model
