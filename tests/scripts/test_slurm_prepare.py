"""``scripts/slurm_prepare.sh`` with an ``sbatch`` that runs each job at once, as Slurm would on its machines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.texts import made_up_documents, write_text

SCRIPT = Path(__file__).parents[2] / "scripts" / "slurm_prepare.sh"
#: Notes its options, gives a job the environment of Slurm, and prints the number of the job as --parsable does.
SBATCH = """#!/usr/bin/env bash
echo "$@" >> "$NOTES"
tasks=none
while [[ $1 == --* ]]; do
    if [[ $1 == --array=1-* ]]; then tasks=$(seq 1 "${1#--array=1-}"); fi
    shift
done
for task in $tasks; do
    if [[ $task != none ]]; then export SLURM_ARRAY_TASK_ID=$task; fi
    SLURM_JOB_ID=7 SLURM_CPUS_PER_TASK=2 bash "$@" >> "$NOTES" || exit 1
done
echo "7;cluster"
"""


def submit(folder: Path, lmtransfer: str, *words: str, **variables: str) -> list[str]:
    for name, text in {"sbatch": SBATCH, "lmtransfer": f"#!/usr/bin/env bash\n{lmtransfer}\n"}.items():
        (folder / "bin").mkdir(exist_ok=True)
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    environment |= {"PATH": path, "NOTES": str(folder / "notes"), **variables}
    subprocess.run([SCRIPT, *words], env=environment, check=True, capture_output=True, cwd=folder)
    return (folder / "notes").read_text().splitlines()


def test_each_job_takes_its_share_and_the_last_one_joins_them(tmp_path: Path) -> None:
    words = ("corpus=text", "corpus.path=[a b,c]")
    array, *shares, join, last = submit(tmp_path, 'printf "%s|" "$@"; echo', *words)
    assert array == f"--parsable --array=1-16 {SCRIPT} {' '.join(words)}"
    command = "prepare|corpus=text|corpus.path=[a b,c]|num_workers=2|"
    assert shares == [f"{command}shard={number}/16|" for number in range(1, 17)]
    assert join == f"--dependency=afterok:7 --kill-on-invalid-dep=yes {SCRIPT} {' '.join(words)}"
    assert last == command


@pytest.mark.slow
def test_the_joined_shares_are_the_corpus(tmp_path: Path) -> None:
    write_text(tmp_path / "texts" / "a.txt", made_up_documents(9000))
    words = ("corpus=text", "corpus.path=texts/a.txt", "tokenizer=words", "cache_dir=cache")
    root = SCRIPT.parents[1]
    notes = submit(tmp_path, f'exec {sys.executable} -m lmtransfer "$@"', *words, PYTHONPATH=str(root), SHARDS="2")
    complete = [line for line in notes if line.startswith("shard ")]
    assert len(complete) == 2
    assert all("0 of them from an earlier run" in line for line in complete)
    assert any(line.split()[:2] == ["documents", "9,000"] for line in notes)
