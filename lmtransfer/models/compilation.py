"""The compilation of an encoder's blocks, in every command that trains an encoder."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn

from lmtransfer.models.base import encoders_in
from lmtransfer.models.layers.cross_entropy import compile_losses
from lmtransfer.models.layers.embeddings import InputEmbeddings

#: Maximum number of compiled versions of the code of a block class; PyTorch's own limit is 8.
_VERSIONS = 64


def compile_blocks(learner: nn.Module) -> None:
    """Compile the embeddings, each block (separately, once for each input shape), and on CUDA the cross entropies.

    Dense attention blocks are not compiled. Encoders with ``compiles=False`` (relative positions) run without
    compilation. In LSTMs, only the time steps on CUDA are compiled.
    """
    _keep_by_instructions()
    _allow_versions()
    for encoder in encoders_in(learner):
        if encoder.compiles:
            embeddings = [module for module in encoder.modules() if isinstance(module, InputEmbeddings)]
            for module in (*embeddings, *encoder.blocks()):
                module.compile(dynamic=False)
    compile_losses()


def _allow_versions() -> None:
    """Allow as many versions of a block's code as there are shapes and kinds of blocks.

    Beyond the limit, blocks run without compilation. A generator, the last layer and a few batch sizes exceed 8.
    """
    import torch._dynamo

    config = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, _VERSIONS)


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
