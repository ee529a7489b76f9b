"""GRPO with fused per-group gradients."""
