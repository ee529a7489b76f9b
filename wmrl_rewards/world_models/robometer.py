"""`RobometerWorldModel`: Robometer, a model of progress for any robot and task, from its published weights.

Eight frames and the task go through Qwen3-VL in one causal pass. After each image stands a progress token,
whose last hidden state two heads read (arXiv 2603.02115):

    progress_t = sum_b softmax(W h_t)_b * b / (B - 1),  b = 0 ... B - 1  (B = 10 bins)
    success_t  = sigmoid(w h_t)

Since the pass is causal, what is said of a frame depends on it and those before it. Text and images are laid
out as in training: the words of `PROMPT`, images numbered, each side resized to a multiple of 32 pixels.
Frames have to be upright as the training data had them; LIBERO's are flipped vertically for that, by the
environment, not here.

Left out: preferences between two rollouts, videos as one input, training.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wmrl_envs.errors import ConfigError, MissingExtraError
from wmrl_rewards.prediction import PredictionRequest
from wmrl_rewards.world_models.progress_values import (
    NUM_FRAMES,
    Progress,
    ProgressWorldModel,
    Reduction,
    image_fault,
    uniform_indices,
)
from wmrl_rewards.world_models.robometer_checkpoint import (
    IMAGE_TOKEN,
    SPECIAL_TOKENS,
    load_robometer,
    load_tokenizer,
    read_settings,
)

__all__ = ["PROMPT", "RobometerWorldModel", "patchify", "resized"]

# The words of the training data, to the letter.
PROMPT = (
    "The task for the robot is '{task}'. Given the trajectory video, predict the task progress at each "
    "frame, how far along the robot is towards completing the task, a float between 0 and 1, where 0 is the "
    "starting state and 1 is when the task is completed. If the robot is not performing the same task, "
    "predict 0 progress."
)
_VERSION = 1  # to be raised whenever the encoding changes
_MAX_TASK_CHARACTERS = 4096
_FEWEST_IMAGE_TOKENS, _MOST_IMAGE_TOKENS = 4, 16_384
_LARGEST_ASPECT_RATIO = 200


class _Encoded(NamedTuple):
    """One rollout as the network reads it."""

    token_ids: list[int]
    patches: NDArray[np.float32]
    grid: tuple[int, int, int]


class RobometerWorldModel(ProgressWorldModel):
    """Progress of any task, seen by Robometer.

    Args:
        directory: Folder of the weights; see `robometer_checkpoint`.
        tokenizer: Folder, or name of a model, with Qwen3-VL's tokenizer. None takes the folder of the weights
            if one is in it, else the model that the configuration names.
        reduction: How a score is made of the eight values; see `progress_values`.
        batch_size: Rollouts in one forward pass.
        device: Where to run; None takes the accelerator if there is one.
        dtype: Type of the weights; None takes that of the checkpoint. In 16-bit types sums, and with them
            scores in their third digit, depend on the batch; float32 does not have that.
        padding_side: Where shorter texts of a batch are filled up. It changes nothing but rounding.

    Raises:
        ConfigError: A setting is out of its range.
        WMRLError: The folder is not a Robometer, or its tokenizer does not belong to it.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        tokenizer: str | os.PathLike[str] | None = None,
        reduction: Reduction = "potential",
        batch_size: int = 8,
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
        padding_side: Literal["left", "right"] = "right",
    ) -> None:
        super().__init__(reduction)
        if batch_size < 1 or padding_side not in ("left", "right"):
            raise ConfigError("batch_size must be at least 1 and padding_side 'left' or 'right'.")
        self.directory = Path(directory)
        self.settings = read_settings(directory)
        source = tokenizer if tokenizer is not None else self._own_tokenizer()
        self.tokenizer = load_tokenizer(source, self.settings)
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.dtype = dtype or self.settings.dtype
        self.batch_size = batch_size
        self.padding_side = padding_side
        self.network = load_robometer(directory, self.settings, device=self.device, dtype=self.dtype)

    @cached_property
    def fingerprint(self) -> str:
        """Names everything that a prediction depends on besides its request, weights included."""
        digest = hashlib.sha256(json.dumps([_VERSION, self.reduction, str(self.dtype), PROMPT]).encode())
        digest.update(json.dumps(sorted(self.tokenizer.get_vocab().items())).encode())
        for path in sorted([self.directory / "config.json", *self.directory.glob("*.safetensors")]):
            with path.open("rb") as file:
                digest.update(hashlib.file_digest(file, "sha256").digest())
        return digest.hexdigest()

    def progress(self, requests: Sequence[PredictionRequest]) -> list[Progress]:
        """Progress and success at each of eight frames. See `ProgressWorldModel`.

        Args:
            requests: Each with ``frames``, uint8 of shape (T, H, W, 3) and T at least 1, and a ``task``.
        """
        encoded = [self._encode(request) for request in requests]
        readable = [one for one in encoded if isinstance(one, _Encoded)]
        starts = range(0, len(readable), self.batch_size)
        seen = iter([one for at in starts for one in self._forward(readable[at : at + self.batch_size])])
        return [next(seen) if isinstance(one, _Encoded) else one for one in encoded]

    def _own_tokenizer(self) -> str | Path:
        names = ("tokenizer.json", "vocab.json")
        own = any((self.directory / name).is_file() for name in names)
        return self.directory if own else self.settings.base_model_id

    def _encode(self, request: PredictionRequest) -> _Encoded | Progress:
        """A request as the network reads it, or why it cannot be read."""
        fault = image_fault(request.frames) or _task_fault(request.task)
        if fault is not None:
            return Progress(error=fault)
        vision = self.settings.backbone.vision_config
        merge, patch = vision.spatial_merge_size, vision.patch_size
        frames = resized(request.frames[uniform_indices(len(request.frames))], patch * merge)
        if frames is None:
            return Progress(error=f"No image has sides as unlike as {request.frames.shape[1:3]}.")
        height, width = frames.shape[1] // patch, frames.shape[2] // patch
        images = height * width // merge**2
        token_ids = self.tokenizer(_text(request.task, images), add_special_tokens=False)["input_ids"]
        counts = [token_ids.count(self._id(token)) for token in (SPECIAL_TOKENS[-1], IMAGE_TOKEN)]
        if counts != [NUM_FRAMES, NUM_FRAMES * images]:
            return Progress(error="The task's text holds a token of the model's own, such as <|image_pad|>.")
        patches = patchify(frames, patch, merge, vision.temporal_patch_size)
        return _Encoded(token_ids, patches, (1, height, width))

    def _id(self, token: str) -> int:
        return int(self.tokenizer.convert_tokens_to_ids(token))

    @torch.inference_mode()
    def _forward(self, batch: Sequence[_Encoded]) -> list[Progress]:
        inputs = {name: value.to(self.device) for name, value in self._inputs(batch).items()}
        inputs["pixel_values"] = inputs["pixel_values"].to(self.dtype)
        progress, success = self.network(inputs, inputs["input_ids"] == self._id(SPECIAL_TOKENS[-1]))
        centres = torch.linspace(0, 1, progress.shape[-1], device=progress.device)
        values = (progress.softmax(dim=-1) * centres).sum(dim=-1).clamp(0, 1)
        rows = zip(values.tolist(), success.sigmoid().tolist(), strict=True)
        return [_checked(Progress(tuple(value), tuple(solved))) for value, solved in rows]

    def _inputs(self, batch: Sequence[_Encoded]) -> dict[str, Tensor]:
        longest = max(len(one.token_ids) for one in batch)
        filler = self.tokenizer.pad_token_id
        filler = self.tokenizer.eos_token_id if filler is None else filler
        ids = torch.full((len(batch), longest), 0 if filler is None else filler)
        attention = torch.zeros_like(ids)
        for row, one in enumerate(batch):
            length = len(one.token_ids)
            at = slice(0, length) if self.padding_side == "right" else slice(longest - length, longest)
            ids[row, at] = torch.tensor(one.token_ids)
            attention[row, at] = 1
        grids = [one.grid for one in batch for _ in range(NUM_FRAMES)]
        return {
            "input_ids": ids,
            "attention_mask": attention,
            "mm_token_type_ids": (ids == self._id(IMAGE_TOKEN)).int() * attention.int(),
            "pixel_values": torch.from_numpy(np.concatenate([one.patches for one in batch])),
            "image_grid_thw": torch.tensor(grids),
        }


