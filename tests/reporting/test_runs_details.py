"""What training on a task cost: trained parameters, memory, and the time of one seed."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from support.gpu_device import gpu

from lmtransfer.reporting.runs.details import RunCost, cost_of
from lmtransfer.training.hardware import peak_memory, reset_peak_memory


def test_the_cost_of_a_run_is_that_of_one_of_its_seeds() -> None:
    joint = {"num_parameters": 2_000_000, "num_trained_parameters": 7_000, "seconds": 90.0, "n": 3}
    cost = cost_of([{**joint, "peak_memory": 612_000_000}, {"peak_memory": 5}])
    assert cost == RunCost(7_000, 0.0035, 612_000_000, 30.0)
    assert cost.in_short == ["0.35 % trained", "612 MB", "30 s"]
    assert cost.in_full == ["7.0k (0.35 %) trained", "612 MB", "30 s"]
    assert cost.values() == {"num_trained_parameters": 7_000, "peak_memory": 612_000_000, "seconds_per_seed": 30.0}


def test_an_unfinished_run_has_the_cost_of_its_first_seed() -> None:
    assert cost_of([{}, {"num_parameters": 10, "num_trained_parameters": 10, "seconds": 8.0}]).seconds == 8.0


def test_a_run_of_an_older_version_tells_no_cost() -> None:
    assert cost_of([{"num_parameters": 10, "seconds": 8.0}]) == RunCost()
    assert RunCost().in_short == RunCost().in_full == []
    assert RunCost().values() == {}


def test_everything_is_a_hundred_percent_and_little_is_not_nothing() -> None:
    assert RunCost(share=0.999).share_text == "100 %"
    assert RunCost(share=0.0004).share_text == "0.04 %"
    assert RunCost(share=0.00009).share_text == "<0.01 %"
    assert RunCost(num_trained=1500).in_full == ["1.5k trained"]


def test_the_peak_of_memory_is_that_of_the_work_between() -> None:
    script = (  # in a process of its own, whose memory nothing else frees
        "import torch; from lmtransfer.training.hardware import reset_peak_memory, peak_memory; "
        "cpu = torch.device('cpu'); before = peak_memory(cpu); block = torch.ones(2**27); del block; "
        "high = peak_memory(cpu); reset_peak_memory(cpu); print(high - before, high - peak_memory(cpu))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    grown, forgotten = map(int, done.stdout.split())
    assert grown > 400 * 2**20
    assert forgotten > 400 * 2**20 or sys.platform != "linux"  # where earlier work can be forgotten


@pytest.mark.gpu
def test_the_peak_of_memory_of_a_gpu_is_that_of_its_tensors() -> None:
    device = gpu()
    if device.type != "cuda":
        pytest.skip("the CPU's is tested above")
    reset_peak_memory(device)
    before = peak_memory(device)
    block = torch.ones(2**26, device=device)
    assert peak_memory(device) - before == 2**28
    del block
    assert peak_memory(device) - before == 2**28
    reset_peak_memory(device)
    assert peak_memory(device) == before
