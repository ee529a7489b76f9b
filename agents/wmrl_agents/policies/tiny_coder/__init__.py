"""The tiny coder: a language model that writes scikit-learn scripts, small enough for two processor cores.

It is an ordinary Hugging Face directory (``weights/agent``), and so is the world model on the same backbone
(``weights/world_model``). Nothing outside this package knows that they are small.
"""

from pathlib import Path

__all__ = ["WEIGHTS"]

WEIGHTS = Path(__file__).with_name("weights")
