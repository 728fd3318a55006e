"""The choices for a machine: device, precision, threads, workers, compilation; GPUs are simulated."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fakes.training import ToyLearner
from support.refusals import refuses

from lmtransfer.config.settings import HardwareSettings
from lmtransfer.errors import ConfigError
from lmtransfer.runs.training_setup import training_hardware
from lmtransfer.system.cores import SPIN_COUNT, cpu_quota, usable_cores
from lmtransfer.training import flops, hardware, precision
from lmtransfer.training.hardware import setup
from lmtransfer.training.precision import Precision, cpu_flags, cpu_precision, cuda_precision, fastest_precision
from lmtransfer.training.update import is_out_of_memory


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Simulate an H100 with everything that compilation needs."""
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
    gpu.setenv("WORLD_SIZE", str(ranks))
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
    gpu.setenv("WORLD_SIZE", "3")
    gpu.setenv("LOCAL_WORLD_SIZE", "3")
    gpu.setenv("LOCAL_RANK", str(rank))
    gpu.setattr(torch.cuda, "device_count", lambda: 2)
    for device in ("auto", "cuda"):
        with refuses(ConfigError, "3 processes", "2 CUDA devices", "--nproc-per-node=2", "hardware.device=cpu"):
            setup(device=device)
    assert setup(device="cpu", keep_memory=False).device.type == "cpu"


def _take(connection: Connection, device: str) -> None:
    connection.send([str(hardware._device(name)) for name in (device, "cuda")])
    connection.recv()


def test_processes_that_run_at_the_same_time_take_different_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four processes share three GPUs, and a process that ends frees its GPU. A given index is used as is."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(hardware, "_held", {})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=f"gpu-{index}"))
    fork, running = multiprocessing.get_context("fork"), []

    def started(device: str = "auto") -> list[str]:
        ours, theirs = fork.Pipe()
        process = fork.Process(target=_take, args=(theirs, device), daemon=True)
        process.start()
        running.append((process, ours))
        return ours.recv()

    assert [started() for _ in range(4)] == [[f"cuda:{index}"] * 2 for index in (0, 1, 2, 0)]
    running[1][1].send("end")
    running[1][0].join()
    assert started("cuda") == ["cuda:1"] * 2
    assert started("cuda:2")[0] == "cuda:2"
    for process, _ in running:
        process.kill()
        process.join()


@pytest.mark.parametrize(("configured", "expected"), [(None, 4), (0, 0), (6, 6)])
def test_a_training_takes_its_workers_from_the_configuration(
    configured: int | None, expected: int, gpu: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpu.setattr(hardware, "usable_cores", lambda: 16)
    gpu.delenv("LOCAL_WORLD_SIZE", raising=False)
    settings = HardwareSettings(device="cuda")
    own, chosen = training_hardware(settings, num_workers=configured, run=tmp_path, pretrains=False)
    assert own.num_workers == expected
    assert chosen.precision == own.precision.name


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


def test_hardware_resolves_what_is_automatic() -> None:
    before = torch.get_num_threads()
    try:
        found = hardware.setup(device="cpu", threads=1)
        assert found.device.type == "cpu"
        assert torch.get_num_threads() == found.threads == 1
        assert found.precision.name == precision.fastest_precision(torch.device("cpu")).name
        assert "(1 thread), " in str(found)
        assert not found.compile
        assert hardware.setup(device="cpu", precision="fp32", threads=1, compile=True).compile
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"device": "gpu"}, ("hardware.device=gpu", "auto, cpu, cuda")),
        ({"device": "cuda:99"}, ("hardware.device=cuda:99", f"{torch.cuda.device_count()} CUDA devices")),
        ({"device": "xpu"}, ("hardware.device=xpu", "auto, cpu, cuda")),
        ({"device": "cpu", "precision": "fp16"}, ("hardware.precision=fp16", "bf16, fp32")),
    ],
)
def test_hardware_that_is_not_there_is_named(settings: dict, names: tuple[str, ...]) -> None:
    with refuses(ConfigError, *names):
        hardware.setup(**settings)


def test_bf16_autocast_is_on_in_the_forward_pass_only() -> None:
    bf16 = precision.Precision(name="bf16")
    learner = ToyLearner(dtype=torch.float32)
    with bf16.autocast():
        assert learner.out(torch.ones(1, 4)).dtype is torch.bfloat16
    assert learner.out(torch.ones(1, 4)).dtype is torch.float32


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the allocator's settings are glibc's")
def test_the_allocator_is_tuned_on_glibc_and_left_alone_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = "import platform; from lmtransfer.training.hardware import tune_allocator; print(tune_allocator())"
    done = subprocess.run([sys.executable, "-c", tuned], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(hardware.platform.libc_ver()[0] == "glibc")
    monkeypatch.setattr(hardware.platform, "libc_ver", lambda: ("musl", "1.2"))
    assert not hardware.tune_allocator()


def test_the_peak_of_a_gpu_is_known_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda", 0)
    for name, peak in {
        "NVIDIA H200": 989e12,
        "NVIDIA H100 PCIe": 756e12,
        "NVIDIA L40S": 362e12,
        "NVIDIA L40": 181e12,
        "NVIDIA L4": 121e12,
        "NVIDIA A100-SXM4-80GB": 312e12,
        "NVIDIA T400 4GB": None,
        "NVIDIA GeForce RTX 4090": 165e12,
        "NVIDIA GeForce RTX 4090 Laptop GPU": None,
        "Tesla T4": 65e12,
        "Some Other GPU": None,
    }.items():
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, name=name: name)
        assert flops.peak_flops(cuda) == peak
    assert flops.peak_flops(torch.device("cpu")) is None


