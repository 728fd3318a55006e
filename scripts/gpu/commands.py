"""Measurements by the commands themselves, as a user runs them: other families, finetuning, evaluation."""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Sequence
from functools import partial

from bench.text import corpus_overrides

from .made_up_tasks import write_tasks
from .part import Measure, Numbers, Place
from .programs import python

#: What makes a model tiny.
_TINY = ("model.dim=32", "model.num_layers=2", "model.num_heads=2", "model.hidden_dim=64")
_FAMILIES: dict[str, tuple[list[str], Sequence[str]]] = {
    "electra_small": (["~experiment", "model=electra_small", "objective=rtd"], (*_TINY, "model.embedding_dim=32")),
    "modern_base": (["~experiment", "model=modern_base", "objective=mlm"], _TINY),
    "elmo": (
        ["experiment=elmo_laptop", "model=elmo"],
        ("model.dim=32", "model.cell_dim=32", "model.filters=[[1,8],[2,8]]", "model.num_highway=1"),
    ),
}
#: Words of every pretraining; validation comes once, at the end.
_PRETRAIN = ["optimizer=adamw", "train.log_every=5", "train.eval_every=100000", "train.eval_tokens=1000"]
_FINETUNE = {"sst2": ["task.max_length=128"], "squad": ["task.max_length=384"]}


def families(place: Place) -> dict[str, Measure]:
    """Pretraining of encoders other than BERT."""
    return {name: partial(_family, place, name) for name in _FAMILIES}


def finetune(place: Place) -> dict[str, Measure]:
    """Finetuning of BERT base on made-up tasks of the forms of SST-2 and SQuAD, and evaluation of the results."""
    return {
        "pretrain": partial(_pretrain_base, place),
        **{task: partial(_finetune, place, task) for task in _FINETUNE},
        **{f"evaluate {task}": partial(_evaluate, place, task) for task in _FINETUNE},
    }


def _family(place: Place, name: str, seconds: float) -> Numbers:
    words, tiny = _FAMILIES[name]
    return _pretrain(place, name, [*words, *(tiny if place.tiny else ())], seconds)


def _pretrain_base(place: Place, seconds: float) -> Numbers:
    words = ["~experiment", "model=bert_base", "objective=mlm", *(_TINY if place.tiny else ())]
    return _pretrain(place, "bert_base", words, seconds)


def _pretrain(place: Place, name: str, words: Sequence[str], seconds: float) -> Numbers:
    tokens = 1024 if place.tiny else 32768 if place.large else 8192
    sizes = ["tokenizer.vocab_size=512"] if place.tiny and name != "elmo" else []
    few = [] if name == "elmo" else ["tokenizer.allow_fewer=true"]
    steps = f"train.steps={10 if place.tiny else 60}"
    own = [*words, *corpus_overrides(), *sizes, *few, *_PRETRAIN, steps, f"train.batch_tokens={tokens}"]
    return _command(place, "pretrain", name, own, seconds)


def _finetune(place: Place, task: str, seconds: float) -> Numbers:
    if not (place.work / "runs/pretrain/bert_base/result.json").is_file():  # an earlier call's run was cleaned away
        _pretrain_base(place, seconds)
    data = write_tasks(place.work / "data", tiny=place.tiny)
    words = [f"init={place.work}/runs/pretrain/bert_base", f"task={task}", f"data_root={data}", "train.epochs=null"]
    words += [*_FINETUNE[task], f"train.steps={10 if place.tiny else 120}", "train.log_every=5"]
    return _command(place, "finetune", task, words, seconds)


def _evaluate(place: Place, task: str, seconds: float) -> Numbers:
    if not (place.work / f"runs/finetune/{task}/result.json").is_file():
        _finetune(place, task, seconds)
    words = [f"run={place.work}/runs/finetune/{task}", "split=dev", f"data_root={place.work}/data", "overwrite=true"]
    return _command(place, "evaluate", f"{task}-dev", words, seconds)


def _command(place: Place, command: str, name: str, words: Sequence[str], seconds: float) -> Numbers:
    """Run a command; its speed is the median of the logged steps of the second half."""
    folder = place.work / "runs" / command / name
    shutil.rmtree(folder, ignore_errors=True)  # of an earlier try
    own = [f"name={name}", f"output_root={place.work}/runs", f"hardware.device={place.device}"]
    python(["-m", "lmtransfer", command, *words, *own], seconds=seconds)
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    numbers: Numbers = {"seconds": result["seconds"], "metrics": result["metrics"]}
    log = sorted(folder.rglob("metrics.jsonl"))
    if log:
        records = [json.loads(line) for line in log[0].read_text(encoding="utf-8").splitlines()]
        rates = [record["tokens_per_second"] for record in records if "tokens_per_second" in record]
        numbers["tokens_per_second"] = statistics.median(rates[len(rates) // 2 :])
    if result.get("flops"):
        numbers["flops_per_token"] = result["flops"] / result["tokens"]
    if result.get("peak_memory"):
        numbers["memory"] = result["peak_memory"]
    return numbers
