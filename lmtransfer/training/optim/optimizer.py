"""The optimizer of the training loop: a single object that combines one or more ``torch.optim`` optimizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from lmtransfer.errors import CheckpointError
from lmtransfer.training import process_group
from lmtransfer.training.data_parallel import gather_whole, shard_like
from lmtransfer.training.optim.muon import MuonUpdate


class Optimizer:
    """One or several ``torch.optim`` optimizers that together contain each trainable parameter once.

    The loop multiplies every peak learning rate by the schedule's factor. State is saved by parameter *name*, as
    tensors only, so that it is safe to load and does not depend on the order of the parameters.

    Args:
        learner: the learner that owns the parameters.
        parts: the optimizers; the learning rate of the first is logged. A group's ``peak_lr`` (default: its ``lr``) is
            its learning rate at a factor of 1; ``base_lr`` is the same without layer-wise rates.
    """

    def __init__(self, learner: nn.Module, parts: Sequence[torch.optim.Optimizer]) -> None:
        self.parts = [part for part in parts if any(group["params"] for group in part.param_groups)]
        self.names = {id(parameter): name for name, parameter in learner.named_parameters()}
        for part in self.parts:
            for group in part.param_groups:
                group.setdefault("peak_lr", group["lr"])
                group.setdefault("base_lr", group["peak_lr"])
        self.parameters = [p for part in self.parts for group in part.param_groups for p in group["params"]]
        if len({id(p) for p in self.parameters}) != len(self.parameters):
            raise ValueError("a parameter appears in two optimizer groups")

    def set_factor(self, factor: float) -> None:
        """Set every learning rate to ``factor`` times its peak."""
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = group["peak_lr"] * factor

    def learning_rate_at(self, factor: float) -> float:
        """Return the learning rate of the first group at ``factor`` times its peak, without layer-wise rates."""
        return float(self.parts[0].param_groups[0]["base_lr"]) * factor

    def decay_of(self, parameter: nn.Parameter) -> float | None:
        """Return the weight decay of a parameter, or None if it is not trained here."""
        for part in self.parts:
            for group in part.param_groups:
                if any(parameter is member for member in group["params"]):
                    return float(group.get("weight_decay", 0.0))
        return None

    def multiply_in(self, dtype: torch.dtype) -> None:
        """Set the dtype of the matrix products in an update; only Muon's update has matrix products.

        Args:
            dtype: bfloat16 if the hardware multiplies it natively, else float32. Weights and optimizer state keep their
                dtype.
        """
        for part in self.parts:
            if isinstance(part, MuonUpdate):
                part.product_dtype = dtype

    @property
    def skips_on_device(self) -> bool:
        """Whether ``step`` accepts ``skip``: Muon and AdamW's fused kernels do."""
        return all(
            isinstance(part, MuonUpdate)
            or (type(part) is torch.optim.AdamW and all(group["fused"] for group in part.param_groups))
            for part in self.parts
        )

    def step(self, *, skip: Tensor | None = None) -> None:
        """Update every parameter that has a gradient.

        Args:
            skip: a float32 scalar on the device of the parameters; if it is 1, nothing changes. Requires
                ``skips_on_device``.
        """
        for part in self.parts:
            if skip is None:
                part.step()
                continue
            part.found_inf = skip  # type: ignore[attr-defined]  # where PyTorch's gradient scaler puts it
            try:
                part.step()
            finally:
                del part.found_inf  # type: ignore[attr-defined]

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state with keys ``<parameter name>/<entry>``, as tensors only: a number becomes a float64 scalar.

        Every rank must call this, because state that only one rank has is sent to the others.
        """
        state = {}
        for part in self.parts:
            for parameter, entries in part.state.items():
                for entry, value in entries.items():
                    tensor = value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)
                    state[f"{self.names[id(parameter)]}/{entry}"] = gather_whole(tensor)
        return process_group.union(state)

    def load_state_dict(self, state: Mapping[str, Tensor], *, source: str = "the checkpoint") -> None:
        """Restore the state from ``state_dict``; tensors are copied to the devices of the parameters.

        Args:
            state: tensors with keys ``<parameter name>/<entry>``.
            source: name of the source in messages.

        Raises:
            CheckpointError: ``state`` has a parameter that is not trained here, a tensor has another shape, or an entry
                is missing.
        """
        holders = {
            self.names[id(p)]: (part, p, bool(group.get("fused")))
            for part in self.parts
            for group in part.param_groups
            for p in group["params"]
        }
        unknown = sorted({key.rpartition("/")[0] for key in state} - set(holders))
        if unknown:
            raise CheckpointError(
                f"the saved optimizer state has {len(unknown)} parameters that are not trained here, such as "
                f"{unknown[0]!r}: resume with the model, objective and optimizer with which the run started"
            )
        entries: dict[int, set[str]] = {}
        for key, value in state.items():
            name, _, entry = key.rpartition("/")
            part, parameter, _ = holders[name]
            entries.setdefault(id(part), set()).add(entry)
            if value.ndim and value.shape != parameter.shape:
                raise CheckpointError(
                    f"{source}: the optimizer's {key} has shape {list(value.shape)}, but its parameter "
                    f"has shape {list(parameter.shape)}: restore the folder from a backup"
                )
        started = {key.rpartition("/")[0] for key in state}
        missing = [
            f"{name}/{entry}"
            for name in started
            for entry in entries[id(holders[name][0])]
            if f"{name}/{entry}" not in state
        ]
        if missing:
            raise CheckpointError(
                f"{source}: the optimizer's {min(missing)} is missing: restore the folder from a backup"
            )
        for part in self.parts:
            part.state.clear()
        for key, value in state.items():
            name, _, entry = key.rpartition("/")
            part, parameter, fused = holders[name]
            if isinstance(part, MuonUpdate) and not part.owns(parameter):
                continue
            # fused kernels keep step counts on the device of the parameter, others on the host
            on_device = value.ndim > 0 or fused
            value = value.to(parameter.device if on_device else "cpu", copy=True)
            part.state[parameter][entry] = shard_like(parameter, value) if value.ndim else value
