"""The demonstration with a published encoder: how well does it do with 200 labels, compared with random weights?

    python scripts/demo_pretrained.py [folder]        five to ten minutes on two cores
    python scripts/demo_pretrained.py --quick         the same steps in miniature; the numbers mean nothing

Every step is a command that a user could type, and is printed. The labeled docstrings come from the installed
libraries, so no data and no network are needed besides the package with the encoder. All results are written to a new
folder, runs/demo-pretrained (or runs/demo-pretrained-2 and so on). The last step prints a table and draws the report's
figures.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from minilm import model_folder
from steps import new_folder, run_script, run_steps

#: Number of labeled examples; number of seeds for each result.
NUM_TRAIN, SEEDS = 200, 3
#: Peak learning rate of the published encoder and of its control.
LEARNING_RATE = 3e-4


def main() -> None:
    """Run the commands one after the other; stop at the first failure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="folder for the results; default: a new folder in runs/")
    parser.add_argument("--quick", action="store_true", help="few labels, one seed and one epoch, to try this script")
    options = parser.parse_args()
    start_time = time.monotonic()
    root = Path(options.folder) if options.folder else new_folder(Path("runs"), "demo-pretrained")
    num_train, seeds, epochs = (40, 1, 1) if options.quick else (NUM_TRAIN, SEEDS, 10)
    shared = [
        f"init={root}/import/minilm",
        "task=python_docs",
        f"task.num_train={num_train}",
        "split=test",
        f"seeds={seeds}",
        f"output_root={root}",
    ]
    finetuning = [f"train.epochs={epochs}", f"optimizer.learning_rate={LEARNING_RATE}", "control=true"]
    run_steps(
        [
            (
                "1. import the published encoder, a BERT 6 x 384 with WordPiece",
                ["import", f"source={model_folder()}", "name=minilm", f"output_root={root}"],
            ),
            (
                f"2. probe: freeze the encoder, and train only a linear layer on {num_train} labeled docstrings",
                ["probe", "name=probe", *shared],
            ),
            (
                "3. finetune the whole model; control: the same model from random weights, for as long",
                ["finetune", "experiment=few_labels", "name=finetune", *finetuning, *shared],
            ),
            ("4. report: a table, and the figures", ["report", str(root)]),
        ]
    )
    print(f"\nThat took {(time.monotonic() - start_time) / 60:.1f} minutes. The figures are in {root}/report/figures.")


if __name__ == "__main__":
    run_script(main)
