"""Number formats: bfloat16 autocast where the hardware has it, float16 with a loss scale on older GPUs, float32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

PrecisionName = Literal["bf16", "fp16", "fp32"]


class Precision:
    """The format of the matrix products; weights, their gradients and the optimiser's state stay as they are.

    Args:
        name: ``bf16``, ``fp16`` or ``fp32`` (no autocast: the weights' own format).
        device: where the learner lives.
        init_scale: first loss scale; only fp16 uses one.
    """

    def __init__(
        self, *, name: PrecisionName = "fp32", device: torch.device | str = "cpu", init_scale: float = 2.0**16
    ) -> None:
        self.name = name
        self.device_type = torch.device(device).type
        self.dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[name]
        self.scaler = LossScale(init_scale=init_scale) if name == "fp16" else None

    def autocast(self) -> AbstractContextManager:
        """The context of a forward pass."""
        if self.dtype is torch.float32:
            return nullcontext()
        return torch.autocast(self.device_type, dtype=self.dtype)

    @property
    def optimizer_dtype(self) -> torch.dtype:
        """The format of an optimiser's own products: float32 beside float16, whose range is too small for them."""
        return torch.float32 if self.dtype is torch.float16 else self.dtype

    @property
    def scale(self) -> float:
        """What the loss is multiplied by before the backward pass; 1 except in float16."""
        return 1.0 if self.scaler is None else self.scaler.scale


class LossScale:
    """Keeps float16 gradients in range (Micikevicius et al. 2018, section 3.2).

    The loss is multiplied by ``scale`` and the gradients are divided by it. Gradients that overflow skip the step and
    halve the scale; ``growth_interval`` good steps in a row double it.

    Args:
        init_scale: the first scale.
        growth_interval: good steps before the scale is doubled.
    """

    def __init__(self, *, init_scale: float = 2.0**16, growth_interval: int = 2000) -> None:
        self.scale = init_scale
        self.growth_interval = growth_interval
        self.good_steps = 0

    def update(self, *, overflowed: bool) -> None:
        """Take note of one step."""
        if overflowed:
            self.scale /= 2
            self.good_steps = 0
            return
        self.good_steps += 1
        if self.good_steps == self.growth_interval:
            self.scale *= 2
            self.good_steps = 0

    def state_dict(self) -> dict[str, float]:
        """Plain numbers."""
        return {"scale": self.scale, "good_steps": self.good_steps}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """The reverse of ``state_dict``."""
        self.scale = float(state["scale"])
        self.good_steps = int(state["good_steps"])
