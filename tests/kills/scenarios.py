"""The commands to kill: every command that writes files, and pretraining with every objective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .world import BERT, STEPS, TRAINING, VOCABULARY, WHOLE_WORDS, World

RESUME = ("resume=true",)

_DEEP = ("model.dim=32", "model.num_layers=2", "model.num_heads=2", "model.hidden_dim=64", "model.dropout=0.1")
_ALBERT = ("model=albert_laptop", *_DEEP, "model.embedding_dim=16")
_VECTORS = ("model=word_embeddings_laptop", "model.dim=32")
_PAIRS = ("objective.max_length=64",)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A command to kill."""

    name: str
    words: tuple[str, ...]
    more: tuple[str, ...] = ()
    needs: tuple[str, ...] = ("cache",)
    own_cache: bool = False
    trains: bool = True


@dataclass(frozen=True, slots=True)
class _Pretraining:
    """The settings of pretraining with an objective."""

    words: tuple[str, ...] = BERT
    tokenizer: tuple[str, ...] = VOCABULARY
    texts: str = "texts"


#: By objective; together they cover all optimizers, recurrent states, several micro-batches and a worker.
_OBJECTIVES = {
    "all_tokens_mlm": _Pretraining(
        ("model=electra_laptop", *_DEEP, "model.embedding_dim=16")
        + ("objective.losses.all_tokens_mlm.embedding_sharing=disentangled",)
    ),
    "all_tokens_mlm_laptop": _Pretraining(("model=electra_laptop", *_DEEP, "model.embedding_dim=16")),
    "backward_lm": _Pretraining(("model=backward_lstm", "optimizer=adamw", "-cd", "{conf}")),
    "bilm": _Pretraining(
        (
            *("model=elmo_laptop", "model.dim=32", "model.cell_dim=32", "model.char_dim=4", "model.dropout=0.1"),
            *("model.filters=[[1,8],[2,8],[3,16]]", "optimizer=adamw", "objective.losses.bilm.num_sampled=20"),
        ),
        WHOLE_WORDS,
    ),
    "cbow": _Pretraining((*_VECTORS, "optimizer=adamw"), WHOLE_WORDS),
    "lm": _Pretraining(("model=gpt_mini", *_DEEP, "train.micro_batch_tokens=128")),
    "lm_contiguous": _Pretraining(("model=transformer_xl_laptop", *_DEEP, "model.memory_length=16", "optimizer=adamw")),
    "mlm": _Pretraining(("embeddings=counted", "train.save_at=[0,2k,2100,10k]")),
    "mlm_bow": _Pretraining((*BERT, "train.ema_decay=0.9")),
    "mlm_entities": _Pretraining(tokenizer=(*VOCABULARY, "tokenizer.lowercase=false"), texts="cased"),
    "mlm_laptop": _Pretraining(("model=modern_laptop", *_DEEP[:-1], "optimizer=adamw")),
    "mlm_lm": _Pretraining((*BERT, "objective.predict=next", "objective.causal_share=0.5")),
    "mlm_ngrams": _Pretraining(("model=roberta_laptop", *_DEEP, "objective/rows=full_sentences")),
    "mlm_nsp": _Pretraining((*BERT, *_PAIRS, "optimizer=bert_adam")),
    "mlm_sop": _Pretraining((*_ALBERT, *_PAIRS, "optimizer=lamb")),
    "mlm_spans": _Pretraining((*BERT, "objective.losses.sbo.position_dim=16", "schedule=cosine")),
    "mlm_whole_words": _Pretraining((*BERT, "train.num_workers=1")),
    "nsp": _Pretraining((*BERT, *_PAIRS)),
    "plm": _Pretraining(
        ("model=xlnet_laptop", *_DEEP, "model.memory_length=16", "objective/rows=contiguous", "optimizer=adamw")
    ),
    "rtd": _Pretraining(
        ("model=electra_laptop", *_DEEP, "model.embedding_dim=16", "objective.losses.rtd.generator_size=0.5")
    ),
    "skipgram": _Pretraining((*_VECTORS, "optimizer=adagrad"), WHOLE_WORDS),
    "sop": _Pretraining((*_ALBERT, *_PAIRS)),
}  # fmt: skip


