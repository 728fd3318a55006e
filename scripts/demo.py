"""The demonstration: does half a minute of pretraining on documentation help to tell libraries apart?

    python scripts/demo.py [folder]

Every step is a command that a user could type, and is printed. All results are written to a new folder, runs/demo (or
runs/demo-2 and so on). The last step prints a table and draws a figure of the learning curves.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from steps import new_folder, run_script, run_steps

#: Number of labeled examples; number of seeds for each result.
NUM_TRAIN, SEEDS = 100, 5
#: The settings of the vocabulary that ``experiment=demo`` uses, and that ``prepare`` builds before.
TOKENIZER = ("tokenizer.vocab_size=8192", "tokenizer.max_characters=5000000")


def main() -> None:
    """Run the commands one after the other; stop at the first failure."""
    start_time = time.monotonic()
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else new_folder(Path("runs"), "demo")
    encoder = f"init={root}/pretrain/bert"
    shared = [
        encoder,
        "task=python_docs",
        f"task.num_train={NUM_TRAIN}",
        "split=test",
        f"seeds={SEEDS}",
        f"output_root={root}",
    ]
    run_steps(
        [
            (
                "1. read the corpus (docstrings of Python and of the installed libraries), and train a tokenizer on it",
                ["prepare", "corpus=python_docs", *TOKENIZER],
            ),
            (
                "2. pretrain a small BERT on 300,000 tokens of the corpus: predict the masked words",
                ["pretrain", "experiment=demo", "name=bert", f"output_root={root}"],
            ),
            (
                f"3. probe: freeze the encoder, and train only a linear layer on {NUM_TRAIN} labeled docstrings",
                ["probe", "name=probe", *shared],
            ),
            (
                "4. finetune the whole model; control: the same model from random weights, with as much tuning",
                ["finetune", "experiment=few_labels", "name=finetune", "control=true", *shared],
            ),
            ("5. report: a table, and the learning curves", ["report", str(root)]),
        ]
    )
    print(f"\nThat took {(time.monotonic() - start_time) / 60:.1f} minutes. The figures are in {root}/report/figures.")


if __name__ == "__main__":
    run_script(main)
