"""Write down what a redesign must not change: what every command prints and what it writes, on tiny runs.

    python scripts/snapshot.py write FOLDER       run all commands, and keep outputs, results and losses in FOLDER
    python scripts/snapshot.py compare ONE OTHER  print what differs; exit status 1 if anything does

Both folders must come from the same machine, because the last bits of a sum depend on it. Times, rates, memory,
versions and paths of the machine are left out. The package that is compared is the one that Python finds.
"""

from __future__ import annotations

import difflib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_ROWS = "experiment=null train.batch_tokens=256 train.log_every=1 train.eval_every=3 corpus.path=text.txt "
_ROWS += "corpus.validation_fraction=0.2 tokenizer.vocab_size=80 tokenizer.allow_fewer=true objective.max_length=24 "
_ROWS += "hardware=exact optimizer=adamw"
_TINY = f"corpus=text train.seconds=null train.steps=6 {_ROWS}"
_SMALL = "model.dim=16 model.num_layers=2 model.num_heads=2 model.hidden_dim=32 model.max_length=32"
_TASK = "task=text_classification task.name=toy task.train=train.tsv task.dev=dev.tsv hardware=exact"
_BRIEF = "train.epochs=null train.min_steps=null train.steps=4 train.batch_examples=8"

#: Commands in order; later ones read the runs of earlier ones.
COMMANDS = {
    "help": "--help",
    "pretrain_help": "pretrain --help",
    "list": "list",
    "prepare": "prepare corpus=text corpus.path=text.txt tokenizer.vocab_size=80 tokenizer.allow_fewer=true",
    "bert": f"pretrain name=bert model=bert_tiny objective=mlm_nsp {_SMALL} {_TINY}",
    "words": f"pretrain name=words model=word_embeddings_laptop objective=cbow model.dim=16 {_TINY}",
    "electra": f"pretrain name=electra model=electra_laptop objective=rtd {_SMALL} model.embedding_dim=16 {_TINY}",
    "gpt": f"pretrain name=gpt model=gpt_mini objective=lm {_SMALL} {_TINY}",
    "xlnet": f"pretrain name=xlnet model=xlnet_laptop objective=plm {_SMALL} {_TINY}",
    "transformer_xl": f"pretrain name=txl model=transformer_xl_laptop objective=lm_contiguous {_SMALL} {_TINY}",
    "modern": f"pretrain name=modern model=modern_laptop objective=mlm {_SMALL} seeds=2 {_TINY}",
    "phases": f"pretrain name=phases model=bert_tiny objective=mlm phases=words_then_masked {_SMALL} {_TINY}",
    "resume": f"pretrain name=bert model=bert_tiny objective=mlm_nsp resume=true {_SMALL} {_TINY}",
    "probe": f"probe name=probe init=runs/pretrain/bert seeds=2 control=true {_TASK}",
    "probe_trained": f"probe name=trained init=runs/pretrain/bert transfer.fit=trainer {_TASK} {_BRIEF}",
    "finetune": f"finetune name=ft init=runs/pretrain/bert seeds=2 control=true learning_rates=[1e-3,1e-4] {_TASK} "
    + _BRIEF,
    "folds": f"finetune name=folds init=runs/pretrain/gpt task.folds=2 learning_rates=null {_TASK} task.dev=null "
    + _BRIEF,
    "lora": f"finetune name=lora init=runs/pretrain/modern transfer=lora {_TASK} {_BRIEF}",
    "joint": f"finetune name=joint init=runs/pretrain/bert transfer=joint {_TASK} {_BRIEF}",
    "scratch": f"finetune name=scratch model=bert_tiny {_SMALL} tokenizer_from=runs/pretrain/bert {_TASK} {_BRIEF}",
    "evaluate": "evaluate run=runs/finetune/ft split=dev hardware=exact",
    "evaluate_pretrained": "evaluate run=runs/pretrain/txl memory_lengths=[0,8] segment_length=8 hardware=exact",
    "predict": "predict run=runs/finetune/ft input=dev.tsv output=out.jsonl hardware=exact",
    "predict_masks": "predict run=runs/pretrain/bert hardware=exact",
    "embed": "embed run=runs/finetune/ft input=text.txt output=out.parquet hardware=exact",
    "export": "export run=runs/pretrain/bert to=exported format=tensors",
    "inspect": f"inspect measure=false model=bert_tiny objective=mlm {_SMALL} {_TINY}",
    "inspect_task": "inspect task=text_classification task.train=train.tsv task.dev=dev.tsv init=runs/pretrain/bert",
    "sweep": f"probe -m name=sweep init=runs/pretrain/bert transfer.layers=0,last {_TASK}",
    "study": f"study study=families recipes=null +recipes.a='model=bert_tiny objective=mlm {_SMALL} {_ROWS}' name=tiny "
    "pretrain.corpus=text pretrain.steps=6 pretrain.seconds=null figures=null transfers=null "
    f"+transfers.probe.command=probe +transfers.probe.words='{_TASK}'",
    "report": "report runs figures=false",
    "compare": "compare runs/finetune/ft runs/finetune/joint",
    "wrong_key": f"pretrain model=bert_tiny train.stpes=5 {_TINY}",
    "wrong_deep_key": "pretrain objective.corruption.selektion=5",
    "wrong_type": "pretrain model=bert_tiny model.dim=abc train.steps=-1 hardware.precision=bf61",
    "out_of_range": "pretrain objective.mask_prob=2",
    "missing_file": f"pretrain name=no {_TINY} corpus.path=nowhere.txt",
    "wrong_group": "pretrain model=brt",
    "two_budgets": "pretrain train.steps=5 train.tokens=1000",
    "no_sweep": "pretrain objective.mask_prob=0.1,0.2",
    "commas": f"finetune init=runs/pretrain/bert {_TASK} task.labels=a,b",
    "wrong_command": "pretran model=bert_tiny",
    "wrong_column": f"finetune name=no init=runs/pretrain/bert {_TASK} task.text_column=txt",
    "wrong_folder": "probe init=runs/pretrain/nowhere",
}
#: Entries of results that depend on the clock or the machine.
_LEFT_OUT = re.compile(
    r"seconds|tokens_per_second|peak_memory|memory|date|time|versions|mfu|gpu|hostname|python|torch|made_at|flops_per_s"
)


