"""What the tests of published folders share: peers with random weights, folders, and both sides' answers to a batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from support.nodes import build
from torch import Tensor, nn

from lmtransfer.data.batch import PackedBatch, pack
from lmtransfer.interop.reading import PublishedCheckpoint, read_published, read_task_head
from lmtransfer.interop.writing import PublishedFiles, RunToPublish, to_published_files
from lmtransfer.models.base import Encoder
from lmtransfer.objectives.learner import PretrainingLearner
from lmtransfer.tasks.heads import ClassificationSpec, MultiLabelSpec, RegressionSpec, SpanSpec, TaggingSpec
from lmtransfer.tasks.source import TaskBatch
from lmtransfer.training.weights import load_weights, weights
from lmtransfer.transfer.learner import TaskLearner
from lmtransfer.transfer.method import TransferMethod

SPECS = {spec.kind: spec for spec in (ClassificationSpec, MultiLabelSpec, RegressionSpec, TaggingSpec, SpanSpec)}
LENGTHS = [9, 24, 2, 24, 1, 13]
VOCABULARY = 89
CLOSE: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-5}


def perturbed(module: nn.Module, seed: int = 0, by: float = 0.1) -> Any:
    """The module in eval mode with every parameter changed, so that nothing is hidden by zeros and ones."""
    torch.manual_seed(seed)
    for parameter in module.parameters():
        parameter.data.add_(by * torch.randn_like(parameter))
    return module.eval()


def batch_of(*, segments: bool, first: int = 4, lengths: list[int] = LENGTHS) -> PackedBatch:
    """Rows of mixed lengths."""
    rng = np.random.default_rng(1)
    tokens = [rng.integers(first, VOCABULARY, n) for n in lengths]
    second = [(np.arange(n) >= n // 2).astype(np.int64) for n in lengths]
    return pack(tokens, second if segments else None)


def padded(batch: PackedBatch, *, pad: int = 0, left: bool = False, segments: bool = True) -> dict[str, Tensor]:
    """The same rows as a peer reads them."""

    def rows(flat: Tensor, fill: int) -> Tensor:
        parts = flat.split(list(batch.lengths))
        filled = [torch.full((max(batch.lengths) - len(part),), fill) for part in parts]
        return torch.stack([torch.cat([f, p] if left else [p, f]) for p, f in zip(parts, filled, strict=True)])

    inputs = {"input_ids": rows(batch.tokens_T, pad), "attention_mask": rows(torch.ones_like(batch.tokens_T), 0)}
    return inputs | ({"token_type_ids": rows(batch.segments_T, 0)} if segments else {})


def run_of(published: PublishedCheckpoint, *, pad: int = 0) -> RunToPublish:
    """What was read, to be written again."""
    kind: Any = "pretraining" if published.losses or published.objectives else "encoder"
    return RunToPublish(
        model=published.model,
        vocab_size=published.vocab_size,
        encoder=published.encoder,
        kind=kind,
        head=published.objectives,
        labels=(),
        head_dropout=0.1,
        pad_id=pad,
        specials={"cls": 1, "sep": 2, "mask": 3, "unk": 0},
        loss_arguments=published.losses,
    )


def encoder_of(published: PublishedCheckpoint) -> Any:
    """Our encoder with the weights read."""
    encoder = build(published.model, vocab_size=published.vocab_size)
    load_weights(encoder, published.encoder)
    return encoder.eval()


def learner_of(published: PublishedCheckpoint) -> PretrainingLearner:
    """Our encoder and the objectives that came along, with the weights read."""
    encoder = build(published.model, vocab_size=published.vocab_size)
    learner = PretrainingLearner(encoder, [build(node) for node in published.losses.values()])
    read = {f"encoder.{name}": tensor for name, tensor in published.encoder.items()}
    load_weights(learner, read | {f"objectives.{name}": tensor for name, tensor in published.objectives.items()})
    return learner.eval()


def mlm_logits(learner: PretrainingLearner, hidden: Tensor) -> Tensor:
    """Logits of the masked language model, (T, V)."""
    head = cast(Any, learner.objectives["mlm"])
    return head.transform(hidden) @ cast(Encoder, learner.encoder).token_embedding.weight.T + head.bias


def write(files: PublishedFiles, folder: Path) -> Path:
    """The folder that an export makes, without a tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(files.config))
    save_file(files.tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for name, more in files.more.items():
        write(more, folder / name)
    return folder


def assert_same_tensors(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Equal in names, types and every byte."""
    assert sorted(found) == sorted(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


def there_and_back(peer: Any, folder: Path, *, pad: int = 0) -> tuple[PublishedCheckpoint, Any]:
    """Save a peer, read it, write it, and load it again: every tensor is the same. What was read, and the loaded."""
    peer.save_pretrained(folder / "theirs")
    published = read_published(folder / "theirs")
    files = to_published_files(run_of(published, pad=pad))
    assert files.architecture == type(peer).__name__
    assert_same_tensors(files.tensors, load_file(folder / "theirs" / "model.safetensors"))
    loaded, told = type(peer).from_pretrained(write(files, folder / "ours"), output_loading_info=True)
    assert not told["missing_keys"], told
    assert not told["unexpected_keys"], told
    return published, loaded.eval()


def assert_same_layers(encoder: Any, peer: Any, batch: PackedBatch, inputs: dict[str, Tensor]) -> Tensor:
    """All hidden states of real tokens; gives our last layer."""
    real = inputs["attention_mask"].bool()
    with torch.no_grad():
        ours, theirs = encoder(batch), peer(**inputs, output_hidden_states=True)
    layers = [*theirs.hidden_states[:-1], theirs.last_hidden_state]
    assert len(layers) == len(ours.layers)
    for local, their in zip(ours.layers, layers, strict=True):
        torch.testing.assert_close(local, their[real], **CLOSE)
    return ours.last


def task_learner(encoder: Any, kind: Any, *, labels: int = 3, seed: int = 0) -> TaskLearner:
    """Our encoder with its family's head, every parameter of both random."""
    learner = TransferMethod(freeze="full").learner(encoder, head=SPECS[kind](labels), seed=0)
    return cast(TaskLearner, perturbed(learner, seed=seed))


def run_with_head(learner: TaskLearner, model: dict[str, Any], kind: Any, *, pad: int = 0, **changes: Any) -> Any:
    """A task's run, to be published."""
    encoder = cast(Encoder, learner.encoder)
    named = kind in ("classification", "multi_label", "tagging")
    labels = tuple("abcdefgh"[: learner.head.output.out_features]) if named else ()
    arguments: dict[str, Any] = {
        "model": model,
        "vocab_size": encoder.vocab_size,
        "encoder": weights(learner.encoder),
        "kind": kind,
        "head": learner.head.state_dict(),
        "labels": labels,
        "head_dropout": 0.25,
        "pad_id": pad,
        "specials": {"cls": 1, "sep": 2, "mask": 3, "unk": 0},
        "loss_arguments": {},
    }
    return RunToPublish(**(arguments | changes))


def task_logits(learner: TaskLearner, batch: PackedBatch) -> Tensor:
    """Our head's logits, a row a sequence or a row a token."""
    rows = batch.num_real
    given = TaskBatch(batch, torch.zeros(rows, 1), torch.arange(rows), tuple(range(rows)), ())
    with torch.no_grad():
        return learner.logits(given)


def assert_task_survives(
    model: dict[str, Any],
    kind: Any,
    auto: Any,
    folder: Path,
    *,
    segments: bool,
    pad: int = 0,
    left: bool = False,
) -> PublishedFiles:
    """Our random encoder and head, published, answer the same in transformers."""
    torch.manual_seed(3)
    learner = task_learner(build(model, vocab_size=VOCABULARY), kind, labels=0 if kind == "span" else 3)
    files = to_published_files(run_with_head(learner, model, kind, pad=pad))
    head = learner.head.state_dict()
    peer, told = auto.from_pretrained(write(files, folder), output_loading_info=True)
    assert type(peer).__name__ == files.architecture
    assert not told["missing_keys"], told
    assert not told["unexpected_keys"], told
    batch = batch_of(segments=segments)
    inputs = padded(batch, pad=pad, left=left, segments=segments)
    ours = task_logits(learner, batch)
    with torch.no_grad():
        theirs = peer.eval()(**inputs)
    logits = torch.stack([theirs.start_logits, theirs.end_logits], dim=-1) if kind == "span" else theirs.logits
    of_tokens = kind in ("tagging", "span")
    real = logits[inputs["attention_mask"].bool()] if of_tokens else logits
    torch.testing.assert_close(ours, real, **CLOSE)
    assert (ours.max(0).values - ours.min(0).values).min() > 0.01  # the inputs make a difference
    for name, tensor in read_task_head(folder, kind=kind).items():
        torch.testing.assert_close(tensor, head[name], **CLOSE)
    return files
