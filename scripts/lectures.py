"""The questions of the field, each a study: one command, one figure, one sentence; then one report of all of them.

    python scripts/lectures.py [folder] [--full]

Five studies with a minute of pretraining each, in less than an hour on two cores, as a demonstration: numbers without
verdicts. With --full all studies as their files say, with three pretraining seeds each: days on two cores. The same
command again goes on where the last one stopped; pretraining that studies share is done once.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from steps import run_command, run_script

#: The studies of the demonstration, with what is cut from them to fit into an hour.
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
    """The words of each study's command."""
    if full:
        return [["study", f"study={name}", "pretrain.seeds=3"] for name in FULL]
    return [["study", f"study={name}", *DEMONSTRATION, *cut] for name, cut in SHORT.items()]


def main() -> None:
    """Run the studies one after the other, then the report; a study that fails does not stop the others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, help="where the runs go (runs/lectures, or runs/lectures-full)")
    parser.add_argument("--full", action="store_true", help="all studies, with three pretraining seeds and verdicts")
    given = parser.parse_args()
    root = given.folder or Path("runs", "lectures-full" if given.full else "lectures")
    start_time, failed = time.monotonic(), []
    for words in commands(full=given.full):
        failed += _run([*words, f"output_root={root}"])
    judged = [] if given.full else ["verdicts=false"]
    failed += _run(["report", str(root / "study"), f"to={root / 'report'}", "title=Lectures", *judged])
    (root / "lectures.json").write_text(json.dumps(results(root / "study"), indent=1) + "\n", encoding="utf-8")
    print(f"\nThat took {(time.monotonic() - start_time) / 60:.1f} minutes. The report is {root}/report/report.html.")
    if failed:
        sys.exit("\n".join(["these commands failed; the same command again goes on with them:", *failed]))


def results(folder: Path) -> dict[str, Any]:
    """The questions, sentences and tables of all studies in a folder, by name."""
    found = {}
    for path in sorted(folder.glob("*/sections.json")):
        name = path.parent.name
        rows = json.loads((path.parent / f"{name}.json").read_text(encoding="utf-8"))
        found[name] = {"sections": json.loads(path.read_text(encoding="utf-8")), "rows": rows}
    return found


def _run(words: list[str]) -> list[str]:
    """Run a command; return it if it failed."""
    print(f"\n$ lmtransfer {' '.join(words)}", flush=True)
    code = run_command(words)
    if code in (75, 130):
        sys.exit(code)  # interrupted
    return [f"  lmtransfer {' '.join(words)}"] if code else []


if __name__ == "__main__":
    run_script(main)
