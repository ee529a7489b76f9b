"""MiniVLA's forward pass written down a second time, in timm's layout of the weights and in float64.

Nothing is shared with the package: no transformers, no renaming, attention head by head.
"""

import torch
from torch.nn.functional import gelu, layer_norm, silu


class Straight:
    def __init__(self, model):
        self.v, self.p, self.l = (
            {name: value.double() for name, value in model[part].items()}
            for part in ("vision_backbone", "projector", "llm_backbone")
        )

    def tower(self, name, pixels, head):
        """Patch tokens after the second-to-last block of a timm ViT."""
        w = {key.removeprefix(name): value for key, value in self.v.items() if key.startswith(name)}
        kernel = w["patch_embed.proj.weight"]
        size, dim = kernel.shape[-1], kernel.shape[0]
        tokens = []
        for row in range(0, pixels.shape[1], size):
            for column in range(0, pixels.shape[2], size):
                patch = pixels[:, row : row + size, column : column + size]
                tokens.append(kernel.flatten(1) @ patch.flatten() + w["patch_embed.proj.bias"])
        x = torch.stack(tokens) + w["pos_embed"][0]
        special = [w[key][0] for key in ("cls_token", "reg_token") if key in w]
        before = sum(len(one) for one in special)
        x = torch.cat([*special, x])
        depth = 1 + max(int(key.split(".")[1]) for key in w if key.startswith("blocks."))
        for i in range(depth - 1):
            b = f"blocks.{i}."
            h = layer_norm(x, (dim,), w[b + "norm1.weight"], w[b + "norm1.bias"], 1e-6)
            q, k, v = (h @ w[b + "attn.qkv.weight"].T + w[b + "attn.qkv.bias"]).chunk(3, dim=-1)
            heads = [
                torch.softmax(q[:, s] @ k[:, s].T / head**0.5, dim=-1) @ v[:, s]
                for s in (slice(at, at + head) for at in range(0, dim, head))
            ]
            h = torch.cat(heads, dim=-1) @ w[b + "attn.proj.weight"].T + w[b + "attn.proj.bias"]
            x = x + h * w.get(b + "ls1.gamma", 1.0)
            h = layer_norm(x, (dim,), w[b + "norm2.weight"], w[b + "norm2.bias"], 1e-6)
            h = gelu(h @ w[b + "mlp.fc1.weight"].T + w[b + "mlp.fc1.bias"])
            x = x + (h @ w[b + "mlp.fc2.weight"].T + w[b + "mlp.fc2.bias"]) * w.get(b + "ls2.gamma", 1.0)
        return x[before:]

    def see(self, picture):
        """Tokens of a picture, uint8 (side, side, 3)."""
        pixels = torch.tensor(picture / 255.0).permute(2, 0, 1)
        mean, spread = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]).double()[:, :, None, None]
        dino = self.tower("dino_featurizer.", (pixels - mean) / spread, 64)
        siglip = self.tower("siglip_featurizer.", pixels * 2 - 1, 72)
        x = torch.cat([dino, siglip], dim=-1)
        for number in (0, 2, 4):
            x = x @ self.p[f"projector.{number}.weight"].T + self.p[f"projector.{number}.bias"]
            x = gelu(x) if number < 4 else x
        return x

    def rms(self, name, x):
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * self.l[name + ".weight"]

    def linear(self, name, x):
        y = x @ self.l[name + ".weight"].T
        return y + self.l[name + ".bias"] if name + ".bias" in self.l else y

    def __call__(self, picture, ids):
        """Logits of the whole vocabulary after each of ``ids``, the picture behind the first of them."""
        words = self.l["llm.model.embed_tokens.weight"][ids]
        x = torch.cat([words[:1], self.see(picture), words[1:]])
        length, half = len(x), 32
        angle = torch.arange(length)[:, None] * 1e6 ** (-torch.arange(half).double() / half)
        angle = angle.repeat(1, 2)

        def rotated(z):
            first, second = z.chunk(2, dim=-1)
            return z * angle.cos() + torch.cat([-second, first], dim=-1) * angle.sin()

        depth = 1 + max(int(k.split(".")[3]) for k in self.l if k.startswith("llm.model.layers."))
        for i in range(depth):
            b = f"llm.model.layers.{i}."
            h = self.rms(b + "input_layernorm", x)
            q, k, v = (self.linear(f"{b}self_attn.{part}_proj", h) for part in "qkv")
            heads, groups = q.shape[-1] // 64, k.shape[-1] // 64
            out = []
            for head in range(heads):
                g = head // (heads // groups)
                mine, theirs = (rotated(z[:, n * 64 : n * 64 + 64]) for z, n in ((q, head), (k, g)))
                scores = (mine @ theirs.T / 8).masked_fill(
                    torch.ones(length, length).triu(1).bool(), -torch.inf
                )
                out.append(torch.softmax(scores, dim=-1) @ v[:, g * 64 : g * 64 + 64])
            x = x + self.linear(b + "self_attn.o_proj", torch.cat(out, dim=-1))
            h = self.rms(b + "post_attention_layernorm", x)
            h = silu(self.linear(b + "mlp.gate_proj", h)) * self.linear(b + "mlp.up_proj", h)
            x = x + self.linear(b + "mlp.down_proj", h)
        logits = self.rms("llm.model.norm", x) @ self.l["llm.lm_head.weight"].T
        patches = length - len(ids)
        return torch.cat([logits[:1], logits[1 + patches :]])
