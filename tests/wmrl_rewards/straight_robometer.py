"""Robometer's forward pass written down a second time, frame by frame and token by token, in float64.

Nothing is shared with the package: no transformers, patches in raster order, positions counted by hand,
attention as loops over heads.
"""

import numpy as np
import torch
from torch.nn.functional import gelu, interpolate, layer_norm, silu

PROMPT_BEFORE = "The task for the robot is '"
PROMPT_AFTER = (
    "'. Given the trajectory video, predict the task progress at each frame, how far along the robot is "
    "towards completing the task, a float between 0 and 1, where 0 is the starting state and 1 is when the "
    "task is completed. If the robot is not performing the same task, predict 0 progress."
)


class Straight:
    def __init__(self, state, config):
        self.w = {name: value.double() for name, value in state.items()}
        self.text, self.vision = config["text_config"], config["vision_config"]
        self.image_id = config["image_token_id"]

    def linear(self, name, x):
        y = x @ self.w[name + ".weight"].flatten(1).T
        return y + self.w[name + ".bias"] if name + ".bias" in self.w else y

    def norm(self, name, x, eps=1e-6):
        return layer_norm(x, x.shape[-1:], self.w[name + ".weight"], self.w[name + ".bias"], eps)

    def rms(self, name, x):
        return (
            x
            / (x.pow(2).mean(-1, keepdim=True) + self.text["rms_norm_eps"]).sqrt()
            * self.w[name + ".weight"]
        )

    def see(self, frame):
        """One frame: merged tokens, and those for the first layers of the text."""
        v, p = self.vision, "model.model.visual."
        size, dim, heads = v["patch_size"], v["hidden_size"], v["num_heads"]
        rows, columns = frame.shape[0] // size, frame.shape[1] // size
        pixels = torch.tensor(frame / 127.5 - 1.0).permute(2, 0, 1)
        tokens, angles = [], []
        frequencies = 10000.0 ** (-torch.arange(0, dim // heads // 2, 2).double() / (dim // heads // 2))
        for r in range(rows):
            for c in range(columns):
                patch = pixels[:, r * size : (r + 1) * size, c * size : (c + 1) * size]
                twice = torch.stack([patch, patch], dim=1).flatten()
                tokens.append(self.linear(p + "patch_embed.proj", twice))
                angles.append(torch.cat([r * frequencies, c * frequencies]).repeat(2))
        side = int(v["num_position_embeddings"] ** 0.5)
        table = self.w[p + "pos_embed.weight"].T.view(1, dim, side, side)
        places = interpolate(table, (rows, columns), mode="bilinear", align_corners=True)[0]
        x = torch.stack(tokens) + places.flatten(1).T
        angle = torch.stack(angles)
        deep = []
        for i in range(v["depth"]):
            b = f"{p}blocks.{i}."
            q, k, value = self.linear(b + "attn.qkv", self.norm(b + "norm1", x)).chunk(3, dim=-1)
            x = x + self.linear(b + "attn.proj", attend(q, k, value, angle, heads, heads, causal=False))
            inner = gelu(self.linear(b + "mlp.linear_fc1", self.norm(b + "norm2", x)), approximate="tanh")
            x = x + self.linear(b + "mlp.linear_fc2", inner)
            if i in v["deepstack_visual_indexes"]:
                at = v["deepstack_visual_indexes"].index(i)
                merged = merge(x, rows, columns)
                deep.append(
                    self.project(
                        f"{p}deepstack_merger_list.{at}.",
                        self.norm(f"{p}deepstack_merger_list.{at}.norm", merged),
                    )
                )
        merged = merge(self.norm(p + "merger.norm", x), rows, columns)
        return self.project(p + "merger.", merged), deep, rows // 2, columns // 2

    def project(self, name, merged):
        return self.linear(name + "linear_fc2", gelu(self.linear(name + "linear_fc1", merged)))

    def __call__(self, frames, task, ids_of):
        """Progress and success of eight frames (8, H, W, 3); ``ids_of`` tokenises plain text."""
        t, p = self.text, "model.model.language_model."
        special = {"start": 257, "end": 258, "see": 259, "seen": 260, "progress": 267}
        ids, positions, marks, images, deeps = [], [], [], [], []

        def say(tokens):
            for token in tokens:
                ids.append(token)
                positions.append((say.next,) * 3)
                say.next += 1

        say.next = 0
        say([special["start"], *ids_of("user\n" + PROMPT_BEFORE + task + PROMPT_AFTER)])
        for number, frame in enumerate(frames, start=1):
            say([*ids_of(f"Picture {number}: "), special["see"]])
            tokens, deep, rows, columns = self.see(frame)
            images.append((len(ids), tokens))
            deeps.append((len(ids), deep))
            for r in range(rows):
                for c in range(columns):
                    ids.append(self.image_id)
                    positions.append((say.next, say.next + r, say.next + c))
            say.next += max(rows, columns)
            say([special["seen"]])
            marks.append(len(ids))
            say([special["progress"]])
        say([special["end"], *ids_of("\n")])

        x = self.w[p + "embed_tokens.weight"][ids].clone()
        for at, tokens in images:
            x[at : at + len(tokens)] = tokens
        half = t["head_dim"] // 2
        section = t["rope_scaling"]["mrope_section"]
        angle = torch.zeros(len(ids), half, dtype=torch.float64)
        for token, place in enumerate(positions):
            for i in range(half):
                axis = next((a for a in (1, 2) if i % 3 == a and i < 3 * section[a]), 0)
                angle[token, i] = place[axis] * t["rope_theta"] ** (-2 * i / t["head_dim"])
        angle = angle.repeat(1, 2)
        for layer in range(t["num_hidden_layers"]):
            b = f"{p}layers.{layer}."
            h = self.rms(b + "input_layernorm", x)
            q = self.rms(
                b + "self_attn.q_norm", self.linear(b + "self_attn.q_proj", h).unflatten(-1, (-1, 2 * half))
            )
            k = self.rms(
                b + "self_attn.k_norm", self.linear(b + "self_attn.k_proj", h).unflatten(-1, (-1, 2 * half))
            )
            v = self.linear(b + "self_attn.v_proj", h)
            heads, groups = t["num_attention_heads"], t["num_key_value_heads"]
            mixed = attend(q.flatten(1), k.flatten(1), v, angle, heads, groups, causal=True)
            x = x + self.linear(b + "self_attn.o_proj", mixed)
            h = self.rms(b + "post_attention_layernorm", x)
            gated = silu(self.linear(b + "mlp.gate_proj", h)) * self.linear(b + "mlp.up_proj", h)
            x = x + self.linear(b + "mlp.down_proj", gated)
            for at, deep in deeps:
                if layer < len(deep):
                    x[at : at + len(deep[layer])] += deep[layer]
        x = self.rms(p + "norm", x)[marks]
        return self.progress(x), 1 / (1 + torch.exp(-self.head("success_head", x)[:, 0]))

    def head(self, name, x):
        return self.linear(name + ".4", gelu(self.norm(name + ".1", self.linear(name + ".0", x), eps=1e-5)))

    def progress(self, x):
        weights = torch.exp(self.head("progress_head", x))
        centres = torch.tensor(np.linspace(0, 1, 10))
        return (weights * centres).sum(-1) / weights.sum(-1)


def merge(x, rows, columns):
    """Four neighbours side by side, block after block."""
    grid = x.view(rows, columns, -1)
    return torch.stack(
        [
            torch.cat([grid[r, c], grid[r, c + 1], grid[r + 1, c], grid[r + 1, c + 1]])
            for r in range(0, rows, 2)
            for c in range(0, columns, 2)
        ]
    )


def attend(q, k, v, angle, heads, groups, causal):
    """Attention with rotated queries and keys, head by head."""

    def rotated(x):
        first, second = x.chunk(2, dim=-1)
        return x * angle.cos() + torch.cat([-second, first], dim=-1) * angle.sin()

    size = q.shape[-1] // heads
    out = []
    for head in range(heads):
        group = head // (heads // groups)
        mine = rotated(q[:, head * size : (head + 1) * size])
        theirs = rotated(k[:, group * size : (group + 1) * size])
        scores = mine @ theirs.T / size**0.5
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), float("-inf"))
        out.append(torch.softmax(scores, dim=-1) @ v[:, group * size : (group + 1) * size])
    return torch.cat(out, dim=-1)
