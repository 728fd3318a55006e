"""A fake CUDA device for the build of PyTorch without CUDA, in a process of its own.

Tensors on it are fake (``FakeTensorMode``): they have shape, dtype and device, and no numbers. Forward, backward and
the rules of CUDA's autocast are those of PyTorch. What is not seen here: real kernels, and what cuDNN does.
"""

from __future__ import annotations

import ctypes
import hashlib
import multiprocessing
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

GUARD = Path(__file__).with_name("guard.cpp")


class NotPossible(Exception):
    """This machine cannot have a fake device; the text says why."""


class FakeCuda:
    """A process in which PyTorch sees one CUDA device.

    It is a separate process because PyTorch counts its devices once, at the first backward pass.
    """

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, mp_context=context, initializer=_register, initargs=(compiled_guard(),))

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function of a module returns there; what it raises, too."""
        return self._pool.submit(function, *arguments).result()

    def close(self) -> None:
        self._pool.shutdown()


def compiled_guard() -> Path:
    """The shared library of ``guard.cpp``; it is compiled once for each version of PyTorch, in two seconds.

    Raises:
        NotPossible: there is no C++ compiler, or PyTorch has a CUDA of its own.
    """
    spec = find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    torch = Path(spec.origin).parent
    if (torch / "lib" / "libtorch_cuda.so").exists():
        raise NotPossible("this build of PyTorch has a CUDA of its own")
    version = (torch / "version.py").read_bytes()
    key = hashlib.sha256(GUARD.read_bytes() + version + str(torch).encode()).hexdigest()[:16]
    library = Path(tempfile.gettempdir()) / f"lmtransfer-fake-cuda-{os.getuid()}" / f"{key}.so"
    if library.exists():
        return library
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise NotPossible("needs g++ to compile a fake CUDA device")
    library.parent.mkdir(mode=0o700, exist_ok=True)
    unfinished = library.with_suffix(f".{os.getpid()}")
    words = [compiler, "-O0", "-w", "-shared", "-fPIC", "-std=c++20", str(GUARD), "-o", str(unfinished)]
    words += [f"-I{torch / 'include'}", f"-L{torch / 'lib'}", f"-Wl,-rpath,{torch / 'lib'}"]
    subprocess.run([*words, "-ltorch", "-ltorch_cpu", "-lc10"], check=True)
    unfinished.rename(library)
    return library


def _register(library: Path) -> None:
    """Register the device, before anything asks PyTorch which devices there are."""
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL).register_device()
    import torch

    torch.set_num_threads(1)
    torch.cuda._lazy_init = lambda: None
    torch.cuda.is_available = lambda: True
    torch.cuda.manual_seed_all = torch.cuda.manual_seed = lambda seed: None
    set_capability(9, 0)


def set_capability(major: int, minor: int) -> None:
    """The compute capability of the device from now on."""
    import torch

    torch.cuda.get_device_capability = lambda *_: (major, minor)
    torch.cuda.is_bf16_supported = lambda *_, **__: major >= 8
