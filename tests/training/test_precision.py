"""Which number format a machine multiplies in, and how many threads it is given."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lmtransfer.system.cores import cpu_quota, usable_cores
from lmtransfer.system.waiting import SPIN_COUNT
from lmtransfer.training import hardware
from lmtransfer.training.precision import cpu_flags, cpu_format, cuda_format, fastest_format


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
    found = cpu_format(frozenset(flags.split()), environment)
    assert found.name == expected
    assert found.reason


@pytest.mark.parametrize(
    ("capability", "expected"),
    [((9, 0), "bf16"), ((8, 0), "bf16"), ((7, 5), "fp16"), ((7, 0), "fp16"), ((6, 1), "fp32"), ((5, 2), "fp32")],
)
def test_a_gpu_by_its_compute_capability(capability: tuple[int, int], expected: str) -> None:
    assert cuda_format(capability).name == expected


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
        assert hardware.setup(device="cpu", threads=1).reason == fastest_format(torch.device("cpu")).reason
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