def scenarios(world: World) -> dict[str, Scenario]:
    """All scenarios by name."""
    found = [
        *_of_data(world),
        *(_of_objective(world, name, given) for name, given in _OBJECTIVES.items()),
        *_of_further_pretraining(world),
        *_of_transfer(world),
        *_of_export(world),
    ]
    return {scenario.name: scenario for scenario in found}


def _of_objective(world: World, name: str, given: _Pretraining) -> Scenario:
    settings = [word.format(conf=world.folder / "conf") for word in given.words]
    words = ["pretrain", *TRAINING, STEPS, f"objective={name}", *settings, *world.corpus(given.texts), *given.tokenizer]
    needs = ("cache", "conf") if "-cd" in settings else ("cache",)
    return Scenario(f"pretrain {name}", (*words, "name=x"), RESUME, needs)


def _of_data(world: World) -> Sequence[Scenario]:
    prepare = ("prepare", *world.corpus("many"), *VOCABULARY, "tokenizer.max_characters=200000")
    parts = f"corpus.parts={{one: {world.folder / 'texts'}, two: {world.folder / 'cased'}}}"
    mixture = ("prepare", "corpus=mixture", parts, *VOCABULARY, "num_workers=0")
    return (
        Scenario("prepare", (*prepare, "num_workers=0"), needs=("many",), own_cache=True, trains=False),
        Scenario("prepare, two workers", (*prepare, "num_workers=2"), needs=("many",), own_cache=True, trains=False),
        Scenario("prepare a mixture", mixture, needs=("texts", "cased"), own_cache=True, trains=False),
    )


def _of_further_pretraining(world: World) -> Sequence[Scenario]:
    own = ("pretrain", *TRAINING, *BERT, "objective=mlm", *world.corpus(), *VOCABULARY)
    phases = (*own, STEPS, "phases=words_then_masked", "phases.words.share=0.5")
    onwards = ("pretrain", *TRAINING, STEPS, "objective=mlm", f"init={world.base}", *world.corpus("cased"))
    return (
        Scenario("pretrain, nothing prepared", (*own, STEPS, "name=x"), RESUME, ("texts",), own_cache=True),
        Scenario("pretrain in phases", (*phases, "name=x"), RESUME),
        Scenario("pretrain onwards", (*onwards, "name=x"), RESUME, ("base", "cased"), own_cache=True),
        Scenario("sweep", (*own, "train.steps=30", "name=x", "-m", "seed=1,2")),
    )


def _of_transfer(world: World) -> Sequence[Scenario]:
    base = f"init={world.base}"
    quick = (*world.labels(), "hardware=exact", "train.log_every=3")
    finetune = ("finetune", *quick, "train.epochs=4", "name=x")
    rates = ("learning_rates=[1e-3,3e-3]", "train.save_every=4")
    published = f"init=hf:{world.folder / 'published/bert'}"
    needs = ("base", "labels")
    return (
        Scenario("probe", ("probe", *quick, base, "seeds=2", "control=true", "name=x"), RESUME, needs),
        Scenario("finetune, seeds and control", (*finetune, base, "seeds=2", "control=true", *rates), RESUME, needs),
        Scenario("finetune, the last", (*finetune, base, "checkpoint=last", "train.save_every=9"), RESUME, needs),
        Scenario("finetune, a final model", (*finetune, base, "final=true", "train.save_every=4"), RESUME, needs),
        Scenario("finetune a published one", (*finetune, published), RESUME, ("published", "labels"), own_cache=True),
        Scenario("study", ("study", "-cd", str(world.folder / "conf"), "study=own"), needs=("conf", "cache", "labels")),
    )


def _of_export(world: World) -> Sequence[Scenario]:
    export = ("export", f"run={world.base}", "to=out")
    taken = ("import", f"source={world.folder / 'published/bert'}", "name=x")
    return (
        Scenario("import", taken, needs=("published",), own_cache=True, trains=False),
        Scenario("export", export, needs=("base",), trains=False),
        Scenario("export tensors", (*export, "format=tensors"), needs=("base",), trains=False),
    )
