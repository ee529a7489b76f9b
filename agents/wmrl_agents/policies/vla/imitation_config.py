"""Settings of supervised training, apart from it, so that listing them as flags does not load torch."""

from __future__ import annotations

from dataclasses import dataclass

from wmrl_envs.errors import ConfigError

__all__ = ["ImitationConfig"]


@dataclass(frozen=True)
class ImitationConfig:
    """Settings of a run.

    Attributes:
        steps: Steps of AdamW.
        batch_size: Examples in a step.
        learning_rate: Highest rate; it rises over the first twentieth of the steps, and falls along a cosine.
        weight_decay: Of AdamW.
        hidden: Width of the policy.
        codes: Codes of each of the seven quantisers.
        state_noise: Standard deviation of noise on the standardised states, against learning by heart.
        dropout: Share of the context's numbers that are left out in training, likewise.
        held_out: Share of the episodes that are only measured.
        report_every: Steps between two lines.
        checkpoint_every: Steps between two checkpoints.
        seed: Decides weights, codebooks, examples and noise.
    """

    steps: int = 4000
    batch_size: int = 256
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    hidden: int = 256
    codes: int = 128
    state_noise: float = 0.02
    dropout: float = 0.1
    held_out: float = 0.1
    report_every: int = 100
    checkpoint_every: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        counts = ("steps", "batch_size", "hidden", "codes", "report_every", "checkpoint_every")
        for name in counts:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if not 0 <= self.held_out < 1:
            raise ConfigError(f"held_out must be at least 0 and below 1, not {self.held_out}.")
        if not self.learning_rate > 0 or self.weight_decay < 0 or self.state_noise < 0:
            raise ConfigError("learning_rate must be above 0, weight_decay and state_noise not negative.")
