"""Run directories, what is logged into them, and what is said while training."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from fakes.training import ToyLearner, files_below, toy_trainer
from support.refusals import refuses

from lmtransfer.errors import ConfigError, RunDirectoryError
from lmtransfer.runs.create_and_lock import LOCK, release
from lmtransfer.runs.result import JointResult, RunResult, SeedResult
from lmtransfer.runs.run_directory import RunDirectory
from lmtransfer.runs.versions import versions
from lmtransfer.training import flops, hardware, precision
from lmtransfer.training.progress import ProgressLine
from lmtransfer.training.recurrent_state import detach, flatten, unflatten
from lmtransfer.training.trackers.base import Jsonl

RESULT = RunResult(command="pretrain", metrics={"loss": 1.5}, seconds=4.0, tokens=10)


def test_an_existing_run_is_refused_unless_resuming(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "pretrain", "imdb")
    assert run.path == tmp_path / "pretrain" / "imdb"
    (run.path / "precious").write_text("keep me")
    with refuses(RunDirectoryError, str(run.path), "name=", "resume=true"):
        RunDirectory.create(tmp_path, "pretrain", "imdb")
    assert RunDirectory.create(tmp_path, "pretrain", "imdb", resume=True).path == run.path
    assert (run.path / "precious").read_text() == "keep me"


def test_names_may_nest_and_may_not_lead_elsewhere(tmp_path: Path) -> None:
    assert RunDirectory.create(tmp_path, "finetune", "imdb-ft/seed-0").path.name == "seed-0"
    for name in ("", "../x", "/etc/x", "a/../../x", "a//b", "."):
        with refuses(RunDirectoryError, f"name={name!r}"):
            RunDirectory.create(tmp_path, "finetune", name)
    assert [path.name for path in tmp_path.iterdir()] == ["finetune"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with refuses(RunDirectoryError, "output_root="):
        RunDirectory.create(tmp_path / "file", "pretrain", "a")


def test_a_run_can_be_moved_and_holds_no_path_of_its_own(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "somewhere_odd", "pretrain", "a")
    run.write_config({"name": "a", "train": {"steps": 3, "betas": [0.9, 0.98]}})
    run.write_versions(versions(data={"corpus": "abc"}))
    run.write_result(RESULT)
    toy_trainer(checkpoints=run.checkpoints, trackers=[Jsonl(folder=run.path)]).train()
    for file in files_below(run.path):
        assert b"somewhere_odd" not in (run.path / file).read_bytes(), file
    shutil.move(run.path, tmp_path / "b")
    moved = RunDirectory.open(tmp_path / "b")
    assert moved.read_config()["train"]["betas"] == [0.9, 0.98]
    assert moved.read_result() == RESULT
    assert moved.is_finished
    assert moved.best_checkpoint().name == "last"
    resumed = toy_trainer(checkpoints=moved.checkpoints)
    resumed.resume()
    assert resumed.state.step == 10


def test_what_is_missing_or_damaged_is_one_clear_error(tmp_path: Path) -> None:
    with refuses(RunDirectoryError, str(tmp_path / "nowhere")):
        RunDirectory.open(tmp_path / "nowhere")
    with refuses(RunDirectoryError, str(tmp_path), "config.yaml"):
        RunDirectory.open(tmp_path)
    run = RunDirectory.create(tmp_path, "pretrain", "a")
    with refuses(RunDirectoryError, str(run.path), "result", "resume=true"):
        run.read_result()
    with refuses(RunDirectoryError, str(run.path), "checkpoint", "resume=true"):
        run.best_checkpoint()
    run.config_path.write_text("a: [1, 2")
    with refuses(RunDirectoryError, str(run.config_path), "YAML"):
        run.read_config()
    run.config_path.write_text("just text")
    with refuses(RunDirectoryError, str(run.config_path), "mapping"):
        run.read_config()


def test_a_config_cannot_execute_anything(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "pretrain", "a")
    run.config_path.write_text("a: !!python/object/apply:os.system ['touch /tmp/hacked']")
    with pytest.raises(RunDirectoryError):
        run.read_config()


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "pretrain", "a")
    with refuses(RunDirectoryError, str(run.config_path), "deleted"):
        run.write_result(RESULT)
    run.write_config({"name": "a"})
    run.write_result(replace(RESULT, more={"learning_curve": [1, 2]}))
    said = json.loads(run.result_path.read_text())
    assert (said["learning_curve"], said["task"], said["tokens_per_second"]) == ([1, 2], None, 2.5)
    assert run.read_result().values() == said
    with refuses(RunDirectoryError, "result.json", "main_metric"):
        run.read_result(SeedResult)
    of_seed = SeedResult(command="finetune", metrics={"f1": 0.5}, main_metric="f1", seed=3, collapsed=False)
    assert of_seed.score == 0.5
    run.result_path.write_text('{"format": 1, "metrics": {"f1": 1.0}, "mean": 1.0, "further": 2}')
    assert run.read_result().values()["further"] == 2
    with refuses(RunDirectoryError, "result.json: ", "is missing"):
        run.read_result(JointResult)
    for found in ("", '"format": 2, '):
        run.result_path.write_text(f'{{{found}"metrics": {{}}}}')
        with refuses(RunDirectoryError, "result.json has", "format 1"):
            run.read_result()


def test_versions_tell_what_a_run_was_made_with(tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    assert versions(folder=tmp_path)["git_commit"] is None
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / "file").write_text("1")
    subprocess.run([*git, "add", "file"], check=True)
    subprocess.run([*git, "commit", "-qm", "one"], check=True)
    found = versions(data={"corpus": "abc"}, folder=tmp_path)
    assert len(found["git_commit"]) == 40
    (tmp_path / "file").write_text("2")
    assert versions(folder=tmp_path)["git_commit"] == found["git_commit"] + "+changes"
    assert (
        found["packages"]["torch"] == torch.__version__.partition("+")[0]
        or found["packages"]["torch"] == torch.__version__
    )
    assert found["data"] == {"corpus": "abc"}
    assert yaml.safe_dump(found), "plain values"


def test_jsonl_is_cut_back_to_a_step_and_past_a_torn_line(tmp_path: Path) -> None:
    tracker = Jsonl(folder=tmp_path)
    tracker.rewind(5)
    for step in (2, 4, 6):
        tracker.log({"step": step, "loss": 1 / step})
    with tracker.path.open("a") as file:
        file.write('{"step": 8, "lo')
    tracker.rewind(4)
    assert [json.loads(line)["step"] for line in tracker.path.read_text().splitlines()] == [2, 4]


def test_a_last_line_without_its_end_is_not_trusted(tmp_path: Path) -> None:
    tracker = Jsonl(folder=tmp_path)
    tracker.path.write_text('{"step": 1}\n{"step": 2}')
    tracker.rewind(9)
    assert tracker.path.read_text() == '{"step": 1}\n'


def test_jsonl_is_json_even_where_numbers_are_not_finite(tmp_path: Path) -> None:
    tracker = Jsonl(folder=tmp_path)
    tracker.log({"step": 1, "loss": math.nan, "gradient_norm": math.inf, "learning_rate": 0.1})

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    record = json.loads(tracker.path.read_text(), parse_constant=refuse)
    assert record == {"step": 1, "loss": None, "gradient_norm": None, "learning_rate": 0.1}


RECORD = {
    "step": 1200,
    "loss": 5.0,
    "loss/mlm": 4.5,
    "loss/nsp": 0.5,
    "learning_rate": 0.001,
    "tokens_per_second": 17000.4,
    "seconds": 60.0,
}


def test_the_progress_line_says_everything() -> None:
    line = ProgressLine(flops_per_token=1e6, peak_flops=1e11).line(RECORD | {"validation/loss": 4.8}, fraction=0.25)
    for part in ("1,200", "25 %", "loss 5.000", "mlm 4.500", "nsp 0.500", "validation loss 4.800", "1.00e-03"):
        assert part in line
    for part in ("17,000 tokens/s", "MFU 17 %", "GB", "3:00 left"):
        assert part in line


def test_the_remaining_time_does_not_grow_by_what_came_before_the_first_step() -> None:
    record = RECORD | {"seconds": 50.0}
    assert "0:30 left" in ProgressLine().line(record, fraction=0.25, prepared=40.0)
    assert "2:30 left" in ProgressLine().line(record, fraction=0.25)


def test_a_loss_that_is_the_total_is_shown_once() -> None:
    record = {key: value for key, value in RECORD.items() if key != "loss/nsp"} | {"loss": 4.5}
    assert ProgressLine().line(record, fraction=0.5).count("4.500") == 1


def test_without_a_terminal_there_is_a_line_every_ten_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("lmtransfer.training.progress.time.monotonic", lambda: now[0])
    with ProgressLine() as progress:
        for step in range(100):
            now[0] += 0.5
            progress.show(RECORD | {"step": step}, fraction=step / 100)
        progress.show(RECORD | {"step": 100}, fraction=1.0, last=True)
        progress.note("something to say")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 5 + 1 + 1
    assert lines[-2].startswith("step 100 ")
    assert lines[-1] == "something to say"


def test_a_quiet_progress_still_passes_on_notes(capsys: pytest.CaptureFixture[str]) -> None:
    progress = ProgressLine(quiet=True)
    progress.show(RECORD, fraction=0.5, last=True)
    progress.note("a warning")
    assert capsys.readouterr().err == "a warning\n"


def test_a_recurrent_state_comes_back_as_it_was() -> None:
    recurrent_state = {
        "lstm": (torch.ones(2, requires_grad=True), [None, torch.zeros(1)]),
        "age": 3,
        "on": True,
        "name": "x",
    }
    tensors, structure = flatten(recurrent_state)
    back = unflatten(tensors, json.loads(json.dumps(structure)))
    assert torch.equal(back["lstm"][0], recurrent_state["lstm"][0])
    assert isinstance(back["lstm"], tuple)
    assert isinstance(back["lstm"][1], list)
    assert (back["lstm"][1][0], back["age"], back["on"], back["name"]) == (None, 3, True, "x")
    assert not detach(recurrent_state)["lstm"][0].requires_grad
    with refuses(TypeError, "<class 'object'>"):
        flatten({"thing": object()})


def test_hardware_resolves_what_is_automatic() -> None:
    before = torch.get_num_threads()
    try:
        found = hardware.setup(device="cpu", threads=1)
        assert found.device.type == "cpu"
        assert torch.get_num_threads() == found.threads == 1
        assert found.precision.name == precision.fastest_format(torch.device("cpu")).name
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


def test_what_a_killed_writer_has_staged_in_its_runs_goes_with_the_next_one(tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path, "finetune", "a")
    run.write_config({"name": "a"})
    staged = [run.path / part / ".config.yaml.elsewhere-4194305.tmp" for part in ("", "seed-0", "control/seed-0")]
    of_others = run.path / "nested" / ".config.yaml.elsewhere-4194305.tmp"
    for path in (*staged, of_others):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
    (of_others.parent / LOCK).touch()  # a run of its own, which another process may be writing
    release(run.path)
    RunDirectory.create(tmp_path, "finetune", "a", resume=True)
    assert [path.exists() for path in staged] == [False] * 3
    assert of_others.exists()
