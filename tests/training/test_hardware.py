"""What is chosen for a GPU from what the machine has, with a GPU that is only said to be there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from support.refusals import refuses

from lmtransfer.errors import ConfigError
from lmtransfer.runs.training import training_hardware
from lmtransfer.training import hardware
from lmtransfer.training.hardware import setup
from lmtransfer.training.precision import Precision
from lmtransfer.training.update import is_out_of_memory


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An H100 with all that is needed to compile."""
    said = {"is_available": True, "device_count": 1, "get_device_capability": (9, 0), "get_device_name": "NVIDIA H100"}
    for name, value in {**said, "set_device": None}.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    monkeypatch.setattr(hardware, "find_spec", lambda name: name)
    monkeypatch.setattr(hardware.shutil, "which", lambda name: "/usr/bin/gcc" if name == "gcc" else None)
    monkeypatch.setattr(hardware.sysconfig, "get_path", lambda name: str(Path(__file__).parent))
    monkeypatch.setattr(hardware.Path, "is_file", lambda path: path.name == "Python.h")
    monkeypatch.delenv("CC", raising=False)
    return monkeypatch


def test_a_gpu_compiles_if_nothing_is_missing(gpu: pytest.MonkeyPatch) -> None:
    chosen = setup()
    assert chosen.compile
    assert "compiled" in str(chosen)
    assert not setup(compile=False).compile


@pytest.mark.parametrize("what", ["C compiler", "Python.h", "triton", "GPU"])
def test_what_is_missing_is_said_and_blocks_run_without_compilation(what: str, gpu: pytest.MonkeyPatch) -> None:
    if what == "C compiler":
        gpu.setattr(hardware.shutil, "which", lambda name: None)
    elif what == "Python.h":
        gpu.setattr(hardware.Path, "is_file", lambda path: False)
    elif what == "triton":
        gpu.setattr(hardware, "find_spec", lambda name: None)
    else:
        gpu.setattr(torch.cuda, "get_device_capability", lambda *_: (7, 0))
    chosen = setup()
    assert not chosen.compile
    assert what in str(chosen)
    assert what not in str(setup(compile=False))
    with refuses(ConfigError, "hardware.compile", what):
        setup(compile=True)


@pytest.mark.parametrize(("cores", "ranks", "expected"), [(1, 1, 0), (2, 1, 1), (16, 1, 4), (16, 4, 3), (8, 8, 0)])
def test_workers_take_the_cores_that_the_ranks_leave(
    cores: int, ranks: int, expected: int, gpu: pytest.MonkeyPatch
) -> None:
    gpu.setattr(hardware, "usable_cores", lambda: cores)
    gpu.setenv("LOCAL_WORLD_SIZE", str(ranks))
    gpu.setattr(torch.cuda, "device_count", lambda: ranks)
    chosen = setup(num_workers=None)
    assert chosen.num_workers == expected
    assert (f"{expected} worker" in str(chosen)) == (expected > 0)
    assert setup(num_workers=7).num_workers == 7
    assert setup(device="cpu", num_workers=None, keep_memory=False).num_workers == 0
    assert setup(device="cpu", num_workers=2, keep_memory=False).num_workers == 2


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_more_processes_than_gpus_are_refused_by_all_alike(rank: int, gpu: pytest.MonkeyPatch) -> None:
    gpu.setenv("LOCAL_WORLD_SIZE", "3")
    gpu.setenv("LOCAL_RANK", str(rank))
    gpu.setattr(torch.cuda, "device_count", lambda: 2)
    for device in ("auto", "cuda"):
        with refuses(ConfigError, "3 processes", "2 CUDA devices", "--nproc-per-node=2", "hardware.device=cpu"):
            setup(device=device)
    assert setup(device="cpu", keep_memory=False).device.type == "cpu"


_TAKES_ONE = """
import sys, types, torch
torch.cuda.is_available = lambda: True
torch.cuda.device_count = lambda: 3
torch.cuda.get_device_properties = lambda index: types.SimpleNamespace(uuid=f"gpu-{index}")
from lmtransfer.training.hardware import _device
print(_device(sys.argv[1]), _device("cuda"), flush=True)
sys.stdin.read()
"""