def test_training_flops_of_bert_base() -> None:
    weights = 12 * 12 * 768**2  # 4 D^2 of attention and 8 D^2 of feed-forward, 12 layers
    found = flops.training_flops_per_token(num_weights=weights, num_layers=12, dim=768, mean_length=128)
    assert found == pytest.approx(6 * 84.9e6 + 12 * 12 * 768 * 128, rel=1e-3)


@pytest.mark.parametrize(
    ("flags", "environment", "expected"),
    [
        ("fma avx2 avx512_bf16", {}, "bf16"),
        ("avx2 amx_bf16", {}, "bf16"),
        ("fp asimd bf16 i8mm", {}, "bf16"),
        ("fma avx2 avx512f avx512_vnni", {}, "fp32"),
        ("", {}, "fp32"),
        ("avx2 avx512_bf16", {"ONEDNN_MAX_CPU_ISA": "AVX2"}, "fp32"),
        ("avx2 avx512_bf16", {"DNNL_MAX_CPU_ISA": "avx512_core"}, "fp32"),
        ("avx2 avx512_bf16", {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}, "bf16"),
        ("avx2", {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}, "fp32"),
    ],
)
def test_a_cpu_multiplies_in_bfloat16_only_where_it_has_it(
    flags: str, environment: dict[str, str], expected: str
) -> None:
    found = cpu_precision(frozenset(flags.split()), environment)
    assert found.name == expected
    assert found.reason


@pytest.mark.parametrize(
    ("capability", "expected"),
    [((9, 0), "bf16"), ((8, 0), "bf16"), ((7, 5), "fp16"), ((7, 0), "fp16"), ((6, 1), "fp32"), ((5, 2), "fp32")],
)
def test_a_gpu_by_its_compute_capability(capability: tuple[int, int], expected: str) -> None:
    assert cuda_precision(capability).name == expected


@pytest.mark.parametrize(
    ("key", "expected"), [("flags\t\t", {"fpu", "avx2"}), ("Features\t", {"fpu", "avx2"}), ("x", set())]
)
def test_flags_are_read_as_linux_writes_them(key: str, expected: set[str], tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor : 0\n{key}: fpu avx2\n\nprocessor : 1\n{key}: fpu avx2\n")
    assert cpu_flags(tmp_path / "cpuinfo") == expected
    assert cpu_flags(tmp_path / "nowhere") == set()


def test_an_override_wins_over_the_table() -> None:
    before = torch.get_num_threads()
    try:
        for name in ("fp32", "bf16"):
            found = hardware.setup(device="cpu", precision=name, threads=1)  # type: ignore[arg-type]
            assert (found.precision.name, found.reason) == (name, "as set")
        assert hardware.setup(device="cpu", threads=1).reason == fastest_precision(torch.device("cpu")).reason
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("files", "own", "expected"),
    [
        ({}, "0::/", None),
        ({"cpu.max": "max 100000"}, "0::/", None),
        ({"cpu.max": "150000 100000"}, "0::/", 1.5),
        ({"cpu.max": "max 100000", "a/cpu.max": "400000 100000", "a/b/cpu.max": "max 100000"}, "0::/a/b", 4.0),
        ({"a/cpu.max": "200000 100000", "a/b/cpu.max": "300000 100000"}, "0::/a/b", 2.0),
        ({"cpu/x/cpu.cfs_quota_us": "50000", "cpu/x/cpu.cfs_period_us": "100000"}, "4:cpu,cpuacct:/x\n1:name=y:/", 0.5),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "4:cpu,cpuacct:/", None),
        ({"cpu.max": "nonsense"}, "0::/", None),
    ],
)
def test_a_container_s_quota_is_the_least_of_its_groups(
    files: dict[str, str], own: str, expected: float | None, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / name).write_text(text + "\n")
    (tmp_path / "own").write_text(own + "\n")
    assert cpu_quota(tmp_path / "cgroup", tmp_path / "own") == expected


@pytest.mark.parametrize(("quota", "cores", "expected"), [(None, 8, 8), (0.5, 8, 1), (2.9, 8, 2), (16.0, 8, 8)])
def test_threads_fit_the_quota(quota: float | None, cores: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lmtransfer.system.cores.cpu_quota", lambda: quota)
    monkeypatch.setattr("lmtransfer.system.cores.physical_cores", lambda: cores)
    assert usable_cores() == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, str(SPIN_COUNT)),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "passive"}, "None"),
    ],
)
def test_how_threads_wait_is_set_before_torch_and_left_to_the_user(given: dict[str, str], expected: str) -> None:
    kept = {key: value for key, value in os.environ.items() if key not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    script = (
        "import os, sys, lmtransfer; assert 'torch' not in sys.modules; print(os.environ.get('GOMP_SPINCOUNT'));"
        "import subprocess;"
        "subprocess.run([sys.executable, '-c', 'import os; print(os.environ.get(\"GOMP_SPINCOUNT\"))'], check=True)"
    )
    said = subprocess.run(
        [sys.executable, "-u", "-c", script], env={**kept, **given}, capture_output=True, text=True, check=True
    )
    assert said.stdout.split() == [expected, expected]