def resized(frames: NDArray[np.uint8], factor: int) -> NDArray[np.uint8] | None:
    """Frames with sides that are multiples of ``factor``, as near to theirs as the limits allow.

    Args:
        frames: uint8 of shape (T, H, W, 3).
        factor: Pixels of one image token's side.

    Returns:
        uint8 of shape (T, H', W', 3), by bicubic interpolation; None for sides that are too unlike.

    Raises:
        MissingExtraError: They have to be resized, and Pillow is not installed.
    """
    height, width = frames.shape[1:3]
    if max(height, width) > _LARGEST_ASPECT_RATIO * min(height, width):
        return None
    rows, columns = (max(1, round(side / factor)) for side in (height, width))
    if not _FEWEST_IMAGE_TOKENS <= rows * columns <= _MOST_IMAGE_TOKENS:
        few = rows * columns < _FEWEST_IMAGE_TOKENS
        limit, to_whole = (_FEWEST_IMAGE_TOKENS, np.ceil) if few else (_MOST_IMAGE_TOKENS, np.floor)
        scale = (limit / (height * width)) ** 0.5
        rows, columns = (max(1, int(to_whole(side * scale))) for side in (height, width))
    size = (columns * factor, rows * factor)
    if size == (width, height):
        return frames
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("pillow", "vla") from error
    images = [Image.fromarray(frame).resize(size, Image.Resampling.BICUBIC) for frame in frames]
    return np.stack([np.asarray(image) for image in images])


