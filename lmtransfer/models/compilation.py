"""Compiling the blocks of an encoder, for every command that trains one."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn

from lmtransfer.models.base import encoders_in


def compile_blocks(learner: nn.Module) -> None:
    """Compile every block by itself, for each shape that it meets; attention stays outside.

    Blocks of encoders that are not made for that (relative positions, LSTMs) run as they are.
    """
    _keep_by_instructions()
    for encoder in encoders_in(learner):
        if encoder.compiles:
            for block in encoder.blocks():
                block.compile(dynamic=False)


def _keep_by_instructions() -> None:
    """Keep what is compiled in a folder of the CPU's instructions, below the compiler's own or the user's.

    The compiler finds what it has built by the code alone, and code built for AVX2 that is taken for AVX-512's (a
    folder that machines share, a CPU shown as another) writes beyond its buffers.
    """
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    instructions = torch.backends.cpu.get_cpu_capability().lower().replace(" ", "_")
    folder = Path(cache_dir())
    if folder.name != instructions:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / instructions)
