"""Every head on every family of models for one step on a fake CUDA device; see ``fakes.cuda``."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import pytest
import torch
from fakes.cuda.device import FakeCuda
from fakes.cuda.fake_tensors import fake_tensors, to_device
from fakes.cuda.step import step_findings
from fakes.cuda.watch import Watch
from support.models import CASES, CONFIGS, DISTINCT, WAYS, task_batch, task_learner

from lmtransfer.training.precision import PrecisionName

#: Ways of transfer beside those of ``test_model_transfer``: the other compositions.
WAYS.update(
    {
        "finetune_max": ("full", {"pooling": "max"}),
        "finetune_attention": ("full", {"pooling": "attention"}),
    }
)
HEADS = [("classification", "finetune"), ("regression", "finetune_attention"), ("tagging", "finetune")]
HEADS += [("span", "finetune"), ("classification", "probe_bilstm"), ("classification", "probe_mix")]
FORMATS: list[PrecisionName] = ["bf16", "fp16"]
#: One model of each kind of layers; the others differ in what does not reach a head.
FEW = ("bert_tiny", "elmo_laptop", "gpt_mini", "modern_laptop", "xlnet_laptop", "word_embeddings_laptop")


def _path(name: str) -> Path:
    (path,) = (path for path in CONFIGS if path.stem == name)
    return path


def _findings(path: Path, head: str, way: str, number_format: PrecisionName) -> list[str]:
    learner, _ = task_learner(path, way, head)
    return step_findings(learner, [task_batch(head)], number_format)


def _findings_of_predictions(path: Path, head: str) -> list[str]:
    learner, _ = task_learner(path, "finetune", head)
    with fake_tensors():
        to_device(learner)
        batch = task_batch(head).to("cuda")
        with Watch() as watch, torch.autocast("cuda", dtype=torch.bfloat16):
            learner.eval().predict(batch)
    return list(watch.findings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "head", "way"),
    [*((FEW[0], *case) for case in HEADS), *((name, *case) for name, case in zip(FEW[1:], HEADS, strict=False))],
)
def test_a_step_of_every_head(name: str, head: str, way: str, fake_cuda: FakeCuda) -> None:
    """Every head on one model, and every model with one head."""
    assert fake_cuda(_findings, _path(name), head, way, "bf16") == []


@pytest.mark.slow
@pytest.mark.parametrize("head", ["classification", "regression", "tagging", "span"])
def test_predictions_of_every_head(head: str, fake_cuda: FakeCuda) -> None:
    assert fake_cuda(_findings_of_predictions, _path("bert_tiny"), head) == []


@pytest.mark.slow
@pytest.mark.parametrize("path", DISTINCT, ids=lambda path: path.stem)
def test_a_step_of_every_head_in_every_way(path: Path, fake_cuda: FakeCuda) -> None:
    """Each model has every eighth case, and each case an eighth of the models; the formats take turns."""
    cases = [*CASES, ("classification", "finetune_max"), ("classification", "finetune_attention")]
    number = DISTINCT.index(path)
    turn = zip(cases[number % 8 :: 8], cycle(FORMATS if number // 8 % 2 else FORMATS[::-1]), strict=False)
    found = {case: fake_cuda(_findings, path, *case, number_format) for case, number_format in turn}
    assert {case: findings for case, findings in found.items() if findings} == {}