def test_processes_that_run_at_the_same_time_take_different_gpus(tmp_path: Path) -> None:
    """Four processes on three GPUs; one that ends frees its GPU. A numbered device is taken as it is."""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(Path(hardware.__file__).parents[2])}

    def started(device: str = "auto") -> tuple[subprocess.Popen[str], list[str]]:
        process = subprocess.Popen(
            [sys.executable, "-c", _TAKES_ONE, device],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        return process, process.stdout.readline().split()

    running = [started() for _ in range(4)]
    try:
        assert [devices for _, devices in running] == [[f"cuda:{index}"] * 2 for index in (0, 1, 2, 0)]
        running[1][0].communicate("")
        running.append(started("cuda"))
        assert running[-1][1] == ["cuda:1"] * 2
        running.append(started("cuda:2"))
        assert running[-1][1][0] == "cuda:2"
    finally:
        for process, _ in running:
            process.kill()
            process.wait()


@pytest.mark.parametrize(("configured", "expected"), [(None, 4), (0, 0), (6, 6)])
def test_a_training_takes_its_workers_from_the_configuration(
    configured: int | None, expected: int, gpu: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpu.setattr(hardware, "usable_cores", lambda: 16)
    gpu.delenv("LOCAL_WORLD_SIZE", raising=False)
    cfg = OmegaConf.create({"hardware": {"device": "cuda"}, "train": {"num_workers": configured}})
    assert training_hardware(cfg, run=tmp_path, pretrains=False).num_workers == expected


def test_a_residual_stream_in_bfloat16_needs_products_in_bfloat16(gpu: pytest.MonkeyPatch) -> None:
    assert setup().residual == torch.float32
    chosen = setup(residual="bfloat16")
    assert chosen.residual == torch.bfloat16
    assert "residual" in str(chosen)
    with refuses(ConfigError, "hardware.residual", "fp32"):
        setup(residual="bfloat16", precision="fp32")
    gpu.setattr(torch.cuda, "get_device_capability", lambda *_: (7, 5))
    with refuses(ConfigError, "hardware.residual", "fp16"):
        setup(residual="bfloat16")


def test_any_c_compiler_will_do(gpu: pytest.MonkeyPatch) -> None:
    gpu.setattr(hardware.shutil, "which", lambda name: None)
    gpu.setenv("CC", "tcc")
    assert setup().compile


@pytest.mark.parametrize(
    ("capability", "name", "products"),
    [((9, 0), "bf16", torch.bfloat16), ((7, 5), "bf16", torch.float32), ((7, 5), "fp16", torch.float32)],
)
def test_an_optimiser_multiplies_in_bfloat16_only_if_the_gpu_does(
    capability: tuple[int, int], name: str, products: torch.dtype, gpu: pytest.MonkeyPatch
) -> None:
    gpu.setattr(torch.cuda, "get_device_capability", lambda *_: capability)
    assert Precision(name=name, device="cuda").optimizer_dtype == products  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"), True),
        (RuntimeError("CUDA error: out of memory\nCompile with `TORCH_USE_CUDA_DSA`"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"), False),
        (RuntimeError("mat1 and mat2 must have the same dtype, but got Float and BFloat16"), False),
    ],
)
def test_which_errors_mean_that_memory_did_not_suffice(error: RuntimeError, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


@pytest.mark.parametrize(
    ("variables", "threads"),
    [
        ({"OMP_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": "1"}, 1),
        ({"OMP_NUM_THREADS": "4,2"}, 4),
        ({"OMP_NUM_THREADS": ""}, 16),
        ({"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "none"}, 16),
    ],
    ids=str,
)
def test_the_users_number_of_threads_is_respected(
    variables: dict[str, str], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "usable_cores", lambda: 16)
    for name in ("OMP_NUM_THREADS", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert hardware.default_threads() == threads
