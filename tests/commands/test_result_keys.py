"""The keys of each command's ``result.json`` never change, because users' scripts read them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from fakes.published_folder import make_published
from fakes.tiny_pretraining import SHORT, TEXT, TINY
from fakes.transfer_files import TASK, lmtransfer, make_world, result

from lmtransfer.training.hardware import peak_memory

COMMON = {"command", "task", "split", "metrics", "main_metric", "control", "seconds", "tokens", "tokens_per_second"}
COMMON |= {"format", "num_parameters", "task_fingerprint"}
PRETRAINED = COMMON | {"checkpoint", "checkpoint_step", "steps", "epochs", "unigram_entropy", "attention", "flops"}
PRETRAINED |= {"peak_memory", "text_words", "words", "findings"}
OVER_SEEDS = {"seeds", "mean", "median", "deviation", "n"}
TRAINED = COMMON | {"higher_is_better", "seed", "pretraining_seed", "learning_rate", "labels", "majority_label"}
TRAINED |= {"num_train", "num_held_out", "num_scored", "num_truncated", "chosen_by", "chosen_score", "chosen_step"}
TRAINED |= {"steps", "epochs", "collapsed", "layer_weights", "num_trained_parameters", "peak_memory", "calibration"}
TRAINED |= {"classes", "deterministic"}
WHOLE = TRAINED | OVER_SEEDS | {"majority", "init", "learning_rate_edge", "learning_rates", "difference"}
WHOLE |= {"baselines", "better_baseline", "baseline_difference", "findings", "label_counts"}
SCORED = COMMON | OVER_SEEDS | {"higher_is_better", "collapsed", "majority", "labels", "num_scored", "num_truncated"}
SCORED |= {"calibration", "classes", "deterministic"}
PAIRS = COMMON | {"zero_shot", "pretraining_seed", "higher_is_better", "chance", "num_scored", "num_sentences"}
PAIRS |= {"num_subsets", "num_ties", "token_frequencies", "minus_token_frequencies", "interval", "p_value"}


@pytest.mark.slow
def test_each_command_writes_the_keys_it_always_wrote(text_world: Path) -> None:
    rng = random.Random(0)
    pairs = [{"sentence_good": f"a {a} {b}", "sentence_bad": f"the {b}", "UID": "u", "linguistics_term": "ellipsis"}
             for a, b in (rng.choices("abcdefgh", k=2) for _ in range(8))]  # fmt: skip
    (text_world / "blimp").mkdir()
    (text_world / "blimp" / "u.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    (text_world / "others").mkdir()
    make_world(text_world / "others")
    (text_world / "others" / "data").rename(text_world / "data")
    words = [*TINY, *TEXT, *SHORT, "hardware=exact", "objective=mlm", "train.steps=2"]
    assert lmtransfer("pretrain", *words, "seeds=2", "name=p") == 0
    assert set(result("runs/pretrain/p/seed-1")) == PRETRAINED
    assert set(result("runs/pretrain/p")) == PRETRAINED | OVER_SEEDS
    largest = max(result(f"runs/pretrain/p/seed-{seed}")["peak_memory"] for seed in range(2))
    assert largest == result("runs/pretrain/p")["peak_memory"]
    assert 10_000_000 < largest < 1.2 * peak_memory(torch.device("cpu"))  # the peak is forgotten before each seed
    quick = [*TASK, "hardware=exact", "init=runs/pretrain/p/seed-0", "train.epochs=1", "task.num_train=20"]
    assert lmtransfer("probe", *quick, "transfer.layers=mix", "control=true", "seeds=2", "name=t") == 0
    assert set(result("runs/probe/t/seed-1")) == set(result("runs/probe/t/control/seed-1")) == TRAINED
    assert set(result("runs/probe/t")) == WHOLE
    assert set(result("runs/probe/t")["control"]) == OVER_SEEDS | {
        *("metrics", "collapsed", "layer_weights", "calibration", "classes", "deterministic"),
        *("learning_rate", "learning_rate_edge", "learning_rates"),
    }
    assert lmtransfer("evaluate", "run=runs/probe/t", "hardware=exact", "name=t") == 0
    assert set(result("runs/evaluate/t")) == SCORED | {"layer_weights", "difference"}
    assert lmtransfer("evaluate", "run=runs/pretrain/p/seed-0", "hardware=exact", "name=p") == 0
    assert set(result("runs/evaluate/p")) == COMMON | {"higher_is_better"}
    words = ["task=blimp", "data_root=.", "split=test", "run=runs/pretrain/p/seed-0", "hardware=exact", "name=b"]
    assert lmtransfer("evaluate", *words) == 0
    assert set(result("runs/evaluate/b")) == PAIRS


def test_an_imported_model_has_the_common_keys(text_world: Path) -> None:
    pytest.importorskip("transformers")
    make_published(text_world / "bert")
    assert lmtransfer("import", "source=bert", "name=mine") == 0
    assert set(result("runs/import/mine")) == COMMON | {"notes"}