def patchify(frames: NDArray[np.uint8], patch: int, merge: int, temporal: int) -> NDArray[np.float32]:
    """Frames as the rows that the vision tower reads.

    Args:
        frames: uint8 of shape (T, H, W, 3), sides multiples of ``patch * merge``.
        patch: Pixels of a patch's side.
        merge: Patches that become one token, on each side; they are neighbours in the rows.
        temporal: How often an image is repeated, as if it were that many frames of a video.

    Returns:
        float32 of shape (T * H/patch * W/patch, 3 * temporal * patch * patch), in [-1, 1].
    """
    count, height, width, channels = frames.shape
    scaled = (frames.astype(np.float32) / 255 - 0.5) / 0.5
    blocks = scaled.reshape(
        count, height // (patch * merge), merge, patch, width // (patch * merge), merge, patch, channels
    )
    # frame, block row, block column, row and column in the block, channel, row and column in the patch
    rows = blocks.transpose(0, 1, 4, 2, 5, 7, 3, 6)[:, :, :, :, :, :, None]
    repeated = np.repeat(rows, temporal, axis=6)
    return np.ascontiguousarray(repeated.reshape(count * height * width // patch**2, -1))


def _task_fault(task: str) -> str | None:
    if not task.strip():
        return "The request names no task, so that there is nothing to judge by."
    if len(task) > _MAX_TASK_CHARACTERS:
        return f"The task has {len(task)} characters, more than the {_MAX_TASK_CHARACTERS} that are read."
    return None


def _text(task: str, images: int) -> str:
    """The dialogue; ``images`` image tokens stand for each frame."""
    # A lone surrogate, which no UTF-8 can hold, becomes a question mark.
    prompt = PROMPT.format(task=task.encode("utf-8", "replace").decode("utf-8"))
    frames = [
        f"Picture {number}: <|vision_start|>{IMAGE_TOKEN * images}<|vision_end|>{SPECIAL_TOKENS[-1]}"
        for number in range(1, NUM_FRAMES + 1)
    ]
    return f"<|im_start|>user\n{prompt}{''.join(frames)}<|im_end|>\n"


def _checked(progress: Progress) -> Progress:
    """A prediction that is made of numbers; broken weights give others."""
    numbers: tuple[Any, ...] = (*progress.values, *(progress.success or ()))
    if np.isfinite(numbers).all():
        return progress
    return Progress(error="The network's output is not finite: its weights are broken or overflow.")
