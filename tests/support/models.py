"""Small models of every file of conf/model, and the heads and ways of transfer that tests try on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf

from lmtransfer.config.component import build
from lmtransfer.config.paths import conf_dir
from lmtransfer.data.batch import PackedBatch
from lmtransfer.data.batch import pack as pack_tokens
from lmtransfer.launch.config_files import group_config
from lmtransfer.launch.plain import to_plain
from lmtransfer.tasks.heads import (
    ClassificationSpec,
    HeadSpec,
    LabelTargets,
    RegressionSpec,
    ScoreTargets,
    SpanSpec,
    SpanTargets,
    TaggingSpec,
    TagTargets,
)
from lmtransfer.tasks.source import TaskBatch
from lmtransfer.training.optim.optimizers import AdamW
from lmtransfer.transfer.learner import TaskLearner

VOCABULARY = 97
SMALL: dict[str, Any] = {"dim": 32, "num_layers": 2, "num_heads": 2, "hidden_dim": 64, "max_length": 64, "dropout": 0.0}
SMALL.update({"cell_dim": 48, "char_dim": 4, "filters": [[1, 8], [3, 16]]})
CONFIGS = sorted((conf_dir() / "model").glob("*.yaml"))
#: Each head with what is asked of four sequences of 9, 4, 17 and 2 tokens, and the sequence of each row of that.
HEADS: dict[str, tuple[HeadSpec, list[list[float]], list[int]]] = {
    "classification": (ClassificationSpec(3), [[0], [1], [2], [1]], [0, 1, 2, 3]),
    "regression": (RegressionSpec(), [[0.5], [1.0], [-2.0], [3.0]], [0, 1, 2, 3]),
    "tagging": (TaggingSpec(3), [[1, 2, 0], [3, 1, 2], [1, 1, 1], [2, 9, -1], [0, 1, 2]], [0, 0, 1, 2, 3]),
    "span": (
        SpanSpec(1, max_answer_tokens=3),
        [[4, 5, -1, 3, 8], [-1, -1, -1, 1, 3], [-1, -1, 0, 4, 16], [1, 1, -1, 1, 2]],
        [0, 1, 2, 3],
    ),
}
TARGETS = {"classification": LabelTargets, "regression": ScoreTargets, "tagging": TagTargets, "span": SpanTargets}
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "probe": ("frozen", {}),
    "probe_mix": ("frozen", {"layers": "mix", "mix_layer_norm": True}),
    "probe_bilstm": ("frozen", {"layers": 0, "pooling": "bilstm", "lstm_dim": 8}),
    "finetune": ("full", {}),
    "finetune_mix": ("full", {"layers": "mix", "pooling": "mean", "layer_decay": 0.8}),
    "finetune_beside": ("full", {"layers": [0, "last"], "pooling": "mean", "standardise": True, "embedding_rate": 0}),
    "gradual": ("gradual", {}),
}
#: Ways in which few parameters of the encoder learn.
FEW: dict[str, tuple[str, dict[str, Any]]] = {
    "lora": ("lora", {"lora_rank": 4, "lora_matrices": "all"}),
    "bitfit": ("bitfit", {}),
}
#: The other heads need not be tried in all ways.
CASES = [("classification", way) for way in WAYS]
CASES += [(head, "finetune") for head in ("regression", "tagging", "span")]


def small_node(name: str, sizes: Mapping[str, Any] = SMALL) -> Any:
    """The config of a file of conf/model, with these sizes where it has them."""
    node = OmegaConf.create({"model": group_config("model", name, [conf_dir()])}).model
    for key, value in sizes.items():
        if key in node:
            node[key] = value
    return node


def distinct(sizes: Mapping[str, Any] = SMALL) -> list[Path]:
    """The files of conf/model without those that, at these sizes, are the same model as an earlier one."""
    first: dict[str, Path] = {}
    for path in CONFIGS:
        first.setdefault(OmegaConf.to_yaml(small_node(path.stem, sizes), sort_keys=True), path)
    return list(first.values())


#: The different ones among the small models of all files.
DISTINCT = distinct()
#: One small model of each class.
KINDS = list({small_node(path.stem)._target_: path for path in DISTINCT}.values())


def small_encoder(path: Path, **changes: Any) -> Any:
    node = small_node(path.stem, {**SMALL, **changes})
    torch.manual_seed(0)
    return build(to_plain(node)[0], vocab_size=VOCABULARY)


def rows_of(lengths: list[int]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(4, VOCABULARY, n) for n in lengths]


def pack(rows: Sequence[np.ndarray], segments: Sequence[np.ndarray] | None = None) -> PackedBatch:
    """The rows, and the characters of each token for the models that read those."""
    batch = pack_tokens(rows, segments)
    generator = torch.Generator().manual_seed(0)
    characters = torch.randint(1, 262, (VOCABULARY, 50), generator=generator, dtype=torch.int16)
    return replace(batch, chars_TC=characters[batch.tokens_T])


def task_batch(head: str = "classification") -> TaskBatch:
    _, asked, owners = HEADS[head]
    dtype = torch.float32 if head == "regression" else torch.int64
    return TaskBatch(
        packed=pack(rows_of([9, 4, 17, 2])),
        targets=TARGETS[head](*torch.tensor(asked, dtype=dtype).unbind(1)),
        target_owners_R=torch.tensor(owners),
        rows=(0, 1, 2, 3),
        keys=("a", "b", "c", "d"),
    )


def task_learner(path: Path, way: str, head: str = "classification") -> tuple[TaskLearner, AdamW]:
    name, changes = {**WAYS, **FEW}[way]
    node = OmegaConf.merge(OmegaConf.load(conf_dir() / "transfer" / f"{name}.yaml"), changes)
    method = build(to_plain(node)[0])
    learner = method.learner(small_encoder(path), head=HEADS[head][0], seed=0)
    learner.arrange(task_batch(head))
    return learner, AdamW(learner=learner, learning_rate=0.01, lr_scales=method.lr_scales(learner))
