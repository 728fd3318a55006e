"""Pretrains with the command: families other than BERT, and BERT base, from which finetuning starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from ..bench.text import corpus_overrides
from . import command
from .part import Measure, Numbers, Place
from .sizes import TINY

#: Words for a run on little text without a recipe.
PLAIN = ("~experiment", "optimizer=adamw", "tokenizer.allow_fewer=true")
#: Validation comes once, at the end.
VALIDATION = ("train.eval_every=100000", "train.eval_tokens=1000")
#: A further override for a tiny model.
SMALL_VOCABULARY = "tokenizer.vocab_size=512"

#: Words for each model, and further words for a tiny model.
_MODELS: Mapping[str, tuple[Sequence[str], Sequence[str]]] = {
    "electra_small": (
        (*PLAIN, "model=electra_small", "objective=rtd"),
        (*TINY.words, "model.embedding_dim=32", SMALL_VOCABULARY),
    ),
    "modern_base": ((*PLAIN, "model=modern_base", "objective=mlm"), (*TINY.words, SMALL_VOCABULARY)),
    "elmo": (
        ("experiment=elmo_laptop", "model=elmo", "optimizer=adamw"),
        ("model.dim=32", "model.cell_dim=32", "model.filters=[[1,8],[2,8]]", "model.num_highway=1"),
    ),
    "bert_base": ((*PLAIN, "model=bert_base", "objective=mlm"), (*TINY.words, SMALL_VOCABULARY)),
}


def families(place: Place) -> dict[str, Measure]:
    """Return the measurements: pretraining of encoders other than BERT."""
    return {name: partial(pretrain, place, name) for name in _MODELS if name != "bert_base"}


def pretrain(place: Place, name: str, seconds: float) -> Numbers:
    """Pretrain a model for a few steps; the run has the model's name."""
    words, tiny = _MODELS[name]
    tokens = 1024 if place.tiny else 32768 if place.large else 8192
    sizes = ["train.log_every=5", f"train.steps={10 if place.tiny else 60}", f"train.batch_tokens={tokens}"]
    own = [*words, *(tiny if place.tiny else ()), *corpus_overrides(), *VALIDATION, *sizes]
    return command.run(place, "pretrain", name, own, seconds=seconds)
