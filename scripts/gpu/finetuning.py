"""Finetunes BERT base on made-up tasks in the formats of SST-2 and SQuAD, and evaluates the results."""

from __future__ import annotations

from functools import partial

from . import command, pretraining
from .made_up_tasks import write_tasks
from .part import Measure, Numbers, Place
from .sizes import BASE, TINY

#: Maximum length of a text in each task, in tokens.
_LENGTHS = {"sst2": 128, "squad": 384}
_BATCH_EXAMPLES = 32


def finetune(place: Place) -> dict[str, Measure]:
    """Return the measurements: pretraining for a few steps, finetuning on each task, then evaluation on each task."""
    return {
        "pretrain": partial(pretraining.pretrain, place, "bert_base"),
        **{task: partial(_finetune, place, task) for task in _LENGTHS},
        **{f"evaluate {task}": partial(_evaluate, place, task) for task in _LENGTHS},
    }


def _finetune(place: Place, task: str, seconds: float) -> Numbers:
    if not command.is_finished(place, "pretrain", "bert_base"):
        pretraining.pretrain(place, "bert_base", seconds)
    data = write_tasks(place.work / "data", tiny=place.tiny)
    words = [f"init={place.work}/runs/pretrain/bert_base", f"task={task}", f"task.max_length={_LENGTHS[task]}"]
    words += [f"data_root={data}", "train.epochs=null", f"train.steps={10 if place.tiny else 120}"]
    words += [f"train.batch_examples={_BATCH_EXAMPLES}", "train.log_every=5"]
    numbers = command.run(place, "finetune", task, words, seconds=seconds)
    return {**numbers, "flops_per_token": _flops_per_token(place, task)}


def _evaluate(place: Place, task: str, seconds: float) -> Numbers:
    if not command.is_finished(place, "finetune", task):
        _finetune(place, task, seconds)
    words = [f"run={place.work}/runs/finetune/{task}", "split=dev", f"data_root={place.work}/data"]
    numbers = command.run(place, "evaluate", f"{task}-dev", words, seconds=seconds)
    return {**numbers, "flops_per_token": _flops_per_token(place, task) / 3}  # no backward pass


def _flops_per_token(place: Place, task: str) -> float:
    result = command.result_of(place, "finetune", task)
    mean_length = result["tokens"] / (result["steps"] * _BATCH_EXAMPLES)
    return (TINY if place.tiny else BASE).flops_per_token(mean_length)
