"""Every file of conf/transfer and conf/task: binds, builds, learns, and survives saving."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fakes.heads import asked
from fakes.tasks import bert, gpt, labels_head, random_examples
from omegaconf import OmegaConf
from support.nodes import build
from support.refusals import refuses

from lmtransfer.config.paths import conf_dir
from lmtransfer.errors import ConfigError
from lmtransfer.launch.config_files import group_config
from lmtransfer.models.word_embeddings import WordEmbeddings
from lmtransfer.tasks.base import Task
from lmtransfer.tasks.heads import TaggingSpec
from lmtransfer.tasks.source import TaskSource
from lmtransfer.training.weights import load_weights, weights
from lmtransfer.transfer.method import TransferMethod

TRANSFERS = sorted((conf_dir() / "transfer").glob("*.yaml"))
#: What static word vectors do not have: matrices of attention, and biases.
NOT_STATIC = ("lora", "bitfit")
TASKS = sorted((conf_dir() / "task").glob("*.yaml"))
#: What a user must give to a task that is theirs.
GIVEN: dict[str, dict[str, object]] = {
    "text_classification": {"labels": ["no", "yes"], "train": "train.tsv"},
    "text_pair": {"labels": ["no", "yes"], "train": "train.tsv"},
    "multi_label": {"labels": ["no", "yes"], "train": "train.tsv"},
    "regression": {"train": "train.tsv"},
    "tagging": {"labels": ["O", "X"], "files": {"train": "train.conll"}},
    "span_qa": {"train": "train.jsonl"},
    "multiple_choice": {"folder": "questions.jsonl"},
    "surprisal": {"file": "text.txt"},
}
#: Names of several tasks; tasks that need no head; tasks that have nothing to train on.
GROUPS, ASKED_AS_IT_IS, TEST_ONLY = (
    {"glue", "superglue", "babylm", "babylm_glue"},
    {
        "age_of_acquisition",
        "blimp",
        "blimp_supplement",
        "comps",
        "entity_tracking",
        "ewok",
        "global_piqa",
        "global_piqa_nonparallel",
        "multiple_choice",
        "reading",
        "surprisal",
        "wug",
        "sts_zero_shot",
    },
    {"ax", "ax_b", "ax_g"},
)


@pytest.mark.parametrize("path", TRANSFERS, ids=lambda path: path.stem)
@pytest.mark.parametrize("encoder", [bert, gpt])
def test_transfer_config_learns_and_survives_saving(path: Path, encoder) -> None:
    method = build(OmegaConf.load(path))
    learner = method.learner(encoder(), head=labels_head(2), seed=0)
    source = TaskSource(random_examples(20))
    batch = source.build(0, source.plan(0), range(20))
    losses, _ = learner.losses(batch)
    (losses["classification"].sum / losses["classification"].count).backward()
    trained = [parameter for parameter in learner.parameters() if parameter.requires_grad]
    assert trained
    assert all(parameter.grad is not None for parameter in trained)
    torch.optim.SGD(trained, lr=0.1).step()
    again = method.learner(encoder(seed=9), head=labels_head(2), seed=9)
    load_weights(again, weights(learner))
    torch.testing.assert_close(again.eval().predict(batch), learner.eval().predict(batch), rtol=0, atol=0)


def _static() -> WordEmbeddings:
    return WordEmbeddings(vocab_size=128, dim=16)


@pytest.mark.parametrize("path", TRANSFERS, ids=lambda path: path.stem)
@pytest.mark.parametrize("encoder", [bert, gpt, _static])
def test_what_is_said_of_a_word_depends_on_all_of_its_pieces(path: Path, encoder) -> None:
    if encoder is _static and path.stem in NOT_STATIC:
        pytest.skip("refused, which has its own tests")
    learner = build(OmegaConf.load(path)).learner(encoder(), head=TaggingSpec(5), seed=0)
    with torch.no_grad():
        learner.head.output.weight.normal_()
    batch = asked([9], [[[1, 2, 0], [3, 3, 1], [6, 1, 2]]])  # [CLS], words of two, three and one pieces, two more
    before = learner.eval().predict(batch)
    for piece in (3, 4, 5):
        tokens_T = batch.packed.tokens_T.clone()
        tokens_T[piece] = 77
        after = learner.predict(replace(batch, packed=batch.packed.with_tokens(tokens_T)))
        assert not torch.allclose(after[1], before[1], atol=1e-3), piece


@pytest.mark.parametrize("pieces", ["first", "last", "mean"])
def test_pieces_that_are_named_are_taken_whatever_the_encoder(pieces: str) -> None:
    for encoder in (bert, gpt, _static):
        method = TransferMethod(freeze="full", pieces=pieces)
        assert method.learner(encoder(), head=TaggingSpec(5), seed=0).head.pieces == pieces


@pytest.mark.parametrize("path", TASKS, ids=lambda path: path.stem)
def test_task_config_builds_a_task(path: Path, tmp_path: Path) -> None:
    """What tasks do with examples is tested with their classes; here that each file makes one."""
    node = OmegaConf.create(group_config("task", path.stem, [conf_dir()]))
    node = OmegaConf.merge(node, GIVEN.get(path.stem, {}))
    if path.stem in GROUPS:
        assert all((path.parent / f"{name}.yaml").is_file() for name in node.tasks)
        with refuses(ConfigError, f"task={path.stem}", ", ".join(node.tasks[:2])):
            build(node, data_root=None)
        return
    task = build(node, data_root=str(tmp_path), cache_dir=str(tmp_path))
    assert task.name == path.stem
    assert path.read_text().startswith("# ")
    if path.stem in ASKED_AS_IT_IS:
        assert task.zero_shot
        return
    assert isinstance(task, Task)
    assert "train" in task.splits or path.stem in TEST_ONLY
    assert len(set(task.labels)) == len(task.labels)
    answered = {"classification": 2, "multi_label": 2, "choice": 2, "tagging": 2, "span": 0, "regression": 0}
    assert len(task.labels) >= answered[task.head.kind]
    assert task.head.num_labels == len(task.labels)
