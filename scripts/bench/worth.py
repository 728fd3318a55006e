"""The task accuracy after different budgets of pretraining: the table behind the forecast of ``lmtransfer pretrain``.

    python -m scripts.bench.worth                            the demonstration's recipe, 0.15 to 2.4 million tokens
    python -m scripts.bench.worth --recipe laptop --tokens 500000,2000000

Each budget is a separate pretraining run on the Python documentation, with its own schedule, finetuned on 100 labels
with three seeds; the control is trained once. The numbers are copied into ``TABLE`` of
lmtransfer/pretraining/diagnostics.py by hand.
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
    """Print a row for each budget when it is finished."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="demo", help="experiment of pretraining")
    parser.add_argument("--tokens", default="150000,300000,600000,1200000,2400000", help="budgets")
    parser.add_argument("--seeds", type=int, default=3, help="of finetuning")
    options = parser.parse_args()
    root = new_folder(Path("runs"), "worth")
    print(f"{processor('cpu')}, {os.cpu_count()} cores, recipe {options.recipe}, results in {root}", flush=True)
    print("tokens    left the plateau at    mlm loss    accuracy %    finetuned        control          difference")
    control: dict[str, Any] | None = None
    for tokens in map(int, options.tokens.split(",")):
        name = f"{options.recipe}-{tokens}"
        budget = ["train.tokens=null", f"train.tokens={tokens}", "train.eval_every=null"]
        pieces = ["tokenizer.vocab_size=4096"] if options.recipe == "demo" else []  # as in the rows that are there
        recipe = [f"experiment={options.recipe}", *pieces, "corpus=python_docs", "embeddings=null"]
        run("pretrain", *recipe, *budget, f"name={name}", f"output_root={root}")
        labels = ["task=python_docs", "task.num_train=100", "split=test", f"seeds={options.seeds}"]
        words = ["experiment=few_labels", f"init={root}/pretrain/{name}", *labels, f"name={name}"]
        run("finetune", *words, f"control={str(control is None).lower()}", f"output_root={root}")
        found = json.loads((root / "finetune" / name / "result.json").read_text(encoding="utf-8"))
        control = control or found["control"]
        learned = json.loads((root / "pretrain" / name / "result.json").read_text(encoding="utf-8"))
        print(
            f"{learned['tokens']:9,} {plateau_end(root / 'pretrain' / name):>18} {learned['metrics']['mlm']:13.2f}"
            f"{100 * learned['metrics']['mlm_accuracy']:12.1f}    {shown(found):>14}   {shown(control):>14}"
            f"   {100 * (found['mean'] - control['mean']):+9.1f}",
            flush=True,
        )


def run(*words: str) -> None:
    """Run a command without output; if it fails, exit with its output."""
    done = subprocess.run([sys.executable, "-m", "lmtransfer", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)


def plateau_end(folder: Path) -> str:
    """The number of tokens at which the run left the unigram plateau."""
    for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record["step"] and "plateau_left_at" in record:
            return f"{round(record['tokens'] * record['plateau_left_at'] / record['step']):,}"
    return "never"


def shown(result: dict[str, Any]) -> str:
    """Mean and deviation of the accuracy, in percent."""
    return f"{100 * result['mean']:.1f} +- {100 * result['deviation']:.1f}"


if __name__ == "__main__":
    run_script(main)
