"""How encoders run in training: compiled, with recomputed activations, with a residual stream in another format."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lmtransfer.errors import ConfigError
from lmtransfer.models.base import encoders_in
from lmtransfer.models.layers.attention.layout import AttentionLayer
from lmtransfer.models.layers.building_blocks import InputEmbeddings, ResidualNorm, ResidualStream
from lmtransfer.models.layers.cross_entropy import compile_losses

#: Maximum number of compiled versions of the code of a block class, beyond which blocks run without compilation: one
#: for each shape and kind of block. A generator, the last layer and a few batch sizes exceed PyTorch's own limit of 8.
_VERSIONS = 64


def compile_blocks(learner: nn.Module) -> None:
    """Compile the embeddings, each block (separately, once for each input shape), and on CUDA the cross entropies.

    Dense attention blocks are not compiled. Encoders with ``compiles=False`` (relative positions) run without
    compilation. In LSTMs, only the time steps on CUDA are compiled.
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
    compile_losses()


def _keep_by_instructions() -> None:
    """Use a cache folder for compiled code that is named after the CPU's instruction set.

    It is a subfolder of the compiler's or the user's cache folder. The compiler looks up compiled code by its source
    only, but machines can share a cache folder, and a virtual machine can present a different CPU. Code compiled for
    AVX2 that then runs as AVX-512 code writes beyond its buffers.
    """
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    instructions = torch.backends.cpu.get_cpu_capability().lower().replace(" ", "_")
    folder = Path(cache_dir())
    if folder.name != instructions:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / instructions)


def checkpoint_activations(learner: nn.Module) -> None:
    """Store only the inputs of each block with attention; the backward pass computes the block a second time.

    This is activation checkpointing (Chen et al. 2016, https://arxiv.org/abs/1604.06174) with one segment per layer. It
    takes up to a third more time. The second computation repeats the random numbers of the first, so losses and
    gradients do not change. Call this after ``compile_blocks``: both computations must run the same code, because
    compiled code draws other random numbers than uncompiled code.
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
    """Set the number format of all residual streams of a learner; float32 changes nothing, and weights keep theirs.

    Args:
        required: whether the learner must have such a stream.
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
