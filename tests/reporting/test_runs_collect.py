from __future__ import annotations

import subprocess
import sys

import pytest
from fakes.runs import pretraining, transfer, write_run
from support.refusals import refuses

from lmtransfer.errors import RunDirectoryError
from lmtransfer.reporting.runs.collect import RUN_FILES, collect, read_run


def test_finds_runs_seeds_controls_and_sweep_points_in_natural_order(tmp_path):
    pretraining(tmp_path / "pretrain" / "imdb")
    for rate in (0.8, 0.4):
        pretraining(tmp_path / "pretrain" / "masks" / f"objective.mask_prob={rate}")
    transfer(tmp_path / "finetune" / "ft", [0.7] * 11, controls=[0.6])
    keys = [run.key for run in collect(tmp_path)]
    assert keys == [
        "finetune/ft",
        "finetune/ft/control",
        *(f"finetune/ft/seed-{seed}" for seed in range(11)),
        "pretrain/imdb",
        "pretrain/masks/objective.mask_prob=0.4",
        "pretrain/masks/objective.mask_prob=0.8",
    ]


def test_checkpoints_inside_a_run_are_not_searched_but_a_run_may_have_such_a_name(tmp_path):
    run = pretraining(tmp_path / "pretrain" / "features")
    write_run(run / "checkpoints" / "last", config={"a": 1})
    assert [found.key for found in collect(tmp_path)] == ["pretrain/features"]


def test_a_single_run_and_several_roots(tmp_path):
    one = pretraining(tmp_path / "pretrain" / "imdb")
    two = transfer(tmp_path / "finetune" / "ft", [0.7])
    assert [(run.key, run.command) for run in collect(one)] == [("imdb", "pretrain")]
    assert [run.key for run in collect(one, two)] == ["pretrain/imdb", "finetune/ft"]
    assert [run.key for run in collect(tmp_path, one)] == ["finetune/ft", "pretrain/imdb"]  # each once


def test_links_are_followed_once(tmp_path):
    run = pretraining(tmp_path / "elsewhere" / "imdb")
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "linked").symlink_to(run, target_is_directory=True)
    (runs / "loop").symlink_to(runs, target_is_directory=True)
    assert [found.key for found in collect(runs)] == ["linked"]


def test_states_and_what_is_said_about_them(tmp_path):
    finished = pretraining(tmp_path / "finished")
    assert (read_run(finished).state, read_run(finished).problems) == ("finished", ())

    unfinished = pretraining(tmp_path / "unfinished")
    (unfinished / "result.json").unlink()
    assert read_run(unfinished).state == "unfinished"

    torn = pretraining(tmp_path / "torn")
    (torn / "result.json").write_text('{"command": "pretr')
    run = read_run(torn)
    assert run.state == "torn"
    assert "result.json" in run.problems[0]
    assert run.metrics  # what can be read is read


def test_a_cut_last_line_is_left_out_without_calling_the_run_torn(tmp_path):
    run = pretraining(tmp_path / "run")
    whole = read_run(run).metrics
    path = run / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-25])
    cut = read_run(run)
    assert cut.metrics == whole[:-1]
    assert cut.state == "finished"
    (problem,) = cut.problems
    assert problem.startswith(f"metrics.jsonl:{len(whole)}: ")


def test_a_bad_line_in_the_middle_is_named(tmp_path):
    run = pretraining(tmp_path / "run")
    path = run / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[4] = b"\xff\xfe\x00 garbage\n"
    path.write_bytes(b"".join(lines))
    found = read_run(run)
    assert found.state == "torn"
    assert len(found.metrics) == len(lines) - 1
    assert "metrics.jsonl:5" in found.problems[0]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.yaml", "a: [1, 2"),
        ("config.yaml", "just text"),
        ("config.yaml", "a: &x\n  b: *x\n"),
        ("config.yaml", "a: !!python/object/apply:os.getcwd []\n"),
        ("versions.json", "[1, 2]"),
        ("result.json", "[" * 100_000),
    ],
)
def test_damaged_or_hostile_files_are_said_and_not_raised(tmp_path, file, content):
    run = pretraining(tmp_path / "run")
    (run / file).write_text(content)
    found = read_run(run)
    assert found.state == "torn"
    assert file in found.problems[0]


def test_missing_and_empty_folders_are_one_clear_error(tmp_path):
    with refuses(RunDirectoryError, f"runs={tmp_path / 'absent'}"):
        collect(tmp_path / "absent")
    with refuses(RunDirectoryError, f"runs={tmp_path}", *RUN_FILES):
        collect(tmp_path)


def test_reading_needs_neither_torch_nor_matplotlib():
    code = (
        "import sys\n"
        "import lmtransfer.reporting.table, lmtransfer.reporting.write\n"
        "import lmtransfer.inference.inspection.example_texts\n"
        "loaded = {'torch', 'matplotlib', 'hydra'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
