"""Measures the task accuracy after different pretraining budgets, for the forecast of ``lmtransfer pretrain``.

    python -m scripts.bench.worth                            the demonstration's recipe, 0.15 to 2.4 million tokens
    python -m scripts.bench.worth --recipe laptop --tokens 500000,2000000

Each budget is a separate pretraining run on the Python documentation, with its own schedule, finetuned on 100 labels
with three seeds; the control is trained once. The numbers are copied by hand to ``TABLE`` in
lmtransfer/pretraining/diagnostics.py.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from ..steps import new_folder, run_script
from .machine import processor


def main() -> None:
    """Print a row for each budget when its runs have finished."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="demo", help="the experiment for pretraining")
    parser.add_argument("--tokens", default="150000,300000,600000,1200000,2400000", help="budgets")
    parser.add_argument("--seeds", type=int, default=3, help="number of finetuning seeds")
    options = parser.parse_args()
    root = new_folder(Path("runs"), "worth")
    print(f"{processor('cpu')}, {os.cpu_count()} cores, recipe {options.recipe}, results in {root}", flush=True)
    print("tokens    left the plateau at    mlm loss    accuracy %    finetuned        control          difference")
    control: dict[str, Any] | None = None
    for tokens in map(int, options.tokens.split(",")):
        name = f"{options.recipe}-{tokens}"
        budget = ["train.tokens=null", f"train.tokens={tokens}", "train.eval_every=null"]
        pieces = ["tokenizer.vocab_size=4096"] if options.recipe == "demo" else []  # as in the existing rows
        recipe = [f"experiment={options.recipe}", *pieces, "corpus=python_docs", "embeddings=null"]
        run("pretrain", *recipe, *budget, f"name={name}", f"output_root={root}")
        labels = ["task=python_docs", "task.num_train=100", "split=test", f"seeds={options.seeds}"]
        words = ["experiment=few_labels", f"init={root}/pretrain/{name}", *labels, f"name={name}"]
        run("finetune", *words, f"control={str(control is None).lower()}", f"output_root={root}")
        finetuning = json.loads((root / "finetune" / name / "result.json").read_text(encoding="utf-8"))
        control = control or finetuning["control"]
        pretraining = json.loads((root / "pretrain" / name / "result.json").read_text(encoding="utf-8"))
        plateau = plateau_end(root / "pretrain" / name)
        mlm, accuracy = pretraining["metrics"]["mlm"], 100 * pretraining["metrics"]["mlm_accuracy"]
        print(
            f"{pretraining['tokens']:9,} {plateau:>18} {mlm:13.2f}{accuracy:12.1f}    {score_text(finetuning):>14}   "
            f"{score_text(control):>14}   {100 * (finetuning['mean'] - control['mean']):+9.1f}",
            flush=True,
        )


def run(*words: str) -> None:
    """Run a command without output; if the command fails, exit with its error output."""
    process = subprocess.run([sys.executable, "-m", "lmtransfer", *words], capture_output=True, text=True, check=False)
    if process.returncode:
        raise SystemExit(process.stderr)


def plateau_end(folder: Path) -> str:
    """Return the number of tokens at which the run left the unigram plateau."""
    for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record["step"] and "plateau_left_at" in record:
            return f"{round(record['tokens'] * record['plateau_left_at'] / record['step']):,}"
    return "never"


def score_text(result: dict[str, Any]) -> str:
    """Format the mean and deviation of the accuracy in percent."""
    return f"{100 * result['mean']:.1f} +- {100 * result['deviation']:.1f}"


if __name__ == "__main__":
    run_script(main)