def main() -> int:
    """Run the command line."""
    match sys.argv[1:]:
        case ["write", folder]:
            write(Path(folder).absolute())
            return 0
        case ["compare", one, other]:
            return compare(Path(one), Path(other))
    print(__doc__)
    return 2


def write(folder: Path) -> None:
    """Run every command in a temporary folder, and keep what it prints and writes."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONHASHSEED": "0"}
    with tempfile.TemporaryDirectory() as work:
        environment["LMTRANSFER_CACHE"] = f"{work}/cache"
        make_files(Path(work))
        for name, words in COMMANDS.items():
            command = [sys.executable, "-W", "ignore", "-m", "lmtransfer", *split(words)]
            if name == "predict_masks":
                command.append("text=the [MASK] was good .")
            done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)
            said = f"exit status {done.returncode}\n--- output\n{done.stdout}\n--- errors\n{done.stderr}"
            (folder / f"{name}.txt").write_text(steady(said, work))
            print(f"{name}: {done.returncode}", flush=True)
        for path in sorted(Path(work).rglob("*")):
            if path.name in ("result.json", "metrics.jsonl", "study.json", "report.json") or path.suffix == ".jsonl":
                place = folder / "files" / path.relative_to(work)
                place.parent.mkdir(parents=True, exist_ok=True)
                lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
                kept = [json.dumps(without_clock(json.loads(line)), indent=1, sort_keys=True) for line in lines]
                place.write_text(steady("\n".join(kept), work))


def split(words: str) -> list[str]:
    """Words of a shell, in which single quotes hold one word together."""
    return [word.replace("'", "") for word in re.findall(r"(?:'[^']*'|\S)+", words)]


def make_files(folder: Path) -> None:
    """Make the text and the labelled examples."""
    draw = random.Random(0)
    nouns, good, bad = ["soup", "film", "song", "book", "day"], ["good", "fine", "kind"], ["bad", "dull", "cold"]

    def sentence(words: list[str]) -> str:
        return f"the {draw.choice(nouns)} was {draw.choice(words)} and {draw.choice(words)} ."

    text = "\n\n".join("\n".join(sentence(draw.choice([good, bad])) for _ in range(6)) for _ in range(40))
    (folder / "text.txt").write_text(text + "\n")
    for name, size in (("train", 60), ("dev", 20)):
        rows = [(sentence(good), "yes") if number % 2 else (sentence(bad), "no") for number in range(size)]
        (folder / f"{name}.tsv").write_text("text\tlabel\n" + "".join(f"{one}\t{label}\n" for one, label in rows))


def without_clock(value: Any) -> Any:
    """Plain data without what the clock and the machine decide."""
    if isinstance(value, dict):
        return {name: without_clock(item) for name, item in value.items() if not _LEFT_OUT.search(name)}
    return [without_clock(item) for item in value] if isinstance(value, list) else value


def steady(text: str, work: str) -> str:
    """A text without paths of the machine, times and rates."""
    text = text.replace(os.path.realpath(work), "WORK").replace(work, "WORK")
    text = re.sub(r"\S+/conf\b", "CONF", text)
    text = re.sub(r"\d[\d.,]*k? ?(s|ms|min|h|MB|GB|tokens/s|tok/s)\b", r"N \1", text)
    text = re.sub(r"\d+:\d\d left", "N left", text)
    text = re.sub(r"\b[0-9a-f]{12,64}\b", "HASH", text)
    return "\n".join(re.sub(r" +", " ", line).rstrip() for line in text.replace("\r", "\n").splitlines())


def compare(one: Path, other: Path) -> int:
    """Print what differs between two folders; 1 if anything does."""
    names = sorted({str(path.relative_to(top)) for top in (one, other) for path in top.rglob("*") if path.is_file()})
    num_different = 0
    for name in names:
        texts = [(top / name).read_text().splitlines() if (top / name).is_file() else [] for top in (one, other)]
        different = list(difflib.unified_diff(*texts, f"{one.name}/{name}", f"{other.name}/{name}", lineterm="", n=0))
        num_different += bool(different)
        print("\n".join(different)) if different else None
    print(f"{num_different} of {len(names)} files differ")
    return int(num_different > 0)


if __name__ == "__main__":
    sys.exit(main())
