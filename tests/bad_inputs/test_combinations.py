"""Settings that exclude each other, parts that do not fit, runs that cannot be compared, words of the wrong kind."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.bad_input import FINETUNE, FT, PREPARE, PRETRAIN, UNREAD, Answer, Case, check

#: A pretraining without a model and an objective, of a corpus that is not there: nothing of it is read.
PARTS = ("pretrain", "experiment=null", "train.seconds=null", "train.steps=3", "corpus=text", "corpus.path=/dev/null")
PROBE = ("probe", *FINETUNE[1:])
BASE, TRAINED = "run=runs/pretrain/base", "run=runs/finetune/ft"
TASK = ("task=text_classification", "task.train=t.tsv", "task.dev=t.tsv")
OWN_STUDY = b"# @package _global_\n# Mine\nname: s\n"


def parts(words: str, *names: str) -> Case:
    """Parts of a pretraining that do not fit, which is told before the corpus, which is not there, is looked for."""
    return Case((*PARTS, *words.split()), names)


def tables(
    start: Sequence[str], rows: dict[str, str | tuple[str, ...]], *, prefix: str
) -> dict[str, Case]:  # fmt: skip
    """A case for each word after ``start``, with what is named."""
    return {
        f"{prefix}.{word}": Case((*start, word), (names,) if isinstance(names, str) else names)
        for word, names in rows.items()
    }


CASES: dict[str, Case] = {
    # parts that do not fit, before any text is read
    "fit.attention": parts("model=gpt_mini objective=mlm", "objective=mlm", "attention"),
    "fit.attention_of_lm": parts("model=xlnet_laptop objective=lm", "objective=lm", "attention"),
    "fit.attention_of_cbow": parts("model=bert_tiny objective=cbow", "objective=cbow", "attention"),
    "fit.one_stream": parts("model=bert_tiny objective=plm", "objective=plm", "BertEncoder"),
    "fit.no_pooler": parts("model=bert_tiny objective=mlm_nsp +model.pooler=false", "objective=nsp", "pooler"),
    "fit.length": parts("model=bert_tiny objective=mlm objective.max_length=9999", "objective.max_length=9999"),
    "fit.short": parts("model=bert_tiny objective=mlm objective.max_length=3", "objective.max_length=3"),
    "fit.contiguous": parts("model=bert_tiny objective=mlm objective/rows=contiguous", "rows=contiguous", "mlm"),
    "fit.contiguous_with_frames": parts("model=gpt_mini objective=lm objective.rows.contiguous=true", "rows.frame"),
    "fit.label": parts("model=bert_tiny objective=sop objective/rows=sentence_pairs", "'sop'", "ordered_pairs"),
    "fit.segments": parts("model=bert_tiny objective=mlm_nsp model.num_segments=1", "model.num_segments"),
    "fit.nothing_hidden": parts("model=bert_tiny objective=mlm objective/corruption=none", "objective/corruption"),
    "fit.hidden_for_nobody": parts("model=gpt_mini objective=lm objective/corruption=tokens", "objective.corruption"),
    "fit.shares": parts(
        "model=bert_tiny objective=mlm objective.corruption.mask_share=0.9 objective.corruption.random_share=0.9",
        "mask_share",
    ),
    "fit.heads": parts("model=bert_tiny objective=mlm model.num_heads=3", "num_heads"),
    "fit.odd_elmo": parts("model=elmo_subword_laptop objective=bilm model.dim=31", "model.dim=31"),
    "fit.characters": parts("model=elmo_laptop objective=bilm", "tokenizer=words"),
    "fit.no_weight": parts("model=bert_tiny objective=mlm objective.losses.mlm.weight=0", "objective.losses", "weight"),
    "fit.final_factor": parts("model=bert_tiny objective=mlm schedule.final_factor=2", "schedule.final_factor"),
    "fit.decay": parts("model=bert_tiny objective=mlm schedule=wsd schedule.decay_fraction=0", "decay_fraction"),
    "fit.inverse_sqrt": parts("model=bert_tiny objective=mlm schedule=inverse_sqrt schedule.warmup_steps=0", "warmup"),
    "fit.mixture_of_contiguous_rows": Case(
        (*PARTS[:4], "corpus=mixture", "corpus.parts=[texts,t.tsv]")
        + ("model=transformer_xl_laptop", "objective=lm_contiguous"),
        ("objective.rows.contiguous",),
    ),
    **tables(
        UNREAD,
        {
            "objective.losses.mlm=null": ("objective.losses.mlm", "null"),
            "objective.rows=null": ("objective.rows", "null"),
            "model=null": "model",
            "optimizer=null": "optimizer",
            "train.seconds=5": ("train.steps=2", "train.seconds=5"),
            "tokenizer=bpe": (),
            "name=${oc.env:NOT_THERE}": ("name:", "NOT_THERE"),
            "train.batch_tokens=${nope.nope}": ("train.batch_tokens:", "nope.nope"),
            "train.batch_tokens=${os.system:touch PWNED}": ("train.batch_tokens:", "os.system"),
            "seed=${seed}": ("seed:", "Recursive"),
            "seed=${oc.env:": "seed",
            "hardware.device=banana": "hardware.device=banana",
            "hardware.precision=fp16": "hardware.precision",
            "model._target_=os.system": "model._target_",
            "+model._partial_=true": "model._partial_",
            "+nope=3": "nope",
            "objective/rows=nope": "objective/rows=nope",
            "=3": "=3",
            "name=..": "name:",
            "name=a//b": "name:",
            "name=": "name:",
            "output_root=": "output_root=",
            "cache_dir=3.5": (),
            "corpus.path={a:1}": "corpus.path",
        },
        prefix="pretrain",
    ),
    # runs that are there
    **tables(
        (*PRETRAIN[:-1], "name=base", "resume=true"),
        {
            "model.dim=32": ("model.dim", "resume"),
            "seed=3": ("seed", "resume"),
            "corpus.path=t.tsv": ("corpus.path", "resume"),
        },
        prefix="resume",
    ),
    "resume.not_asked_for": Case((*PRETRAIN[:-1], "name=base"), ("name=", "resume=true")),
    # probe and finetune
    "task.twice": Case((*FINETUNE, "task=squad"), ("task=text_classification", "task=squad")),
    "task.twice_with_files": Case(
        (*FINETUNE, "task.test=t.tsv", "task=squad", "data_root=/nonexistent"),
        ("task=text_classification", "task=squad"),
    ),
    "task.no_files": Case(
        ("finetune", "init=runs/pretrain/base", "task=squad", "data_root=/nonexistent", "name=x"),
        ("squad", "/nonexistent"),
    ),
    "task.group": Case((*FINETUNE, "task=glue"), ("task=text_classification", "task=glue")),
    "task.stride": Case(
        ("finetune", "init=runs/pretrain/base", "task=span_qa", "task.train=t.tsv", "task.dev=a.jsonl", "name=x")
        + ("task.stride=100000",),
        ("task.stride=100000", "512"),
    ),
    "probe.without_init": Case(("probe", *TASK), ("init",)),
    "probe.layer_decay": Case((*PROBE, "+transfer.layer_decay=0.5"), ("transfer.layer_decay",)),
    **tables(
        FINETUNE,
        {
            "tokenizer_from=runs/pretrain/base": ("tokenizer_from=", "init="),
            "model=bert_tiny": ("model=", "init="),
            "init=nowhere": "init:",
            "init=": "init",
            "checkpoint=middle": "checkpoint: 'middle'",
            **{f"learning_rates={value}": "learning_rates"
               for value in ("[]", "[nan]", "[[1e-3]]", "1e-3")},
            "transfer.embedding_rate=11": "transfer.embedding_rate",
            "transfer.pooling=sum": "transfer.pooling",
            "transfer=null": "transfer",
            "optimizer=null": "optimizer",
            "split=train": "split=train",
            "split=nowhere": "split=nowhere",
            "split=null": "split",
            "task.max_length=2": "task.max_length=2",
            "task.max_length=9999": "task.max_length=9999",
            **{f"task.dev_from_train={value}": "task.dev_from_train" for value in ("0", "1", "nan")},
            **{f"task.num_train={value}": "task.num_train" for value in ("0", "1000")},
            "task.labels=[good]": "task.labels",
            "task.label_values=[1,2]": "task.label_values",
            "task.metrics=[bleu]": "task.metrics",
            "task.positive_label=ugly": "task.positive_label",
            "task.text_column=label": ("task.text_column='label'", "task.label_column"),
            "task.train=": "task.train",
            "task.train=nowhere.tsv": "nowhere.tsv",
            "seeds=1000000000": "seeds",
        },
        prefix="finetune",
    ),
    "finetune.layers": Case(
        (*FINETUNE, "task.dev_from_train=null", "transfer.layers=99"), ("transfer.layers=99",)
    ),
    "finetune.patience": Case((*FINETUNE, "checkpoint=last", "train.patience=2"), ("train.patience",)),
    "finetune.control": Case(
        (*FINETUNE, "init=null", "model=bert_tiny", "tokenizer_from=runs/pretrain/base", "control=true"), ("control",)
    ),
    "finetune.blimp": Case(("finetune", "init=runs/pretrain/base", "task=blimp", "name=x"), ("task=blimp",)),
    # evaluate
    **tables(
        ("evaluate", BASE),
        {
            "run=nowhere": "run:",
            "run=null": "run",
            "split=null": "split",
            "memory_lengths=[-1]": "memory_lengths",
            "memory_lengths=[]": "memory_lengths",
        },
        prefix="evaluate",
    ),
    "evaluate.head": Case(("evaluate", BASE, *TASK, "split=dev"), ("task", "finetune")),
    # predict
    **tables(
        ("predict", BASE, "text=bal [MASK]"),
        {
            "run=nowhere": "run:",
            "run=null": "run",
            "input=t.tsv": ("input", "text", "input=<file>"),
            "split=dev": "split",
            "submission=banana": "submission",
            "text_column=a": "text_column",
            "format=csv": "format",
            "group=0": "group",
            "top_k=0": "top_k",
            "top_k=1e12": "top_k",
            "ensemble=true": "ensemble",
            "task=sst2": "task",
            "output=t.tsv": "t.tsv",
            "output=no/where.jsonl": "no",
            "seed=1": "seed",
        },
        prefix="predict",
    ),
    "predict.no_mask": Case(("predict", BASE, "text=bal"), ("[MASK]",)),
    "predict.nothing": Case(("predict", BASE), ("input", "text", "split")),
    "predict.empty": Case(("predict", BASE, "input="), ("input=",)),
    # inspect
    **tables(
        ("inspect", *UNREAD[1:-1]),
        {
            "rows=1000000": "rows: 1000000",
            "objective/rows=contiguous": "contiguous",
        },
        prefix="inspect",
    ),
    "inspect.all_too_large": Case(
        ("inspect", *UNREAD[1:-1], "rows=1000000", "sample=100000000", "measure=false", "epoch=1000000000"),
        ("rows: 1000000", "sample: 100000000", "epoch: 1000000000"),
    ),
    "inspect.task_rows": Case(("inspect", "init=runs/pretrain/base", *TASK, "rows=1e9"), ("rows",)),
    "inspect.task_length": Case(("inspect", "init=runs/pretrain/base", *TASK, "task.max_length=2"), ("max_length",)),
    "inspect.task_without_init": Case(("inspect", *TASK), ("init",)),
    "inspect.blimp": Case(("inspect", "init=runs/pretrain/base", "task=blimp"), ("task=blimp",)),
    # prepare
    **tables(
        (*PREPARE, "corpus.path=texts"),
        {
            "num_workers=-1": "num_workers",
            "corpus=python_docs": ("corpus=text", "corpus=python_docs"),
            "tokenizer.vocab_size=3": "tokenizer.vocab_size=3",
            "corpus.validation_fraction=1.5": "corpus.validation_fraction",
            "model=bert_tiny": "model",
            "seed=1": "seed",
        },
        prefix="prepare",
    ),
    **tables(
        ("prepare", "corpus=mixture"),
        {"corpus.parts=3": "corpus.parts", "corpus.parts=[nope]": "nope", "corpus.parts=[texts,texts]": "corpus.parts"},
        prefix="prepare",
    ),
    # export, import, report, list
    **tables(
        ("export", BASE, "to=e"),
        {
            "run=nowhere": "nowhere",
            "to=null": "to",
            "to=t.tsv": "to",
            "format=banana": "format: 'banana'",
            "checkpoint=middle": "checkpoint: 'middle'",
            "license=3": "license",
            "language={a:1}": "language",
            "results=nowhere": "results=nowhere",
        },
        prefix="export",
    ),
    "export.onnx": Case(("export", BASE, "to=onnx", "format=transformers"), ("format=transformers", "to=onnx")),
    **tables(
        ("import",),
        {"source=./nowhere": "source", "source=texts": "texts", "name=x": "source"},
        prefix="import",
    ),
    **tables(
        ("report", "figures=false"),
        {"nowhere": "nowhere", "texts": "texts", "runs=null": "runs", "runs=[]": "runs", "run=runs": "run"},
        prefix="report",
    ),
    **tables(
        ("list",),
        {word: "what" for word in ("what=3", "what=[]", "what=[models,nope]", "what=${nope}")},
        prefix="list",
    ),
    # study
    **tables(
        ("study", "study=tiny"),
        {
            "+recipes.x='unclosed \" quote'": "recipes.x",
            "+recipes.x='model bert_tiny'": "recipes.x",
            "+recipes.x='-m seed=1'": "recipes.x",
            "+recipes.x=3": "recipes.x",
            "+recipes.x={probe2: 'a=b'}": "recipes.x.probe2",
            "+recipes.x='model=nope'": ("of x", "model=nope"),
            "+recipes.x='model=bert_tiny train.stepz=3'": ("of x", "train.stepz"),
            "+recipes.x='model=gpt_mini objective=mlm'": ("of x", "attention"),
            "+recipes.x='model=bert_tiny objective/rows=lanes'": ("of x", "objective/rows=lanes", "contiguous"),
            "only=[nope]": "only=nope",
            "recipes=3": "recipes: 3 is not a mapping",
            "+transfers.x=3": "transfers.x",
            "+transfers.x={command: train}": "transfers.x.command",
            "+transfers.x={command: probe, tsk: sst2}": "transfers.x.tsk",
            "+transfers.x={command: probe, words: 'unclosed \"'}": "transfers.x.words",
            "pretrain.words='unclosed \"'": "pretrain.words",
            "pretrain.seconds=0": "seconds",
            "pretrain.corpus=nope": "corpus=nope",
            "pretrain=3": "pretrain",
            "name=a/b": "name=a/b",
            "name=..": "name",
            "seed=3": "seed",
        },
        prefix="study",
    ),
    "study.two_budgets": Case(
        ("study", "study=tiny", "pretrain.seconds=3", "pretrain.steps=3"), ("pretrain.seconds=3", "pretrain.steps=3")
    ),
    "study.own": Case(
        ("study", "study=own", "-cd", "mine"),
        ("recipes.a",),
        {"mine/study/own.yaml": OWN_STUDY + b"recipes: {a: 'model=\"bert_tiny'}\n"},
    ),
    "study.own_key": Case(
        ("study", "study=own", "-cd", "mine"),
        ("recepies",),
        {"mine/study/own.yaml": OWN_STUDY + b"recepies: {a: 'model=bert_tiny'}\n"},
    ),
    "sweep.types": Case((*UNREAD, "-m", "seed=abc,def"), ("seed=abc", "seed=def", "integer")),
    # sweeps whose points fail end with 1
    "sweep.empty": Case((*UNREAD, "-m", "seed="), ("seed", "integer")),
    "sweep.group": Case((*UNREAD, "-m", "optimizer=muon,nope"), ("optimizer=nope",)),
    "sweep.list": Case(("list", "-m", "what=nope,nope2"), ("what=nope", "2 of 2"), status=1),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CASES))
def test_what_cannot_be_is_refused(name: str, world: Path, answer: Answer) -> None:
    check(CASES[name], world, answer)
    assert not (world / "PWNED").exists()


OF_A_TASK: dict[str, Case] = {
    **tables(
        ("predict", TRAINED),
        {
            "text=a [SEP] b": "[SEP]",
            "split=nope": "split=nope",
            "input=texts": "texts",
            "input=nowhere.tsv": "nowhere.tsv",
        },
        prefix="predict",
    ),
    **tables(
        ("predict", TRAINED, "input=t.tsv"),
        {
            "text_column=body": "text_column",
            "text_pair_column=label": "text_pair_column",
            "id_column=zz": "id_column",
            "format=squad": "format=squad",
            "format=xml": "format: 'xml'",
        },
        prefix="predict",
    ),
    "predict.over_its_input": Case(
        ("predict", TRAINED, "input=own.tsv", "output=own.tsv", "overwrite=true"),
        ("output=own.tsv", "input"),
        {"own.tsv": b"text\nbal\n"},
    ),
    "predict.torn_rows": Case(("predict", TRAINED, "input=a.jsonl"), ("a.jsonl:1",), {"a.jsonl": b"{"}),
    "predict.no_column": Case(("predict", TRAINED, "input=a.tsv"), ("a.tsv:1", "text_column"), {"a.tsv": b"body\na\n"}),
    **tables(
        ("evaluate", TRAINED, "split=dev"),
        {
            "memory_lengths=[3]": "memory_lengths",
            "segment_length=3": "segment_length",
            "same_length=true": "same_length",
            "split=nope": "split=nope",
        },
        prefix="evaluate",
    ),
    "evaluate.corpus": Case(("evaluate", TRAINED, "corpus=text", "corpus.path=texts"), ("corpus",)),
    "evaluate.other_labels": Case(
        ("evaluate", TRAINED, "split=dev", "task=text_classification", "task.train=a.tsv", "task.dev=a.tsv"),
        ("pos", "neg"),
        {"a.tsv": b"label\ttext\n" + b"pos\tbal\nneg\tkit\n" * 3},
    ),
    **tables(
        FT,
        {"train.steps=5": ("train.steps", "resume"), "task.num_train=10": ("task.num_train", "resume")},
        prefix="finetune",
    ),
}


@pytest.mark.parametrize("name", list(OF_A_TASK))
def test_what_cannot_be_of_a_run_of_a_task_is_refused(name: str, task_world: Path, answer: Answer) -> None:
    check(OF_A_TASK[name], task_world, answer)


def run(folder: str, task: str = "sst2", **more: Any) -> dict[str, bytes]:
    """The files of a finished run."""
    result = {"command": "finetune", "task": task, "split": "dev", "main_metric": "accuracy", "seed": 0,
              "metrics": {"accuracy": 0.5}, **more}  # fmt: skip
    return {
        f"{folder}/config.yaml": f"init: runs/pretrain/base\ntask: {{name: {task}}}\n".encode(),
        f"{folder}/result.json": json.dumps({"format": 1, **result}).encode(),
    }


TWO = run("made/a") | run("made/b", seed=1)
COMPARED = {
    "none": Case(("compare",), ("runs",)),
    "one": Case(("compare", "made/a"), ("runs: 1 ",), TWO),
    "the same twice": Case(("compare", "made/a", "made/../made/a"), ("runs: ", "made/a", "made/../made/a"), TWO),
    "nowhere": Case(("compare", "made/a", "made/c"), ("runs=made/c: ",), TWO),
    "no run": Case(("compare", "made/a", "texts"), ("runs=texts: ", "result.json"), TWO),
    "pretraining": Case(
        ("compare", "made/a", "runs/pretrain/base"),
        ("runs: base ", "(sst2, dev)"),
        TWO,
    ),
    "not finished": Case(
        ("compare", "made/a", "made/c"),
        ("runs: ", "made/c"),
        TWO | {"made/c/config.yaml": b"init: x\n"},
    ),
    "several tasks": Case(
        ("compare", "made/a", "many"),
        ("many", "2 kinds", "sst2, dev", "cola, dev"),
        TWO | run("many/a") | run("many/b", "cola"),
    ),
    "unknown key": Case(("compare", "made/a", "made/b", "split=dev"), ("split=dev: ",), TWO),
    "no place": Case(("compare", "made/a", "made/b", "to=t.tsv"), ("to=t.tsv: ",), TWO),
}


@pytest.mark.parametrize("name", COMPARED)
def test_what_cannot_be_compared(name: str, world: Path, answer: Answer) -> None:
    check(COMPARED[name], world, answer)


@pytest.mark.parametrize("content", [b"", b"PAR1" + bytes(18) + b"PAR1"], ids=["empty", "zeros"])
def test_damaged_predictions_are_told_of_and_left_out(content: bytes, world: Path, answer: Answer) -> None:
    for name, data in (TWO | {"made/a/predictions/dev.parquet": content}).items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(data)
    status, said = answer("compare", "made/a", "made/b", "to=page")
    assert status == 0, said
    assert "dev.parquet" in said
    assert re.search(r"\ba and b\b.*\bpredictions\b", said)
    assert re.search(r"\ba and b\b.*\bone seed\b", said)
    assert answer("report", "made", "figures=false")[0] == 0
