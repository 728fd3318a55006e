"""The device of the tests marked ``gpu``."""

from __future__ import annotations

import os

import pytest
import torch


def gpu() -> torch.device:
    """The GPU; the test is skipped without one.

    ``LMTRANSFER_GPU_TESTS=cpu`` runs such tests on the CPU, to see whether they run at all: there they compare the
    CPU with itself.
    """
    if os.environ.get("LMTRANSFER_GPU_TESTS") == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device, and PyTorch sees none")
    return torch.device("cuda", torch.cuda.current_device())
