"""Answers questions of the field by studies: one command, one figure and one sentence each; then a report on all.

    python scripts/lectures.py [folder] [--full]

By default, five studies with a minute of pretraining each, as a demonstration without verdicts: about an hour on two
cores. With --full, all studies with their own settings and three pretraining seeds: days on two cores. Run the same
command again to continue where it stopped; pretraining runs that studies share are performed once.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from steps import run_command, run_script

#: The studies of the demonstration, with overrides that shorten them to fit into an hour.
SHORT = {
    "masking_rate": ("only=[mask_05,mask_20,mask_50,mask_80]", "transfers.probe=null",
                     "transfers.finetune.words='experiment=laptop_finetune learning_rates=null'"),
    "labels": ("transfers.probe_3000=null", "transfers.probe_10000=null", "transfers.finetune_3000=null",
               "transfers.finetune_10000=null"),
    "layers": (),
    "elmo_mixture": (),
    "families": ("only=[bert,electra,gpt,elmo_subword,word_embeddings]", "transfers.probe=null",
                 "transfers.finetune.words='experiment=laptop_finetune learning_rates=null'"),
}  # fmt: skip
DEMONSTRATION = ("pretrain.seconds=60", "demonstration=true", "transfer_seeds=3")
FULL = (
    *("masking_rate", "model_size", "labels", "layers", "elmo_mixture", "sentence_loss", "roberta_changes"),
    *("families", "equal_cost", "languages", "memory_length"),
)


def commands(*, full: bool) -> list[list[str]]:
    """Return the words of each study's command."""
    if full:
        return [["study", f"study={name}", "pretrain.seeds=3"] for name in FULL]
    return [["study", f"study={name}", *DEMONSTRATION, *overrides] for name, overrides in SHORT.items()]


def main() -> None:
    """Run the studies one after the other, then the report; a study that fails does not stop the others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "folder", nargs="?", type=Path, help="folder for the runs; default: runs/lectures, or runs/lectures-full"
    )
    parser.add_argument("--full", action="store_true", help="all studies, with three pretraining seeds and verdicts")
    options = parser.parse_args()
    root = options.folder or Path("runs", "lectures-full" if options.full else "lectures")
    start_time, failed = time.monotonic(), []
    for words in commands(full=options.full):
        failed += _run([*words, f"output_root={root}"])
    verdicts = [] if options.full else ["verdicts=false"]
    failed += _run(["report", str(root / "study"), f"to={root / 'report'}", "title=Lectures", *verdicts])
    (root / "lectures.json").write_text(json.dumps(results(root / "study"), indent=1) + "\n", encoding="utf-8")
    print(f"\nThat took {(time.monotonic() - start_time) / 60:.1f} minutes. The report is {root}/report/report.html.")
    if failed:
        sys.exit("\n".join(["these commands failed; run the same command again to repeat them:", *failed]))


def results(folder: Path) -> dict[str, Any]:
    """Return the questions, sentences and tables of all studies in a folder, by name."""
    studies = {}
    for path in sorted(folder.glob("*/sections.json")):
        name = path.parent.name
        rows = json.loads((path.parent / f"{name}.json").read_text(encoding="utf-8"))
        studies[name] = {"sections": json.loads(path.read_text(encoding="utf-8")), "rows": rows}
    return studies


def _run(words: list[str]) -> list[str]:
    """Run a command; return it if it failed."""
    print(f"\n$ lmtransfer {' '.join(words)}", flush=True)
    code = run_command(words)
    if code in (75, 130):
        sys.exit(code)  # interrupted
    return [f"  lmtransfer {' '.join(words)}"] if code else []


if __name__ == "__main__":
    run_script(main)
