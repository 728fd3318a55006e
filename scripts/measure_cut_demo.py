"""The demonstration with less pretraining: the seconds in which plain masked language modelling reads some tokens.

    python scripts/measure_cut_demo.py [--tokens 300000,800000]

For each number, a BERT of ``experiment=demo`` from random embeddings is timed on so many tokens. Then the recipe gets
as many seconds, counting included, and is finetuned on 100 labels with its control.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from demo import NUM_TRAIN, SEEDS
from steps import new_folder, run_script, run_steps


def main() -> None:
    """Run the commands for one number of tokens after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", default="300000,800000", help="tokens that the plain model reads")
    options = parser.parse_args()
    root = new_folder(Path("runs"), "cut-demo")
    for tokens in options.tokens.split(","):
        plain = root / "pretrain" / f"plain-{tokens}"
        words = ["pretrain", "experiment=demo", f"output_root={root}"]
        budget = [f"name={plain.name}", "embeddings=null", f"train.tokens={tokens}"]
        run_steps([(f"{tokens} tokens, from random embeddings", [*words, *budget])])
        seconds = int(json.loads((plain / "result.json").read_text(encoding="utf-8"))["seconds"])
        cut = root / "pretrain" / f"cut-{tokens}"
        task = ["task=python_docs", f"task.num_train={NUM_TRAIN}", "split=test", f"seeds={SEEDS}", "control=true"]
        transfer = ["finetune", "experiment=few_labels", f"init={cut}", *task]
        run_steps(
            [
                (
                    f"the demonstration's recipe, {seconds} seconds",
                    [*words, f"name={cut.name}", "train.tokens=null", f"train.seconds={seconds}"],
                ),
                ("finetuned, with its control", [*transfer, f"name={cut.name}", f"output_root={root}"]),
            ]
        )


if __name__ == "__main__":
    run_script(main)
