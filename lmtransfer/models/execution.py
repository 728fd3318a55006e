"""How encoders run during training: compilation, activation checkpointing, and the dtype of the residual stream."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lmtransfer.errors import ConfigError
from lmtransfer.models.base import encoders_in
from lmtransfer.models.layers.attention.dispatch import keep_uncompiled
from lmtransfer.models.layers.attention.self_attention import AttentionLayer
from lmtransfer.models.layers.building_blocks import InputEmbeddings, ResidualNorm, ResidualStream
from lmtransfer.models.layers.cross_entropy import compile_losses

#: Maximum number of compiled versions of a block class, one for each shape and kind of block; beyond it, blocks run
#: without compilation. A generator, the last layer and a few batch sizes exceed PyTorch's own limit of 8.
_VERSIONS = 64


def compile_blocks(learner: nn.Module) -> None:
    """Compile the embeddings, each block (once for each input shape) and, on CUDA, the cross entropies.

    Attention in dense blocks and encoders with ``compiles=False`` (relative positions) are not compiled. In LSTMs, only
    the time steps on CUDA are compiled.
    """
    import torch._dynamo

    _keep_by_instructions()
    config = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, _VERSIONS)
    for encoder in encoders_in(learner):
        if encoder.compiles:
            embeddings = [module for module in encoder.modules() if isinstance(module, InputEmbeddings)]
            for module in (*embeddings, *encoder.blocks()):
                module.compile(dynamic=False)
    keep_uncompiled()
    compile_losses()


def _keep_by_instructions() -> None:
    """Cache compiled code in a subfolder that is named after the CPU's instruction set.

    The compiler looks up compiled code by its source only. Machines can share a cache folder, however, and the CPU of a
    virtual machine can change. Code compiled for another instruction set can write beyond its buffers.
    """
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    instructions = torch.backends.cpu.get_cpu_capability().lower().replace(" ", "_")
    folder = Path(cache_dir())
    if folder.name != instructions:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / instructions)


def checkpoint_activations(learner: nn.Module) -> None:
    """Store only the inputs of each attention block; the backward pass computes the block a second time.

    This is activation checkpointing (Chen et al. 2016, https://arxiv.org/abs/1604.06174) with one segment per layer.
    Training takes up to a third longer. The second computation repeats the random numbers of the first, so losses and
    gradients do not change. Call this function after ``compile_blocks``: both computations must run the same code,
    because compiled code draws different random numbers.
    """
    for encoder in encoders_in(learner):
        blocks = [b for b in encoder.blocks() if any(isinstance(part, AttentionLayer) for part in b.modules())]
        if not blocks:
            raise ConfigError(
                "hardware.activation_checkpointing=true recomputes transformer layers, but "
                f"{type(encoder).__name__} has none: set it to false; a lower train.micro_batch_tokens saves memory too"
            )
        for block in blocks:
            call = block._compiled_call_impl or block._call_impl  # the function behind the module's call
            if not isinstance(call, partial):  # an earlier phase of the run may have replaced the call already
                block._compiled_call_impl = partial(checkpoint, call, use_reentrant=False)


def keep_residual(learner: nn.Module, dtype: torch.dtype, *, required: bool = True) -> None:
    """Set the dtype of all residual streams in a learner; the dtype of the weights does not change.

    Args:
        required: whether a learner without a residual stream is an error.
    """
    if dtype == torch.float32:
        return
    streams = [module for module in learner.modules() if isinstance(module, ResidualStream)]
    if not streams and required:
        raise ConfigError(
            "hardware.residual=bfloat16 needs a model of transformer layers, and this model has no residual stream: "
            "use hardware.residual=float32"
        )
    for stream in streams:
        stream.dtype = dtype
    for module in learner.modules():
        if isinstance(module, ResidualNorm):
            module.keeps_dtype = True
