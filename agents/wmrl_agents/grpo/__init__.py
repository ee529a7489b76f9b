"""GRPO with fused per-group gradients: `config`, `trainer`, `rollouts`, `gradients`, `checkpoint`."""
