"""A learner on several ranks: replicated (DistributedDataParallel), or sharded if it is too large for one GPU (FSDP2).

Either way, every rank runs the same number of passes in a step, and after the last pass the gradients are the sums over
all ranks. Both engines average, so each loss is multiplied by the number of ranks.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import register_dataclass

from lmtransfer.errors import ConfigError
from lmtransfer.training import process_group
from lmtransfer.training.learner import GivesEmbeddings, HasBlocks, Learner, Loss
from lmtransfer.training.precision import Precision
from lmtransfer.training.recurrent_state import detach

register_dataclass(Loss, field_names=["sum", "count", "weight"])  # so that FSDP2 finds the tensors in it


class Passes:
    """Forward and backward passes, whose gradients add up over the passes of a step and over all ranks."""

    def __init__(self, learner: Learner, precision: Precision) -> None:
        self.learner, self.precision = learner, precision
        self._forward = _Forward(learner)
        self._replica: DistributedDataParallel | None = None
        self._trained: list[bool] = []

    def run(
        self, batch: Any, recurrent_state: Any, *, counts: Mapping[str, float], counted: bool = True, is_last: bool
    ) -> tuple[dict[str, Loss], Any]:
        """Run a forward and backward pass over one micro-batch.

        This is a separate function so that, after an out-of-memory error, no reference keeps the tensors alive.

        Args:
            counts: for each loss, its count over the whole step, by which its sum is divided.
            counted: False for a filler, whose losses do not count.
            is_last: whether this is the rank's last pass of the step, after which gradients are summed over the ranks.

        Returns:
            The losses and the next recurrent state, detached.
        """
        with self._module(is_last) as forward:
            with self.precision.autocast():
                total, losses, recurrent_state = forward(batch, recurrent_state, counts)
            if total is not None:
                (total * (self.precision.scale * process_group.world_size() * counted)).backward()
        return losses, recurrent_state

    @contextmanager
    def _module(self, is_last: bool) -> Iterator[nn.Module]:
        """Yield the module to call; in the last pass of a step, it sums the gradients over the ranks."""
        if is_sharded(self.learner):
            self.learner.set_requires_gradient_sync(is_last)  # type: ignore[operator]
            self.learner.set_is_last_backward(is_last)  # type: ignore[operator]
            yield self._forward
            return
        several = process_group.world_size() > 1
        trained = [parameter.requires_grad for parameter in self.learner.parameters()] if several else []
        if not any(trained):
            yield self._forward
            return
        if self._replica is None or trained != self._trained:  # layers were unfrozen
            self._trained, self._replica = trained, _replicate(self._forward)
        with nullcontext() if is_last else self._replica.no_sync():
            yield self._replica


def _replicate(module: nn.Module) -> DistributedDataParallel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PyTorch 2.13 has two names for broadcast_buffers, 2.11 has one
        return DistributedDataParallel(
            module,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
            find_unused_parameters=True,  # such as a head that no row of the last pass needs
        )


class _Forward(nn.Module):
    """A forward pass in the form that the engines expect: one tensor to backpropagate from, all others detached."""

    def __init__(self, learner: Learner) -> None:
        super().__init__()
        self.learner = learner

    def forward(
        self, batch: Any, recurrent_state: Any, counts: Mapping[str, float]
    ) -> tuple[Tensor | None, dict[str, Loss], Any]:
        losses, recurrent_state = self.learner(batch, recurrent_state)
        parts = [
            loss.sum * (loss.weight / counts[name]) for name, loss in losses.items() if loss.weight and counts[name]
        ]
        total = torch.stack(parts).sum() if parts else None
        plain = {name: Loss(loss.sum.detach(), loss.count, loss.weight) for name, loss in losses.items()}
        return total if total is not None and total.requires_grad else None, plain, detach(recurrent_state)


def shard(learner: Learner, device: torch.device) -> None:
    """Give each rank its shard of every parameter; a block is gathered only while it computes.

    Embeddings and heads are gathered for a whole pass, and so are blocks that share their parameters (ALBERT's).
    """
    from torch.distributed.fsdp import FSDPModule, fully_shard  # takes a second to import

    if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
        raise ConfigError(f"hardware.shard=true needs PyTorch 2.13 or newer, but {torch.__version__} is installed")
    process_group.share_weights(learner)
    mesh = torch.distributed.init_device_mesh(device.type, (process_group.world_size(),))
    blocks = {block for module in learner.modules() if isinstance(module, HasBlocks) for block in module.blocks()}
    num_uses = Counter(parameter for block in blocks for parameter in block.parameters())
    tables = [module for module in learner.modules() if isinstance(module, GivesEmbeddings) and module.gives_embeddings]
    inside = {part for table in tables for part in table.modules()}
    for block in (part for part in learner.modules() if part in blocks and part not in inside):
        if all(num_uses[parameter] == 1 for parameter in block.parameters()):
            fully_shard(block, mesh=mesh)
    fully_shard(learner, mesh=mesh)
    for module in learner.modules():
        if isinstance(module, FSDPModule):
            module.set_reduce_scatter_unused_params(True)


def is_sharded(sharded: nn.Module | Tensor) -> bool:
    """Whether each rank holds only a shard of a tensor, or of each parameter of a learner (see ``shard``)."""
    return hasattr(sharded, "full_tensor" if isinstance(sharded, Tensor) else "set_requires_gradient_sync")


def own_part(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a tensor, sharing its memory; the whole tensor if it is not sharded."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def gather_whole(tensor: Tensor) -> Tensor:
    """Return the whole tensor, gathered from the ranks if it is sharded; every rank must then call this."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def shard_like(tensor: Tensor, values: Tensor) -> Tensor:
    """Shard ``values``, a whole tensor that every rank has, in the same way as ``tensor``."""
    if not is_sharded(tensor):
        return values
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
    return distribute_tensor(values.to(tensor.device), mesh, placements, src_data_rank=None)


@torch.no_grad()
def gradient_norm(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Return the Euclidean norm of all gradients, a scalar on their device; not finite if any gradient is not."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        return torch.zeros((), device=parameters[0].device if parameters else None)
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm([own_part(g) for g in gradients])))
    return process_group.sum_on_device(norm.square()).sqrt() if is_sharded(gradients[0]) else norm
